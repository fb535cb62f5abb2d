"""The live subblocks of a layer group as a kernel walks them: rows of two, dealt out to programs.

A row names any two live subblocks whose keys are read by one rotation of the queries, so a tile of
a page's size is full of live cells wherever they lie, and a dead subblock costs nothing. Rows that
a query may see in part, those of the step's own tokens, come last and carry their range of orders.

Sealed subblocks are read by another loop, and their values are rotated by modality: they are rows
of their own, dealt out to programs of their own, which come after the others.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.mirror import ListedPages, unpack_occupancy
from omni_core.units import Int8, Int32, Int64, Modality

_HALVES = PAGE // SUBBLOCK
_MODALITIES = len(Modality)
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Listing:
    """Rows of subblocks, and the segments of them that programs read.

    Attributes:
        rows: ``int64[programs * room, 2]``: two subblocks, ``page * 2 + half``, the first in the
            low half of the number, and their occupancy words likewise. An odd one stands beside
            itself with nothing alive. Those of program ``i`` begin at ``i * room``. Those of sealed
            pages follow, ``sealed_programs * sealed_room`` of them.
        bounds: ``int64[programs * room, 2]``: the smallest order in the row, and the largest in it
            and the rows before it of its table; ascending. 0 of rows that every query sees whole,
            which sealed ones all are: they have none.
        segments: ``int32[n + s, 4]``: first row, first row that may be seen in part, end, and the
            table that its queries are rotated by. Where one program reads all, one or two for each
            table; else one for each program, which is empty once all rows are dealt out. The last
            ``s`` are of sealed rows, likewise, one for each table and modality at least.
        shifts: ``int32[m]``: the shift of position of each table.
        modality: ``int8[s]``: of all values of each sealed segment.
    """

    rows: Int64
    bounds: Int64
    segments: Int32
    shifts: Int32
    modality: Int8

    @property
    def first_sealed(self) -> int:
        """The first sealed row."""
        return len(self.bounds)


class Lister:
    """Lists one layer group step by step: what has not changed is not sorted again.

    Args:
        programs: that share the rows: one, or one for each shift at least, and twice as many where
            some rows are checked.
        room: rows that each program has space for; what it takes if left out.
        sealed_programs: that share the sealed rows: one, or one for each shift and modality at
            least.
        sealed_room: sealed rows that each of these has space for; what it takes if left out.
    """

    def __init__(
        self,
        programs: int,
        room: int | None = None,
        sealed_programs: int = 1,
        sealed_room: int | None = None,
    ) -> None:
        self._programs, self._room = programs, room
        self._sealed_programs, self._sealed_room = sealed_programs, sealed_room
        self._known: ListedPages | None = None
        self._listing: Listing
        self._words: Int64
        """Where in the rows, as 32-bit words, the occupancy of each live subblock stands."""

    def list(self, live: ListedPages) -> Listing:
        """Rows of what is alive, dealt out evenly; valid until the next call.

        Raises:
            ValueError: too few programs, or too little room.
        """
        if self._known is None or not _alike(self._known, live):
            self._listing, self._words = self._arranged(live)
        self._known = live
        words = live.occupancy.reshape(-1)
        self._listing.rows.view(np.uint32).reshape(-1)[self._words] = words[words != 0]
        return self._listing

    def _arranged(self, live: ListedPages) -> tuple[Listing, Int64]:
        """A listing without its occupancy words, and where they go."""
        shifts, table = np.unique(live.shift, return_inverse=True)
        plain = live.pages.size - live.sealed.size
        part, words = _arranged(live, table, plain, self._programs, self._room)
        listing = Listing(
            part.rows, part.bounds, part.segments, shifts.astype(np.int32), live.sealed[:0]
        )
        if not live.sealed.size and self._sealed_room is None:
            return listing, words
        sealed, modality, sealed_words = _sealed(
            live, table, plain, self._sealed_programs, self._sealed_room
        )
        count = len(part.rows)
        # All columns of a segment but its table are rows.
        behind = np.asarray([count, count, count, 0], np.int32)
        return replace(
            listing,
            rows=np.concatenate([part.rows, sealed.rows]),
            segments=np.concatenate([part.segments, sealed.segments + behind]),
            modality=modality,
        ), np.concatenate([words, sealed_words + count * 4])


def list_subblocks(
    live: ListedPages,
    programs: int,
    room: int | None = None,
    sealed_programs: int = 1,
    sealed_room: int | None = None,
) -> Listing:
    """One listing, see :class:`Lister`."""
    return Lister(programs, room, sealed_programs, sealed_room).list(live)


def most_rows(pages: int, tables: int) -> int:
    """Rows that a listing of so many pages and shifts can have."""
    return pages + 2 * tables


def most_room(rows: int, tables: int, programs: int) -> int:
    """Rows, of so many, that one of the programs may have to take."""
    return rows if programs <= 2 * tables else -(-rows // (programs - 2 * tables))


def most_sealed_rows(pages: int, tables: int) -> int:
    """Rows that a listing of so many sealed pages and shifts can have."""
    return pages + _MODALITIES * tables


def most_sealed_room(rows: int, tables: int, programs: int) -> int:
    """Sealed rows, of so many, that one of the programs may have to take."""
    parts = _MODALITIES * tables
    return rows if programs <= parts else -(-rows // (programs - parts))


@dataclass(frozen=True)
class _Part:
    """What a listing says of the pages of one pool."""

    rows: Int64
    bounds: Int64
    segments: Int32


def _alike(old: ListedPages, new: ListedPages) -> bool:
    """Whether the same subblocks are alive, and none is to be looked at cell by cell."""
    return (
        not (old.checked.any() or new.checked.any())
        and np.array_equal(old.pages, new.pages)
        and np.array_equal(old.shift, new.shift)
        and np.array_equal(old.sealed, new.sealed)
        and np.array_equal(old.occupancy != 0, new.occupancy != 0)
    )


def _arranged(
    live: ListedPages, table: Int64, plain: int, programs: int, room: int | None
) -> tuple[_Part, Int64]:
    """The first ``plain`` pages, of 16 bits, and where their occupancy words go."""
    page, half = np.divmod(np.flatnonzero(live.occupancy[:plain].reshape(-1)), _HALVES)
    first, last = (each[page, half] for each in _ranges(live))
    checked = live.checked[page] & (last > live.since)
    # Old tokens beside new ones: first in order, last to be seen whole. Among the rows of new ones
    # alone, they would have each of these looked at cell by cell.
    mixed = checked & (first < live.since)
    named, group = np.unique(table[page] * 2 + mixed, return_inverse=True)
    rank = np.lexsort((first, checked, group))
    page, half, checked = page[rank], half[rank], checked[rank]
    first, last = first[rank], last[rank]
    kind = group[rank] * 2 + checked
    at, second, starts = _paired(kind, 2 * max(1, named.size))
    tables = starts[[*range(0, starts.size - 1, 2), -1]]
    middles = starts[1::2]
    of_table = named // 2 if named.size else np.zeros(1, np.int64)
    segments, places, room = _dealt(tables, middles, of_table, programs, room)
    sub = live.pages[page] * _HALVES + half
    rows = _rows(sub, places[at], second, programs * room)
    bounds = np.zeros((programs * room, 2), np.int64)
    if checked.any():
        ranges = np.zeros((int(starts[-1]), 2), np.int64)
        opening = checked & ~second
        ranges[at[opening], 0] = first[opening]
        np.maximum.at(ranges[:, 1], at[checked], last[checked])
        for middle, end in zip(middles, tables[1:], strict=True):
            np.maximum.accumulate(ranges[middle:end, 1], out=ranges[middle:end, 1])
        bounds[places] = ranges
    words = np.empty(rank.size, np.int64)
    words[rank] = places[at] * 4 + 2 + second
    return _Part(rows, bounds, segments), words


def _sealed(
    live: ListedPages, table: Int64, plain: int, programs: int, room: int | None
) -> tuple[_Part, Int8, Int64]:
    """The pages from ``plain`` on, the modality of each segment, and where their words go."""
    page, half = np.divmod(np.flatnonzero(live.occupancy[plain:].reshape(-1)), _HALVES)
    apart = table[plain:][page] * _MODALITIES + live.sealed[page]
    named, kind = np.unique(apart, return_inverse=True)
    rank = np.argsort(kind, kind="stable")
    at, second, starts = _paired(kind[rank], max(1, named.size))
    named = named if named.size else np.zeros(1, np.int64)
    segments, places, room = _dealt(starts, starts[1:], named, programs, room)
    sub = live.pages[plain:][page[rank]] * _HALVES + half[rank]
    rows = _rows(sub, places[at], second, programs * room)
    words = np.empty(rank.size, np.int64)
    words[rank] = places[at] * 4 + 2 + second
    modality = (segments[:, 3] % _MODALITIES).astype(np.int8)
    segments[:, 3] //= _MODALITIES
    return _Part(rows, rows[:0], segments), modality, words


def _paired(kind: Int64, kinds: int) -> tuple[Int64, Bool, Int64]:
    """Subblocks in the order of their kind, two a row: row, whether the second, first rows."""
    # A subblock's place in its kind says whether it is the first or the second of a row.
    sizes = np.bincount(kind, minlength=kinds)
    place = np.arange(kind.size) - (np.cumsum(sizes) - sizes)[kind]
    starts = np.concatenate([[0], np.cumsum((sizes + 1) // 2)])
    return starts[kind] + place // 2, place % 2 == 1, starts


def _rows(sub: Int32 | Int64, at: Int64, second: Bool, count: int) -> Int64:
    """Rows without occupancy words: subblocks ``sub`` in rows ``at``."""
    pairs = np.zeros((count, 2, 2), np.uint32)
    pairs[at[~second], 0] = sub[~second, None]
    pairs[at[second], 0, 1] = sub[second]
    return pairs.view(np.int64).reshape(-1, 2)


def _ranges(live: ListedPages) -> tuple[Int64, Int64]:
    """Smallest and largest live order of each subblock ``int64[n, 2]``; 0 where unchecked."""
    first = np.zeros((live.pages.size, _HALVES), np.int64)
    last = np.zeros_like(first)
    alive = unpack_occupancy(live.occupancy[live.checked]).reshape(-1, _HALVES, SUBBLOCK)
    order = live.order.reshape(-1, _HALVES, SUBBLOCK)
    limits = np.iinfo(np.int64)
    first[live.checked] = np.where(alive, order, limits.max).min(axis=2)
    last[live.checked] = np.where(alive, order, limits.min).max(axis=2)
    return first, last


def _pieces(sizes: Int64, most: int) -> Int64:
    return -(-sizes // most)


def _dealt(
    tables: Int64, middles: Int64, of_table: Int64, programs: int, room: int | None
) -> tuple[Int32, Int64, int]:
    """Segments, where each row goes, and each program's room.

    Rows ``tables[i]`` to ``tables[i + 1]`` are read by table ``of_table[i]``, and seen in part from
    ``middles[i]`` on.
    """
    rows, sizes = int(tables[-1]), np.diff(tables)
    if programs == 1:
        cuts, owner = tables, np.zeros(sizes.size, np.int64)
        pieces = np.ones_like(sizes)
    else:
        used = np.count_nonzero(sizes)
        if used > programs:
            raise ValueError(f"{programs} programs for {used} parts that want one each")
        most = range(max(1, -(-rows // programs)), rows + 1)
        fits = bisect_left(most, True, key=lambda each: _pieces(sizes, each).sum() <= programs)
        pieces = _pieces(sizes, most[fits] if rows else 1)
        ends = [
            start + np.arange(1, count + 1) * size // max(count, 1)
            for start, count, size in zip(tables, pieces, sizes, strict=False)
        ]
        cuts = np.concatenate([[0], *ends])
        owner = np.arange(cuts.size - 1)
    lengths = np.diff(cuts)
    taken = int(np.bincount(owner, lengths).max(initial=0))
    if room is None:
        room = taken
    if taken > room:
        raise ValueError(f"{taken} rows for a program that has room for {room}")
    # One program reads its tables one after another.
    begins = owner * room if programs > 1 else cuts[:-1]
    table = np.repeat(np.arange(sizes.size), pieces)
    whole = np.clip(middles[table] - cuts[:-1], 0, lengths)
    segments = np.zeros((max(programs, sizes.size), 4), np.int32)
    columns = [begins, begins + whole, begins + lengths, of_table[table]]
    segments[: lengths.size] = np.stack(columns, axis=1)
    places = np.repeat(begins - cuts[:-1], lengths) + np.arange(rows)
    return segments, places, room
