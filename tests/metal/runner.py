"""Runs the kernels' shipped text on a CPU, compiled by the machine's C++ compiler.

What the text does wrong is an error: reading or writing beyond an input, an output or threadgroup
memory, a barrier that some lanes do not reach, a result that depends on the order of lanes or on
memory that nobody wrote.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metal_kernels import signature
from metal_kernels.launch import Launch
from metal_kernels.loader import Text, load
from tests.metal.numbers import AnyArray, Sparse, holder

HERE = Path(__file__).parent
FLAGS = (
    "-std=c++17",
    "-O1",
    "-g1",
    "-no-pie",
    "-U_FORTIFY_SOURCE",
    "-w",
    "-fno-strict-aliasing",
    "-ftrivial-auto-var-init=pattern",
)
SECONDS = 120

_TILE = re.compile(r"\bthreadgroup\s+([^;=()*]+?)\s+(\w+)\s*((?:\[[^\]]+\])+)\s*;")


class KernelFault(Exception):
    """A kernel did what it must not."""


_ATTRIBUTES = {
    "threads_per_simdgroup": "runner::simd_width",
    "thread_execution_width": "runner::simd_width",
    "thread_index_in_simdgroup": "at.lane",
    "simdgroup_index_in_threadgroup": "at.simdgroup",
    "simdgroups_per_threadgroup": "threads / runner::simd_width",
    "dispatch_simdgroups_per_threadgroup": "threads / runner::simd_width",
    "thread_index_in_threadgroup": "at.index",
    "thread_position_in_threadgroup": "at.position",
    "threadgroup_position_in_grid": "group",
    "thread_position_in_grid": "group * size + at.position",
    "threadgroups_per_grid": "groups",
    "threads_per_grid": "groups * size",
    "grid_size": "groups * size",
    "threads_per_threadgroup": "size",
    "dispatch_threads_per_threadgroup": "size",
}


def run(
    launch: Launch, inputs: Mapping[str, AnyArray | Sparse], text: Text | None = None
) -> dict[str, AnyArray]:
    """Run a kernel.

    Args:
        launch: which, and how.
        inputs: by name, of the launch's shapes and dtypes; numbers of bfloat16 as their bits, in
            uint16.
        text: what to run in place of the shipped text.

    Returns:
        The outputs by name, likewise, and the inputs that the kernel writes to, of sparse ones the
        pieces, stacked.

    Raises:
        KernelFault: the text does not compile, or did what it must not.
    """
    if compiler() is None:
        pytest.skip("no C++ compiler, or not on Linux: install g++ 12")
    text = text or load(launch.kernel.name)
    try:
        program = _compiled(source(launch, text))
    except KernelFault as fault:
        raise KernelFault(f"{launch.variant}: {fault}") from None
    arguments = _arguments(launch, text.body, inputs)
    request = [
        struct.pack("8i", SECONDS, *launch.threadgroups, *launch.threadgroup, len(arguments))
    ]
    for each in arguments:
        head = (each.name.encode(), each.size, each.written, len(each.pieces))
        request.append(struct.pack("=64sqii", *head))
        for at, data in each.pieces:
            request += [struct.pack("qq", at, len(data)), data]
    done = subprocess.run([program], input=b"".join(request), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or f"ended with {done.returncode}"
        raise KernelFault(f"{launch.variant}: {_with_line(program, said)}")
    return _split(launch, inputs, done.stdout)


def _with_line(program: Path, said: str) -> str:
    """What a program said, an instruction's address replaced by its place in the text."""
    what, _, address = said.partition("; at ")
    tool = shutil.which("addr2line")
    if not address or tool is None:
        return what
    done = subprocess.run([tool, "-ie", program, address], capture_output=True, text=True)
    # From the innermost function outwards: the first place in the text.
    places = [Path(place).name for place in done.stdout.split()]
    ours = (place for place in places if not (HERE / place.partition(":")[0]).exists())
    return f"{what}; in {next(ours, '')}".removesuffix("; in ")


def source(launch: Launch, text: Text) -> str:
    """The C++ program: the text between what stands for Metal and a function that one lane calls.

    Threadgroup arrays are declared in other words, so that each lies between guards.
    """
    body = _TILE.sub(r'auto& \2 = runner::threadgroup_array<\1 \3>("\2");', text.body)
    if re.search(r"\bthreadgroup\b", body):
        raise KernelFault("the body has `threadgroup` elsewhere than in `threadgroup T x[n];`")
    buffers = signature.buffers(launch, text.body)
    arguments = [
        f"*({kind[:-1]}*)buffers[{i}]" if kind.endswith("&") else f"({kind})buffers[{i}]"
        for i, (kind, _) in enumerate(buffers)
    ]
    arguments += [_ATTRIBUTES[name] for _, name in signature.attributes(text.body)]
    function = signature.function(launch, text.body)
    head, tail = function.split(text.body)
    listed = ",\n        ".join(arguments)
    return (
        f'#include "dialect.h"\n{text.header}\n{head}'
        f'#line 1 "{launch.kernel.name}.body.metal"\n{body}{tail}'
        "void runner_kernel(void* const* buffers) {\n"
        "    [[maybe_unused]] const runner::Lane& at = runner::lane();\n"
        "    [[maybe_unused]] uint3 group = runner::threadgroup_position();\n"
        "    [[maybe_unused]] uint3 groups = runner::threadgroups();\n"
        "    [[maybe_unused]] uint3 size = runner::threadgroup_size();\n"
        "    [[maybe_unused]] uint threads = size.x * size.y * size.z;\n"
        f"    {signature.instance(launch)}(\n        {listed});\n}}\n"
    )


