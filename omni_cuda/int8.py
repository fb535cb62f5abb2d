"""Weight-only int8: one scale an output row, the product in the activations' dtype."""

from __future__ import annotations

import torch
from torch import nn


class Int8Linear(nn.Module):
    """A linear layer with weights ``int8[out, in]`` and scales ``float32[out]``.

    Symmetric rounding to the row's largest magnitude, the scheme of torchao's int8 weight-only.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        wide = linear.weight.detach().float()
        scale = wide.abs().amax(1) / 127
        steps = wide / scale.masked_fill(scale == 0, 1.0)[:, None]
        self.weight = nn.Buffer(steps.round_().to(torch.int8))
        self.scale = nn.Buffer(scale)
        self.bias = linear.bias

    @staticmethod
    def weight_bytes(linear: nn.Linear) -> int:
        """Bytes that the weights of ``linear`` take in 8 bits."""
        return linear.weight.numel() + 4 * linear.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in]`` to ``[..., out]``."""
        product = nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return product if self.bias is None else product + self.bias
