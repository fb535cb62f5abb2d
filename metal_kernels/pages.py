"""Launches that write to pages: new tokens' keys and values, and copies of cells.

Both write to the arena where it lies. MLX gives a custom kernel new memory for its outputs, never
an input's, but what an input's pointer reaches can be written. MLX knows nothing of these writes.
So whoever reads the arena afterwards takes an output of the launch as an input too (attention reads
the turned queries, a move gives ``done``), and whoever writes to a cell has evaluated all that read
it.
"""

from __future__ import annotations

from metal_kernels.launch import CONSTANT_BELOW, Array, Kernel, Launch, grid_of, spread
from omni_core.backend import PAGE

STORE = Kernel(
    "store",
    (
        *("queries", "new_keys", "new_values", "cosines", "sines", "cells", "numbers"),
        *("keys", "values"),
    ),
    ("turned",),
    ("T", "D"),
    frozenset({"numbers"}),
    frozenset({"keys", "values"}),
)
MOVE = Kernel(
    "move",
    ("source", "target", "from_keys", "from_values", "numbers", "keys", "values"),
    ("done",),
    ("T", "D"),
    frozenset({"numbers"}),
    frozenset({"keys", "values"}),
)

_MOST = 256
"""Threads of a threadgroup: nothing is shared in it."""


def store(
    streams: int,
    tokens: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    tables: int,
    pages: int,
    dtype: str,
) -> Launch:
    """The launch that turns new tokens' queries and keys and puts keys and values in their cells.

    Dimension ``i`` pairs with ``i + head_dim / 2``; turned in float32, rounded once. Its inputs:

    - ``queries [streams, T, q_heads, head_dim]``, ``new_keys`` and ``new_values [streams, T,
      kv_heads, head_dim]``, as the projections give them;
    - ``cosines`` and ``sines``, ``float32[1 + tables, T, head_dim / 2]``: a table for the keys,
      then those for the queries;
    - ``cells int32[max(T, 8)]``, ``page * PAGE + slot``; of a token with -1, as of the rest beyond
      T, nothing is stored;
    - ``numbers`` of :func:`store_numbers`;
    - ``keys`` and ``values``, a layer of the arena that lies as ``[streams, pages, kv_heads, PAGE,
      head_dim]``: written to.

    It gives ``turned [tables, streams, T, q_heads, head_dim]``.
    """
    pairs = (q_heads + kv_heads) * head_dim // 2
    threads, width = _row(pairs)
    fresh = Array((streams, tokens, kv_heads, head_dim), dtype)
    turns = Array((1 + tables, tokens, head_dim // 2), "float32")
    arena = Array((streams, pages, kv_heads, PAGE, head_dim), dtype)
    return Launch(
        STORE,
        (dtype, head_dim),
        grid_of((width, tokens, streams), threads),
        threads,
        (
            Array((streams, tokens, q_heads, head_dim), dtype),
            fresh,
            fresh,
            turns,
            turns,
            Array((max(CONSTANT_BELOW, tokens),), "int32"),
            Array((5,), "int32"),
            arena,
            arena,
        ),
        (Array((tables, streams, tokens, q_heads, head_dim), dtype),),
    )


def store_numbers(
    tokens: int, q_heads: int, kv_heads: int, *, tables: int, pages: int
) -> tuple[int, ...]:
    """The input ``numbers int32[5]`` of :func:`store`."""
    return tokens, q_heads, kv_heads, pages, tables


def move(
    count: int,
    streams: int,
    kv_heads: int,
    head_dim: int,
    *,
    pages: int,
    dtype: str,
    held: bool = False,
) -> Launch:
    """The launch that copies ``count`` cells of one layer, bit for bit.

    Its inputs:

    - ``source`` and ``target``, ``int32[max(count, 8)]``, ``page * PAGE + slot``; no target is
      named twice, and what lies beyond ``count`` is not read;
    - ``from_keys`` and ``from_values``: the layer itself, if no target is a source; else, ``held``,
      rows ``[streams, kv_heads, count, head_dim]`` that were read before, and ``source`` counts
      these;
    - ``numbers`` of :func:`move_numbers`;
    - ``keys`` and ``values``, the layer, ``[streams, pages, kv_heads, PAGE, head_dim]``: written
      to.

    It gives ``done int32[8]``, for others to wait for.
    """
    if count < 1:
        raise ValueError(
            f"a move of {count} cells; at least 1 is expected: where there is nothing to do, "
            "launch nothing"
        )
    size = 4 if dtype == "float32" else 2
    threads, width = _row(count * kv_heads * head_dim * size // 16)
    arena = Array((streams, pages, kv_heads, PAGE, head_dim), dtype)
    origin = Array((streams, kv_heads, count, head_dim), dtype) if held else arena
    cells = Array((max(CONSTANT_BELOW, count),), "int32")
    return Launch(
        MOVE,
        (dtype, head_dim),
        grid_of((width, streams, 1), threads),
        threads,
        (cells, cells, origin, origin, Array((5,), "int32"), arena, arena),
        (Array((8,), "int32"),),
    )


def move_numbers(count: int, kv_heads: int, *, pages: int, held: bool = False) -> tuple[int, ...]:
    """The input ``numbers int32[5]`` of :func:`move`."""
    return count, *((1, count) if held else (pages, PAGE)), pages, kv_heads


def _row(work: int) -> tuple[tuple[int, int, int], int]:
    """A threadgroup for a row of work, and how many of them it takes."""
    threads = min(_MOST, spread(work, 32) * 32)
    return (threads, 1, 1), spread(work, threads)
