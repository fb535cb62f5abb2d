"""One softmax from those of the programs that shared a listing, by log-sum-exp."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_cuda.kernels.launching import early, early_launch

_PART = 64
"""Columns that a merging program takes."""
_ROWS = 64
"""Lines times shares that it takes, or the shares of one line."""


def merge_shares(
    found: torch.Tensor,
    found_sums: torch.Tensor,
    segments: torch.Tensor | None,
    out: torch.Tensor,
    sums: torch.Tensor | None = None,
) -> None:
    """Mix what each program found for each line, a query and a head.

    Args:
        found: ``float32[programs, streams, T, q_heads, head_dim]``; need not be written where the
            program saw nothing.
        found_sums: ``float32[programs, streams, T, q_heads]``, log-sum-exp to base 2; -inf there.
        segments: ``int32[programs or more, 4]`` of the listing, older than the kernel before: what
            programs without rows found is not looked at. None where all have some.
        out: ``[streams, T, q_heads, head_dim]``, written; 0 where no program saw anything.
        sums: ``float32[streams, T, q_heads]``, written if given.
    """
    shares, head_dim = found.shape[0], found.shape[-1]
    lines = found_sums[0].numel()
    padded = triton.next_power_of_2(shares)
    block = max(1, _ROWS // padded)
    _merge[(triton.cdiv(lines, block), triton.cdiv(head_dim, _PART))](
        found,
        found_sums,
        segments,
        out,
        sums,
        lines,
        shares,
        padded_shares=padded,
        block=block,
        head_dim=head_dim,
        part=_PART,
        dependent=early(out.device),
        num_warps=4,
        **early_launch(out.device),
    )


@triton.jit(do_not_specialize=["lines", "shares"])
def _merge(
    found,
    found_sums,
    segments,
    out,
    sums,
    lines,
    shares,
    padded_shares: tl.constexpr,
    block: tl.constexpr,
    head_dim: tl.constexpr,
    part: tl.constexpr,
    dependent: tl.constexpr,
):
    """A part of some lines from those of the programs that had something to read."""
    line = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    share = tl.arange(0, padded_shares)
    column = tl.program_id(1) * part + tl.arange(0, part)
    busy = share < shares
    if segments is not None:
        begin = tl.load(segments + share * 4, mask=busy, other=0)
        busy = begin < tl.load(segments + share * 4 + 2, mask=busy, other=0)
    if dependent:
        gdc_wait()
        gdc_launch_dependents()
    at = share[:, None].to(tl.int64) * lines + line[None, :]
    there = busy[:, None] & (line < lines)[None, :]
    each = tl.load(found_sums + at, mask=there, other=float("-inf"))
    used = there[:, :, None] & (column < head_dim)[None, None, :]
    parts = tl.load(found + at[:, :, None] * head_dim + column[None, None, :], mask=used, other=0.0)
    peak = tl.max(each, axis=0)
    weights = tl.math.exp2(each - tl.where(peak == float("-inf"), 0.0, peak)[None, :])
    total = tl.sum(weights, axis=0)
    total = tl.where(total == 0.0, 1.0, total)
    # Where nothing was seen, nothing was written.
    parts = tl.where(weights[:, :, None] > 0.0, parts, 0.0)
    mixed = tl.sum(parts * weights[:, :, None], axis=0) / total[:, None]
    target = out + line[:, None] * head_dim + column[None, :]
    used = (line < lines)[:, None] & (column < head_dim)[None, :]
    tl.store(target, mixed.to(out.dtype.element_ty), mask=used)
    if sums is not None:
        tl.store(sums + line, peak + tl.log2(total), mask=line < lines)
