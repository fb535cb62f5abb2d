"""Launches carried out by MLX: the text as it is on an Apple GPU, by way of CUDA on NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import mlx.core as mx

from metal_kernels.launch import Kernel, Launch, TemplateValue
from metal_kernels.loader import load, read


def run(launch: Launch, inputs: Mapping[str, mx.array]) -> list[mx.array]:
    """The outputs of a launch, not yet evaluated.

    Args:
        launch: which kernel, and how.
        inputs: by name, of the launch's dtypes and as many elements, row by row. Those that the
            kernel writes to are evaluated already and held by the caller.
    """
    kernel = launch.kernel
    given = [inputs[name] for name in kernel.inputs]
    for name, array, wanted in zip(kernel.inputs, given, launch.inputs, strict=True):
        if array.size != wanted.size or array.dtype != getattr(mx, wanted.dtype):
            raise ValueError(
                f"kernel {kernel.name}: {name} is {array.dtype} of {array.size} elements; "
                f"{wanted.dtype} of {wanted.size} is expected"
            )
    template = zip(kernel.template, launch.template, strict=True)
    return _built(kernel, launch.variant, mx.metal.is_available())(
        inputs=given,
        template=[(name, _argument(value)) for name, value in template],
        grid=launch.grid,
        threadgroup=launch.threadgroup,
        output_shapes=[array.shape for array in launch.outputs],
        output_dtypes=[getattr(mx, array.dtype) for array in launch.outputs],
    )


@cache
def _built(kernel: Kernel, variant: str, metal: bool) -> Callable[..., list[mx.array]]:
    """MLX's kernel; a name of its own for each variant, by which MLX keeps what it compiled."""
    text = load(kernel.name)
    names = list(kernel.inputs), list(kernel.outputs)
    built: Any
    if metal or not mx.is_available(mx.gpu):
        # Without a GPU it cannot run, but MLX writes its text.
        built = mx.fast.metal_kernel(variant, *names, text.body, text.header)
    else:
        dialect = read("cuda_dialect.h") + read("cuda_matrices.h")
        header = dialect + text.header + read("cuda_body.h")
        built = mx.fast.cuda_kernel(variant, *names, text.body, header)
    return cast("Callable[..., list[mx.array]]", built)


def _argument(value: TemplateValue) -> int | bool | mx.Dtype:
    if isinstance(value, str):
        dtype: mx.Dtype = getattr(mx, value)
        return dtype
    return value
