"""Launches of attention over sealed pages, and the merge of what they and 16-bit pages give.

Sealed rows are read by programs of their own, each by one table of shifts and of one modality. What
a program finds stays in its values' rotation: the merge adds up a modality's, and turns it back
once. Sealed cells are older than every query, so that all of them are seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metal_kernels.attention import NO_BIAS, Attention, attend
from metal_kernels.cutting import LINES, Tiling, tiling
from metal_kernels.launch import CONSTANT_BELOW, SIMDGROUP, Array, Kernel, Launch, grid_of, spread
from omni_core.backend import PAGE
from omni_core.paging.listing import Listing
from omni_core.quantization import Codec, SealedLayout
from omni_core.quantization.codebooks import centred
from omni_core.units import Int32, Modality

_INPUTS = (
    *("queries", "sealed", "rows", "segments", "bias", "means", "levels"),
    *("numbers", "scale"),
)
_CONSTANTS = frozenset({"numbers", "scale"})
_OUTPUTS = ("out", "sums")

DECODE = Kernel(
    "sealed_decode", _INPUTS, _OUTPUTS, ("T", "D", "BITS", "TABLE", "SIMDS"), _CONSTANTS
)
PREFILL = Kernel(
    "sealed_prefill", _INPUTS, _OUTPUTS, ("T", "D", "BITS", "TABLE", "GROUPS", "SIMDS"), _CONSTANTS
)
MERGE = Kernel(
    "sealed_merge",
    ("found", "found_sums", "sealed_found", "sealed_sums", "kinds", "rotations", "numbers"),
    _OUTPUTS,
    ("F", "O", "D", "TILE", "SHARE"),
    frozenset({"numbers"}),
)

_LEVELS = 16
_SLICE = SIMDGROUP
"""Columns of a head that a threadgroup merges, one a lane."""


@dataclass(frozen=True)
class SealedAttention:
    """What one layer's attention over sealed pages is about.

    Attributes:
        plain: the same of its 16-bit pages: tables, streams, heads and queries are those.
        layout: of a sealed page.
        first: number of the first sealed page, as listings count.
        pages: sealed ones.
        rows, programs: of the listing as :func:`sealed_listing` gives it.
        table: whether levels are looked up, see :func:`codebook`.
        biased: whether any cell carries a bias.
    """

    plain: Attention
    layout: SealedLayout
    first: int
    pages: int
    rows: int
    programs: int
    table: bool
    biased: bool

    def __post_init__(self) -> None:
        if self.plain.head_dim != self.layout.head_dim:
            raise ValueError(
                f"sealed pages of head_dim {self.layout.head_dim}; {self.plain.head_dim} is "
                "expected, that of the 16-bit ones"
            )

    @property
    def cut(self) -> Tiling:
        """How queries are cut; float32 has no room for a subblock that many lines share."""
        of = self.plain
        found = tiling(of.count, of.group, of.tall)
        return found if of.dtype != "float32" else Tiling(True, LINES, 4)


def attend_sealed(of: SealedAttention) -> Launch:
    """The launch that reads sealed pages; :func:`merge_sealed` makes one of what it finds.

    Its inputs:

    - ``queries`` as :func:`metal_kernels.attention.attend` takes them;
    - ``sealed``, a layer's pages ``uint8[streams, pages, kv_heads, layout.bytes]``;
    - ``rows`` and ``segments`` of :func:`sealed_listing`;
    - ``bias float32[pages, PAGE]``, of sealed cells, or :data:`~metal_kernels.attention.NO_BIAS`;
    - ``means float32[kv_heads, head_dim]``, what was taken from keys, rotated by Hadamard;
    - ``levels`` of :func:`codebook`;
    - ``numbers`` of :func:`numbers`, and ``scale`` of :func:`metal_kernels.attention.factor`.

    It gives, for each program, ``out float32[streams, T, q_heads, head_dim]``, rotated as the
    values of its modality are and not written where a query saw nothing, and ``sums``, log-sum-exps
    to base 2, -inf there.
    """
    plain, cut = of.plain, of.cut
    split = (cut.simdgroups,) if cut.few else (cut.lines // cut.simdgroups // LINES, cut.simdgroups)
    tiles = spread(plain.count * plain.group, cut.lines)
    threads = (cut.simdgroups * SIMDGROUP, 1, 1)
    stored = plain.streams, of.pages, plain.kv_heads, of.layout.bytes
    inputs = (
        Array((plain.tables, *plain.out), plain.dtype),
        Array(stored, "uint8"),
        Array((of.rows, 2), "int64"),
        Array((_segments(of.programs), 4), "int32"),
        Array((of.pages, PAGE) if of.biased else NO_BIAS.shape, "float32"),
        Array((plain.kv_heads, plain.head_dim), "float32"),
        Array((2, _LEVELS), "float32"),
        Array((_NUMBERS,), "int32"),
        Array((3,), "float32"),
    )
    found = of.programs * plain.lines
    return Launch(
        DECODE if cut.few else PREFILL,
        (plain.dtype, plain.head_dim, of.layout.bits, of.table, *split),
        grid_of((tiles, plain.kv_heads * plain.streams, of.programs), threads),
        threads,
        inputs,
        (
            Array((found, plain.head_dim), "float32"),
            Array((max(CONSTANT_BELOW, found),), "float32"),
        ),
    )


def merge_sealed(of: SealedAttention) -> Launch:
    """The launch behind :func:`attend_sealed` and :func:`metal_kernels.attention.attend`.

    Its inputs: ``found`` and ``found_sums``, what attention over 16-bit pages gave, of whatever
    number of programs; ``sealed_found`` and ``sealed_sums``; ``kinds`` of :func:`sealed_listing`;
    ``rotations float32[modalities, kv_heads, head_dim, head_dim]``, by which values were rotated as
    ``R v``; and ``numbers`` of :func:`merge_numbers`. It gives ``out`` and ``sums`` as
    :func:`metal_kernels.attention.merge` does.
    """
    plain = of.plain
    found, found_sums = attend(plain).outputs
    sums = Array((max(CONSTANT_BELOW, found_sums.size),), "float32")
    threads = (LINES * SIMDGROUP, 1, 1)
    # Few lines do not fill a GPU unless simdgroups share them.
    tile = 1 if of.cut.few else LINES
    tiles = spread(plain.count * plain.group, tile)
    slices = spread(plain.head_dim, _SLICE)
    turns = len(Modality), plain.kv_heads, plain.head_dim, plain.head_dim
    return Launch(
        MERGE,
        (found.dtype, plain.dtype, plain.head_dim, tile, LINES // tile),
        grid_of((tiles, plain.kv_heads * plain.streams, slices), threads),
        threads,
        (
            found,
            sums,
            *attend_sealed(of).outputs,
            Array((max(CONSTANT_BELOW, of.programs),), "int32"),
            Array(turns, "float32"),
            Array((_MERGE_NUMBERS,), "int32"),
        ),
        (Array(plain.out, plain.dtype), Array(plain.out[:-1], "float32")),
    )


_NUMBERS = 6
_MERGE_NUMBERS = 6


def numbers(of: SealedAttention) -> Int32:
    """The input of that name of :func:`attend_sealed`, sizes of the launch."""
    plain = of.plain
    listed = [plain.count, plain.kv_heads, plain.group, of.first, of.pages, of.biased]
    return np.asarray(listed, np.int32)


def merge_numbers(of: SealedAttention) -> Int32:
    """The input ``numbers`` of :func:`merge_sealed`."""
    plain = of.plain
    listed = [plain.count, plain.kv_heads, plain.group, plain.programs, of.programs, len(Modality)]
    return np.asarray(listed, np.int32)


def codebook(codec: Codec) -> tuple[bool, npt.NDArray[np.float32]]:
    """Whether a codec's levels are looked up, and ``levels float32[2, 16]`` of keys and values."""
    both = np.stack([codec.key_levels, codec.value_levels])
    uniform = np.array_equal(both, np.stack([centred(codec.bits)] * 2))
    return not uniform, np.pad(both, [(0, 0), (0, _LEVELS - both.shape[1])])


