"""Attention of any number of queries over sealed pages, and of any codec.

A program takes a tile of queries of one key head, all heads of its group, and a share of the
listing's rows. Each live subblock is decoded to halves, still rotated, and read by the whole tile;
the rotation of values is undone at the end of a segment.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_core.quantization import SealedLayout
from omni_cuda.kernels.launching import INTERPRETED, early, early_launch
from omni_cuda.kernels.sealed_list import SealedList
from omni_cuda.kernels.sealed_walk import walk
from omni_cuda.kernels.tiling import SEALED_LINES

_LOG2E = 1.4426950408889634


def prefill_sealed(
    queries: torch.Tensor,
    sealed: torch.Tensor,
    pages: SealedList,
    layout: SealedLayout,
    rotations: torch.Tensor,
    scale: float,
    found: torch.Tensor,
    found_sums: torch.Tensor,
    *,
    key_means: torch.Tensor | None = None,
    levels: torch.Tensor | None = None,
) -> None:
    """What each share of a listing's rows finds for each query.

    Args:
        queries, sealed, pages, layout, rotations, scale, found, found_sums, key_means, levels: as
            in :func:`omni_cuda.kernels.sealed_attention.attend_sealed`.
    """
    _, streams, count, q_heads, head_dim = queries.shape
    kv_heads = sealed.shape[2]
    group = q_heads // kv_heads
    block = max(16, min(SEALED_LINES, triton.next_power_of_2(count * group)))
    shares = pages.programs * pages.shares
    _prefill[(triton.cdiv(count * group, block), kv_heads * streams, shares)](
        queries,
        sealed,
        rotations,
        key_means,
        levels,
        pages.rows.view(torch.int32),
        pages.segments,
        pages.rotations,
        pages.bias,
        found,
        found_sums,
        scale * _LOG2E,
        count,
        streams,
        pages.segments.shape[0],
        pages.room,
        pages.first,
        sealed.stride(0),
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        padded=max(16, triton.next_power_of_2(head_dim)),
        block=block,
        bits=layout.bits,
        size=layout.bytes,
        key_bytes=layout.key_code_bytes,
        value_bytes=layout.value_code_bytes,
        values_at=layout.value_codes,
        ranges_at=layout.ranges,
        key_scales_at=layout.key_scales,
        value_scales_at=layout.value_scales,
        exponents_at=layout.exponents,
        apart=pages.programs > 1,
        exact=INTERPRETED,
        dependent=early(queries.device),
        num_warps=4 if block <= 32 else 8,
        **early_launch(queries.device),
    )


@triton.jit(do_not_specialize=["count", "streams", "listed", "room", "first"])
def _prefill(
    queries,
    sealed,
    rotations,
    key_means,
    levels,
    rows,
    segments,
    kinds,
    bias,
    found,
    sums,
    scale,
    count,
    streams,
    listed,
    room,
    first,
    stream_stride,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
    bits: tl.constexpr,
    size: tl.constexpr,
    key_bytes: tl.constexpr,
    value_bytes: tl.constexpr,
    values_at: tl.constexpr,
    ranges_at: tl.constexpr,
    key_scales_at: tl.constexpr,
    value_scales_at: tl.constexpr,
    exponents_at: tl.constexpr,
    apart: tl.constexpr,
    exact: tl.constexpr,
    dependent: tl.constexpr,
):
    # The last tile sees most: it starts first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    share = tl.program_id(2)
    head = tl.program_id(1) % kv_heads
    stream = tl.program_id(1) // kv_heads
    line = tile * block + tl.arange(0, block)
    token = line // group
    there = token < count
    d = tl.arange(0, padded)
    heads = kv_heads * group
    place = (stream * count + token).to(tl.int64) * heads + head * group + line % group
    sealed += stream.to(tl.int64) * stream_stride + head * size
    if dependent:
        gdc_wait()
        gdc_launch_dependents()
    last = 0
    if not apart:
        for segment in range(listed):
            last = tl.maximum(last, tl.load(segments + segment * 4 + 2))
    low = last * share // tl.num_programs(2)
    high = last * (share + 1) // tl.num_programs(2)
    peak = tl.full([block], float("-inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    out = tl.zeros([block, padded], tl.float32)
    for piece in range(1 if apart else listed):
        segment = share if apart else piece
        begin = tl.load(segments + segment * 4)
        end = tl.load(segments + segment * 4 + 2)
        if not apart:
            begin = tl.maximum(begin, low)
            end = tl.minimum(end, high)
        if begin < end:
            table = tl.load(segments + segment * 4 + 3).to(tl.int64)
            used = there[:, None] & (d < head_dim)[None, :]
            at = (table * streams * count * heads + place)[:, None] * head_dim + d[None, :]
            q = tl.load(queries + at, mask=used, other=0.0)
            ground = tl.zeros([block], tl.float32)
            if key_means is not None:
                mean = tl.load(key_means + head * head_dim + d, mask=d < head_dim, other=0.0)
                ground = tl.sum(q.to(tl.float32) * mean[None, :], axis=1) * scale
            q = _rotated(q, head_dim)
            largest = tl.max(tl.abs(q), axis=1)
            largest = tl.where(largest == 0.0, 1.0, largest)
            q = (q / largest[:, None]).to(tl.float16)
            own_peak, own_total, mixed = walk(
                q, largest * scale, sealed, levels, rows, bias, begin, end, first,
                kv_heads, head_dim, bits, size, key_bytes, value_bytes, values_at,
                ranges_at, key_scales_at, value_scales_at, exponents_at, exact,
            )  # fmt: skip
            # Back from the values' rotation.
            mixed = mixed / tl.where(own_total == 0.0, 1.0, own_total)[:, None]
            kind = tl.load(kinds + segment)
            turn = rotations + (kind * kv_heads + head) * (padded * padded)
            turn = tl.load(turn + d[None, :] * padded + d[:, None])
            mixed = tl.dot(mixed.to(tl.float16), turn)
            own_peak += ground
            top = tl.maximum(peak, own_peak)
            stand_in = tl.where(top == float("-inf"), 0.0, top)
            kept = tl.math.exp2(peak - stand_in)
            gained = own_total * tl.math.exp2(own_peak - stand_in)
            total = total * kept + gained
            out = out * kept[:, None] + mixed * gained[:, None]
            peak = top
    total = tl.where(total == 0.0, 1.0, total)
    out = out / total[:, None]
    log_sum = peak + tl.log2(total)
    place += share.to(tl.int64) * streams * count * heads
    used = (there & (log_sum > float("-inf")))[:, None] & (d < head_dim)[None, :]
    tl.store(found + place[:, None] * head_dim + d[None, :], out, mask=used)
    tl.store(sums + place, log_sum, mask=there)


@triton.jit
def _rotated(q, head_dim: tl.constexpr):
    """Queries ``[block, padded]`` by Hadamard."""
    d = tl.arange(0, q.shape[1])
    block: tl.constexpr = head_dim & -head_dim
    both = d[:, None] % block & d[None, :] % block
    both ^= both >> 4
    both ^= both >> 2
    both ^= both >> 1
    same = d[:, None] // block == d[None, :] // block
    signs = tl.where(same, tl.where(both & 1 != 0, -1.0, 1.0), 0.0)
    return tl.dot(q, signs.to(q.dtype), input_precision="ieee") * (block**-0.5)
