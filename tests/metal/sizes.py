"""Shapes that attention is tried at."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """Shapes of a case, and the programs that its rows are dealt out to."""

    cells: int
    count: int
    kv_heads: int
    group: int
    head_dim: int
    streams: int = 1
    tables: int = 1
    programs: int = 1
    bias: bool = True
    dtype: str = "float32"

    def __str__(self) -> str:
        return "-".join(map(str, self))


# Every two values of any two columns meet in some row.
SIZES = [
    Size(1, 1, 1, 7, 64, 1, 2, 5, True, "float32"),
    Size(1, 2, 1, 8, 128, 1, 1, 3, True, "float16"),
    Size(1, 5, 2, 4, 96, 2, 3, 1, False, "float32"),
    Size(1, 33, 1, 1, 80, 1, 1, 3, True, "bfloat16"),
    Size(1, 33, 1, 8, 80, 1, 1, 5, True, "bfloat16"),
    Size(1, 79, 1, 3, 64, 2, 2, 1, True, "bfloat16"),
    Size(31, 1, 1, 8, 96, 1, 2, 1, True, "float32"),
    Size(31, 2, 2, 3, 96, 2, 1, 3, False, "float16"),
    Size(31, 5, 1, 1, 64, 1, 1, 3, False, "float16"),
    Size(31, 33, 1, 4, 64, 1, 2, 5, False, "bfloat16"),
    Size(31, 79, 2, 7, 80, 1, 3, 1, False, "float16"),
    Size(31, 79, 1, 8, 128, 1, 2, 5, True, "float32"),
    Size(32, 1, 1, 1, 96, 1, 1, 1, True, "bfloat16"),
    Size(32, 1, 1, 7, 64, 1, 2, 5, False, "float32"),
    Size(32, 2, 1, 3, 80, 1, 2, 5, False, "float32"),
    Size(32, 5, 2, 8, 128, 1, 3, 1, True, "bfloat16"),
    Size(32, 5, 1, 3, 64, 1, 1, 3, False, "bfloat16"),
    Size(32, 33, 2, 4, 80, 2, 1, 3, False, "bfloat16"),
    Size(32, 79, 1, 4, 128, 2, 2, 5, True, "float16"),
    Size(33, 1, 1, 4, 80, 2, 1, 3, False, "float16"),
    Size(33, 2, 2, 8, 64, 2, 3, 1, False, "bfloat16"),
    Size(33, 5, 1, 7, 128, 1, 2, 5, True, "float32"),
    Size(33, 33, 1, 3, 96, 1, 1, 5, True, "float32"),
    Size(33, 79, 1, 1, 80, 2, 3, 1, False, "float16"),
    Size(63, 1, 2, 3, 80, 1, 1, 3, False, "bfloat16"),
    Size(63, 2, 2, 1, 64, 2, 2, 5, False, "float32"),
    Size(63, 5, 1, 8, 128, 1, 3, 1, True, "float32"),
    Size(63, 33, 1, 7, 64, 1, 1, 1, True, "float16"),
    Size(63, 79, 1, 4, 96, 1, 1, 3, False, "float16"),
    Size(65, 1, 1, 8, 128, 1, 2, 5, True, "bfloat16"),
    Size(65, 2, 1, 4, 64, 1, 3, 1, True, "bfloat16"),
    Size(65, 5, 1, 7, 80, 2, 2, 5, True, "float16"),
    Size(65, 33, 1, 1, 128, 1, 3, 1, False, "float16"),
    Size(65, 79, 2, 3, 96, 1, 1, 3, False, "float32"),
    Size(1000, 1, 2, 3, 128, 2, 3, 1, False, "float16"),
    Size(1000, 1, 2, 8, 80, 1, 2, 5, False, "float32"),
    Size(1000, 1, 1, 4, 96, 1, 3, 1, True, "bfloat16"),
    Size(1000, 2, 2, 7, 96, 2, 2, 5, True, "bfloat16"),
    Size(1000, 5, 1, 7, 64, 1, 1, 3, True, "float32"),
    Size(1000, 33, 1, 1, 80, 1, 3, 1, True, "bfloat16"),
    Size(1000, 79, 1, 1, 96, 1, 2, 5, False, "float16"),
]