@dataclass(frozen=True)
class _Argument:
    """A buffer: its bytes, as far as given, by where they begin; whether the kernel writes to it.

    Of what it writes, the given pieces come back, or all where none are given.
    """

    name: str
    size: int
    pieces: tuple[tuple[int, bytes], ...]
    written: bool = False


def _arguments(
    launch: Launch, body: str, inputs: Mapping[str, AnyArray | Sparse]
) -> list[_Argument]:
    if set(inputs) != set(launch.kernel.inputs):
        raise ValueError(f"inputs {sorted(inputs)}; {sorted(launch.kernel.inputs)} are expected")
    listed = []
    for name, array in zip(launch.kernel.inputs, launch.inputs, strict=True):
        given, dtype = inputs[name], holder(array.dtype)
        parts = given.pieces if isinstance(given, Sparse) else {0: given}
        if given.shape != array.shape or any(part.dtype != dtype for part in parts.values()):
            raise ValueError(f"{name} is not what the launch says; {array} is expected")
        pieces = tuple((at * dtype.itemsize, part.tobytes()) for at, part in parts.items())
        size = array.size * dtype.itemsize
        listed.append(_Argument(name, size, pieces, name in launch.kernel.updates))
        rank = len(array.shape)
        extras = {
            "_shape": struct.pack(f"{rank}i", *array.shape),
            "_strides": struct.pack(f"{rank}q", *signature.contiguous_strides(array)),
            "_ndim": struct.pack("i", rank),
        }
        listed += [
            _Argument(name + what, len(extra), ((0, extra),))
            for what, extra in extras.items()
            if name + what in body
        ]
    for name, array in zip(launch.kernel.outputs, launch.outputs, strict=True):
        listed.append(_Argument(name, array.size * holder(array.dtype).itemsize, (), True))
    return listed


def _split(
    launch: Launch, inputs: Mapping[str, AnyArray | Sparse], data: bytes
) -> dict[str, AnyArray]:
    made, at = {}, 0

    def take(shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
        nonlocal at
        flat = np.frombuffer(data, dtype, math.prod(shape), at)
        at += flat.nbytes
        return flat.reshape(shape).copy()

    for name, array in zip(launch.kernel.inputs, launch.inputs, strict=True):
        if name in launch.kernel.updates:
            given = inputs[name]
            if isinstance(given, Sparse):
                shapes = [part.shape for part in given.pieces.values()]
                made[name] = np.stack([take(shape, holder(array.dtype)) for shape in shapes])
            else:
                made[name] = take(array.shape, holder(array.dtype))
    for name, array in zip(launch.kernel.outputs, launch.outputs, strict=True):
        made[name] = take(array.shape, holder(array.dtype))
    return made


def compiler() -> str | None:
    """The machine's C++ compiler; none where lanes as fibers have not been tried."""
    if sys.platform != "linux":
        return None
    return shutil.which("g++") or shutil.which("clang++")


def _compiled(program: str) -> Path:
    """The executable of a program, from an earlier run if it was compiled then."""
    folder, runtime = _runtime()
    target = folder / hashlib.sha256(program.encode()).hexdigest()[:24]
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            text, made = Path(scratch, "kernel.cpp"), Path(scratch, "kernel")
            text.write_text(program)
            _compile(["-I", str(HERE), str(text), str(runtime), "-o", str(made)])
            made.replace(target)
    return target


@cache
def _runtime() -> tuple[Path, Path]:
    """The folder of this state of the runner, and the part that all programs share."""
    state = hashlib.sha256(repr((compiler(), FLAGS)).encode())
    for file in sorted([*HERE.glob("*.h"), HERE / "runtime.cpp"]):
        state.update(file.read_bytes())
    folder = Path(tempfile.gettempdir(), f"omnilive-metal-{os.getuid()}", state.hexdigest()[:16])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = folder / "runtime.o"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch, "runtime.o")
            _compile(["-c", str(HERE / "runtime.cpp"), "-o", str(made)])
            made.replace(target)
    return folder, target


def _compile(arguments: list[str]) -> None:
    found = compiler()
    if found is None:
        raise KernelFault(
            "no C++ compiler for it here; on Linux, install g++ 12 or newer, or clang 16"
        )
    done = subprocess.run([found, *FLAGS, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelFault(f"the text does not compile:\n{done.stderr}")
