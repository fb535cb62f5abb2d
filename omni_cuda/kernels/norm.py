"""Root mean square normalisation of a row a program, alone or with the residual sum before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_cuda.kernels.launching import early, early_launch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Normalise the last axis in float32, round, and multiply by the weight.

    Args:
        x: ``[..., hidden]``.
        weight: ``[hidden]`` in the same dtype.
        eps: added to the mean square.
        out: like ``x``, contiguous; takes the result if given.
    """
    return _launched(x, None, weight, eps, out)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add ``x`` to ``residual`` in place, rounded to their dtype, and return that sum's norm.

    Args:
        x, residual: ``[..., hidden]``; the residual is contiguous.
        weight: ``[hidden]`` in the same dtype.
        eps: added to the mean square.
    """
    return _launched(x, residual, weight, eps)


def _launched(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x) if out is None else out
    hidden = x.shape[-1]
    width = triton.next_power_of_2(hidden)
    if x.numel():
        _rms_norm[(x.numel() // hidden,)](
            x,
            residual,
            weight,
            out,
            eps,
            hidden=hidden,
            width=width,
            dependent=early(x.device),
            num_warps=min(max(width // 512, 1), 16),
            **early_launch(x.device),
        )
    return out


@triton.jit
def _rms_norm(
    x,
    residual,
    weight,
    out,
    eps,
    hidden: tl.constexpr,
    width: tl.constexpr,
    dependent: tl.constexpr,
):
    lane = tl.arange(0, width)
    mask = lane < hidden
    start = tl.program_id(0).to(tl.int64) * hidden
    # Weights are there from the first: they need not wait for the kernel before.
    scale = tl.load(weight + lane, mask=mask, other=0.0)
    if dependent:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.load(x + start + lane, mask=mask, other=0.0)
    if residual is not None:
        stream = tl.load(residual + start + lane, mask=mask, other=0.0)
        row = (stream.to(tl.float32) + row.to(tl.float32)).to(stream.dtype)
        tl.store(residual + start + lane, row, mask=mask)
    wide = row.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / hidden + eps)
    # The norm is rounded before the weight is applied, as the module that this stands for does.
    normed = (scale.to(tl.float32) * wide.to(row.dtype).to(tl.float32)).to(row.dtype)
    tl.store(out + start + lane, normed, mask=mask)
