"""Launches of attention over live pages: of few queries, of many, and a merge behind both.

What a kernel is handed is the listing of :mod:`omni_core.paging.listing` as it stands, padded where
it is short. Grouped query heads share each read of a key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metal_kernels.cutting import LINES, tiling
from metal_kernels.launch import CONSTANT_BELOW, SIMDGROUP, Array, Kernel, Launch, grid_of, spread
from omni_core.backend import PAGE
from omni_core.paging.listing import Listing
from omni_core.units import Int32, Int64

INPUTS = (
    *("queries", "keys", "values", "rows", "bounds", "segments"),
    *("order", "bias", "query_order", "numbers", "scale"),
)
"""Of both attention kernels."""

_CONSTANTS = frozenset({"numbers", "scale"})

DECODE = Kernel("decode", INPUTS, ("out", "sums"), ("T", "O", "D", "SIMDS"), _CONSTANTS)
PREFILL = Kernel("prefill", INPUTS, ("out", "sums"), ("T", "O", "D", "GROUPS", "SIMDS"), _CONSTANTS)
MERGE = Kernel("merge", ("found", "found_sums"), ("out", "sums"), ("O", "D", "SIMDS"))

_SLICE = 32
"""Columns of a head that a threadgroup merges."""


@dataclass(frozen=True)
class Attention:
    """What one layer's attention of a step is about.

    Attributes:
        tables: of shifts of position, each with its copy of the queries.
        streams, count: streams of one layout, and new tokens of each.
        kv_heads, group, head_dim: key heads, query heads a key head, and a head's numbers.
        pages: of the arena.
        dtype: of queries, arena and output.
        rows, segments: of the listing as :func:`padded_listing` gives it.
        programs: that the rows are dealt out to.
        biased: whether any cell carries a bias.
        tall: whether the GPU has registers for more lines, see :class:`~metal_kernels.cutting.Gpu`.
    """

    tables: int
    streams: int
    count: int
    kv_heads: int
    group: int
    head_dim: int
    pages: int
    dtype: str
    rows: int
    segments: int
    programs: int
    biased: bool
    tall: bool = False

    def __post_init__(self) -> None:
        if self.head_dim % 8 or not 8 <= self.head_dim <= 4 * SIMDGROUP:
            raise ValueError(
                f"head_dim {self.head_dim}; a multiple of 8, {4 * SIMDGROUP} at most, is expected"
            )
        for name in ("tables", "streams", "count", "kv_heads", "group", "pages", "programs"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"attention with {name} {getattr(self, name)}; at least 1 is expected: where "
                    "there is nothing to do, launch nothing"
                )

    @property
    def lines(self) -> int:
        """Queries and heads of all streams."""
        return self.streams * self.count * self.kv_heads * self.group

    @property
    def out(self) -> tuple[int, ...]:
        """``[streams, T, q_heads, head_dim]``."""
        return self.streams, self.count, self.kv_heads * self.group, self.head_dim


def attend(of: Attention) -> Launch:
    """The launch that reads the pages; :func:`merge` makes one of what several programs find.

    A query sees listed cells of ``order <= its own``; a single query is taken to see all. Its
    inputs:

    - ``queries [tables, streams, T, q_heads, head_dim]``, rotated once for each table of shifts;
    - ``keys`` and ``values``, a layer of the arena that lies as ``[streams, pages, kv_heads, PAGE,
      head_dim]``; query head ``h`` reads key head ``h // group``;
    - ``rows``, ``bounds``, ``segments`` and ``query_order`` of :func:`padded_listing`;
    - ``order int64[pages, PAGE]``, and ``bias float32[pages, PAGE]``, added to the scaled scores,
      or :data:`NO_BIAS`;
    - ``numbers`` of :func:`numbers`, and ``scale`` of :func:`factor`.

    It gives ``out [streams, T, q_heads, head_dim]``, exactly 0 where nothing is seen, and ``sums
    float32[streams, T, q_heads]``, log-sum-exps to base 2, -inf there. Of several programs it gives
    both for each, in float32, without a meaning to anybody but :func:`merge`.
    """
    cut = tiling(of.count, of.group, of.tall)
    shared = of.programs > 1
    made = "float32" if shared else of.dtype
    groups = cut.lines // (cut.simdgroups * LINES)
    split = (cut.simdgroups,) if cut.few else (groups, cut.simdgroups)
    template = (of.dtype, made, of.head_dim, *split)
    tiles = spread(of.count * of.group, cut.lines)
    threads = (cut.simdgroups * SIMDGROUP, 1, 1)
    arena = Array((of.streams, of.pages, of.kv_heads, PAGE, of.head_dim), of.dtype)
    inputs = (
        Array((of.tables, *of.out), of.dtype),
        arena,
        arena,
        Array((of.rows, 2), "int64"),
        Array((of.rows, 2), "int64"),
        Array((of.segments, 4), "int32"),
        Array((of.pages, PAGE), "int64"),
        Array((of.pages, PAGE) if of.biased else NO_BIAS.shape, "float32"),
        Array((max(CONSTANT_BELOW, of.count),), "int64"),
        Array((_NUMBERS,), "int32"),
        Array((_SCALE,), "float32"),
    )
    found = (of.programs * of.lines, of.head_dim) if shared else of.out
    sums = (max(CONSTANT_BELOW, of.programs * of.lines),) if shared else of.out[:-1]
    return Launch(
        DECODE if cut.few else PREFILL,
        template,
        grid_of((tiles, of.kv_heads * of.streams, of.programs), threads),
        threads,
        inputs,
        (Array(found, made), Array(sums, "float32")),
    )


def merge(of: Attention) -> Launch:
    """The launch behind :func:`attend` where there are programs to merge.

    Its inputs: ``found`` and ``found_sums``, what attention gave. It gives ``out`` and ``sums``.
    """
    # Sixteen programs each.
    simdgroups = next((many for many in (1, 4) if of.programs <= 16 * many), 8)
    threads = (simdgroups * SIMDGROUP, 1, 1)
    return Launch(
        MERGE,
        (of.dtype, of.head_dim, simdgroups),
        grid_of((of.lines, spread(of.head_dim, _SLICE), 1), threads),
        threads,
        attend(of).outputs,
        (Array(of.out, of.dtype), Array(of.out[:-1], "float32")),
    )


NO_BIAS = np.zeros(CONSTANT_BELOW, np.float32)
"""Stands where no cell carries one."""

_NUMBERS = 6


def numbers(of: Attention) -> Int32:
    """The input of that name, sizes of the launch."""
    listed = [of.count, of.kv_heads, of.group, of.segments, of.pages, of.biased]
    return np.asarray(listed, np.int32)


def factor(scale: float) -> npt.NDArray[np.float32]:
    """The input ``scale``: a factor on the dot products, more than once.

    MLX's CUDA backend keeps what takes 8 bytes or fewer in the host's memory, and each threadgroup
    would wait for the bus.
    """
    return np.full(_SCALE, scale, np.float32)


_SCALE = 3


def padded_listing(
    listing: Listing, query_order: Int64
) -> dict[str, npt.NDArray[np.signedinteger]]:
    """``rows``, ``bounds``, ``segments`` and ``query_order`` in no less room than MLX wants.

    Args:
        listing: of a layer group; for its sealed part see
            :func:`metal_kernels.sealed.sealed_listing`.
        query_order: ``int64[T]``, ascending.
    """
    plain = len(listing.segments) - len(listing.modality)
    return {
        "rows": _padded(listing.rows[: listing.first_sealed], CONSTANT_BELOW // 2),
        "bounds": _padded(listing.bounds, CONSTANT_BELOW // 2),
        "segments": _padded(listing.segments[:plain], CONSTANT_BELOW // 4),
        "query_order": _padded(query_order, CONSTANT_BELOW),
    }


def _padded(array: npt.NDArray[np.signedinteger], length: int) -> npt.NDArray[np.signedinteger]:
    """With zeros behind, where it is shorter."""
    short = max(0, length - len(array))
    return np.pad(array, [(0, short)] + [(0, 0)] * (array.ndim - 1))
