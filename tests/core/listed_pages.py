"""Pages as a mirror lists them, drawn at random, and rows read as a kernel reads them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.mirror import ListedPages, pack_occupancy, unpack_occupancy

POOL = 90


def listed(seed: int, pages: int, tables: int, density: float, new: float) -> ListedPages:
    """Scattered pages, of which so large a share has cells newer than some query."""
    draw = np.random.default_rng(seed)
    ids = np.sort(draw.choice(POOL, pages, replace=False)).astype(np.int32)
    live = draw.random((pages, PAGE)) < density
    half = draw.integers(0, 2, pages)
    bare = draw.random(pages) < 0.3
    live.reshape(pages, 2, SUBBLOCK)[np.flatnonzero(bare), half[bare]] = False
    live[np.arange(pages), (1 - half) * SUBBLOCK + draw.integers(0, SUBBLOCK, pages)] = True
    shift = draw.choice(10_000, tables, replace=False)[draw.integers(0, tables, pages)]
    checked = draw.random(pages) < new
    # Dead cells keep orders that lie outside those of the live ones.
    order = draw.permutation(pages * PAGE).reshape(pages, PAGE).astype(np.int64)
    dead = draw.choice([-1, 10**12], (pages, PAGE))
    order = np.where(live, order, dead)[checked]
    return ListedPages(ids, pack_occupancy(live), shift.astype(np.int32), checked, order)


TABLES = 5
counts = st.one_of(st.just(1), st.integers(TABLES, 150))


def halves_of(row: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Two subblocks and which of their cells live, as a kernel reads them from two numbers."""
    pair, words = row.tolist()
    subblocks = [pair & 0xFFFFFFFF, pair >> 32]
    alive = np.asarray([words >> lane & 1 for lane in range(PAGE)], np.bool_)
    return subblocks, alive.reshape(2, SUBBLOCK)


def cells_of(row: np.ndarray) -> list[int]:
    subblocks, alive = halves_of(row)
    return [subblocks[half] * SUBBLOCK + int(lane) for half, lane in np.argwhere(alive)]


def live_cells(pages: ListedPages) -> dict[int, tuple[int, bool, int]]:
    """Shift, whether its page is checked, and order where it is, of each live cell."""
    rank = np.cumsum(pages.checked) - 1
    return {
        int(pages.pages[page]) * PAGE + int(slot): (
            int(pages.shift[page]),
            bool(pages.checked[page]),
            int(pages.order[rank[page], slot]) if pages.checked[page] else 0,
        )
        for page, slot in zip(*np.nonzero(unpack_occupancy(pages.occupancy)), strict=True)
    }
