"""What lies between the products of a layer: in PyTorch anywhere, in one kernel each on a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Ops:
    """Row-wise operations of the backbone.

    Attributes:
        rms_norm: ``(x, weight, eps)``: ``x[..., hidden]`` over its root mean square, which is taken
            in float32, times the weight.
        add_rms_norm: ``(x, residual, weight, eps)``: adds ``x`` to the residual in place and gives
            the norm of the sum.
        silu_mul: of ``[..., 2 * inner]`` the silu of the first half times the second.
    """

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    silu_mul: Callable[[Tensor], Tensor]


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _rms_norm(residual.add_(x), weight, eps)


def _silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


SPELLED_OUT = Ops(_rms_norm, _add_rms_norm, _silu_mul)


def fused() -> Ops:
    """The same as kernels."""
    from omni_cuda.kernels.gate import silu_mul
    from omni_cuda.kernels.norm import add_rms_norm, rms_norm

    return Ops(rms_norm, add_rms_norm, silu_mul)
