"""Fused rotation and arena writes against float64; nothing else is touched."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.reference.rotary import rotary_tables, rotate
from tests.attended import StoreSize as Case

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
store = pytest.importorskip("omni_cuda.kernels.store")

pytestmark = pytest.mark.usefixtures("kernel_device")

LAYERS, PAGES = 3, 5


CASES = [
    Case(1, 1, 1, 1, 64, 1, "float32"), Case(1, 1, 8, 7, 128, 2, "float16"),
    Case(1, 3, 4, 8, 80, 1, "bfloat16"), Case(31, 2, 3, 4, 96, 3, "float32"),
    Case(33, 1, 4, 7, 80, 2, "float16"), Case(33, 2, 1, 3, 128, 1, "bfloat16"),
    Case(65, 1, 3, 1, 112, 1, "float16"), Case(79, 1, 7, 3, 64, 2, "bfloat16"),
    Case(79, 1, 8, 1, 96, 1, "float32"), Case(65, 2, 1, 8, 80, 1, "float32"),
]  # fmt: skip

# A not-a-number of its own bit pattern: what was not written still has it.
NAN_BITS = {
    "float32": (torch.int32, 0x7FC12345), "float16": (torch.int16, 0x7E55),
    "bfloat16": (torch.int16, 0x7FD5),
}  # fmt: skip


def _nan(shape: tuple[int, ...], dtype: str, device: str):
    bits, pattern = NAN_BITS[dtype]
    return torch.full(shape, pattern, dtype=bits, device=device).view(getattr(torch, dtype))


def _untouched(x, dtype: str):
    bits, pattern = NAN_BITS[dtype]
    return x.view(bits) == pattern


def _tables(case: Case):
    draw = np.random.default_rng(case.tokens)
    positions = draw.integers(0, 30_000, (3, case.tokens)).astype(np.int32)
    half = case.head_dim // 2
    sections = (half - 2 * (half // 3), half // 3, half // 3)
    shifts = [0, 8192, 0, -500][: case.tables + 1]
    made = [rotary_tables(positions + np.int32(s), case.head_dim, 1e4, sections) for s in shifts]
    cos, sin = zip(*made, strict=True)
    return np.stack(cos), np.stack(sin)


def _run(case: Case, cells: list[int], device: str):
    """What the kernel left: the arena, the guarded queries; and the heads and tables it was given.

    Queries lie between two stretches of NaN, and the layer between two others.
    """
    q_heads, dtype = case.kv_heads * case.group, case.dtype
    width = (q_heads + 2 * case.kv_heads) * case.head_dim
    fresh = np.random.default_rng(5).standard_normal((case.streams, case.tokens, width))
    qkv = torch.from_numpy(fresh).to(device, getattr(torch, dtype))
    cos, sin = _tables(case)
    pages = (LAYERS, case.streams, PAGES, case.kv_heads, 64, case.head_dim)
    keys, values = _nan(pages, dtype, device), _nan(pages, dtype, device)
    shape = (case.tables + 2, case.streams, case.tokens, q_heads, case.head_dim)
    queries = _nan(shape, dtype, device)
    store.rotate_and_store(
        qkv,
        torch.from_numpy(cos).to(device),
        torch.from_numpy(sin).to(device),
        torch.tensor(cells, dtype=torch.int32, device=device),
        keys[1],
        values[1],
        queries[1:-1],
    )
    heads = qkv.double().cpu().numpy().reshape(case.streams, case.tokens, -1, case.head_dim)
    return keys, values, queries, heads, cos, sin


def _cells(case: Case) -> list[int]:
    """Cells in no order, the first and the last among them; some tokens have none."""
    draw = np.random.default_rng(case.tokens + 1)
    cells = draw.permutation(np.arange(1, PAGES * 64 - 1))[: case.tokens]
    cells[0], cells[-1] = 0, PAGES * 64 - 1
    cells[2::7] = -1
    return cells.tolist()


def _rounded_once(found, expected: np.ndarray, dtype: str) -> None:
    """Within half a unit in the last place, and what float32 adds."""
    reach = torch.finfo(getattr(torch, dtype)).eps / 2
    if dtype == "bfloat16" and found.device.type == "cpu":
        reach *= 2  # Triton's interpreter cuts off where a card rounds.
    gap = np.abs(found.double().cpu().numpy() - expected)
    assert (gap <= np.abs(expected) * reach + 2e-6).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_oracle_and_touches_nothing_else(case: Case, device: str) -> None:
    cells = _cells(case)
    keys, values, queries, heads, cos, sin = _run(case, cells, device)
    q_heads = case.kv_heads * case.group
    kept = [token for token, cell in enumerate(cells) if cell >= 0]
    places = [cells[token] for token in kept]
    pages, slots = np.array(places) // 64, np.array(places) % 64
    for stream in range(case.streams):
        q, k, v = np.split(heads[stream], [q_heads, q_heads + case.kv_heads], axis=1)
        found = keys[1, stream][pages, :, slots]
        _rounded_once(found, rotate(k, cos[0], sin[0])[kept], case.dtype)
        found = values[1, stream][pages, :, slots]
        np.testing.assert_array_equal(found.double().cpu().numpy(), v[kept])
        for table in range(case.tables):
            expected = rotate(q, cos[table + 1], sin[table + 1])
            _rounded_once(queries[1 + table, stream], expected, case.dtype)
    for arena in (keys, values):
        arena[1][:, pages, :, slots] = _nan((), case.dtype, device)
        assert _untouched(arena, case.dtype).all()
    assert _untouched(queries[[0, -1]], case.dtype).all()


def test_padded_tokens_store_nothing_and_still_have_queries(device: str) -> None:
    case = Case(3, 2, 3, 4, 64, 2, "float32")
    keys, values, queries, *_ = _run(case, [-1, -1, -1], device)
    assert _untouched(keys, case.dtype).all()
    assert _untouched(values, case.dtype).all()
    assert queries[1:-1].isfinite().all()


@pytest.mark.cuda
def test_cells_beyond_two_billion_numbers_are_reached() -> None:
    pages, head_dim = 2**31 // (64 * 128) + 2, 128
    if torch.cuda.mem_get_info()[0] < 5 * pages * 64 * head_dim:
        pytest.skip("the NVIDIA GPU has less than 11 GB free")
    qkv = torch.randn(1, 1, 3 * head_dim, dtype=torch.float16, device="cuda")
    keys, values = (
        torch.zeros(1, pages, 1, 64, head_dim, dtype=torch.float16, device="cuda") for _ in range(2)
    )
    cos, sin = (torch.full((2, 1, head_dim // 2), x, device="cuda") for x in (1.0, 0.0))
    cells = torch.tensor([pages * 64 - 1], dtype=torch.int32, device="cuda")
    queries = torch.empty(1, 1, 1, 1, head_dim, dtype=torch.float16, device="cuda")
    store.rotate_and_store(qkv, cos, sin, cells, keys, values, queries)
    q, k, v = qkv[0, 0].split(head_dim)
    assert torch.equal(queries.flatten(), q)
    assert torch.equal(keys[0, -1, 0, 63], k)
    assert torch.equal(values[0, -1, 0, 63], v)
