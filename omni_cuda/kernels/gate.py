"""The gate of SwiGLU over fused projections."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_cuda.kernels.launching import early, early_launch

_FEW_ROWS = 16
"""Up to here programs take less, so that they spread over the card."""


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu`` of the first half of the last axis, rounded to the dtype, times the second half.

    Args:
        gate_up: ``[..., 2 * inner]``.

    Returns:
        ``[..., inner]``.
    """
    inner = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], inner)
    rows = out.numel() // inner
    width = 256 if rows <= _FEW_ROWS else 1024
    blocks = triton.cdiv(inner, width)
    if rows:
        _silu_mul[(rows * blocks,)](
            gate_up.contiguous(),
            out,
            inner=inner,
            blocks=blocks,
            width=width,
            dependent=early(gate_up.device),
            num_warps=width // 256,
            **early_launch(gate_up.device),
        )
    return out


@triton.jit
def _silu_mul(
    gate_up,
    out,
    inner: tl.constexpr,
    blocks: tl.constexpr,
    width: tl.constexpr,
    dependent: tl.constexpr,
):
    if dependent:
        gdc_wait()
        gdc_launch_dependents()
    row = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks) * width + tl.arange(0, width)
    mask = lane < inner
    start = gate_up + row * (2 * inner) + lane
    gate = tl.load(start, mask=mask, other=0.0)
    up = tl.load(start + inner, mask=mask, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * inner + lane, (silu * up).to(gate.dtype), mask=mask)
