"""Attention over pages, by the text that ships, against the float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metal_kernels import attention
from metal_kernels.cutting import Gpu, programs, tiling
from metal_kernels.launch import Array, Kernel, Launch
from metal_kernels.loader import Text, load
from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.listing import list_subblocks
from omni_core.paging.mirror import ListedPages
from tests.attended import SIZES, Float64, Size, spread
from tests.metal.cases import Case, Run, TallCase, attend, make_case
from tests.metal.runner import run

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}

FEW, MANY = 2, 17
"""Queries that all simdgroups share, and of which each takes its own."""


def check(case: Case, found: tuple[Float64, Float64]) -> None:
    out, sums = found
    assert spread(out, case.attended()) < TOLERANCE[case.size.dtype]
    np.testing.assert_allclose(sums, case.sums(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_oracle(size: Size, run_kernel: Run) -> None:
    case = make_case(size)
    check(case, attend(case, run=run_kernel))


@pytest.mark.parametrize("size", [each for each in SIZES if each.count > 8][::3], ids=str)
def test_sixteen_lines_a_simdgroup_equal_the_oracle(size: Size, run_kernel: Run) -> None:
    case = make_case(size, kind=TallCase)
    assert attention.attend(case.attention()).template[-2:] == (2, 4)
    check(case, attend(case, run=run_kernel))


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("count", [4, MANY])
def test_a_query_that_sees_nothing_gives_zero(count: int, programs: int, run_kernel: Run) -> None:
    blind = count - 1
    case = make_case(Size(63, count, 2, 3, 80, 2, 1, programs), blind=blind)
    out, sums = attend(case, run=run_kernel)
    np.testing.assert_array_equal(out[:, :blind], 0)
    np.testing.assert_array_equal(sums[:, :blind], -np.inf)
    check(case, (out, sums))


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_query_finds_its_end_among_many_rows(count: int) -> None:
    case = make_case(Size(300, count, 1, 4, 64), blind=1, most=2)
    first, middle, end, _ = case.listing.segments[0].tolist()
    assert first == middle
    assert end - first > 64
    check(case, attend(case))


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_no_live_cell_gives_zero(count: int, programs: int) -> None:
    case = make_case(Size(31, count, 2, 3, 80))
    none = np.zeros(0, np.int32)
    blank = ListedPages(
        none,
        np.zeros((0, 2), np.uint32),
        none,
        np.zeros(0, np.bool_),
        np.zeros((0, 64), np.int64),
    )
    listing = list_subblocks(blank, programs, 2)
    size = case.size._replace(programs=programs)
    out, sums = attend(replace(case, size=size, listing=listing))
    np.testing.assert_array_equal(out, 0)
    np.testing.assert_array_equal(sums, -np.inf)


@pytest.mark.parametrize("programs", [1, 5])
@pytest.mark.parametrize("count", [1, MANY])
def test_a_table_that_no_row_names_is_not_read(count: int, programs: int) -> None:
    case = make_case(Size(65, count, 1, 3, 64, 2, 2, programs)).with_table_to_spare()
    check(case, attend(case))


@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_programs_without_a_row_to_spare(count: int) -> None:
    case = make_case(Size(65, count, 2, 3, 64, programs=2), spare=0)
    check(case, attend(case))


@pytest.mark.parametrize(("many", "head_dim"), [(17, 80), (41, 64), (133, 8)])
def test_programs_that_one_simdgroup_does_not_merge(
    many: int, head_dim: int, run_kernel: Run
) -> None:
    case = make_case(Size(64 * many, 1, 1, 3, head_dim, programs=many))
    assert np.count_nonzero(np.diff(case.listing.segments[:, [0, 2]])) > many // 2
    check(case, attend(case, run=run_kernel))


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("count", [1, MANY])
def test_what_is_no_number_does_not_vanish(count: int, programs: int) -> None:
    case = make_case(Size(65, count, 1, 3, 64, programs=programs, bias=False))
    cell = int(case.live[0][0])
    case.keys[:, cell // PAGE, :, cell % PAGE] = np.nan
    case.order[cell // PAGE, cell % PAGE] = 0
    out, sums = attend(case)
    np.testing.assert_array_equal(out, np.nan)
    np.testing.assert_array_equal(sums, np.nan)


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize("head_dim", [8, 16, 32])
def test_heads_of_small_models(head_dim: int, count: int) -> None:
    case = make_case(Size(65, count, 2, 2, head_dim, dtype="float16"))
    check(case, attend(case))


def test_an_arena_may_hold_more_numbers_than_31_bits_count() -> None:
    pages, kv_heads, head_dim = 1 << 20, 8, 128
    kernel = Kernel("offsets", ("numbers",), ("out",), (), frozenset({"numbers"}))
    body = (
        "const Program of = program_of(numbers, uint3{0, 3 * 8 + 7, 0}, uint3{1, 4 * 8, 1});\n"
        f"out[0] = head_offset(of, {head_dim});\n"
        f"out[1] = subblock_offset({2 * pages - 1}u, of.sizes, {head_dim});\n"
    )
    threads = (32, 1, 1)
    launch = Launch(kernel, (), threads, threads, (Array((6,), "int32"),), (Array((2,), "int64"),))
    sizes = np.asarray([1, kv_heads, 1, 1, pages, 0], np.int32)
    found = run(launch, {"numbers": sizes}, Text(load("decode").header, body))["out"]
    page = kv_heads * PAGE * head_dim
    assert found[0] == 3 * pages * page + 7 * PAGE * head_dim
    assert found[1] == (pages - 1) * page + SUBBLOCK * head_dim
    assert found.min() > 1 << 31


@pytest.mark.parametrize("count", [1, 4, 5, 8, 9, 79, 2300])
@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("tall", [False, True])
def test_tiles_take_each_line_once(count: int, group: int, tall: bool) -> None:
    cut = tiling(count, group, tall)
    tiles = -(-count * group // cut.lines)
    assert tiles * cut.lines >= count * group > (tiles - 1) * cut.lines
    assert cut.lines <= 8 * (1 if cut.few else cut.simdgroups * (1 + tall))


@pytest.mark.parametrize("head_dim", [0, 4, 60, 136, 256])
def test_a_head_that_lanes_cannot_hold_is_refused(head_dim: int) -> None:
    of = make_case(Size(31, 1, 1, 1, 64)).attention()
    with pytest.raises(ValueError, match=f"head_dim {head_dim}"):
        replace(of, head_dim=head_dim)


@pytest.mark.parametrize("name", ["count", "streams", "kv_heads", "group", "pages", "programs"])
def test_attention_with_nothing_to_do_is_refused(name: str) -> None:
    of = make_case(Size(31, 1, 1, 1, 64)).attention()
    with pytest.raises(ValueError, match=f"{name} 0; at least 1 is expected"):
        replace(of, **{name: 0})


def test_programs_fill_the_gpu() -> None:
    few = programs(1, 7, 4, Gpu(10))
    assert few > 1
    assert few <= programs(1, 7, 4, Gpu(40)) <= 97
    assert 1 < programs(1, 7, 4, Gpu(40, groups=2)) < programs(1, 7, 4, Gpu(40))
    assert programs(2300, 7, 4, Gpu(10)) == programs(2300, 7, 4, Gpu(10, tall=True)) == 1
    assert programs(1, 7, 4, Gpu(10), tables=3) == few + 4


@pytest.mark.parametrize("gpu", [Gpu(10), Gpu(132, 2, tall=True)], ids=str)
def test_threadgroups_run_at_once_or_in_full_turns(gpu: Gpu) -> None:
    room = gpu.groups * gpu.cores
    for count in range(1, 2000, 7):
        tiles = 4 * -(-count * 7 // tiling(count, 7, gpu.tall).lines)
        many = programs(count, 7, 4, gpu)
        assert many * tiles <= room or many <= 2
        # In turns of all rows.
        assert -(-many * tiles // room) / many <= -(-tiles // room)
    assert programs(700, 7, 4, Gpu(132, 2, tall=True)) == 2
