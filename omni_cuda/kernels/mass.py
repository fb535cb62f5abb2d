"""The attention that each live cell got, found again from the log-sum-exps of the queries.

There are as many programs as attention has: its tiles of queries become parts of the rows. A
program holds a row's keys while all queries pass by, so a cell takes one addition a key head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omni_cuda.kernels.attention import PageList, tiling
from omni_cuda.kernels.launching import INTERPRETED

_LOG2E = 1.4426950408889634


def add_mass(
    queries: torch.Tensor,
    keys: torch.Tensor,
    pages: PageList,
    scale: float,
    sums: torch.Tensor,
    mass: torch.Tensor,
) -> None:
    """Add what each listed cell got, summed over queries, query heads and streams.

    Args:
        queries: ``[tables, streams, T, q_heads, head_dim]``, rotated once for each table of shifts.
        keys: a layer of the arena, ``[streams, pages, kv_heads, PAGE, head_dim]``.
        pages: what is alive.
        scale: factor on the dot products.
        sums: ``float32[streams, T, q_heads]``, log-sum-exp to base 2 as attention left it; a query
            of -inf gives nothing.
        mass: ``float32[pages * PAGE]``, over the whole pool; dead cells stay as they are.
    """
    _, streams, count, q_heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    group = q_heads // kv_heads
    cut = tiling(count, group, queries.element_size())
    parts = triton.cdiv(count * group, cut.queries)
    _add_mass[(parts * pages.shares, pages.programs, kv_heads * streams)](
        queries,
        keys,
        pages.rows,
        pages.segments,
        pages.order,
        pages.bias,
        pages.query_order,
        sums,
        mass,
        scale * _LOG2E,
        count,
        streams,
        pages.segments.shape[0],
        keys.stride(0),
        heads=kv_heads,
        group=group,
        head_dim=head_dim,
        padded=max(16, triton.next_power_of_2(head_dim)),
        tile=cut.queries,
        apart=pages.programs > 1,
        # A single query is taken to see all that is listed.
        checked=count > 1,
        exact=INTERPRETED or queries.dtype is torch.float32,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )


@triton.jit(do_not_specialize=["count", "streams", "listed"])
def _add_mass(
    queries,
    keys,
    rows,
    segments,
    order,
    bias,
    query_order,
    sums,
    mass,
    scale,
    count,
    streams,
    listed,
    stream_stride,
    heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
    apart: tl.constexpr,
    checked: tl.constexpr,
    exact: tl.constexpr,
):
    part = tl.program_id(0)
    share = tl.program_id(1)
    head = tl.program_id(2) % heads
    stream = tl.program_id(2) // heads
    keys += stream.to(tl.int64) * stream_stride + head * 64 * head_dim
    sums += (stream * count).to(tl.int64) * (heads * group) + head * group
    for segment in range(share, share + 1 if apart else listed):
        begin = tl.load(segments + segment * 4)
        whole = tl.load(segments + segment * 4 + 1)
        end = tl.load(segments + segment * 4 + 2)
        table = tl.load(segments + segment * 4 + 3)
        if not checked:
            whole = end
        turned = queries + (((table * streams + stream) * count).to(tl.int64) * heads + head) * (
            group * head_dim
        )
        _add_rows(
            turned, keys, rows, order, bias, query_order, sums, mass, begin + part, whole, scale,
            count, heads, group, head_dim, padded, tile, False, exact,
        )  # fmt: skip
        if checked:
            _add_rows(
                turned, keys, rows, order, bias, query_order, sums, mass, whole + part, end, scale,
                count, heads, group, head_dim, padded, tile, True, exact,
            )  # fmt: skip


@triton.jit
def _add_rows(
    queries,
    keys,
    rows,
    order,
    bias,
    query_order,
    sums,
    mass,
    begin,
    end,
    scale,
    count,
    heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
    checked: tl.constexpr,
    exact: tl.constexpr,
):
    """Add the mass of this program's part of rows ``begin`` to ``end``."""
    lane = tl.arange(0, 64)
    column = tl.arange(0, padded)
    inside = column < head_dim
    for row in range(begin, end, tl.num_programs(0)):
        pair = tl.load(rows + row * 2)
        alive = ((tl.load(rows + row * 2 + 1) >> lane) & 1) != 0
        cell = tl.where(lane < 32, pair.to(tl.int32), (pair >> 32).to(tl.int32)) * 32 + lane % 32
        start = (cell >> 6).to(tl.int64) * (heads * 64 * head_dim) + (cell & 63) * head_dim
        k = tl.load(
            keys + start[None, :] + column[:, None],
            mask=alive[None, :] & inside[:, None],
            other=0.0,
        )
        if exact:
            k = k.to(tl.float32)
        offset = tl.zeros([64], tl.float32)
        if bias is not None:
            offset = tl.load(bias + cell, mask=alive, other=0.0) * 1.4426950408889634
        age = tl.zeros([64], tl.int64)
        if checked:
            age = tl.load(order + cell, mask=alive, other=0)
        given = tl.zeros([tile, 64], tl.float32)
        for first in range(0, count * group, tile):
            line = first + tl.arange(0, tile)
            token = line // group
            there = token < count
            place = token * (heads * group) + line % group
            # Of a query that saw nothing, and of none, the sum is made such that it gives nothing.
            whole = tl.load(sums + place, mask=there, other=float("inf"))
            whole = tl.where(whole == float("-inf"), float("inf"), whole)
            q = tl.load(
                queries + place.to(tl.int64)[:, None] * head_dim + column[None, :],
                mask=there[:, None] & inside[None, :],
                other=0.0,
            )
            if exact:
                q = q.to(tl.float32)
            scores = tl.dot(q, k, input_precision="ieee") * scale + offset[None, :]
            weights = tl.math.exp2(scores - whole[:, None])
            if checked:
                mine = tl.load(query_order + token, mask=there, other=0)
                weights = tl.where(age[None, :] <= mine[:, None], weights, 0.0)
            given += weights
        tl.atomic_add(mass + cell, tl.sum(given, axis=0), mask=alive, sem="relaxed")
