"""How rows are shared: everything at once, on large cards and small ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
tiling = pytest.importorskip("omni_cuda.kernels.tiling")

cards = st.tuples(st.integers(1, 192), st.booleans())
groups, heads = st.sampled_from([1, 3, 4, 7, 8]), st.sampled_from([1, 2, 4, 8, 32])


def tiles(count: int, group: int, heads: int, roomy: bool) -> int:
    return -(-count * group // tiling.tiling(count, group, 2, roomy).queries) * heads


@given(groups, heads, st.integers(1, 8), cards)
def test_one_query_is_shared_by_programs_of_one_table_each(
    group: int, heads: int, tables: int, card: tuple[int, bool]
) -> None:
    processors, roomy = card
    programs, shares = tiling.split(1, group, heads, 2, processors, tables, roomy)
    assert programs == 1 or shares == 1
    most = (2 if roomy else 1) * processors // heads
    assert programs <= max(most, tables) and shares <= 4
    # Rows of the usual one table fill the card but for what rounding leaves.
    if tables == 1 and most > 1:
        assert programs == most or (programs % 32 == 0 and most - programs < 32)


@given(st.integers(2, 3000), groups, heads, st.integers(1, 8), cards)
def test_more_queries_fill_the_card(
    count: int, group: int, heads: int, tables: int, card: tuple[int, bool]
) -> None:
    processors, roomy = card
    programs, shares = tiling.split(count, group, heads, 2, processors, tables, roomy)
    most = (2 if roomy else 1) * processors // tiles(count, group, heads, roomy)
    assert programs == 1 or shares == 1
    if most > 1:
        # What is dealt out has a program for each table's whole rows, and for its others.
        assert programs <= max(most, 2 * tables)
        assert programs >= 2 * tables and most < programs + 32
    else:
        assert programs == 1 and 1 <= shares <= 4


@pytest.mark.parametrize(
    ("count", "group", "heads", "cut"),
    [
        (700, 8, 2, (1, 3)),
        (700, 7, 4, (1, 3)),
        (2300, 7, 4, (1, 1)),
        (79, 7, 4, (7, 1)),
        (79, 4, 8, (6, 1)),
    ],
)
def test_tiles_that_leave_processors_idle_are_cut(
    count: int, group: int, heads: int, cut: tuple[int, int]
) -> None:
    assert tiling.split(count, group, heads, 2, 132, 1, True) == cut


def test_shapes_of_the_models_on_two_cards() -> None:
    h200 = [tiling.split(1, group, heads, 2, 132, 1, True)[0] for group, heads in SHAPES]
    rtx_4090 = [tiling.split(1, group, heads, 2, 128, 1, False)[0] for group, heads in SHAPES]
    assert h200 == [64, 128, 32] and rtx_4090 == [32, 64, 16]


SHAPES = [(7, 4), (8, 2), (4, 8)]


@pytest.mark.parametrize("count", [1, 79, 700])
def test_shifts_of_position_change_no_kernel(count: int) -> None:
    """A kernel is compiled for some of these numbers: a stream must not wait for it midway."""
    for group, heads in SHAPES:
        cuts = {tiling.split(count, group, heads, 2, 132, tables, True) for tables in (1, 2, 3)}
        assert len(cuts) == 1
