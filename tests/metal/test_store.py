"""Rotation and page writes against float64; nothing else is touched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from metal_kernels.loader import Text, load
from metal_kernels.pages import store, store_numbers
from omni_core.reference.rotary import rotary_tables, rotate
from tests.attended import StoreSize as Case
from tests.metal.conftest import Run
from tests.metal.numbers import EPSILON, Sparse, nan, read, stored, untouched
from tests.metal.runner import KernelFault, run

PAGES = 5


CASES = [
    Case(1, 1, 1, 1, 64, 1, "float32"), Case(1, 1, 8, 7, 128, 2, "float16"),
    Case(1, 3, 4, 8, 80, 1, "bfloat16"), Case(31, 2, 3, 4, 96, 3, "float32"),
    Case(33, 1, 4, 7, 80, 2, "float16"), Case(33, 2, 1, 3, 128, 1, "bfloat16"),
    Case(7, 1, 3, 1, 64, 1, "float16"), Case(65, 1, 7, 3, 96, 2, "bfloat16"),
    Case(8, 1, 8, 1, 96, 1, "float16"), Case(65, 2, 1, 8, 128, 1, "float32"),
]  # fmt: skip


class Given(NamedTuple):
    inputs: dict[str, np.ndarray]
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    cos: np.ndarray
    sin: np.ndarray


def _given(case: Case, cells: list[int]) -> Given:
    draw = np.random.default_rng(case.tokens)
    positions = draw.integers(0, 30_000, (3, case.tokens)).astype(np.int32)
    half = case.head_dim // 2
    sections = (half - 2 * (half // 3), half // 3, half // 3)
    shifts = [0, 8192, 0, -500][: case.tables + 1]
    made = [rotary_tables(positions + np.int32(s), case.head_dim, 1e4, sections) for s in shifts]
    cos, sin = (np.stack(each) for each in zip(*made, strict=True))
    fresh = [
        stored(draw.standard_normal((case.streams, case.tokens, heads, case.head_dim)), case.dtype)
        for heads in (case.kv_heads * case.group, case.kv_heads, case.kv_heads)
    ]
    arena = (case.streams, PAGES, case.kv_heads, 64, case.head_dim)
    sizes = store_numbers(
        case.tokens, case.kv_heads * case.group, case.kv_heads, tables=case.tables, pages=PAGES
    )
    inputs = {
        **dict(zip(("queries", "new_keys", "new_values"), fresh, strict=True)),
        "cosines": cos,
        "sines": sin,
        "cells": np.array(cells + [-1] * (8 - len(cells)), np.int32),
        "numbers": np.array(sizes, np.int32),
        "keys": nan(arena, case.dtype),
        "values": nan(arena, case.dtype),
    }
    return Given(inputs, *(read(x, case.dtype) for x in fresh), cos, sin)


def _launch(case: Case):
    return store(
        case.streams,
        case.tokens,
        case.kv_heads * case.group,
        case.kv_heads,
        case.head_dim,
        tables=case.tables,
        pages=PAGES,
        dtype=case.dtype,
    )


def _cells(case: Case) -> list[int]:
    """Cells in no order, the first and the last among them; some tokens have none."""
    cells = np.random.default_rng(case.tokens + 1).permutation(np.arange(1, PAGES * 64 - 1))
    cells = cells[: case.tokens]
    cells[0], cells[-1] = 0, PAGES * 64 - 1
    cells[2::7] = -1
    return cells.tolist()


def _rounded_once(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """Within half a unit in the last place, and what float32 adds."""
    np.testing.assert_allclose(read(found, dtype), expected, rtol=EPSILON[dtype] / 2, atol=2e-6)


def _check(case: Case, given: Given, cells: list[int], made: dict[str, np.ndarray]) -> None:
    kept = [token for token, cell in enumerate(cells) if cell >= 0]
    page, slot = np.divmod([cells[token] for token in kept], 64)
    for stream in range(case.streams):
        expected = rotate(given.keys[stream], given.cos[0], given.sin[0])[kept]
        _rounded_once(made["keys"][stream][page, :, slot], expected, case.dtype)
        found = read(made["values"][stream][page, :, slot], case.dtype)
        np.testing.assert_array_equal(found, given.values[stream][kept])
        for table in range(case.tables):
            turns = given.cos[table + 1], given.sin[table + 1]
            expected = rotate(given.queries[stream], *turns)
            _rounded_once(made["turned"][table, stream], expected, case.dtype)
    for arena in (made["keys"], made["values"]):
        arena[:, page, :, slot] = nan((), case.dtype)
        assert np.count_nonzero(~untouched(arena, case.dtype)) == 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_oracle_and_touches_nothing_else(case: Case, run_kernel: Run) -> None:
    cells = _cells(case)
    given = _given(case, cells)
    _check(case, given, cells, run_kernel(_launch(case), given.inputs))


def test_padded_tokens_store_nothing_and_still_have_queries(run_kernel: Run) -> None:
    case = Case(3, 2, 3, 4, 64, 2, "float32")
    given = _given(case, [-1, -1, -1])
    made = run_kernel(_launch(case), given.inputs)
    for arena in ("keys", "values"):
        assert np.count_nonzero(~untouched(made[arena], case.dtype)) == 0
    assert np.count_nonzero(~np.isfinite(made["turned"])) == 0


def _far(text: Text) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """A token in the last cell of a large arena: what is there then, and what should be."""
    pages, dim = 2**31 // (64 * 128) + 2, 128
    draw = np.random.default_rng(0)
    heads = [draw.standard_normal((1, 1, 1, dim)).astype(np.float16) for _ in range(3)]
    last = pages * 64 - 1
    empty = Sparse((1, pages, 1, 64, dim), {last * dim: np.zeros(dim, np.float16)})
    inputs = {
        **dict(zip(("queries", "new_keys", "new_values"), heads, strict=True)),
        "cosines": np.ones((2, 1, dim // 2), np.float32),
        "sines": np.zeros((2, 1, dim // 2), np.float32),
        "cells": np.array([last] + [-1] * 7, np.int32),
        "numbers": np.array(store_numbers(1, 1, 1, tables=1, pages=pages), np.int32),
        "keys": empty,
        "values": empty,
    }
    launch = store(1, 1, 1, 1, dim, tables=1, pages=pages, dtype="float16")
    return run(launch, inputs, text), heads[1:]


def test_cells_beyond_two_billion_numbers_are_reached() -> None:
    text = load("store")
    made, expected = _far(text)
    for name, wanted in zip(("keys", "values"), expected, strict=True):
        np.testing.assert_array_equal(made[name].ravel(), wanted.ravel())
    short = text.header.replace("typedef int64_t Offset", "typedef int Offset")
    assert short != text.header
    with pytest.raises(KernelFault, match=r"wrote beyond `(keys|values)`"):
        _far(Text(short, text.body))


FAULTS = {
    "a cell that is none": ("if (cell < 0)", "if (cell < -1)"),
    "no end of the heads": ("if (head >= sizes.q_heads + sizes.kv_heads)", "if (false)"),
    "beyond the tables": ("Offset(table + 1) * sizes.tokens", "Offset(table + 2) * sizes.tokens"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_kernel_that_leaves_its_arrays_is_caught(fault: tuple[str, str]) -> None:
    case = Case(33, 1, 3, 1, 80, 1, "float16")
    text = load("store")
    assert text.header.count(fault[0]) == 1
    with pytest.raises(KernelFault, match=r"beyond `\w+`, which has \d+ bytes"):
        run(
            _launch(case),
            _given(case, _cells(case)).inputs,
            Text(text.header.replace(*fault), text.body),
        )


WRONG = {
    "another slot": ("cells[token];", "cells[token] ^ 1;"),
    "another page": ("sizes.pages, cell, ", "sizes.pages, cell - cell % PAGE + 63 - cell % PAGE, "),
    "the other way": ("first * cosine - second * sine", "first * cosine + second * sine"),
    "the keys' own table": ("Offset(table + 1)", "Offset(table)"),
}


@pytest.mark.parametrize("fault", WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_fails_the_oracle(fault: tuple[str, str]) -> None:
    case = Case(33, 1, 3, 1, 80, 1, "float16")
    cells = [cell if cell >= 0 else 5 for cell in _cells(case)]
    cells = list(dict.fromkeys(cells))
    case = case._replace(tokens=len(cells))
    given, text = _given(case, cells), load("store")
    assert text.header.count(fault[0]) == 1
    made = run(_launch(case), given.inputs, Text(text.header.replace(*fault), text.body))
    with pytest.raises(AssertionError):
        _check(case, given, cells, made)
