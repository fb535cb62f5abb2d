"""Rows of sealed subblocks: apart from the others, of one modality and shift a segment."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listed_pages import TABLES, cells_of, counts, halves_of, listed, live_cells

from omni_core.backend import PAGE
from omni_core.paging.listing import (
    Lister,
    Listing,
    list_subblocks,
    most_sealed_room,
    most_sealed_rows,
)
from omni_core.paging.mirror import ListedPages
from omni_core.units import Modality


def both(seed: int, pages: int, tables: int, density: float, new: float, share: float):
    """Pages of which the last so large a share is sealed."""
    live = listed(seed, pages, tables, density, new)
    count = round(pages * share)
    draw = np.random.default_rng(seed)
    sealed = draw.integers(0, len(Modality), count).astype(np.int8)
    checked, kept = live.checked.copy(), np.ones(int(live.checked.sum()), np.bool_)
    kept[kept.size - int(checked[pages - count :].sum()) :] = False
    checked[pages - count :] = False
    return replace(live, checked=checked, order=live.order[kept], sealed=sealed)


cases = st.builds(
    both,
    st.integers(0, 2**31),
    st.integers(0, 60),
    st.integers(1, TABLES),
    st.sampled_from([0.02, 0.5, 1.0]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.4, 1.0]),
)
shared = st.one_of(st.just(1), st.integers(TABLES * len(Modality), 90))


def plain_of(pages: ListedPages) -> ListedPages:
    """The pages that are not sealed; a shift of sealed pages alone still has its table."""
    count = pages.pages.size - pages.sealed.size
    return replace(
        pages,
        pages=pages.pages[:count],
        occupancy=pages.occupancy[:count],
        shift=pages.shift[:count],
        checked=pages.checked[:count],
        sealed=pages.sealed[:0],
    )


def sealed_segments(listing: Listing) -> list[tuple[int, int, int, int, int]]:
    """Those that are not empty, with their modality."""
    count = listing.modality.size
    told = np.column_stack([listing.segments[len(listing.segments) - count :], listing.modality])
    return [tuple(each) for each in told.tolist() if each[0] < each[2]]


@given(cases, counts, shared)
def test_each_live_cell_once_in_rows_of_its_kind(
    pages: ListedPages, programs: int, sealing: int
) -> None:
    listing = list_subblocks(pages, programs, None, sealing)
    cells = live_cells(pages)
    first = pages.pages[pages.pages.size - pages.sealed.size] if pages.sealed.size else 10**6
    kinds = dict(zip(pages.pages[pages.pages.size - pages.sealed.size :].tolist(),
                     pages.sealed.tolist(), strict=True))  # fmt: skip
    found: list[int] = []
    for start, middle, end, table, modality in sealed_segments(listing):
        assert listing.first_sealed <= start < end <= len(listing.rows)
        assert middle == end, "every query sees what is sealed"
        for row in listing.rows[start:end]:
            subblocks, alive = halves_of(row)
            assert alive[0].any() and (alive[1].any() or subblocks[0] == subblocks[1])
            own = cells_of(row)
            assert {kinds[cell // PAGE] for cell in own} == {modality}
            assert {cells[cell][0] for cell in own} == {int(listing.shifts[table])}
            found += own
    assert Counter(found) == Counter(cell for cell in cells if cell // PAGE >= first)
    plain = len(listing.segments) - listing.modality.size
    for start, _, end, _ in listing.segments[:plain].tolist():
        for row in listing.rows[start:end]:
            found += cells_of(row)
    assert Counter(found) == Counter(list(cells))


@given(cases, counts, shared)
def test_the_others_are_listed_as_if_there_were_none(
    pages: ListedPages, programs: int, sealing: int
) -> None:
    listing = list_subblocks(pages, programs, None, sealing)
    alone = list_subblocks(plain_of(pages), programs)
    count = len(listing.segments) - listing.modality.size
    assert (listing.rows[: listing.first_sealed] == alone.rows).all()
    assert (listing.bounds == alone.bounds).all()
    plain, apart = listing.segments[:count], alone.segments
    assert (plain[:, :3] == apart[:, :3]).all()
    used = plain[:, 0] < plain[:, 2]
    shifts = listing.shifts[plain[used, 3]], alone.shifts[apart[used, 3]]
    assert (shifts[0] == shifts[1]).all()
    if not pages.sealed.size:
        assert listing.modality.size == 0
        assert all((vars(listing)[name] == each).all() for name, each in vars(alone).items())


@given(cases, shared, st.integers(0, 9))
def test_room_suffices_and_is_kept(pages: ListedPages, sealing: int, more: int) -> None:
    tight = list_subblocks(pages, 1, None, sealing)
    rows = sum(end - start for start, _, end, _, _ in sealed_segments(tight))
    tables = tight.shifts.size
    assert rows <= most_sealed_rows(pages.sealed.size, tables)
    least = (len(tight.rows) - tight.first_sealed) // sealing
    assert least <= most_sealed_room(rows, tables, sealing)
    wide = list_subblocks(pages, 1, None, sealing, least + more)
    assert len(wide.rows) == wide.first_sealed + sealing * (least + more)
    assert wide.modality.size >= sealing
    told = [
        [wide.rows[start:end].tolist() for start, _, end, _, _ in sealed_segments(wide)],
        [tight.rows[start:end].tolist() for start, _, end, _, _ in sealed_segments(tight)],
    ]
    assert told[0] == told[1]
    if sealing > 1:
        for program, (start, _, end, _) in enumerate(wide.segments[-sealing:].tolist()):
            assert start == end or start == wide.first_sealed + program * (least + more)


@given(cases)
def test_arrays_are_as_the_device_reads_them(pages: ListedPages) -> None:
    listing = list_subblocks(pages, 1)
    assert listing.rows.dtype == listing.bounds.dtype == np.int64
    assert listing.segments.dtype == np.int32 and listing.modality.dtype == np.int8
    assert all(each.flags.c_contiguous for each in vars(listing).values())


def test_a_lister_follows_what_dies_and_what_a_page_becomes() -> None:
    pages = both(3, 40, 2, 0.5, 0.0, 0.5)
    lister = Lister(1)
    lister.list(pages)
    for _ in range(3):
        pages = replace(pages, occupancy=pages.occupancy & np.uint32(0x0FFFFFFF))
        pages = replace(pages, sealed=(pages.sealed + 1) % 3)
        found, fresh = lister.list(pages), list_subblocks(pages, 1)
        assert all((vars(found)[name] == each).all() for name, each in vars(fresh).items())


def test_each_modality_and_shift_wants_a_program() -> None:
    pages = both(3, 60, 4, 1.0, 0.0, 1.0)
    kinds = len({*zip(pages.shift.tolist(), pages.sealed.tolist(), strict=True)})
    with pytest.raises(ValueError, match=f"5 programs for {kinds} parts"):
        list_subblocks(pages, 1, None, 5)
