"""Attention in place against the float64 oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.paging.listing import list_subblocks
from omni_core.paging.mirror import ListedPages

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
attention = pytest.importorskip("omni_cuda.kernels.attention")
kernel_cases = pytest.importorskip("tests.cuda.kernel_cases")

Size, make_case = kernel_cases.Size, kernel_cases.make_case
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture(autouse=True)
def nothing_is_zero_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody has written holds NaN."""
    for name in ("empty", "empty_like"):
        plain = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *a, plain=plain, **k: plain(*a, **k).fill_(float("nan"))
        )


def attend(
    case: Any, device: str, spare: np.ndarray | None = None, stream_stride: int | None = None
) -> tuple[np.ndarray, ...]:
    """Output ``[streams, T, q_heads, head_dim]`` and the sums."""
    sums = torch.full(case.queries.shape[1:4], float("nan"), device=device)
    queries, keys, values = case.tensors(device)
    if stream_stride:
        stride = (stream_stride, *keys.stride()[1:])
        keys, values = (x.as_strided(x.shape, stride) for x in (keys, values))
    pages = case.page_list(device, spare)
    out = attention.attend_pages(queries, keys, values, pages, case.scale, sums=sums)
    assert out.dtype is case.dtype
    return out.float().cpu().numpy(), sums.cpu().numpy()


def check(case: Any, found: tuple[np.ndarray, ...], tolerance: float) -> None:
    out, sums = found
    assert kernel_cases.spread(out, case.attended()) < tolerance
    np.testing.assert_allclose(sums, case.sums(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("size", "dealt"), kernel_cases.CUTS, ids=str)
def test_equals_the_oracle(size: Any, dealt: bool, kernel_device: str) -> None:
    case = make_case(size, dealt)
    check(case, attend(case, kernel_device), TOLERANCE[size.dtype])


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", kernel_cases.LARGE, ids=str)
@pytest.mark.parametrize(("programs", "dealt"), [(1, False), (7, False), (7, True)])
def test_large_cases_equal_the_oracle(dtype: str, shape: Any, programs: int, dealt: bool) -> None:
    case = make_case(shape._replace(programs=programs, dtype=dtype), dealt)
    check(case, attend(case, "cuda"), TOLERANCE[dtype])


@pytest.mark.parametrize("programs", [1, 3])
def test_a_query_that_sees_nothing_gives_zero(programs: int, kernel_device: str) -> None:
    case = make_case(Size(63, 17, 2, 3, 80, 2, 3, programs), blind=12)
    out, sums = attend(case, kernel_device)
    assert (out[:, :12] == 0).all()
    assert (sums[:, :12] == -np.inf).all()
    check(case, (out, sums), 1e-5)


def test_a_query_finds_its_end_among_many_rows(kernel_device: str) -> None:
    case = make_case(Size(300, 20, 1, 4, 64), blind=1, most=2)
    first, middle, end, _ = case.listing.segments[0].tolist()
    assert first == middle and end - first > 64
    check(case, attend(case, kernel_device), 1e-5)


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("queries", [1, 5])
def test_no_live_cell_gives_zero(queries: int, programs: int, kernel_device: str) -> None:
    case = make_case(Size(31, queries, 2, 3, 80))
    none = np.zeros(0, np.int32)
    pages = ListedPages(
        none,
        np.zeros((0, 2), np.uint32),
        none,
        np.zeros(0, np.bool_),
        np.zeros((0, 64), np.int64),
    )
    case = replace(case, size=case.size._replace(programs=programs))
    listing = list_subblocks(pages, case.dealt, 2)
    out, sums = attend(replace(case, listing=listing), kernel_device)
    assert (out == 0).all()
    assert (sums == -np.inf).all()


@pytest.mark.parametrize("spare", [[-1, -1], [2**63 - 1, -1], [-(2**63), 2**31]], ids=str)
@pytest.mark.parametrize("queries", [1, 5])
def test_what_follows_the_rows_may_be_anything(
    queries: int, spare: list[int], kernel_device: str
) -> None:
    for programs in (1, 2):
        case = make_case(Size(65, queries, 2, 3, 64, programs=programs), spare=0)
        check(case, attend(case, kernel_device, np.asarray(spare, np.int64)), 1e-5)


@pytest.mark.parametrize("programs", [1, 3])
def test_sums_are_left_out_unless_asked_for(programs: int, kernel_device: str) -> None:
    case = make_case(Size(65, 5, 2, 3, 64, programs=programs))
    arena = case.tensors(kernel_device)
    out = attention.attend_pages(*arena, case.page_list(kernel_device), case.scale)
    assert (out.cpu().numpy() == attend(case, kernel_device)[0]).all()


@pytest.mark.parametrize("programs", [1, 5])
@pytest.mark.parametrize("queries", [1, 5])
def test_a_table_that_no_row_names_is_not_read(
    queries: int, programs: int, kernel_device: str
) -> None:
    case = make_case(Size(65, queries, 1, 3, 64, 2, 2, programs)).with_table_to_spare()
    check(case, attend(case, kernel_device), 1e-5)


@pytest.mark.parametrize("queries", [1, 5])
def test_an_arena_too_large_for_narrow_offsets(queries: int, kernel_device: str) -> None:
    case = make_case(Size(65, queries, 2, 3, 80))
    # One stream's stride is never stepped over: it says the size alone.
    check(case, attend(case, kernel_device, stream_stride=1 << 31), 1e-5)
