"""Keys of 16 bits become codes in three launches: rotated, ranges fitted, coded.

Cells are taken a few at a time, and lie in memory as numbers between the launches: so all of them
compile in seconds.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from omni_core.backend import SUBBLOCK
from omni_core.quantization import SealedLayout
from omni_core.quantization.fitted import DRAWN_IN, WIDER
from omni_core.quantization.hadamard import block_size
from omni_cuda.kernels.launching import INTERPRETED
from omni_cuda.kernels.sealed_fit import fit
from omni_cuda.kernels.sealed_folds import (
    butterflies,
    cells_of,
    folded,
    nothing,
    over,
    over_all,
    over_channels,
    root,
)
from omni_cuda.kernels.sealed_ranges import decoded, nearest
from omni_cuda.kernels.sealed_words import store_keys

_ROWS = SUBBLOCK if INTERPRETED else 2
"""Cells that are taken at a time: more compile long, fewer are many steps to interpret."""


def seal_keys(
    source: torch.Tensor,
    target: torch.Tensor,
    keys: torch.Tensor,
    sealed: torch.Tensor,
    layout: SealedLayout,
    key_means: torch.Tensor | None,
    feedback: torch.Tensor | None,
    faults: torch.Tensor,
    grid: tuple[int, int],
    shared: dict[str, Any],
) -> None:
    """Code the keys of cells, and write codes, ranges, exponents and scales.

    Args:
        source, target, keys, sealed, layout, key_means, feedback, faults: as in
            :func:`omni_cuda.kernels.sealed_store.seal_cells`.
        grid: subblocks times key heads, layers times streams.
        shared: what all kernels are compiled for.
    """
    _, streams, pages, _, _, head_dim = keys.shape
    bits, blocks = layout.bits, -(-head_dim // 32)
    lines, block = grid[0] * grid[1], block_size(head_dim)
    coordinates = keys.new_empty((lines, SUBBLOCK, head_dim), dtype=torch.float32)
    weights = keys.new_empty((lines, SUBBLOCK), dtype=torch.float32)
    places = {"ranges_at": layout.ranges, "exponents_at": layout.exponents, "blocks": blocks}
    _rotate[grid](
        source,
        target,
        keys,
        sealed,
        key_means,
        coordinates,
        weights,
        faults,
        streams,
        pages,
        sealed.shape[2],
        scales_at=layout.key_scales,
        levels=block.bit_length() - 1,
        reduced=float(block) ** -0.5,
        rows=_ROWS,
        **shared,
    )
    fit[grid](
        target,
        coordinates,
        weights,
        sealed,
        sealed.shape[2],
        scales_at=layout.key_scales,
        drawn=(1 - 2 * DRAWN_IN[bits]) / (2**bits - 1),
        fed=feedback is not None,
        wider=WIDER[bits],
        rows=_ROWS,
        **places,
        **shared,
    )
    _code[grid](
        target,
        coordinates,
        sealed,
        feedback,
        streams,
        sealed.shape[2],
        codes_at=layout.key_codes,
        code_bytes=layout.key_code_bytes,
        **places,
        **shared,
    )


@triton.jit(do_not_specialize=["streams", "pages", "sealed_pages"])
def _rotate(
    source,
    target,
    keys,
    sealed,
    key_means,
    coordinates,
    weights,
    faults,
    streams,
    pages,
    sealed_pages,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    page: tl.constexpr,
    bits: tl.constexpr,
    size: tl.constexpr,
    scales_at: tl.constexpr,
    levels: tl.constexpr,
    reduced: tl.constexpr,
    rows: tl.constexpr,
    exact: tl.constexpr,
):
    """Norms, coordinates of rotated keys of norm 1, and what each cell counts in the fit."""
    which = tl.program_id(0) // kv_heads
    head = tl.program_id(0) % kv_heads
    slab = tl.program_id(1).to(tl.int64)
    layer = slab // streams
    d = tl.arange(0, padded)
    used = d < head_dim
    line = (slab * tl.num_programs(0) + tl.program_id(0)) * 32
    coordinates += line * head_dim
    subblock = tl.load(target + which)
    place = ((slab * sealed_pages + (subblock >> 1)) * kv_heads + head) * size
    halves = (sealed + place + scales_at + (subblock & 1) * 64).to(tl.pointer_type(tl.float16))
    mean = tl.zeros([padded], tl.float32)
    if key_means is not None:
        mean = tl.load(key_means + (layer * kv_heads + head) * head_dim + d, used, 0.0)
    bad = tl.zeros([rows, padded], tl.int32)
    count = tl.zeros([rows], tl.float32)
    p0, p1, p2, p3, p4 = nothing(padded)
    total = p0
    for i in range(32 // rows):
        cell = cells_of(i, rows)
        number = tl.load(source + which * 32 + cell)
        filled = used[None, :] & (number >= 0)[:, None]
        at = ((slab * pages + number // page) * kv_heads + head) * page + number % page
        k = tl.load(keys + at[:, None] * head_dim + d[None, :], filled, 0.0).to(tl.float32)
        finite = tl.abs(k) < float("inf")
        bad |= finite.to(tl.int32) ^ 1
        k = tl.where(finite & filled, k - mean[None, :], 0.0)
        scale = tl.minimum(root(over_channels(k * k), exact), 65504.0).to(tl.float16)
        tl.store(halves + cell, scale)
        by = scale.to(tl.float32)
        count += (by > 0).to(tl.float32)
        x = butterflies(k, levels) * reduced
        x = over(x, tl.where(by > 0, by, 1.0)[:, None], exact)
        x = tl.where((by > 0)[:, None], x, 0.0)
        tl.store(coordinates + cell[:, None] * head_dim + d[None, :], x, used[None, :])
        total, p0, p1, p2, p3, p4 = folded(i, x, p0, p1, p2, p3, p4)
    if tl.max(bad) > 0:
        tl.store(faults + layer, 1)
    tl.debug_barrier()
    live_count = tl.maximum(tl.sum(count, axis=0), 1.0)
    middle = over(total, tl.zeros_like(total) + live_count, exact)
    cells = tl.arange(0, 32)
    alive = (tl.load(halves + cells) > 0).to(tl.float32)
    for i in range(32 // rows):
        cell = cells_of(i, rows)
        x = tl.load(coordinates + cell[:, None] * head_dim + d[None, :], used[None, :], 0.0)
        apart = tl.where(used[None, :], x - middle[None, :], 0.0)
        tl.store(weights + line + cell, over_channels(apart * apart))
    tl.debug_barrier()
    distance = tl.load(weights + line + cells) * alive
    usual = over(over_all(distance), live_count, exact)
    weight = tl.where(usual > 0, tl.maximum(distance, usual) * alive, alive)
    whole = over_all(weight)
    weight = over(weight, tl.where(whole > 0, whole, 1.0), exact)
    tl.debug_barrier()
    tl.store(weights + line + cells, tl.where(whole > 0, weight, 0.0))


@triton.jit(do_not_specialize=["streams", "sealed_pages"])
def _code(
    target,
    coordinates,
    sealed,
    feedback,
    streams,
    sealed_pages,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    page: tl.constexpr,
    bits: tl.constexpr,
    size: tl.constexpr,
    codes_at: tl.constexpr,
    code_bytes: tl.constexpr,
    ranges_at: tl.constexpr,
    exponents_at: tl.constexpr,
    blocks: tl.constexpr,
    exact: tl.constexpr,
):
    """Codes of the levels nearest, of each channel with the errors of those before it."""
    half: tl.constexpr = (2**bits - 1) / 2
    head = tl.program_id(0) % kv_heads
    slab = tl.program_id(1).to(tl.int64)
    cell = tl.arange(0, 32)
    d = tl.arange(0, padded)
    line = (slab * tl.num_programs(0) + tl.program_id(0)) * 32 + cell
    subblock = tl.load(target + tl.program_id(0) // kv_heads)
    part = subblock & 1
    place = ((slab * sealed_pages + (subblock >> 1)) * kv_heads + head) * size
    ranges = sealed + place + ranges_at + part * head_dim
    about = sealed + place + exponents_at + part * (2 * blocks)
    words = (sealed + place + codes_at + part * code_bytes).to(tl.pointer_type(tl.int32))
    used = d < head_dim
    if feedback is None:
        x = tl.load(coordinates + line[:, None] * head_dim + d[None, :], used[None, :], 0.0)
        both = tl.load(ranges + d, used, 0).to(tl.int32)
        offset = decoded(both & 15, tl.load(about + d // 32 * 2, used, 0).to(tl.int32))
        span = decoded(both >> 4, tl.load(about + d // 32 * 2 + 1, used, 0).to(tl.int32))
        codes = nearest(x, offset[None, :], span[None, :], bits, exact)
    else:
        table = feedback + ((slab // streams) * kv_heads + head) * (head_dim * head_dim)
        codes = tl.zeros([32, padded], tl.int32)
        asked = tl.zeros([32, padded], tl.float32)
        asked += tl.load(coordinates + line[:, None] * head_dim + d[None, :], used[None, :], 0.0)
        for channel in range(head_dim):
            mine = (d == channel)[None, :]
            both = tl.load(ranges + channel).to(tl.int32)
            offset = decoded(both & 15, tl.load(about + channel // 32 * 2).to(tl.int32))
            span = decoded(both >> 4, tl.load(about + channel // 32 * 2 + 1).to(tl.int32))
            x = tl.load(coordinates + line * head_dim + channel)
            # One number among zeros: whatever the order, their sum is it.
            wanted = tl.sum(tl.where(mine, asked, 0.0), axis=1)
            code = nearest(wanted, offset, span, bits, exact)
            codes = tl.where(mine, code[:, None], codes)
            gap = x - offset - span * (code.to(tl.float32) - half)
            row = tl.load(table + channel * head_dim + d, used, 0.0)
            asked += gap[:, None] * row[None, :]
    store_keys(words, codes, head_dim, padded, bits)
