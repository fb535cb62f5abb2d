"""Shapes of sealed cases, and the rows that list their subblocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Size(NamedTuple):
    """Shapes of a case, and the programs that its rows are dealt out to."""

    cells: int
    count: int
    kv_heads: int
    group: int
    head_dim: int
    bits: int = 2
    streams: int = 1
    tables: int = 1
    modalities: int = 1
    programs: int = 6
    bias: bool = False
    dtype: str = "float16"
    codec: str = "fitted"
    means: bool = False

    def __str__(self) -> str:
        return "-".join(map(str, self))


# Every two values of any two columns meet in some row, or nearly.
SIZES = [
    Size(1, 1, 1, 7, 128, 2),
    Size(31, 1, 2, 4, 64, 2, 2, 2, 1, 4, True),
    Size(32, 1, 1, 8, 96, 2, 1, 1, 3, 3, True),
    Size(33, 1, 2, 3, 80, 2, 2, 1, 2, 3, False),
    Size(63, 1, 1, 1, 128, 4, 1, 2, 2, 5, True),
    Size(65, 1, 1, 7, 64, 4, 2, 1, 2, 3, False),
    Size(65, 1, 1, 4, 96, 4, 1, 1, 3, 6, False),
    Size(33, 1, 1, 8, 80, 4, 1, 2, 1, 3, True),
    Size(63, 1, 2, 3, 128, 3, 1, 1, 3, 4, True),
    Size(65, 1, 1, 1, 80, 3, 1, 2, 2, 8, False),
    Size(31, 1, 1, 7, 96, 3, 1, 1, 1, 4, True),
    Size(65, 1, 1, 8, 64, 3, 1, 1, 3, 5, True),
    Size(400, 1, 1, 7, 128, 2, 1, 2, 3, 8, True),
    Size(600, 1, 1, 3, 64, 3, 1, 1, 3, 4, False),
    Size(65, 1, 2, 2, 16, 3, 1, 1, 2, 2, False),
    Size(600, 1, 1, 4, 80, 4, 1, 1, 2, 3, False),
    Size(65, 1, 2, 3, 80, 2, 1, 2, 1, 4, True, means=True),
    Size(65, 1, 2, 7, 64, 2, 1, 2, 2, 6, True, codec="omnikvquant", means=True),
]
PREFILLS = [
    Size(65, 5, 1, 2, 16, 3, 1, 1, 2, 2, False),
    Size(1, 2, 1, 7, 128, 2),
    Size(63, 3, 1, 4, 64, 2, 2, 2, 2, 5, True, means=True),
    Size(65, 31, 1, 1, 80, 3, 1, 1, 3, 3, True),
    Size(33, 63, 1, 3, 96, 4, 1, 1, 2, 2, False),
    Size(100, 33, 1, 4, 64, 3, 1, 2, 2, 5, False, means=True),
    Size(170, 17, 1, 8, 128, 2, 1, 1, 3, 3, True),
    Size(65, 9, 2, 3, 96, 3, 1, 2, 1, 2, True, codec="omnikvquant"),
    Size(65, 9, 1, 7, 80, 4, 1, 1, 2, 1, False, codec="omnikvquant", means=True),
]
"""Of several queries each."""


def listed(
    size: Size,
    dealt: bool,
    places: npt.NDArray[np.int64],
    classes: npt.NDArray[np.int64],
    occupancy: npt.NDArray[np.uint32],
    first: int,
) -> tuple[npt.NDArray[Any], ...]:
    """Rows, segments and what rotation each has, dealt out to programs or not."""
    rows, runs = [], []
    for kind in np.unique(classes[places // 2]):
        mine = places[classes[places // 2] == kind]
        start = len(rows)
        for at in range(0, mine.size, 2):
            one, other = mine[at], mine[min(at + 1, mine.size - 1)]
            second = occupancy[other] if at + 1 < mine.size else np.uint32(0)
            words = int(occupancy[one]) | int(second) << 32
            both = (int(one) + 2 * first) | (int(other) + 2 * first) << 32
            rows.append([both, np.uint64(words).view(np.int64)])
        runs.append((start, len(rows), int(kind)))
    if dealt:
        return _dealt(size, np.array(rows, np.int64), runs)
    segments = [[a, b, b, kind // size.modalities] for a, b, kind in runs]
    kinds = [kind % size.modalities for *_, kind in runs]
    rows.append([-1, -1])
    return np.array(rows, np.int64), np.array(segments, np.int32), np.array(kinds, np.int32)


def _dealt(
    size: Size, rows: npt.NDArray[np.int64], runs: list[tuple[int, int, int]]
) -> tuple[npt.NDArray[Any], ...]:
    """Each run over an equal number of programs; those left over have nothing."""
    each = max(1, size.programs // len(runs))
    pieces = []
    for start, end, kind in runs:
        cuts = start + np.arange(each + 1) * (end - start) // each
        pieces += [(a, b, kind) for a, b in pairwise(cuts)]
    room = max(b - a for a, b, _ in pieces) + 1
    spread = np.full((size.programs * room + 1, 2), -1, np.int64)
    segments = np.zeros((size.programs, 4), np.int32)
    kinds = np.zeros(size.programs, np.int32)
    for program, (a, b, kind) in enumerate(pieces):
        begin = program * room
        spread[begin : begin + b - a] = rows[a:b]
        segments[program] = begin, begin + b - a, begin + b - a, kind // size.modalities
        kinds[program] = kind % size.modalities
    return spread, segments, kinds
