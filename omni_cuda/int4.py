"""Weight-only 4 bits: a scale and an offset for each group of inputs of an output row."""

from __future__ import annotations

import torch
from torch import nn

from omni_core.errors import BackendError

_GROUPS = (128, 64, 32)
_TILE = 8
_FEW = 64
"""Rows for which PyTorch's kernel is called: it unpacks all weights again for each 16 of them."""


class Int4Linear(nn.Module):
    """A linear layer whose weights are ``(code - 8) * scale + offset``, codes from 0 to 15.

    ``packed`` is ``int32[out / 8, in / group, 32, group / 32]``, ``scales`` are
    ``bfloat16[in / group, out, 2]`` with the offsets behind the scales: what
    ``aten::_weight_int4pack_mm`` reads, of tinygemm by Jeff Johnson. It takes bfloat16 on a card;
    many rows, other dtypes and the CPU have the weights unpacked first, in the inputs' dtype.

    Raises:
        BackendError: sizes that the kernel does not take.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.group = _group(linear)
        rows = linear.weight.detach().float().unflatten(1, (-1, self.group))
        low, high = rows.aminmax(dim=2)
        scale = ((high - low) / 15).bfloat16()
        offset = (low + 8 * scale.float()).bfloat16()
        # Codes are taken from the scales as they are stored, so that their rounding adds no error.
        size = scale.float().masked_fill(scale == 0, 1.0)
        steps = rows.sub(offset[..., None]).div_(size[..., None]).round_()
        codes = steps.add_(8).clamp_(0, 15).to(torch.uint8)
        self.packed = nn.Buffer(_pack(codes.flatten(1), self.group))
        self.scales = nn.Buffer(torch.stack([scale, offset], 2).transpose(0, 1).contiguous())
        self.bias = linear.bias

    @staticmethod
    def weight_bytes(linear: nn.Linear) -> int:
        """Bytes that the weights of ``linear`` take in 4 bits."""
        return linear.weight.numel() // 2 + 4 * (linear.weight.numel() // _group(linear))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in]`` to ``[..., out]``."""
        if not x.numel():
            # Where no logits are wanted, the last layer is left without rows.
            return x.new_empty(*x.shape[:-1], len(self.packed) * _TILE)
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        if x.dtype is torch.bfloat16 and x.is_cuda and len(rows) <= _FEW:
            kernel = torch.ops.aten._weight_int4pack_mm
            product = kernel(rows, self.packed, self.group, self.scales)
            product = product if self.bias is None else product + self.bias
        else:
            # Inputs are put in the order of the codes: they are fewer.
            rows = _tiled(rows, self.group).flatten(1)
            product = nn.functional.linear(rows, self._unpacked(x.dtype), self.bias)
        return product.view(*x.shape[:-1], -1)

    def _unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        pairs = self.packed.flatten(2).unflatten(2, (_TILE, -1)).transpose(1, 2).flatten(0, 1)
        # As int32, four bytes at a time.
        codes = torch.stack([pairs & 0x0F0F0F0F, (pairs >> 4) & 0x0F0F0F0F], 2)
        scale, offset = self.scales.to(dtype).transpose(0, 1).split(1, 2)
        codes = codes.flatten(2).view(torch.uint8)
        return torch.addcmul(offset - 8 * scale, codes, scale).flatten(1)


def _group(linear: nn.Linear) -> int:
    inputs, outputs = linear.in_features, linear.out_features
    group = next((size for size in _GROUPS if inputs % size == 0), None)
    if group is None or outputs % _TILE:
        raise BackendError(
            f"a layer with {inputs} inputs and {outputs} outputs cannot have weights in 4 bits: "
            f"expected multiples of {_GROUPS[-1]} and {_TILE}; use --weights 8"
        )
    return group


def _pack(codes: torch.Tensor, group: int) -> torch.Tensor:
    """Codes ``uint8[out, in]`` as the kernel reads them: tiles of 8 rows, a group at a time."""
    low, high = _tiled(codes, group).unbind(2)
    pairs = (low | high << 4).unflatten(0, (-1, _TILE)).transpose(1, 2)
    packed = pairs.flatten(2).contiguous().view(torch.int32)
    return packed.unflatten(2, (32, -1))


def _tiled(rows: torch.Tensor, group: int) -> torch.Tensor:
    """Columns ``[n, in]`` in the order of packed codes: ``[n, in / group, 2, group / 2]``.

    First the codes in the low halves of a group's bytes, then those in the high halves. A lane of
    four keeps ``mma.m16n8k16`` columns ``2 * lane + (0, 1, 8, 9)`` of two tiles of 16 in 32 bits.
    """
    parts = rows.unflatten(1, (-1, group // 32, 2, 2, 4, 2))
    return parts.permute(0, 1, 4, 5, 2, 6, 3).reshape(len(rows), -1, 2, group // 2)
