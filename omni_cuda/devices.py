"""Which device and which numbers to compute with, and how much memory is there and in use."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omni_core.backend import MemoryReport
from omni_core.errors import BackendError, BudgetError

SMALL = 30_000_000
"""Parameters below which one thread of a CPU is as fast as two, or faster: steps are too short to
be shared, and a busy core holds both up. On two cores a unit takes 29 ms against 48 with 10 M
parameters, 56 against 101 with 27 M, 144 against 151 with 87 M, and 301 against 238 with 204 M."""


def choose_device(name: str) -> torch.device:
    """The device called ``auto``, ``cuda``, ``cuda:N`` or ``cpu``.

    Raises:
        BackendError: no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise BackendError(
            f"device {name!r} is unknown to the cuda backend; expected auto, cuda, cuda:N or cpu"
        )
    if not torch.cuda.is_available():
        why = "no NVIDIA driver or card answers" if torch.version.cuda else "PyTorch has no CUDA"
        raise BackendError(f"cuda is not available: {why}; use --device cpu")
    number = int(index or 0)
    if number >= torch.cuda.device_count():
        raise BackendError(
            f"{name} is not available: {torch.cuda.device_count()} CUDA devices found; "
            f"use cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )
    return torch.device("cuda", number)


def settle_threads(device: torch.device, parameters: int) -> None:
    """Have this process compute a small model with one thread, unless OMP_NUM_THREADS is set.

    It stays so: torch's threads are the process's, whatever it loads afterwards.
    """
    if device.type == "cpu" and parameters < SMALL and not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)


def choose_weights(name: str, device: torch.device) -> tuple[torch.dtype, int | None]:
    """Compute dtype and bits of the text layers' weights (None: the compute dtype).

    Raises:
        BackendError: a format that this backend or a card has not.
    """
    native = torch.float32 if device.type == "cpu" else torch.bfloat16
    formats = {
        "auto": (native, None),
        "f32": (torch.float32, None),
        "bf16": (torch.bfloat16, None),
        "8": (native, 8),
        "4": (native, 4),
    }
    if name not in formats:
        raise BackendError(
            f"the cuda backend has no weights {name!r}; supported are {', '.join(formats)}"
        )
    if name == "4" and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):
            raise BackendError(
                f"weights 4 need a card of compute capability 8.0 or newer, but {device} has "
                f"{capability[0]}.{capability[1]}; use --weights 8"
            )
    return formats[name]


def current(device: torch.device) -> AbstractContextManager[object]:
    """Have a card be the one that kernels, graphs and streams are of."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether Triton's kernels run on a device: a card of compute capability 8.0 or newer."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from omni_cuda.kernels.norm import rms_norm

        with current(device):
            ones = torch.ones(16, device=device)
            rms_norm(ones, ones, 1e-6)
    except Exception:
        # Triton is not there, too old, or finds no compiler: it says so in many ways.
        return False
    return True


@contextmanager
def out_of_memory(what: str, remedy: str) -> Iterator[None]:
    """Say what memory ran out on, and what to do.

    Raises:
        BackendError: in place of what the device says.
    """
    try:
        yield
    except RuntimeError as error:
        # The CPU's allocator and the driver have no exception type of their own.
        words = str(error)
        if "out of memory" not in words and "allocate memory" not in words:
            raise
        raise BackendError(
            f"out of memory on {what} ({words.splitlines()[0]}); {remedy}"
        ) from error


def device_name(device: torch.device) -> str:
    """The device's name, for people."""
    if device.type == "cpu":
        return "cpu"
    return f"{device} ({torch.cuda.get_device_name(device)})"


def upload(
    array: npt.NDArray[Any], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A NumPy array on the device, as ``dtype`` where one is given."""
    # PyTorch takes neither negative strides nor, without a warning, read-only memory.
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device, dtype)


def download(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor in NumPy, bfloat16 as its bits in uint16, which NumPy has no other name for."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.contiguous().view(torch.uint16)
    array: npt.NDArray[Any] = tensor.contiguous().cpu().numpy()
    return array


def free_bytes(device: torch.device) -> int:
    """Bytes that a new allocation could take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + reusable
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_room(needed: int, device: torch.device, what: str, remedy: str) -> None:
    """Refuse an allocation that the device cannot hold, before it is tried.

    Raises:
        BudgetError: with both sizes.
    """
    free = free_bytes(device)
    if needed > free:
        raise BudgetError(
            f"{what} takes {needed / 1e9:.2f} GB, but {device} has {free / 1e9:.2f} GB free; "
            f"{remedy}"
        )


@contextmanager
def nothing_freed() -> Iterator[None]:
    """Python's collector rests meanwhile: a graph or an event that it frees would end a capture."""
    resting = not gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not resting:
            gc.enable()


def measure(device: torch.device, accounted: int) -> MemoryReport:
    """Memory now: CUDA's allocator on a card, else the resident memory of this process."""
    if device.type == "cuda":
        used = torch.cuda.memory_allocated(device)
        cached = torch.cuda.memory_reserved(device) - used
        peak = torch.cuda.max_memory_allocated(device)
        return MemoryReport(used, cached, peak, accounted, "cuda")
    used, peak = _resident()
    return MemoryReport(used, 0, peak, accounted, "process")


def _resident() -> tuple[int, int]:
    try:
        import resource
    except ImportError as error:
        raise BackendError(
            "resident memory cannot be read on this system; use --device cuda"
        ) from error
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak, peak
    used = pages * os.sysconf("SC_PAGE_SIZE")
    return used, max(used, peak)
