"""What a launch of a kernel is, whoever carries it out: MLX on Metal, MLX on CUDA, or a test."""

from __future__ import annotations

import math
from dataclasses import dataclass

SIMDGROUP = 32
"""Lanes of a simdgroup, on every Apple GPU; the kernels rely on it."""

MOST_THREADS = 1024
"""In a threadgroup."""

CONSTANT_BELOW = 8
"""MLX hands inputs of fewer elements over in Metal's `constant` memory."""

Dim3 = tuple[int, int, int]
TemplateValue = str | int | bool


@dataclass(frozen=True)
class Array:
    """An input's or output's shape and dtype, by NumPy's name or ``bfloat16``."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Kernel:
    """A kernel by its files and names.

    Attributes:
        name: of its files, see :mod:`metal_kernels.loader`.
        inputs, outputs: names, as the body has them.
        template: names of the template arguments, each a dtype, an int or a bool.
        constants: inputs of fewer than 8 elements, which lie in `constant` memory; the others
            must have 8 or more, and lie in `device` memory.
        updates: inputs that it writes to, where they lie; see :mod:`metal_kernels.pages`.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    template: tuple[str, ...] = ()
    constants: frozenset[str] = frozenset()
    updates: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: which.
        template: a value for each name; dtypes by their names.
        grid: threads, not threadgroups; whole threadgroups of them.
        threadgroup: threads, whole simdgroups of them, all along x.
        inputs, outputs: in the kernel's order.

    Raises:
        ValueError: it would not do the same wherever it is run.
    """

    kernel: Kernel
    template: tuple[TemplateValue, ...]
    grid: Dim3
    threadgroup: Dim3
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    def __post_init__(self) -> None:
        for what, names, given in (
            ("template arguments", self.kernel.template, self.template),
            ("inputs", self.kernel.inputs, self.inputs),
            ("outputs", self.kernel.outputs, self.outputs),
        ):
            self._check(len(names) == len(given), f"{len(given)} {what} for {', '.join(names)}")
        threads = math.prod(self.threadgroup)
        self._check(
            threads % SIMDGROUP == 0 and 0 < threads <= MOST_THREADS,
            f"{threads} threads in a threadgroup; simdgroups of 32 up to 1024 are expected",
        )
        self._check(
            self.threadgroup[1:] == (1, 1),
            f"a threadgroup of {self.threadgroup}; lanes are told apart along x alone",
        )
        self._check(
            all(g > 0 and g % t == 0 for g, t in zip(self.grid, self.threadgroup, strict=True)),
            f"a grid of {self.grid} threads, which is not whole threadgroups {self.threadgroup}",
        )
        for name, array in zip(self.kernel.inputs, self.inputs, strict=True):
            small = name in self.kernel.constants
            self._check(array.shape != (), f"{name} is a scalar; give it one dimension")
            self._check(
                (array.size < CONSTANT_BELOW) == small,
                f"{name} has {array.size} elements; {'fewer than' if small else 'at least'} "
                f"{CONSTANT_BELOW} are expected",
            )

    @property
    def variant(self) -> str:
        """A name that no other text has: MLX keeps compiled kernels by their names."""
        return "_".join([self.kernel.name, *map(_spelled, self.template)])

    @property
    def threadgroups(self) -> Dim3:
        """Threadgroups along each axis of the grid."""
        x, y, z = (g // t for g, t in zip(self.grid, self.threadgroup, strict=True))
        return x, y, z

    def _check(self, holds: bool, message: str) -> None:
        if not holds:
            raise ValueError(f"kernel {self.kernel.name}: {message}")


def grid_of(threadgroups: Dim3, threadgroup: Dim3) -> Dim3:
    """The grid, in threads, of so many threadgroups."""
    x, y, z = (n * t for n, t in zip(threadgroups, threadgroup, strict=True))
    return x, y, z


def spread(work: int, threads: int) -> int:
    """Threadgroups of so many threads that cover the work."""
    return -(-work // threads)


def _spelled(value: TemplateValue) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
