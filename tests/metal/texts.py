"""Runs a text that is not a kernel's, to see what the runner makes of it."""

from __future__ import annotations

from metal_kernels.launch import Array, Kernel, Launch, grid_of
from metal_kernels.loader import Text
from tests.metal.numbers import AnyArray
from tests.metal.runner import run


def run_text(
    header: str,
    body: str,
    inputs: dict[str, tuple[AnyArray, str]],
    out: Array,
    groups: int = 1,
    threads: int = 64,
    updates: frozenset[str] = frozenset(),
) -> dict[str, AnyArray]:
    small = frozenset(name for name, (x, _) in inputs.items() if x.size < 8)
    kernel = Kernel("tried", tuple(inputs), ("out",), ("N",), small, updates)
    specs = tuple(Array(x.shape, dtype) for x, dtype in inputs.values())
    group = (threads, 1, 1)
    launch = Launch(kernel, (threads,), grid_of((groups, 1, 1), group), group, specs, (out,))
    given = {name: x for name, (x, _) in inputs.items()}
    return run(launch, given, Text(f'#line 1 "tried.metal"\n{header}', body))
