"""Launches for MLX's arrays on a CPU: the shipped text runs as C++ on the memory that MLX has."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from metal_kernels.launch import Launch
from tests.metal.numbers import AnyArray
from tests.metal.runner import run


def run_as_text(launch: Launch, inputs: Mapping[str, mx.array]) -> list[mx.array]:
    """As :func:`metal_kernels.run.run`, but at once; what the kernel writes to is written to."""
    held = {name: inputs[name] for name in launch.kernel.inputs}
    mx.eval(held)
    views = {name: _view(array) for name, array in held.items()}
    given = {
        name: np.ascontiguousarray(views[name]).reshape(array.shape)
        for name, array in zip(launch.kernel.inputs, launch.inputs, strict=True)
    }
    made = run(launch, given)
    for name in launch.kernel.updates:
        views[name][:] = made[name].reshape(views[name].shape)
    return [
        _array(made[name], array.dtype)
        for name, array in zip(launch.kernel.outputs, launch.outputs, strict=True)
    ]


def _view(array: mx.array) -> AnyArray:
    """MLX's own memory, bfloat16 as its bits."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, copy=False)


def _array(numbers: AnyArray, dtype: str) -> mx.array:
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if dtype == "bfloat16" else array
