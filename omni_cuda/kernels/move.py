"""Copies of cells within the arena, with their places in the stream.

A program takes one cell of one layer and stream, all its key heads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omni_core.backend import PAGE

_SCRATCH = 1 << 26
"""Bytes of keys that are on their way at once where cells trade places."""


def move_cells(
    source: torch.Tensor,
    target: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    order: torch.Tensor,
    bias: torch.Tensor,
    *,
    overlap: bool,
) -> None:
    """Copy cells in every layer and stream; all reads happen before all writes.

    Args:
        source, target: ``int32[n]``, ``page * PAGE + slot``; no target is named twice.
        keys, values: ``[layers, streams, pages, kv_heads, PAGE, head_dim]``, contiguous.
        order: ``int64[pages or more, PAGE]``.
        bias: ``float32[pages or more, PAGE]``.
        overlap: whether a target may be a source too; the cells then go through a scratch, a few
            layers at a time.
    """
    count = source.shape[0]
    if not count:
        return
    source, target = source.contiguous(), target.contiguous()
    if not overlap:
        _copy(source, (keys, values), target, (keys, values), (order, bias))
        return
    for column in (order.view(-1), bias.view(-1)):
        column[target] = column[source]
    # The scratch is a small arena, its first cells in use: as many layers as it takes at once.
    pages = triton.cdiv(count, PAGE)
    layer = pages * keys[0, :, 0].nbytes
    depth = min(keys.shape[0], max(1, _SCRATCH // layer))
    shape = (depth, keys.shape[1], pages, *keys.shape[3:])
    scratch = (keys.new_empty(shape), values.new_empty(shape))
    numbered = torch.arange(count, dtype=torch.int32, device=source.device)
    for start in range(0, keys.shape[0], depth):
        part = (keys[start : start + depth], values[start : start + depth])
        held = (scratch[0][: len(part[0])], scratch[1][: len(part[0])])
        _copy(source, part, numbered, held)
        _copy(numbered, held, target, part)


_Pair = tuple[torch.Tensor, torch.Tensor]


def _copy(
    source: torch.Tensor,
    origin: _Pair,
    target: torch.Tensor,
    goal: _Pair,
    places: _Pair | tuple[None, None] = (None, None),
) -> None:
    """Copy cells of keys and values, and of order and bias if given."""
    layers, streams, _, kv_heads, _, head_dim = origin[0].shape
    heads, dims = triton.next_power_of_2(kv_heads), triton.next_power_of_2(head_dim)
    _copy_cells[(source.shape[0], layers, streams)](
        source,
        target,
        *origin,
        *goal,
        *places,
        origin[0].shape[2],
        goal[0].shape[2],
        kv_heads=kv_heads,
        head_dim=head_dim,
        heads=heads,
        dims=dims,
        page=PAGE,
        num_warps=min(max(heads * dims // 256, 1), 8),
    )


@triton.jit(do_not_specialize=["source_pages", "target_pages"])
def _copy_cells(
    source,
    target,
    source_keys,
    source_values,
    target_keys,
    target_values,
    order,
    bias,
    source_pages,
    target_pages,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    heads: tl.constexpr,
    dims: tl.constexpr,
    page: tl.constexpr,
):
    layer = tl.program_id(1)
    stream = tl.program_id(2)
    slab = (layer * tl.num_programs(2) + stream).to(tl.int64)
    old = tl.load(source + tl.program_id(0))
    new = tl.load(target + tl.program_id(0))
    head = tl.arange(0, heads)[:, None]
    dim = tl.arange(0, dims)[None, :]
    mask = (head < kv_heads) & (dim < head_dim)
    within = head * (page * head_dim) + dim
    width: tl.constexpr = kv_heads * page * head_dim
    read = (slab * source_pages + old // page) * width + (old % page) * head_dim + within
    written = (slab * target_pages + new // page) * width + (new % page) * head_dim + within
    keys = tl.load(source_keys + read, mask=mask)
    values = tl.load(source_values + read, mask=mask)
    tl.store(target_keys + written, keys, mask=mask)
    tl.store(target_values + written, values, mask=mask)
    if order is not None:  # noqa: SIM102, whose advice Triton does not compile
        if layer + stream == 0:
            tl.store(order + new, tl.load(order + old))
            tl.store(bias + new, tl.load(bias + old))
