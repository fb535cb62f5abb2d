"""Attention that reads live pages in place: no copy, no dead subblock, any order of pages.

A program takes a tile of queries of one key head, all heads of its group, and a share of the
listing's rows. Each row is two live subblocks, 64 cells, one tile of keys. Where rows are shared
between programs, a second kernel merges what they found by log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_cuda.kernels.launching import INTERPRETED, early, early_launch, roomy
from omni_cuda.kernels.merge import merge_shares
from omni_cuda.kernels.tiling import tiling

_LOG2E = 1.4426950408889634
_FEW_HEADS = 4
"""A key head's query heads up to which programs without rows leave at once: on an H200, 13 % faster
with 4 over 3,072 cells. With 7, that way out makes the kernel 11 % slower over 32,768."""


@dataclass(frozen=True)
class PageList:
    """A listing on the device, with what is known of the cells that it names.

    Attributes:
        rows: ``int64[programs * room + 1, 2]`` of :class:`omni_core.paging.listing.Listing`, and a
            spare one.
        bounds, segments: of the listing.
        programs: that the rows are dealt out to, each with a segment of its own. Where it is 1,
            segments follow each other without a gap.
        order: ``int64[pages, PAGE]``.
        bias: ``float32[pages, PAGE]``, added to the scaled scores; None where all are 0.
        query_order: ``int64[T]``, ascending. A single query is taken to see all that is listed.
        shares: programs that cut the rows between them where ``programs`` is 1.

    It is read before the kernel before has ended: it must not be that kernel's work.
    """

    rows: torch.Tensor
    bounds: torch.Tensor
    segments: torch.Tensor
    programs: int
    order: torch.Tensor
    bias: torch.Tensor | None
    query_order: torch.Tensor
    shares: int = 1

    @property
    def room(self) -> int:
        """Rows of a program."""
        return (self.rows.shape[0] - 1) // self.programs


def attend_pages(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: PageList,
    scale: float,
    *,
    sums: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each query over the listed cells of ``order <= its own``; exactly 0 where it sees none.

    Args:
        queries: ``[tables, streams, T, q_heads, head_dim]``, rotated once for each table of shifts.
        keys, values: a layer of the arena, ``[streams, pages, kv_heads, PAGE, head_dim]``; query
            head ``h`` reads key head ``h // (q_heads // kv_heads)``.
        pages: what is alive.
        scale: factor on the dot products.
        sums: ``float32[streams, T, q_heads]``, takes each query's log-sum-exp to base 2.

    Returns:
        ``[streams, T, q_heads, head_dim]`` in the queries' dtype.
    """
    shares = pages.programs * pages.shares
    out = torch.empty_like(queries[0])
    if shares == 1:
        _launch(queries, keys, values, pages, scale, out, sums, shared=False)
        return out
    shape = (shares, *out.shape[:3])
    found = torch.empty(*shape, out.shape[3], dtype=torch.float32, device=out.device)
    found_sums = torch.empty(shape, dtype=torch.float32, device=out.device)
    find_in_pages(queries, keys, values, pages, scale, found, found_sums)
    merge_shares(found, found_sums, pages.segments if pages.programs > 1 else None, out, sums)
    return out


def find_in_pages(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: PageList,
    scale: float,
    found: torch.Tensor,
    found_sums: torch.Tensor,
) -> None:
    """What each share of the rows finds, for :func:`omni_cuda.kernels.merge.merge_shares`.

    Args:
        queries, keys, values, pages, scale: as in :func:`attend_pages`.
        found: ``float32[programs * shares, streams, T, q_heads, head_dim]``, contiguous; not
            written where a share saw nothing.
        found_sums: ``float32[programs * shares, streams, T, q_heads]``, log-sum-exp to base 2, -inf
            there; not written by programs without rows.
    """
    _launch(queries, keys, values, pages, scale, found, found_sums, shared=True)


def _launch(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: PageList,
    scale: float,
    out: torch.Tensor,
    sums: torch.Tensor | None,
    shared: bool,
) -> None:
    _, streams, count, q_heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    group = q_heads // kv_heads
    cut = tiling(count, group, queries.element_size(), roomy(queries.device))
    shares = pages.programs * pages.shares
    _attend[(triton.cdiv(count * group, cut.queries), kv_heads * streams, shares)](
        queries,
        keys,
        values,
        pages.rows,
        pages.bounds,
        pages.segments,
        pages.order,
        pages.bias,
        pages.query_order,
        out,
        sums,
        scale * _LOG2E,
        count,
        streams,
        pages.segments.shape[0],
        pages.room,
        keys.stride(0),
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        padded=max(16, triton.next_power_of_2(head_dim)),
        block=cut.queries,
        shared=shared,
        apart=pages.programs > 1,
        leaves=pages.programs > 1 and group <= _FEW_HEADS,
        checked=count > 1,
        far=keys.stride(0) >= 1 << 31,
        exact=INTERPRETED or queries.dtype is torch.float32,
        dependent=early(queries.device),
        num_warps=cut.warps,
        num_stages=cut.stages,
        **early_launch(queries.device),
    )


