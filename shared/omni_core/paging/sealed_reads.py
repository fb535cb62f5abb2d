"""Sealed pages as attention reads them: those together that share a rotation and a modality."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from omni_core.backend import PAGE
from omni_core.paging.mirror import LiveCells
from omni_core.units import Int8, Int32, Int64


def read_together(
    live: LiveCells, sealed: Int64, modality: Int8, most: int
) -> Iterator[tuple[Int32, Int64, int, int]]:
    """Sealed pages that one rotation of the queries reads, and whose values are of one modality.

    Args:
        live: the cells of a layer group.
        sealed: ``int64[n]``, which of them are sealed.
        modality: of each page.
        most: pages at a time.

    Yields:
        Pages ``int32[n]``, the place ``int64[n, PAGE]`` of each cell among the live ones (-1 where
        it is dead), the shift of position and the modality.
    """
    pages, row = np.unique(live.cells[sealed] // PAGE, return_inverse=True)
    places = np.full((pages.size, PAGE), -1, np.int64)
    places[row, live.cells[sealed] % PAGE] = sealed
    about = np.stack([modality[pages], live.shift[places.max(axis=1, initial=-1)]], axis=1)
    for kind, shift in np.unique(about, axis=0).tolist() if pages.size else []:
        own = np.flatnonzero((about == (kind, shift)).all(axis=1))
        for start in range(0, own.size, most):
            some = own[start : start + most]
            yield pages[some], places[some], shift, kind
