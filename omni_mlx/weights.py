"""Weights out of safetensors: read, converted and quantised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omni_core.checkpoints import Checkpoint, TensorInfo
from omni_core.errors import BudgetError

_GROUP = 64
"""Weights that share a scale and an offset, as mlx-lm quantises."""


@dataclass(frozen=True)
class Part:
    """A module whose parameters have the names that the checkpoint uses after ``prefix``.

    Attributes:
        bits: of its linear and embedding layers, or None to keep them as numbers.
    """

    module: nn.Module
    prefix: str
    bits: int | None = None


def load_parts(
    parts: Sequence[Part], checkpoint: Checkpoint, dtype: mx.Dtype, capacity: int
) -> int:
    """Fill the modules from a checked checkpoint; only the files of their tensors are opened.

    Args:
        dtype: of parameters that are not quantised.
        capacity: bytes that the device holds.

    Returns:
        Bytes of all parameters.

    Raises:
        BudgetError: the weights alone are more than the device holds; before anything is read.
    """
    found = [_locate(part, checkpoint) for part in parts]
    width = dtype.size * 8
    needed = sum(
        math.prod(info.shape) * (part.bits or width) // 8
        for part, infos in zip(parts, found, strict=True)
        for info in infos.values()
    )
    if needed > capacity:
        raise BudgetError(
            f"{checkpoint.path}: the weights take {needed / 1e9:.1f} GB and the device holds "
            f"{capacity / 1e9:.1f} GB; use --weights 8 or 4, or a smaller model"
        )
    for part, infos in zip(parts, found, strict=True):
        _assign(part, infos, dtype)
        if part.bits is not None:
            _quantise(part.module, part.bits)
    return sum(_evaluate(part.module) for part in parts)


def _locate(part: Part, checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    names = [name for name, _ in tree_flatten(part.module.parameters())]
    return {name: checkpoint.tensors[part.prefix + name] for name in names}


def _assign(part: Part, infos: dict[str, TensorInfo], dtype: mx.Dtype) -> None:
    shapes = {name: parameter.shape for name, parameter in tree_flatten(part.module.parameters())}
    pairs = []
    for file in sorted({info.file for info in infos.values()}):
        stored = mx.load(str(file), stream=mx.cpu)
        for name in (name for name, info in infos.items() if info.file == file):
            tensor = stored[part.prefix + name]
            if name in getattr(part.module, "relaid", ()):
                tensor = _relaid(tensor, shapes[name])
            pairs.append((name, tensor.astype(dtype)))
    part.module.load_weights(pairs)


def _relaid(tensor: mx.array, shape: tuple[int, ...]) -> mx.array:
    """A convolution as MLX wants it: patches flattened, or channels after time."""
    if len(shape) == 2:
        return tensor.reshape(shape)
    return tensor.swapaxes(1, 2)


def _quantise(module: nn.Module, bits: int) -> None:
    def fits(_: str, layer: nn.Module) -> bool:
        return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % _GROUP == 0

    nn.quantize(module, group_size=_GROUP, bits=bits, class_predicate=fits)


def _evaluate(module: nn.Module) -> int:
    # Layer by layer, so that no more than one layer's tensors exist in both forms.
    size = 0
    for _, layer in module.named_modules():
        own = [value for value in layer.values() if isinstance(value, mx.array)]
        mx.eval(own)
        size += sum(value.nbytes for value in own)
    return size