@triton.jit(do_not_specialize=["count", "streams", "listed", "room"])
def _attend(
    queries,
    keys,
    values,
    rows,
    bounds,
    segments,
    order,
    bias,
    query_order,
    out,
    sums,
    scale,
    count,
    streams,
    listed,
    room,
    stream_stride,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
    shared: tl.constexpr,
    apart: tl.constexpr,
    leaves: tl.constexpr,
    checked: tl.constexpr,
    far: tl.constexpr,
    exact: tl.constexpr,
    dependent: tl.constexpr,
):
    if leaves:
        # The merge passes over programs without rows.
        own = segments + tl.program_id(2) * 4
        if tl.load(own) == tl.load(own + 2):
            if dependent:
                gdc_wait()
                gdc_launch_dependents()
            return
    # The last tile sees most: it starts first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    # Programs without rows come last, so that those with rows spread over the card.
    share = tl.program_id(2)
    head = tl.program_id(1) % kv_heads
    stream = tl.program_id(1) // kv_heads
    line = tile * block + tl.arange(0, block)
    token = line // group
    there = token < count
    column = tl.arange(0, padded)
    heads = kv_heads * group
    place = (stream * count + token).to(tl.int64) * heads + head * group + line % group
    keys += stream.to(tl.int64) * stream_stride + head * 64 * head_dim
    values += stream.to(tl.int64) * stream_stride + head * 64 * head_dim
    peak = tl.full([block], float("-inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    mixed = tl.zeros([block, padded], tl.float32)
    mine = tl.zeros([block], tl.int64)
    oldest = tl.min(mine, axis=0)
    if checked:
        mine = tl.load(query_order + token, mask=there, other=0)
        oldest = tl.load(query_order + tile * block // group)
    table_stride = (streams * count).to(tl.int64) * heads * head_dim
    if apart:
        begin = share * room
        whole = tl.load(segments + share * 4 + 1)
        end = tl.load(segments + share * 4 + 2)
        table = tl.load(segments + share * 4 + 3)
        peak, total, mixed = _read(
            queries, keys, values, rows, bounds, order, bias, begin, whole, end, table, place,
            there, mine, oldest, table_stride, peak, total, mixed, scale,
            kv_heads, head_dim, padded, checked, far, exact, dependent,
        )  # fmt: skip
    else:
        if dependent:
            gdc_wait()
            gdc_launch_dependents()
        low, high = 0, 0
        if shared:
            last = 0
            for start in range(0, listed, 32):
                each = start + tl.arange(0, 32)
                ends = tl.load(segments + each * 4 + 2, mask=each < listed, other=0)
                last = tl.maximum(last, tl.max(ends, axis=0))
            low = last * share // tl.num_programs(2)
            high = last * (share + 1) // tl.num_programs(2)
        for segment in range(listed):
            begin = tl.load(segments + segment * 4)
            whole = tl.load(segments + segment * 4 + 1)
            end = tl.load(segments + segment * 4 + 2)
            table = tl.load(segments + segment * 4 + 3)
            if shared:
                begin = tl.maximum(begin, low)
                end = tl.minimum(end, high)
                whole = tl.minimum(tl.maximum(whole, begin), end)
            if begin < end:
                peak, total, mixed = _read(
                    queries, keys, values, rows, bounds, order, bias, begin, whole, end, table,
                    place, there, mine, oldest, table_stride, peak, total, mixed, scale,
                    kv_heads, head_dim, padded, checked, far, exact, False,
                )  # fmt: skip
    total = tl.where(total == 0.0, 1.0, total)
    mixed = mixed / total[:, None]
    if shared:
        place += share.to(tl.int64) * streams * count * heads
        # What saw nothing has no part in the merge.
        there = there & (peak > float("-inf"))
    used = there[:, None] if head_dim == padded else there[:, None] & (column < head_dim)[None, :]
    target = out + place[:, None] * head_dim + column[None, :]
    tl.store(target, mixed.to(out.dtype.element_ty), mask=used)
    if sums is not None:
        tl.store(sums + place, peak + tl.log2(total), mask=token < count)


@triton.jit
def _read(
    queries,
    keys,
    values,
    rows,
    bounds,
    order,
    bias,
    begin,
    whole,
    end,
    table,
    place,
    there,
    mine,
    oldest,
    table_stride,
    peak,
    total,
    mixed,
    scale,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    checked: tl.constexpr,
    far: tl.constexpr,
    exact: tl.constexpr,
    dependent: tl.constexpr,
):
    """Take a part of a segment, with the queries rotated for it, into the running softmax."""
    column = tl.arange(0, padded)
    # Scalars come a row ahead of the tiles that they say where to find.
    pair = tl.load(rows + begin * 2)
    words = tl.load(rows + begin * 2 + 1)
    if dependent:
        # The listing is older than the kernel before; queries, keys and values may be its work.
        gdc_wait()
        gdc_launch_dependents()
    used = there[:, None] if head_dim == padded else there[:, None] & (column < head_dim)[None, :]
    q = tl.load(
        queries + table * table_stride + place[:, None] * head_dim + column[None, :],
        mask=used,
        other=0.0,
    )
    if exact:
        q = q.to(tl.float32)
    if checked:
        # Bounds ascend: what this tile sees whole is a head of the rows, what it sees a longer one.
        newest = tl.max(mine, axis=0)
        seen = whole
        for start in range(whole, end, 64):
            row = start + tl.arange(0, 64)
            low = tl.load(bounds + row * 2, mask=row < end, other=9223372036854775807)
            high = tl.load(bounds + row * 2 + 1, mask=row < end, other=9223372036854775807)
            whole += tl.sum((high <= oldest).to(tl.int32), axis=0)
            seen += tl.sum((low <= newest).to(tl.int32), axis=0)
    else:
        whole = end
    peak, total, mixed = _walk(
        q, keys, values, rows, order, bias, mine, begin, whole, pair, words, peak, total, mixed,
        scale, kv_heads, head_dim, padded, False, far, exact,
    )  # fmt: skip
    if checked:
        pair = tl.load(rows + whole * 2)
        words = tl.load(rows + whole * 2 + 1)
        peak, total, mixed = _walk(
            q, keys, values, rows, order, bias, mine, whole, seen, pair, words, peak, total, mixed,
            scale, kv_heads, head_dim, padded, True, far, exact,
        )  # fmt: skip
    return peak, total, mixed


@triton.jit
def _walk(
    q,
    keys,
    values,
    rows,
    order,
    bias,
    mine,
    begin,
    end,
    pair,
    words,
    peak,
    total,
    mixed,
    scale,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    checked: tl.constexpr,
    far: tl.constexpr,
    exact: tl.constexpr,
):
    """Take rows ``begin`` to ``end`` into the running softmax."""
    cell = tl.arange(0, 64)
    second = cell >= 32
    lane = cell % 32
    column = tl.arange(0, padded)
    for row in range(begin, end):
        first_sub = pair.to(tl.int32)
        second_sub = (pair >> 32).to(tl.int32)
        alive = ((words >> cell) & 1) != 0
        if far:
            first_at = (first_sub >> 1).to(tl.int64) * (kv_heads * 64 * head_dim)
            second_at = (second_sub >> 1).to(tl.int64) * (kv_heads * 64 * head_dim)
        else:
            first_at = (first_sub >> 1) * (kv_heads * 64 * head_dim)
            second_at = (second_sub >> 1) * (kv_heads * 64 * head_dim)
        first_at += (first_sub & 1) * (32 * head_dim)
        second_at += (second_sub & 1) * (32 * head_dim)
        # A choice between multiples is one, which the compiler does not see: it would read 2 bytes.
        start = tl.multiple_of(tl.where(second, second_at, first_at), 16) + lane * head_dim
        known = tl.where(second, second_sub, first_sub) * 32 + lane
        pair = tl.load(rows + row * 2 + 2)
        words = tl.load(rows + row * 2 + 3)
        used = (
            alive[None, :] if head_dim == padded else alive[None, :] & (column < head_dim)[:, None]
        )
        k = tl.load(keys + (start[None, :] + column[:, None]), mask=used, other=0.0)
        if exact:
            k = k.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if bias is not None:
            scores += tl.load(bias + known, mask=alive, other=0.0)[None, :] * 1.4426950408889634
        live = alive[None, :]
        if checked:
            age = tl.load(order + known, mask=alive, other=0)
            live = live & (age[None, :] <= mine[:, None])
        scores = tl.where(live, scores, float("-inf"))
        top = tl.maximum(peak, tl.max(scores, axis=1))
        # A query that has seen nothing yet peaks at -inf; any finite stand-in keeps its weights 0.
        stand_in = tl.where(top == float("-inf"), 0.0, top)
        weights = tl.math.exp2(scores - stand_in[:, None])
        shrink = tl.math.exp2(peak - stand_in)
        total = total * shrink + tl.sum(weights, axis=1)
        used = (
            alive[:, None] if head_dim == padded else alive[:, None] & (column < head_dim)[None, :]
        )
        v = tl.load(values + (start[:, None] + column[None, :]), mask=used, other=0.0)
        if exact:
            v = v.to(tl.float32)
        mixed = tl.dot(weights.to(v.dtype), v, acc=mixed * shrink[:, None], input_precision="ieee")
        peak = top
    return peak, total, mixed
