"""Copies of cells: bit for bit, and nothing else is touched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from metal_kernels import pages
from metal_kernels.launch import Launch
from metal_kernels.loader import Text, load
from tests.metal.conftest import Run
from tests.metal.numbers import Sparse, bits, holder
from tests.metal.runner import KernelFault, run

PAGES = 4


class Case(NamedTuple):
    cells: int
    streams: int
    kv_heads: int
    head_dim: int
    dtype: str


CASES = [
    Case(1, 1, 1, 64, "float16"), Case(31, 1, 3, 80, "float32"), Case(33, 3, 4, 128, "bfloat16"),
    Case(65, 1, 7, 96, "float16"), Case(79, 2, 8, 80, "bfloat16"), Case(65, 1, 1, 112, "float32"),
]  # fmt: skip


def _pool(case: Case) -> dict[str, np.ndarray]:
    """Any bits at all, so that a copy of a not-a-number counts too."""
    draw = np.random.default_rng(case.cells)
    shape = (case.streams, PAGES, case.kv_heads, 64, case.head_dim)
    dtype = holder(case.dtype)
    return {
        name: np.frombuffer(draw.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
        for name in ("keys", "values")
    }


def _launch(case: Case, held: bool = False) -> Launch:
    sizes = case.cells, case.streams, case.kv_heads, case.head_dim
    return pages.move(*sizes, pages=PAGES, dtype=case.dtype, held=held)


def _padded(cells: np.ndarray) -> np.ndarray:
    """Cells that no memory has, beyond those that are moved."""
    return np.pad(cells, (0, max(0, 8 - cells.size)), constant_values=-(2**31)).astype(np.int32)


def _by_cell(arena: np.ndarray) -> np.ndarray:
    """Bits with the cell axis first."""
    moved = bits(arena).transpose(1, 3, 0, 2, 4)
    return moved.reshape(PAGES * 64, *moved.shape[2:]).copy()


def _inputs(
    case: Case, source: np.ndarray, target: np.ndarray, held: bool
) -> dict[str, np.ndarray]:
    pool = _pool(case)
    origin = pool
    if held:
        page, slot = np.divmod(source, 64)
        origin = {name: x[:, page, :, slot].transpose(1, 2, 0, 3) for name, x in pool.items()}
        source = np.arange(source.size)
    sizes = pages.move_numbers(case.cells, case.kv_heads, pages=PAGES, held=held)
    return {
        "source": _padded(source),
        "target": _padded(target),
        "from_keys": origin["keys"],
        "from_values": origin["values"],
        "numbers": np.array(sizes, np.int32),
        **pool,
    }


def _check(
    run_kernel: Run, case: Case, source: np.ndarray, target: np.ndarray, held: bool = False
) -> None:
    made = run_kernel(_launch(case, held), _inputs(case, source, target, held))
    for name, before in _pool(case).items():
        expected = _by_cell(before)
        expected[target] = expected[source]
        np.testing.assert_array_equal(_by_cell(made[name]), expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cells_are_copied_bit_for_bit(case: Case, run_kernel: Run) -> None:
    cells = np.random.default_rng(3).permutation(PAGES * 64)
    _check(run_kernel, case, cells[: case.cells], cells[-case.cells :])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_that_were_read_before_go_where_others_came_from(case: Case, run_kernel: Run) -> None:
    cells = np.random.default_rng(4).permutation(PAGES * 64)[: case.cells]
    _check(run_kernel, case, cells, np.roll(cells, -1), held=True)


def test_a_source_may_be_copied_to_many_and_the_last_cell_is_reached(run_kernel: Run) -> None:
    source, target = np.array([7, 7, 7, 70]), np.array([PAGES * 64 - 1, 0, 64, 63])
    _check(run_kernel, CASES[1]._replace(cells=4), source, target)


def _far(there: np.ndarray, text: Text) -> dict[str, np.ndarray]:
    """A cell near the start of a large arena and its last cell, ``there``, trade places."""
    many, dim = 2**31 // (64 * 128) + 2, 128
    last = many * 64 - 1
    far, near = last * dim, 5 * dim
    empty = np.zeros(dim, np.float16)
    pools = {
        "from_keys": {far: there[0], near: there[1]},
        "from_values": {far: there[1], near: there[0]},
        "keys": {far: empty, near: empty},
        "values": {far: empty, near: empty},
    }
    inputs = {
        "source": _padded(np.array([5, last])),
        "target": _padded(np.array([last, 5])),
        "numbers": np.array(pages.move_numbers(2, 1, pages=many), np.int32),
        **{name: Sparse((1, many, 1, 64, dim), pieces) for name, pieces in pools.items()},
    }
    return run(pages.move(2, 1, 1, dim, pages=many, dtype="float16"), inputs, text)


def test_cells_beyond_two_billion_numbers_are_reached() -> None:
    there, text = np.random.default_rng(0).standard_normal((2, 128)), load("move")
    there = there.astype(np.float16)
    made = _far(there, text)
    np.testing.assert_array_equal(made["keys"], there[::-1])
    np.testing.assert_array_equal(made["values"], there)
    short = text.header.replace("typedef int64_t Offset", "typedef int Offset")
    assert short != text.header
    with pytest.raises(KernelFault, match="beyond `"):
        _far(there, Text(short, text.body))


FAULTS = {
    "a page further": ("old / sizes.room) *", "old / sizes.room + 1) *"),
    "no end of the cells": ("if (index >= sizes.count)", "if (false)"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_kernel_that_leaves_its_arrays_is_caught(fault: tuple[str, str]) -> None:
    case, text = CASES[1], load("move")
    assert text.header.count(fault[0]) == 1
    cells = np.arange(PAGES * 64)[::-1]
    inputs = _inputs(case, cells[: case.cells], cells[-case.cells :], False)
    with pytest.raises(KernelFault, match=r"beyond `\w+`, which has \d+ bytes|belongs to nothing"):
        run(_launch(case), inputs, Text(text.header.replace(*fault), text.body))


@pytest.mark.parametrize("count", [0, -1])
def test_a_move_of_nothing_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"a move of {count} cells; at least 1 is expected"):
        pages.move(count, 1, 2, 64, pages=3, dtype="float16")
