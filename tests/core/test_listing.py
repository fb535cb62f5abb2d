"""Rows of live subblocks against the cells that they were made from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listed_pages import TABLES, cells_of, counts, halves_of, listed, live_cells

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.listing import Listing, list_subblocks, most_room, most_rows
from omni_core.paging.mirror import ListedPages, pack_occupancy

cases = st.builds(
    listed,
    st.integers(0, 2**31),
    st.integers(0, 60),
    st.integers(1, TABLES),
    st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    st.sampled_from([0.0, 0.2, 1.0]),
)


def segments_of(listing: Listing) -> list[tuple[int, int, int, int]]:
    """Segments that are not empty."""
    return [(a, b, c, t) for a, b, c, t in listing.segments.tolist() if a < c]


def used_rows(listing: Listing) -> list[int]:
    return [row for first, _, end, _ in segments_of(listing) for row in range(first, end)]


def least_rows(pages: ListedPages) -> int:
    """Rows of two subblocks that share their shift and whether they are checked."""
    subblocks = {(told[:2], cell // SUBBLOCK) for cell, told in live_cells(pages).items()}
    return sum(-(-count // 2) for count in Counter(kind for kind, _ in subblocks).values())


@given(cases, counts)
def test_every_live_cell_once_and_no_dead_one(pages: ListedPages, programs: int) -> None:
    listing = list_subblocks(pages, programs)
    rows = listing.rows[used_rows(listing)]
    assert Counter(cell for row in rows for cell in cells_of(row)) == Counter(
        list(live_cells(pages))
    )
    for row in rows:
        subblocks, alive = halves_of(row)
        assert alive[0].any()
        assert alive[1].any() or subblocks[0] == subblocks[1]


@given(cases, counts)
def test_a_segment_has_one_table_and_checked_rows_last(pages: ListedPages, programs: int) -> None:
    listing, cells = list_subblocks(pages, programs), live_cells(pages)
    assert sorted(set(pages.shift.tolist())) == sorted(listing.shifts.tolist())
    for first, middle, end, table in segments_of(listing):
        assert first <= middle <= end
        for number in range(first, end):
            told = {cells[cell][:2] for cell in cells_of(listing.rows[number])}
            assert told == {(int(listing.shifts[table]), number >= middle)}


@given(cases, counts)
def test_bounds_hold_what_is_checked(pages: ListedPages, programs: int) -> None:
    listing, cells = list_subblocks(pages, programs), live_cells(pages)
    newest = dict.fromkeys(range(listing.shifts.size), 0)
    for first, middle, end, table in segments_of(listing):
        assert (listing.bounds[first:middle] == 0).all()
        assert (np.diff(listing.bounds[middle:end], axis=0) >= 0).all()
        for number in range(middle, end):
            orders = [cells[cell][2] for cell in cells_of(listing.rows[number])]
            # No looser than that, or a query would check rows that it sees whole.
            newest[table] = max(newest[table], *orders)
            assert listing.bounds[number].tolist() == [min(orders), newest[table]]


@given(cases, st.integers(0, 2**31), st.booleans())
def test_old_tokens_beside_new_ones_are_rows_of_their_own(
    pages: ListedPages, seed: int, alone: bool
) -> None:
    told = sorted(order for _, checked, order in live_cells(pages).values() if checked) or [0]
    since = told[seed % len(told)]
    pages = replace(pages, since=since)
    programs = 1 if alone else 2 * TABLES + seed % 90
    listing, cells = list_subblocks(pages, programs), live_cells(pages)
    rows = listing.rows[used_rows(listing)]
    assert Counter(cell for row in rows for cell in cells_of(row)) == Counter(list(cells))
    assert len(rows) <= most_rows(pages.pages.size, listing.shifts.size)
    room = most_room(len(rows), listing.shifts.size, programs)
    assert len(listing.rows) // programs <= room
    newest: dict[tuple[int, bool], int] = {}
    for first, middle, end, table in segments_of(listing):
        kinds = set()
        for number in range(first, end):
            told = [cells[cell] for cell in cells_of(listing.rows[number])]
            assert {shift for shift, _, _ in told} == {int(listing.shifts[table])}
            orders = [order if checked else -1 for _, checked, order in told]
            if number < middle:
                # Whole pages that are not checked, and subblocks that all queries see.
                assert max(orders) <= since
                continue
            mixed = min(orders) < since
            kinds.add(mixed)
            newest[table, mixed] = max(newest.get((table, mixed), -1), *orders)
            assert max(orders) > since
            assert listing.bounds[number].tolist() == [min(orders), newest[table, mixed]]
        assert len(kinds) <= 1


@given(cases, counts)
def test_each_program_has_its_own_rows(pages: ListedPages, programs: int) -> None:
    listing = list_subblocks(pages, programs)
    room, rest = divmod(len(listing.rows), programs)
    assert rest == 0
    used = used_rows(listing)
    assert len(used) == len(set(used)) == least_rows(pages)
    assert all(0 <= row < len(listing.rows) for row in used)
    if programs == 1:
        tables = [table for *_, table in segments_of(listing)]
        assert tables == list(range(listing.shifts.size))
        assert listing.segments.shape == (max(1, listing.shifts.size), 4)
    else:
        assert listing.segments.shape == (programs, 4)
        for program, (first, _, end, _) in enumerate(listing.segments.tolist()):
            assert first == program * room or first == end
            assert end - first <= room


@given(cases, counts)
def test_rows_are_dealt_out_evenly(pages: ListedPages, programs: int) -> None:
    listing = list_subblocks(pages, programs)
    rows, room = least_rows(pages), len(listing.rows) // programs
    assert rows <= most_rows(pages.pages.size, listing.shifts.size)
    assert room <= most_room(rows, listing.shifts.size, programs)
    lengths: dict[int, list[int]] = {}
    for first, _, end, table in segments_of(listing):
        lengths.setdefault(table, []).append(end - first)
    assert all(max(each) - min(each) <= 1 for each in lengths.values())
    if programs > 1 and room > 1:
        # With a row less for each, there would be more segments than programs.
        assert sum(-(-sum(each) // (room - 1)) for each in lengths.values()) > programs


@given(cases, counts, st.integers(0, 9))
def test_room_to_spare_moves_rows_apart_and_no_more(
    pages: ListedPages, programs: int, more: int
) -> None:
    tight = list_subblocks(pages, programs)
    wide = list_subblocks(pages, programs, len(tight.rows) // programs + more)
    assert len(wide.rows) == len(tight.rows) + more * programs
    for name in ("rows", "bounds"):
        narrow, apart = getattr(tight, name), getattr(wide, name)
        assert (narrow[used_rows(tight)] == apart[used_rows(wide)]).all()
    spans = [listing.segments[:, 1:3] - listing.segments[:, :1] for listing in (tight, wide)]
    assert (spans[0] == spans[1]).all()
    assert (tight.segments[:, 3] == wide.segments[:, 3]).all()


@given(cases, counts)
def test_arrays_are_as_the_device_reads_them(pages: ListedPages, programs: int) -> None:
    listing = list_subblocks(pages, programs)
    assert {listing.rows.dtype, listing.bounds.dtype} == {np.dtype(np.int64)}
    assert {listing.segments.dtype, listing.shifts.dtype} == {np.dtype(np.int32)}
    assert listing.rows.shape == listing.bounds.shape == (len(listing.rows), 2)
    assert all(each.flags.c_contiguous for each in vars(listing).values())


@pytest.mark.parametrize("programs", [1, 3])
def test_nothing_alive_is_no_row(programs: int) -> None:
    empty = list_subblocks(listed(0, 0, 1, 1.0, 1.0), programs)
    assert empty.rows.shape == empty.bounds.shape == (0, 2)
    assert empty.segments.tolist() == [[0, 0, 0, 0]] * programs
    assert empty.shifts.size == 0


@pytest.mark.parametrize("checked", [False, True])
def test_an_odd_subblock_stands_beside_itself(checked: bool) -> None:
    live = np.zeros((2, PAGE), np.bool_)
    live[0, [3, 40]] = live[1, 63] = True
    order = np.arange(2 * PAGE, dtype=np.int64).reshape(2, PAGE)
    pages = ListedPages(
        np.asarray([4, 7], np.int32),
        pack_occupancy(live),
        np.zeros(2, np.int32),
        np.full(2, checked),
        order if checked else order[:0],
    )
    listing = list_subblocks(pages, 1)
    assert listing.rows.tolist() == [
        [8 + (9 << 32), (1 << 3) + (1 << 8 + 32)],
        [15 + (15 << 32), 1 << 31],
    ]
    assert listing.bounds.tolist() == ([[3, 40], [127, 127]] if checked else [[0, 0], [0, 0]])
    assert listing.segments.tolist() == [[0, 0 if checked else 2, 2, 0]]


def test_shifts_need_a_program_each() -> None:
    pages = listed(3, 60, 4, 0.5, 0.2)
    with pytest.raises(ValueError, match="3 programs for 4 parts"):
        list_subblocks(pages, 3)


@pytest.mark.parametrize("programs", [1, 7])
def test_too_little_room_is_told(programs: int) -> None:
    pages = listed(3, 60, 4, 0.5, 0.2)
    room = len(list_subblocks(pages, programs).rows) // programs
    with pytest.raises(ValueError, match=f"{room} rows for a program that has room for {room - 1}"):
        list_subblocks(pages, programs, room - 1)
