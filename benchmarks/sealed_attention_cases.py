"""What sealed attention is measured on: pages of random codes, and the same cells in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from benchmarks.attention_cases import Case, expected, page_list
from benchmarks.live_cells import Live, Shape, scattered
from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.listing import list_subblocks
from omni_core.paging.mirror import ListedPages
from omni_core.quantization import Codec, SealedLayout, codec, mxfp4
from omni_core.quantization.hadamard import hadamard
from omni_core.units import Modality
from omni_cuda.devices import upload
from omni_cuda.kernels.launching import roomy
from omni_cuda.kernels.sealed_list import SealedList, undoing
from omni_cuda.kernels.tiling import sealed_split, split

_FIRST = 8
"""Pages of 16 bits before the first sealed one."""
_LOOKED_AT = 8
"""Queries whose output is checked, at most."""
_EXPONENT = {2: 122, 3: 121, 4: 120}
"""Of all ranges by bits: coordinates of keys of norm 1."""


@dataclass(frozen=True)
class SealedCase:
    """Sealed caches of some layers and queries to each.

    Attributes:
        shape, layout: of what.
        codec: of the pages.
        live: which pages are read.
        queries: ``[layers, 1, 1, T, q_heads, head_dim]``.
        sealed: ``uint8[layers, 1, pages, kv_heads, layout.bytes]``.
        turns: ``float32[modalities, kv_heads, head_dim, head_dim]``, of all layers' values.
        rotations: those as the kernels undo them.
        kinds: ``int64[n]``, the modality of each page of ``live``.
        pages: the listing.
    """

    shape: Shape
    layout: SealedLayout
    codec: Codec
    live: Live
    queries: torch.Tensor
    sealed: torch.Tensor
    turns: torch.Tensor
    rotations: torch.Tensor
    kinds: torch.Tensor
    pages: SealedList

    @property
    def layers(self) -> int:
        """How many there are."""
        return self.sealed.shape[0]

    @property
    def scale(self) -> float:
        """Factor on the dot products."""
        return float(self.shape.head_dim**-0.5)

    @property
    def bytes(self) -> int:
        """Of sealed pages that a layer reads."""
        return self.live.pages.size * self.shape.kv_heads * self.layout.bytes

    @cached_property
    def constants(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What decoding takes, on the device: pages, Hadamard's matrix, levels, MXFP4 numbers."""
        levels = np.stack([self.codec.key_levels, self.codec.value_levels])
        numbers = np.concatenate([mxfp4.MAGNITUDES, -mxfp4.MAGNITUDES])
        found = (self.live.pages.astype(np.int64), hadamard(self.shape.head_dim), levels, numbers)
        pages, matrix, levels, numbers = (upload(part, self.sealed.device) for part in found)
        return pages, matrix, levels, numbers

    def decoded(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``float32[1, kv_heads, cells, head_dim]``, by PyTorch alone."""
        pages, matrix, levels, numbers = self.constants
        keys, values = unsealed(self.sealed[layer, 0][pages], self.layout, levels, numbers)
        keys = keys @ matrix
        values = torch.einsum("nhcd,nhde->nhce", values, self.turns[self.kinds])
        keys, values = (part.transpose(0, 1).flatten(1, 2)[None] for part in (keys, values))
        return keys, values

    def error(self, layer: int, out: torch.Tensor) -> float:
        """Relative error of the worst head of ``[T, q_heads, head_dim]``; infinite where NaN."""
        keys, values = self.decoded(layer)
        # All cells are older than all queries: each is one that sees all. A few tell of the others.
        some = range(0, out.shape[0], -(-out.shape[0] // _LOOKED_AT))
        queries = self.queries[layer, 0, 0]
        reference = torch.cat(
            [expected(queries[at : at + 1], keys, values, self.scale) for at in some]
        )
        gap = (out[some.start :: some.step].float() - reference).norm(dim=(0, 2)) / reference.norm(
            dim=(0, 2)
        )
        return float(gap.nan_to_num(nan=float("inf")).max())

    def in_16_bits(self, processors: int, dtype: torch.dtype) -> Case:
        """The same cells, rounded to a dtype, in as many pages that lie anywhere."""
        device, shape, count = self.sealed.device, self.shape, self.queries.shape[3]
        size = (self.layers, 1, self.live.arena, shape.kv_heads, PAGE, shape.head_dim)
        keys, values = (torch.full(size, torch.nan, dtype=dtype, device=device) for _ in range(2))
        at = self.constants[0]
        for layer in range(self.layers):
            for to, part in zip((keys, values), self.decoded(layer), strict=True):
                paged = part[0].unflatten(1, (-1, PAGE)).transpose(0, 1)
                to[layer, 0, at] = paged.to(dtype)
        sizes = count, shape.group, shape.kv_heads, dtype.itemsize, processors
        pages = page_list(self.live, split(*sizes, roomy=roomy(device)), device)
        newest = torch.full((count,), self.live.cells, dtype=torch.int64, device=device)
        pages = replace(pages, query_order=newest)
        return Case(shape, self.live, self.queries, keys, values, pages)


def build(
    shape: Shape,
    cells: int,
    bits: int,
    layers: int,
    draw: np.random.Generator,
    device: torch.device,
    processors: int,
    new: int = 1,
    dtype: torch.dtype = torch.bfloat16,
) -> SealedCase:
    """A case of fresh random codes, for a card of so many multiprocessors.

    Args:
        shape, cells, bits, layers: of what; ``cells`` a multiple of a page.
        draw: where random numbers come from.
        device, processors: the card.
        new: queries.
        dtype: of the queries.
    """
    layout, head_dim = SealedLayout(shape.head_dim, bits), shape.head_dim
    live = scattered(draw, cells, -(-cells // PAGE) * 5 // 4)
    size = (layers, 1, live.arena, shape.kv_heads, layout.bytes)
    sealed = torch.randint(0, 256, size, dtype=torch.uint8, device=device)
    # Spans above 0, exponents like those of keys of norm 1, norms like those of keys and values.
    sealed[..., layout.ranges : layout.key_scales] &= 0x7F
    sealed[..., layout.exponents :] = _EXPONENT[bits]
    halves = sealed.view(torch.float16)
    for begin, end, mean in (
        (layout.key_scales, layout.value_scales, head_dim**0.5),
        (layout.value_scales, layout.exponents, 1.0),
    ):
        part = halves[..., begin // 2 : end // 2]
        part.copy_((torch.rand(part.shape, device=device) + 0.5) * mean)
    queries = torch.randn(layers, 1, 1, new, shape.q_heads, head_dim, dtype=dtype, device=device)
    turns = torch.randn(len(Modality), shape.kv_heads, head_dim, head_dim, device=device)
    turns = torch.linalg.qr(turns)[0]
    pages, kinds = _listed(live, new, shape, dtype.itemsize, device, processors)
    rotations = undoing(turns, layout)
    return SealedCase(
        shape, layout, codec(bits=bits), live, queries, sealed, turns, rotations, kinds, pages
    )


def _listed(
    live: Live, new: int, shape: Shape, element: int, device: torch.device, processors: int
) -> tuple[SealedList, torch.Tensor]:
    """Whole pages as steps list them, a third of each modality, and the modality of each page."""
    count = live.pages.size
    pages = np.sort(live.pages.astype(np.int64))
    kinds = np.sort(np.arange(count) % len(Modality)).astype(np.int8)
    cut = new, shape.group, shape.kv_heads
    dealt = split(*cut, element, processors, roomy=roomy(device)).programs > 1
    programs, shares = sealed_split(*cut, processors, 1, live.arena, dealt)
    listing = list_subblocks(
        ListedPages(
            (pages + _FIRST).astype(np.int32),
            np.full((count, 2), 0xFFFFFFFF, np.uint32),
            np.zeros(count, np.int32),
            np.zeros(count, np.bool_),
            np.zeros((0, PAGE), np.int64),
            0,
            kinds,
        ),
        1,
        sealed_programs=programs,
    )
    first = listing.first_sealed
    rows = np.concatenate([listing.rows[first:], np.full((1, 2), -1)])
    segments = listing.segments[-len(listing.modality) :]
    segments = segments - np.asarray([first, first, first, 0], np.int32)
    placed, kind = upload(segments, device), upload(listing.modality.astype(np.int32), device)
    listed = SealedList(upload(rows, device), placed, programs, None, kind, _FIRST, shares)
    of_page = np.empty(live.arena, np.int64)
    of_page[pages] = kinds
    return listed, upload(of_page[live.pages], device)


def unsealed(
    held: torch.Tensor, layout: SealedLayout, levels: torch.Tensor, numbers: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``float32[n, kv_heads, PAGE, head_dim]``, still rotated.

    Args:
        held: ``uint8[n, kv_heads, layout.bytes]``.
        layout: of the pages.
        levels: ``float32[2, 2**bits]``, of keys and of values.
        numbers: ``float32[16]``, what MXFP4 codes say.
    """
    lead, size = held.shape[:2], layout.head_dim

    def part(begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        return held[..., begin:end].contiguous().view(dtype).view(*lead, 2, -1)

    key_words = part(layout.key_codes, layout.value_codes, torch.int32)
    value_words = part(layout.value_codes, layout.ranges, torch.int32)
    ranges = part(layout.ranges, layout.key_scales, torch.uint8).int()
    norms = part(layout.key_scales, layout.value_scales, torch.float16).float()
    scales = part(layout.value_scales, layout.exponents, torch.float16).float()
    end = layout.exponents + 2 * layout.exponent_bytes
    exponents = part(layout.exponents, end, torch.uint8).int().unflatten(-1, (-1, 2))
    powers = torch.exp2(exponents.float() - 127).repeat_interleave(32, dim=-2)[..., :size, :]
    offset = numbers[ranges & 15] * powers[..., 0]
    span = numbers[ranges >> 4] * powers[..., 1]
    codes = _key_codes(key_words, size, layout.bits)
    keys = offset[..., None, :] + span[..., None, :] * levels[0][codes]
    values = levels[1][_value_codes(value_words, size, layout.bits)]
    keys, values = keys * norms[..., None], values * scales[..., None]
    return keys.flatten(2, 3), values.flatten(2, 3)


def _key_codes(words: torch.Tensor, size: int, bits: int) -> torch.Tensor:
    """Codes ``int64[n, kv_heads, 2, 32, head_dim]`` of words ``int32[n, kv_heads, 2, words]``."""
    found, begin = 0, 0
    for plane, low in _planes(bits):
        count = SUBBLOCK * -(-size * plane // 32)
        part = words[..., begin : begin + count].unflatten(-1, (-1, SUBBLOCK))
        place = torch.arange(16 // plane, device=words.device) * plane
        shift = place[:, None] + torch.arange(2, device=words.device) * 16
        codes = (part.mT[..., None, None] >> shift) & ((1 << plane) - 1)
        found, begin = found | codes.flatten(-3)[..., :size].long() << low, begin + count
    return torch.as_tensor(found)


def _value_codes(words: torch.Tensor, size: int, bits: int) -> torch.Tensor:
    """Codes ``int64[n, kv_heads, 2, 32, head_dim]`` of words ``int32[n, kv_heads, 2, words]``."""
    found, begin = 0, 0
    for plane, low in _planes(bits):
        part = words[..., begin : begin + size * plane].unflatten(-1, (-1, 4, 4))
        # [word, cell / 8, cell % 4] to [cell / 8, half, cell % 4, word, place]
        part = part.movedim(-3, -1)[..., :, None, :, :, None]
        half = (torch.arange(2, device=words.device) * 16)[:, None, None, None]
        shift = torch.arange(16 // plane, device=words.device) * plane + half
        codes = (part >> shift) & ((1 << plane) - 1)
        codes = codes.flatten(-2).flatten(-4, -2).long()
        found, begin = found | codes << low, begin + size * plane
    return torch.as_tensor(found)


def _planes(bits: int) -> list[tuple[int, int]]:
    """Bits of each plane, and how far up they belong."""
    return [(2, 0), (1, 2)] if bits == 3 else [(bits, 0)]
