"""What lies between the products of a layer: in PyTorch anywhere, in one kernel each on a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import nn

Tensor = torch.Tensor


@dataclass(frozen=True)
class Ops:
    """Row-wise operations of the backbone.

    Attributes:
        rms_norm: ``(x, weight, eps)``: ``x[..., hidden]`` over its root mean square, which is taken
            in float32, times the weight.
        add_rms_norm: ``(x, residual, weight, eps)``: adds ``x`` to the residual in place and gives
            the norm of the sum.
        linear: ``(layer, x)``: what the layer makes of ``x[..., inputs]``.
        gated: ``(layer, x)``: of what it makes, ``[..., 2 * inner]``, the silu of the first half
            times the second.
    """

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    linear: Callable[[nn.Module, Tensor], Tensor]
    gated: Callable[[nn.Module, Tensor], Tensor]


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _rms_norm(residual.add_(x), weight, eps)


def _linear(layer: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = layer(x)
    return found


def _gated(layer: nn.Module, x: Tensor) -> Tensor:
    gate, up = layer(x).chunk(2, -1)
    return nn.functional.silu(gate) * up


SPELLED_OUT = Ops(_rms_norm, _add_rms_norm, _linear, _gated)


def fused() -> Ops:
    """The same as kernels; one row is multiplied by one of its own."""
    from omni_cuda.kernels.gate import silu_mul
    from omni_cuda.kernels.gemv import multiply_row, multiply_row_gated
    from omni_cuda.kernels.norm import add_rms_norm, rms_norm

    def linear(layer: nn.Module, x: Tensor) -> Tensor:
        if _one_row(layer, x):
            return multiply_row(x, layer.weight, layer.bias)
        return _linear(layer, x)

    def gated(layer: nn.Module, x: Tensor) -> Tensor:
        if _one_row(layer, x) and layer.bias is None:
            return multiply_row_gated(x, layer.weight)
        return silu_mul(layer(x))

    return Ops(rms_norm, add_rms_norm, linear, gated)


def _one_row(layer: nn.Module, x: Tensor) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and x.numel() == x.shape[-1]
