"""One MLX device: which it is, how much it holds, and running on it without disturbing others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from metal_kernels.cutting import Gpu
from omni_core.errors import BackendError

# MLX keeps one default device for the whole process, and its layers take no device of their own. So
# a call makes its device the default while it runs, and calls of several backends take turns.
_turn = threading.RLock()

_APPLE = {"Ultra": 72, "Max": 36, "Pro": 18, "Apple": 10}
"""Cores of such chips among M1 to M4, the first whose word is in the name."""

_NVIDIA = {
    **{"H100 PCIe": 114, "H100": 132, "H200": 132, "GH200": 132, "B200": 148, "A100": 108},
    **{"L40": 142, "L4": 58, "A10": 72, "5090": 170, "4090": 128, "3090": 82},
}
"""Multiprocessors, likewise; 80 elsewhere."""


_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class ComputeDevice:
    """A device of MLX.

    Attributes:
        kind: ``mx.cpu`` or ``mx.gpu``.
        label: its name, for people.
        capacity: bytes it can hold; for a CPU under Linux, what was free when it was chosen.
    """

    kind: mx.DeviceType
    label: str
    capacity: int

    @property
    def is_cpu(self) -> bool:
        """Whether MLX computes on the CPU here."""
        return self.kind == mx.cpu

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Make this the default device for the length of a block, on the calling thread's stream.

        Raises:
            BackendError: MLX failed inside the block, said in one line.
        """
        with _turn, mx.stream(self.kind):
            try:
                yield
            except (RuntimeError, ValueError) as error:
                with suppress(RuntimeError):
                    # What was launched before it failed writes to the arena: none of it later.
                    mx.synchronize()
                reason = " ".join(str(error).split())
                raise BackendError(
                    f"mlx failed in {what} on {self.label}: {reason}; if memory ran out, use a "
                    "smaller --budget or --weights 4"
                ) from error


def choose_device(name: str) -> ComputeDevice:
    """The device that a name stands for: ``auto``, ``gpu`` or ``cpu``.

    Raises:
        BackendError: unknown, or this machine has none.
    """
    if name not in ("auto", "gpu", "cpu"):
        raise BackendError(f"mlx has no device {name!r}; use --device auto, gpu or cpu")
    has_gpu = mx.is_available(mx.gpu)
    if name == "gpu" and not has_gpu:
        raise BackendError("mlx finds no Metal or CUDA device here; use --device cpu")
    return _gpu() if has_gpu and name != "cpu" else _cpu()


def _gpu() -> ComputeDevice:
    info = mx.device_info(mx.gpu)
    system = "Metal" if mx.metal.is_available() else "CUDA"
    sizes = ("max_recommended_working_set_size", "total_memory", "memory_size")
    capacity = next((int(info[key]) for key in sizes if info.get(key)), _memory())
    return ComputeDevice(mx.gpu, f"{info.get('device_name', 'gpu')} ({system})", capacity)


def gpu() -> Gpu:
    """How kernels are to be cut for the GPU.

    MLX does not tell how many cores or multiprocessors it has: it is what its name lets one expect.
    """
    name = str(mx.device_info(mx.gpu).get("device_name", ""))
    if "Apple" in name:
        return Gpu(_among(_APPLE, name, 10))
    # Two threadgroups a multiprocessor are best on an H200, and sixteen lines a simdgroup.
    return Gpu(_among(_NVIDIA, name, 80), groups=2, tall=True)


def _among(known: Mapping[str, int], name: str, otherwise: int) -> int:
    return next((count for word, count in known.items() if word in name), otherwise)


def _cpu() -> ComputeDevice:
    return ComputeDevice(mx.cpu, "cpu", _available())


def _available() -> int:
    """Bytes that a new allocation could take: Linux ends a process that takes more."""
    try:
        for line in _MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _memory()


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
