"""Products of weights with one row: what a decode step spends its time on.

Nothing but the weights' bytes counts here. A program streams a few rows of them past the input, and
has the first on their way before the kernel before it, which makes the input, has ended.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from omni_cuda.kernels.launching import early, early_launch

_ROWS = 4
"""Of the weights, that a program takes (measured on an H200, as is the width)."""


def multiply_row(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ weight.T + bias``, summed in float32.

    Args:
        x: ``[..., inputs]`` with one row.
        weight: ``[outputs, inputs]``, contiguous, in the same dtype.
        bias: ``[outputs]``.

    Returns:
        ``[..., outputs]``.
    """
    return _launched(x, weight, bias, weight.shape[0], gated=False)


def multiply_row_gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of the products with the first and the second half of the weight's rows.

    Each is rounded to the dtype, as are they where the products are stored.

    Args:
        x: ``[..., inputs]`` with one row.
        weight: ``[2 * inner, inputs]``, contiguous, in the same dtype.

    Returns:
        ``[..., inner]``.
    """
    return _launched(x, weight, None, weight.shape[0] // 2, gated=True)


def _launched(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, outputs: int, *, gated: bool
) -> torch.Tensor:
    inputs = weight.shape[1]
    out = x.new_empty(*x.shape[:-1], outputs)
    _multiply_row[(triton.cdiv(outputs, _ROWS),)](
        x.contiguous(),
        weight,
        bias,
        out,
        outputs,
        inputs=inputs,
        rows=_ROWS,
        width=_width(inputs),
        gated=gated,
        dependent=early(x.device),
        num_warps=4,
        **early_launch(x.device),
    )
    return out


def _width(inputs: int) -> int:
    """Inputs that a program takes at once."""
    return min(512 if inputs <= 8192 else 1024, triton.next_power_of_2(inputs))


@triton.jit(do_not_specialize=["outputs"])
def _multiply_row(
    x,
    weight,
    bias,
    out,
    outputs,
    inputs: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    gated: tl.constexpr,
    dependent: tl.constexpr,
):
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    lane = tl.arange(0, width)
    there = (row < outputs)[:, None]
    start = weight + row.to(tl.int64)[:, None] * inputs + lane[None, :]
    further = start + outputs.to(tl.int64) * inputs
    w = tl.load(start, mask=there & (lane < inputs)[None, :], other=0.0)
    if gated:
        up = tl.load(further, mask=there & (lane < inputs)[None, :], other=0.0)
    if dependent:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros([rows, width], tl.float32)
    total_up = tl.zeros([rows, width] if gated else [rows, 1], tl.float32)
    for begin in range(0, inputs, width):
        given = tl.load(x + begin + lane, mask=begin + lane < inputs, other=0.0).to(tl.float32)
        total += w.to(tl.float32) * given[None, :]
        following = there & (begin + width + lane < inputs)[None, :]
        w = tl.load(start + begin + width, mask=following, other=0.0)
        if gated:
            total_up += up.to(tl.float32) * given[None, :]
            up = tl.load(further + begin + width, mask=following, other=0.0)
    product = tl.sum(total, axis=1)
    if bias is not None:
        product += tl.load(bias + row, mask=row < outputs, other=0.0).to(tl.float32)
    found = product.to(out.dtype.element_ty)
    if gated:
        gate = found.to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(found.dtype).to(tl.float32)
        second = tl.sum(total_up, axis=1).to(found.dtype).to(tl.float32)
        found = (silu * second).to(found.dtype)
    tl.store(out + row, found, mask=row < outputs)
