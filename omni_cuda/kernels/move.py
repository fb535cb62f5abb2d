"""Copies of cells within the arena, with their places in the stream.

A program takes one cell of one layer and stream, all its key heads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omni_core.backend import PAGE


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
        overlap: whether a target may be a source too; the cells then go through a scratch.
    """
    count = source.shape[0]
    if not count:
        return
    source, target = source.contiguous(), target.contiguous()
    pool = (keys, values, order, bias)
    if not overlap:
        _copy(source, pool, target, pool)
        return
    # The scratch is a small arena, its first cells in use.
    pages = triton.cdiv(count, PAGE)
    scratch = (
        keys.new_empty(*keys.shape[:2], pages, *keys.shape[3:]),
        values.new_empty(*values.shape[:2], pages, *values.shape[3:]),
        order.new_empty(pages, PAGE),
        bias.new_empty(pages, PAGE),
    )
    numbered = torch.arange(count, dtype=torch.int32, device=source.device)
    _copy(source, pool, numbered, scratch)
    _copy(numbered, scratch, target, pool)


_Pool = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Keys, values, order and bias."""


def _copy(source: torch.Tensor, origin: _Pool, target: torch.Tensor, goal: _Pool) -> None:
    layers, streams, _, kv_heads, _, head_dim = origin[0].shape
    heads, dims = triton.next_power_of_2(kv_heads), triton.next_power_of_2(head_dim)
    _copy_cells[(source.shape[0], layers, streams)](
        source,
        target,
        *origin,
        *goal,
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
    source_order,
    source_bias,
    target_keys,
    target_values,
    target_order,
    target_bias,
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
    if layer + stream == 0:
        tl.store(target_order + new, tl.load(source_order + old))
        tl.store(target_bias + new, tl.load(source_bias + old))
