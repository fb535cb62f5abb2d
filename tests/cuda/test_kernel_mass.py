"""Attention mass a cell against the float64 oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
attention = pytest.importorskip("omni_cuda.kernels.attention")
mass = pytest.importorskip("omni_cuda.kernels.mass")
kernel_cases = pytest.importorskip("tests.cuda.kernel_cases")

Size, make_case = kernel_cases.Size, kernel_cases.make_case


def added(case: Any, device: str, left_out: int = 0) -> np.ndarray:
    """What each cell of the pool has got on top of what it had.

    The sums of so many of the last queries are taken from them.
    """
    queries, keys, values = case.tensors(device)
    pages = case.page_list(device)
    sums = torch.full(queries.shape[1:4], float("nan"), device=device)
    attention.attend_pages(queries, keys, values, pages, case.scale, sums=sums)
    sums[:, sums.shape[1] - left_out :] = float("-inf")
    before = torch.arange(case.order.size, dtype=torch.float32, device=device) % 7 / 1024
    after = before.clone()
    mass.add_mass(queries, keys, pages, case.scale, sums, after)
    return (after.double() - before).cpu().numpy()


def check(case: Any, found: np.ndarray, left_out: int = 0) -> None:
    expected = case.mass(left_out)
    live = np.zeros(expected.size, np.bool_)
    live[np.concatenate(case.live)] = True
    assert (found[~live] == 0).all()
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 1e-5
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("size", "dealt"), kernel_cases.CUTS, ids=str)
def test_equals_the_oracle(size: Any, dealt: bool, kernel_device: str) -> None:
    case = make_case(size, dealt)
    check(case, added(case, kernel_device))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", kernel_cases.LARGE, ids=str)
@pytest.mark.parametrize("programs", [1, 7])
def test_large_cases_equal_the_oracle(dtype: str, shape: Any, programs: int) -> None:
    case = make_case(shape._replace(programs=programs, dtype=dtype))
    check(case, added(case, "cuda"))


@pytest.mark.parametrize("programs", [1, 3])
def test_a_query_that_sees_nothing_gives_nothing(programs: int, kernel_device: str) -> None:
    case = make_case(Size(63, 17, 2, 3, 80, 2, 3, programs), blind=12)
    found = added(case, kernel_device)
    check(case, found)
    # Each of the other queries gives 1 a head and stream.
    assert found.sum() == pytest.approx(5 * 6 * 2, rel=1e-5)


@pytest.mark.parametrize("queries", [1, 5])
def test_a_query_without_its_sum_gives_nothing(queries: int, kernel_device: str) -> None:
    case = make_case(Size(65, queries, 2, 3, 80, 2, 2, 3))
    left_out = 1 if queries == 1 else 2
    found = added(case, kernel_device, left_out)
    if left_out == queries:
        assert (found == 0).all()
    else:
        check(case, found, left_out)


@pytest.mark.parametrize("programs", [1, 5])
def test_a_table_that_no_row_names_is_not_read(programs: int, kernel_device: str) -> None:
    case = make_case(Size(65, 5, 1, 3, 64, 2, 2, programs)).with_table_to_spare()
    check(case, added(case, kernel_device))
