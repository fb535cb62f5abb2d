"""Rotary embedding and the arena's writes in one launch, from fused projections.

A program takes a few heads of one token: queries, which it turns by every table, or keys with
their values. Half a head lies in registers beside the half that it is paired with.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_core.backend import PAGE
from omni_cuda.kernels.launching import early, early_launch

_FEW_TOKENS = 64
"""Up to here there are more multiprocessors than work, and programs take fewer heads."""


def rotate_and_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cells: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    queries: torch.Tensor,
) -> None:
    """Write new tokens' rotated keys and plain values to their cells, and rotated queries out.

    Dimension ``i`` pairs with ``i + head_dim / 2``; rotated in float32, rounded once.

    Args:
        qkv: ``[streams, T, (q_heads + 2 * kv_heads) * head_dim]``: heads of queries, then of
            keys, then of values.
        cos, sin: ``float32[m + 1, T, head_dim / 2]``: a table for the keys, then ``m`` for the
            queries.
        cells: ``int32[T]``, ``page * PAGE + slot``; of a token with -1 only queries are written.
        keys, values: a layer of the arena, ``[streams, pages, kv_heads, PAGE, head_dim]``,
            contiguous.
        queries: ``[m, streams, T, q_heads, head_dim]``, contiguous.
    """
    tables, streams, tokens, q_heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    heads = 2 if streams * tokens <= _FEW_TOKENS else 8
    blocks = triton.cdiv(q_heads, heads) + triton.cdiv(kv_heads, heads)
    _rotate_and_store[(tokens, blocks, streams)](
        qkv.contiguous(),
        cos.contiguous(),
        sin.contiguous(),
        cells.contiguous(),
        keys,
        values,
        queries,
        tokens,
        tables,
        keys.shape[1],
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        heads=heads,
        padded=triton.next_power_of_2(head_dim // 2),
        page=PAGE,
        dependent=early(qkv.device),
        num_warps=1 if heads == 2 else 2,
        **early_launch(qkv.device),
    )


# Lengths differ from step to step: a kernel compiled for a length of 1 or of a multiple of 16 gains
# nothing, and would be compiled in the middle of a stream.
@triton.jit(do_not_specialize=["tokens", "tables", "pages"])
def _rotate_and_store(
    qkv,
    cos,
    sin,
    cells,
    keys,
    values,
    queries,
    tokens,
    tables,
    pages,
    q_heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    heads: tl.constexpr,
    padded: tl.constexpr,
    page: tl.constexpr,
    dependent: tl.constexpr,
):
    if dependent:
        gdc_wait()
        gdc_launch_dependents()
    half: tl.constexpr = head_dim // 2
    q_blocks: tl.constexpr = (q_heads + heads - 1) // heads
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    stream = tl.program_id(2).to(tl.int64)
    lane = tl.arange(0, padded)
    row = qkv + (stream * tokens + token) * ((q_heads + 2 * kv_heads) * head_dim)
    if block < q_blocks:
        head = block * heads + tl.arange(0, heads)
        mask = (head < q_heads)[:, None] & (lane < half)[None, :]
        place = head[:, None] * head_dim + lane[None, :]
        first = tl.load(row + place, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(row + half + place, mask=mask, other=0.0).to(tl.float32)
        for table in range(tables):
            turn = ((table + 1) * tokens + token) * half + lane
            c = tl.load(cos + turn, mask=lane < half, other=0.0)[None, :]
            s = tl.load(sin + turn, mask=lane < half, other=0.0)[None, :]
            whole = (table * tl.num_programs(2) + stream) * tokens + token
            target = queries + whole * (q_heads * head_dim) + place
            tl.store(target, (first * c - second * s).to(queries.dtype.element_ty), mask=mask)
            tl.store(
                target + half, (second * c + first * s).to(queries.dtype.element_ty), mask=mask
            )
    else:
        cell = tl.load(cells + token)
        if cell >= 0:
            head = (block - q_blocks) * heads + tl.arange(0, heads)
            mask = (head < kv_heads)[:, None] & (lane < half)[None, :]
            place = (q_heads + head)[:, None] * head_dim + lane[None, :]
            first = tl.load(row + place, mask=mask, other=0.0).to(tl.float32)
            second = tl.load(row + half + place, mask=mask, other=0.0).to(tl.float32)
            place += kv_heads * head_dim
            low = tl.load(row + place, mask=mask, other=0.0)
            high = tl.load(row + half + place, mask=mask, other=0.0)
            turn = token * half + lane
            c = tl.load(cos + turn, mask=lane < half, other=0.0)[None, :]
            s = tl.load(sin + turn, mask=lane < half, other=0.0)[None, :]
            start = (stream * pages + cell // page) * (kv_heads * page * head_dim)
            target = start + (head * page + cell % page)[:, None] * head_dim + lane[None, :]
            rotated = keys + target
            tl.store(rotated, (first * c - second * s).to(keys.dtype.element_ty), mask=mask)
            tl.store(rotated + half, (second * c + first * s).to(keys.dtype.element_ty), mask=mask)
            tl.store(values + target, low, mask=mask)
            tl.store(values + target + half, high, mask=mask)
