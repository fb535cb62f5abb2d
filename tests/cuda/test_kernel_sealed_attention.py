"""Attention over sealed pages against the float64 oracle on the decoded cells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
attention = pytest.importorskip("omni_cuda.kernels.sealed_attention")
merge = pytest.importorskip("omni_cuda.kernels.merge")
cases = pytest.importorskip("tests.cuda.sealed_cases")
attended = pytest.importorskip("tests.attended")

TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2}
MANY = cases.PREFILLS[2]
WAYS = [
    pytest.param(("cpu", True), id="cpu"),
    pytest.param(("cuda", True), id="gpu-plain", marks=pytest.mark.cuda),
    pytest.param(("cuda", False), id="gpu", marks=pytest.mark.cuda),
]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[str, bool]:
    """A device, and whether the decode kernel is the plain one."""
    if request.param[0] == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are interpreted on a CPU only where there is no GPU to run them")
    return request.param


def attend(case: Any, device: str, **how: Any) -> tuple[np.ndarray, np.ndarray]:
    """Output ``[streams, T, q_heads, head_dim]`` and the sums; ``how`` is for decode alone."""
    queries, sealed, rotations = case.tensors(device)
    pages = case.sealed_list(device)
    shape = (pages.programs * pages.shares, *queries.shape[1:4])
    found = torch.full((*shape, queries.shape[4]), float("nan"), device=device)
    found_sums = torch.full(shape, float("nan"), device=device)
    more = case.more(device)
    given = queries, sealed, pages, case.layout, rotations, case.scale, found, found_sums
    if how and more["levels"] is None:
        attention.decode_sealed(*given, key_means=more["key_means"], **how)
    else:
        attention.prefill_sealed(*given, **more)
    out = torch.full_like(queries[0], float("nan"))
    sums = torch.full(shape[1:], float("nan"), device=device)
    dealt = pages.segments if pages.programs > 1 else None
    merge.merge_shares(found, found_sums, dealt, out, sums)
    return out.float().cpu().numpy(), sums.cpu().numpy()


def check(case: Any, found: tuple[np.ndarray, np.ndarray]) -> None:
    out, sums = found
    assert attended.spread(out, case.attended()) < TOLERANCE[case.size.dtype]
    np.testing.assert_allclose(sums, case.sums(), atol=5e-3, rtol=1e-3)


@pytest.mark.parametrize("size", cases.SIZES, ids=str)
def test_equals_the_oracle(size: Any, way: tuple[str, bool]) -> None:
    case = cases.make_case(size)
    check(case, attend(case, way[0], plain=way[1]))


@pytest.mark.parametrize("dealt", [False, True], ids=["cut", "dealt"])
@pytest.mark.parametrize("size", cases.PREFILLS, ids=str)
def test_many_queries_equal_the_oracle(size: Any, dealt: bool, kernel_device: str) -> None:
    if dealt and size.programs < size.tables * size.modalities:
        size = size._replace(programs=size.tables * size.modalities)
    case = cases.make_case(size, dealt)
    check(case, attend(case, kernel_device))


def test_one_query_is_read_by_the_general_kernel_too(kernel_device: str) -> None:
    case = cases.make_case(cases.SIZES[1])
    check(case, attend(case, kernel_device))


@pytest.mark.parametrize("size", [cases.SIZES[1], MANY], ids=str)
def test_where_nothing_is_alive_nothing_is_found(size: Any, kernel_device: str) -> None:
    case = cases.make_case(size)
    rows, *others = case.listing
    case = replace(case, listing=(rows * [1, 0], *others))
    out, sums = attend(case, kernel_device)
    assert not out.any() and np.isneginf(sums).all()


@pytest.mark.parametrize("size", [cases.SIZES[1], MANY], ids=str)
def test_what_shares_find_is_merged_with_cells_of_16_bits(size: Any, kernel_device: str) -> None:
    case = cases.make_case(size)
    device = kernel_device
    queries, sealed, rotations = case.tensors(device)
    pages = case.sealed_list(device)
    shares = pages.programs * pages.shares
    # Of 16 bits: one more share that finds 1 for everything, with a sum like the oracle's.
    found = torch.ones((shares + 1, *queries.shape[1:]), device=device)
    sums = torch.full(found.shape[:-1], float("nan"), device=device)
    sums[-1] = torch.from_numpy(case.sums())
    given = sealed, pages, case.layout, rotations, case.scale, found[:-1], sums[:-1]
    attention.attend_sealed(queries, *given, **case.more(device))
    out = torch.full_like(queries[0], float("nan"))
    merge.merge_shares(found, sums, None, out)
    wanted = (case.attended() + 1) / 2
    assert attended.spread(out.float().cpu().numpy(), wanted) < TOLERANCE["float16"]


@pytest.mark.cuda
@pytest.mark.parametrize("warps", [1, 2, 8])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("plain", [True, False])
def test_large_cases_equal_the_oracle(plain: bool, bits: int, dtype: str, warps: int) -> None:
    size = cases.Size(3000, 1, 4, 7, 128, bits, 2, 2, 3, 16, True, dtype, means=True)
    case = cases.make_case(size)
    check(case, attend(case, "cuda", plain=plain, warps=warps))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_large_prefills_equal_the_oracle(bits: int, dtype: str) -> None:
    size = cases.Size(3000, 500, 2, 7, 128, bits, 2, 2, 3, 3, True, dtype, means=True)
    case = cases.make_case(size)
    check(case, attend(case, "cuda"))
