"""Runs a launch where the kernels belong: by MLX, on an Apple or an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from metal_kernels import run
from metal_kernels.launch import Launch
from tests.metal.numbers import AnyArray


def run_on_gpu(launch: Launch, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """As :func:`tests.metal.runner.run`; what no lane writes may hold anything."""
    specs = dict(zip(launch.kernel.inputs, launch.inputs, strict=True))
    with mx.stream(mx.gpu):
        # A copy each, since a kernel may write to it, and no array that MLX has yet to make.
        given = {name: _copied(inputs[name], spec.dtype) for name, spec in specs.items()}
        mx.eval(given)
        made = dict(zip(launch.kernel.outputs, run.run(launch, given), strict=True))
        mx.eval(made)
        mx.synchronize()
        made |= {name: given[name] for name in launch.kernel.updates}
        return {name: _numbers(x) for name, x in made.items()}


def _copied(given: AnyArray, dtype: str) -> mx.array:
    """Bit for bit: a sum of floats would make all NaNs one."""
    bits = given.view(f"uint{8 * given.itemsize}")
    return (mx.array(bits) + 0).view(getattr(mx, dtype))


def _numbers(x: mx.array) -> AnyArray:
    return np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x)
