"""What each cell got of the attention, by the text that ships, against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest

from metal_kernels.loader import Text, load
from metal_kernels.mass import live_places, mass
from tests.attended import SIZES, Float64, Size
from tests.metal.cases import Case, Run, attend, make_case
from tests.metal.runner import KernelFault, run

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def added(
    case: Case, left_out: int = 0, text: Text | None = None, run_kernel: Run | None = None
) -> Float64:
    """What each cell of the pool got, ``float64[pages * PAGE]``, NaN where nothing is listed.

    The sums of so many of the last queries are taken from them.
    """
    of = case.attention()
    _, sums = attend(case, run=run_kernel)
    sums[:, sums.shape[1] - left_out :] = -np.inf
    inputs = case.inputs()
    del inputs["values"]
    flat = sums.astype(np.float32).reshape(-1)
    inputs["sums"] = np.pad(flat, (0, max(0, 8 - flat.size)), constant_values=np.nan)
    inputs["listed_rows"] = np.asarray([of.rows], np.int32)
    made = run_kernel(mass(of), inputs) if run_kernel else run(mass(of), inputs, text)
    given = made["given"].reshape(of.streams * of.kv_heads, -1)
    places = live_places(case.listing)
    # Only the runner fills what is not written.
    if run_kernel in (None, run):
        np.testing.assert_array_equal(np.delete(given, places.place, axis=1), np.nan)
    found = np.full(case.order.size, np.nan)
    found[places.cell] = given[:, places.place].astype(np.float64).sum(axis=0)
    return found


def check(case: Case, found: Float64, left_out: int = 0) -> None:
    live = np.zeros(found.size, np.bool_)
    live[np.concatenate(case.live)] = True
    np.testing.assert_array_equal(found[~live], np.nan)
    np.testing.assert_allclose(found[live], case.mass(left_out)[live], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_oracle(size: Size, run_kernel: Run) -> None:
    case = make_case(size)
    check(case, added(case, run_kernel=run_kernel))


@pytest.mark.parametrize("programs", [1, 3])
def test_a_query_that_sees_nothing_gives_nothing(programs: int) -> None:
    case = make_case(Size(63, 17, 2, 3, 80, 2, 1, programs), blind=12)
    found = added(case)
    check(case, found)
    # Each of the other queries gives 1 a head and stream.
    assert np.nansum(found) == pytest.approx(5 * 6 * 2, rel=1e-5)


@pytest.mark.parametrize("count", [1, 5])
def test_a_query_without_its_sum_gives_nothing(count: int) -> None:
    case = make_case(Size(65, count, 2, 3, 80, 2, 2, 5))
    left_out = 1 if count == 1 else 2
    check(case, added(case, left_out), left_out)


FAULTS = {
    "cells are read before all are there": (
        f"{BARRIER}\n                float taken",
        "float taken",
    ),
    "simdgroups are added before all are there": (
        f"{BARRIER}\n                if (thread_index <",
        "if (thread_index <",
    ),
    "newer cells are given to": ("if (!in_part) return sight;", "return sight;"),
    "lines beyond the last give": ("own <= last && sum > UNSEEN", "sum > UNSEEN"),
    "a row is left out": ("row += int(groups.x)", "row += int(groups.x) + 1"),
    "a bias is left out": ("more = bias[known] * LOG2_E", "more = 0.0f"),
    "what dead cells hold is given": (" && ((piece.alive >> thread_index) & 1u)", ""),
    "another head is written to": ("Offset(group.y) * listed_rows", "Offset(0) * listed_rows"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    text = load("mass")
    old, new = FAULTS[fault]
    assert text.header.count(old) == 1
    case = make_case(Size(300, 17, 2, 3, 64, 2, 2))
    check(case, added(case))
    with pytest.raises((KernelFault, AssertionError)):
        check(case, added(case, text=Text(text.header.replace(old, new), text.body)))
