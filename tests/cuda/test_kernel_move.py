"""Copies of cells: bit for bit, reads before writes, and nothing else is touched."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
move = pytest.importorskip("omni_cuda.kernels.move")

pytestmark = pytest.mark.usefixtures("kernel_device")

PAGES = 4
BITS = {"float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}


class Case(NamedTuple):
    cells: int
    layers: int
    streams: int
    kv_heads: int
    head_dim: int
    dtype: str


CASES = [
    Case(1, 1, 1, 1, 64, "float16"), Case(31, 2, 1, 3, 80, "float32"),
    Case(33, 1, 3, 4, 128, "bfloat16"), Case(65, 3, 1, 7, 96, "float16"),
    Case(79, 1, 2, 8, 80, "bfloat16"), Case(65, 2, 1, 1, 112, "float32"),
]  # fmt: skip


class Pool(NamedTuple):
    keys: object
    values: object
    order: object
    bias: object


def _pool(case: Case, device: str) -> Pool:
    """Any bits at all, so that a copy of a not-a-number counts too; a spare page at the end."""
    draw = np.random.default_rng(case.cells)
    shape = (case.layers, case.streams, PAGES, case.kv_heads, 64, case.head_dim)
    bits, dtype = BITS[case.dtype], getattr(torch, case.dtype)
    span = torch.iinfo(bits)
    keys, values = (
        torch.from_numpy(draw.integers(span.min, span.max, shape, endpoint=True))
        .to(device, bits)
        .view(dtype)
        for _ in range(2)
    )
    order = torch.from_numpy(draw.integers(0, 2**62, (PAGES + 1, 64))).to(device)
    bias = torch.from_numpy(draw.standard_normal((PAGES + 1, 64)).astype(np.float32)).to(device)
    return Pool(keys, values, order, bias)


def _by_cell(pool: Pool, case: Case) -> list[np.ndarray]:
    """Bits with the cell axis first."""
    bits = BITS[case.dtype]
    wide = [x.view(bits).cpu().numpy().transpose(2, 4, 0, 1, 3, 5) for x in pool[:2]]
    wide = [x.reshape(PAGES * 64, *x.shape[2:]).copy() for x in wide]
    return [*wide, pool.order.cpu().numpy().flatten(), pool.bias.cpu().numpy().flatten()]


@contextmanager
def _no_synchronisation(device: str) -> Iterator[None]:
    """An error where PyTorch waits for the card."""
    if device == "cpu":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The mode says of itself that it is a prototype.
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _moved(pool: Pool, source: list[int], target: list[int], overlap: bool) -> None:
    device = pool.keys.device
    source, target = (torch.tensor(x, dtype=torch.int32, device=device) for x in (source, target))
    with _no_synchronisation(device.type):
        move.move_cells(source, target, *pool, overlap=overlap)


def _check(case: Case, source: list[int], target: list[int], overlap: bool, device: str) -> None:
    pool = _pool(case, device)
    expected = _by_cell(pool, case)
    for x in expected:
        x[target] = x[source]
    _moved(pool, source, target, overlap)
    for found, wanted in zip(_by_cell(pool, case), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cells_are_copied_bit_for_bit(case: Case, overlap: bool, device: str) -> None:
    cells = np.random.default_rng(3).permutation(PAGES * 64).tolist()
    _check(case, cells[: case.cells], cells[-case.cells :], overlap, device)


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_all_reads_happen_before_all_writes(case: Case, device: str) -> None:
    cells = np.random.default_rng(4).permutation(PAGES * 64)[: case.cells].tolist()
    _check(case, cells, cells[1:] + cells[:1], True, device)


def test_a_source_may_be_copied_to_many_and_the_last_cell_is_reached(device: str) -> None:
    _check(CASES[1], [7, 7, 7, 70], [PAGES * 64 - 1, 0, 64, 63], False, device)


@pytest.mark.parametrize("overlap", [False, True])
def test_no_cell_is_no_work(overlap: bool, device: str) -> None:
    _check(CASES[1], [], [], overlap, device)


@pytest.mark.cuda
def test_cells_beyond_two_billion_numbers_are_reached() -> None:
    pages, head_dim = 2**31 // (64 * 128) + 2, 128
    if torch.cuda.mem_get_info()[0] < 5 * pages * 64 * head_dim:
        pytest.skip("the NVIDIA GPU has less than 11 GB free")
    shape = (1, 1, pages, 1, 64, head_dim)
    keys, values = (torch.zeros(shape, dtype=torch.float16, device="cuda") for _ in range(2))
    keys[0, 0, 0, 0, 5], values[0, 0, 0, 0, 5] = 3, 4
    order = torch.arange((pages + 1) * 64, device="cuda").view(-1, 64)
    bias = torch.zeros(pages + 1, 64, device="cuda")
    _moved(Pool(keys, values, order, bias), [5], [pages * 64 - 1], False)
    assert (keys[0, 0, -1, 0, 63] == 3).all()
    assert (values[0, 0, -1, 0, 63] == 4).all()
    assert order[-2, 63] == 5