def sealed_listing(listing: Listing) -> dict[str, npt.NDArray[np.signedinteger]]:
    """``rows``, ``segments`` and ``kinds`` of a listing's sealed part, in the room MLX wants.

    Rows are counted from the first sealed one; ``kinds int32`` are the modalities of segments.
    """
    first, count = listing.first_sealed, len(listing.modality)
    segments = listing.segments[len(listing.segments) - count :].copy()
    segments[:, :3] -= first
    rows, kinds = listing.rows[first:], listing.modality.astype(np.int32)
    short = max(0, CONSTANT_BELOW // 2 - len(rows)), max(0, CONSTANT_BELOW - count)
    return {
        "rows": np.pad(rows, [(0, short[0]), (0, 0)]),
        "segments": np.pad(segments, [(0, _segments(count) - count), (0, 0)]),
        "kinds": np.pad(kinds, (0, short[1])),
    }


def sealed_programs(shares: int, parts: int) -> int:
    """Programs of sealed rows.

    Args:
        shares: that the rows are cut into to fill the GPU, see
            :func:`metal_kernels.cutting.programs`.
        parts: tables of shifts times modalities among them: each takes whole programs.
    """
    return shares + max(1, parts) - 1


def _segments(programs: int) -> int:
    return max(CONSTANT_BELOW // 4, programs)
