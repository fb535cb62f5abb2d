"""The signature that MLX writes around a kernel's body, spelled out for runners that are not MLX.

The rule is that of ``mlx/backend/common/metal_kernel.cpp``.
"""

from __future__ import annotations

from metal_kernels.launch import CONSTANT_BELOW, Array, Launch, TemplateValue

TYPES = {
    "bool": "bool",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "float16": "float16_t",
    "bfloat16": "bfloat16_t",
    "float32": "float",
}
"""MLX's names for dtypes in Metal."""

ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "grid_origin": "uint3",
    "grid_size": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}
"""What Metal tells a thread of itself; MLX passes on what the body names."""


def kernel_name(launch: Launch) -> str:
    """The function's name, which MLX makes of all that its text depends on."""
    parts = ["custom_kernel", launch.variant]
    if launch.template:
        parts.append("_" + "_".join(map(template_value, launch.template)))
    parts += [
        TYPES[array.dtype] + ("c" if array.size < CONSTANT_BELOW else "") for array in launch.inputs
    ]
    return "_".join([*parts, *(TYPES[array.dtype] for array in launch.outputs)])


def template_value(value: TemplateValue) -> str:
    """A template argument as MLX spells it."""
    return TYPES[value] if isinstance(value, str) else str(int(value))


def buffers(launch: Launch, body: str) -> list[tuple[str, str]]:
    """Type and name of all buffers, in order: inputs with what the body asks of their shape."""
    listed = []
    for name, array in zip(launch.kernel.inputs, launch.inputs, strict=True):
        space = "constant" if array.size < CONSTANT_BELOW else "device"
        listed.append((f"const {space} {TYPES[array.dtype]}*", name))
        listed += [(kind, name + what) for what, kind in _EXTRAS.items() if name + what in body]
    outputs = zip(launch.kernel.outputs, launch.outputs, strict=True)
    return listed + [(f"device {TYPES[array.dtype]}*", name) for name, array in outputs]


_EXTRAS = {
    "_shape": "const constant int*",
    "_strides": "const constant int64_t*",
    "_ndim": "const constant int&",
}


def attributes(body: str) -> list[tuple[str, str]]:
    """Type and name of each attribute that the body names."""
    return [(kind, name) for name, kind in ATTRIBUTES.items() if name in body]


def function(launch: Launch, body: str) -> str:
    """The whole kernel function, as it stands in MLX's text behind the header."""
    arguments = [
        f"  {kind} {name} [[buffer({index})]]"
        for index, (kind, name) in enumerate(buffers(launch, body))
    ]
    arguments += [f"  {kind} {name} [[{name}]]" for kind, name in attributes(body)]
    names = zip(launch.kernel.template, launch.template, strict=True)
    template = ", ".join(f"{_parameter(value)} {name}" for name, value in names)
    head = f"template <{template}>\n" if template else ""
    listed = ",\n".join(arguments)
    return f"{head}[[kernel]] void {kernel_name(launch)}(\n{listed}) {{\n{body}\n}}\n"


def _parameter(value: TemplateValue) -> str:
    return "typename" if isinstance(value, str) else "bool" if isinstance(value, bool) else "int"


def instance(launch: Launch) -> str:
    """The function with its template arguments."""
    arguments = ", ".join(map(template_value, launch.template))
    return kernel_name(launch) + (f"<{arguments}>" if arguments else "")


def contiguous_strides(array: Array) -> tuple[int, ...]:
    """In elements."""
    strides, step = [], 1
    for length in reversed(array.shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
