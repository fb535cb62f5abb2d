"""Choosing and loading a backend by name, without importing the ones that are not used."""

from __future__ import annotations

import ctypes
import platform
from importlib import import_module
from importlib.util import find_spec

from omni_core.backend import Backend
from omni_core.checkpoints import Checkpoint
from omni_core.errors import BackendError
from omnilive.interrupts import put_off

LIBRARIES = {"mlx": ("mlx",), "cuda": ("torch", "transformers")}
"""What each backend needs; the first does the computing."""


def lacking(backend: str) -> str | None:
    """A library that a backend needs and that is not installed, if there is one."""
    return next((library for library in LIBRARIES[backend] if not find_spec(library)), None)


def choose(name: str) -> str:
    """The backend to use: ``mlx`` or ``cuda``.

    Of two, ``auto`` takes MLX on a Mac and PyTorch elsewhere: on a CPU that is no Mac's, MLX's
    builds multiply matrices thirty times more slowly.

    Raises:
        BackendError: it is not installed, with the command that installs it.
    """
    if name != "auto":
        missing = lacking(name)
        if missing is not None:
            raise BackendError(
                f"the {name} backend needs {missing}, which is not installed; run "
                f'`pip install -e ".[{name}]"` in the checkout, or `make test`'
            )
        return name
    installed = [backend for backend in LIBRARIES if lacking(backend) is None]
    if not installed:
        raise BackendError(
            'no backend is installed; run `pip install -e ".[mlx]"` or `pip install -e ".[cuda]"` '
            "in the checkout"
        )
    return installed[0] if platform.system() == "Darwin" else installed[-1]


def check(name: str, device: str, weights: str) -> None:
    """Refuse a device or a number format that a backend has not, before anything is loaded.

    Raises:
        BackendError: with what there is.
    """
    with put_off():  # a signal's exception inside a library's import can end the process
        devices = import_module(f"omni_{name}.devices")
    place = devices.choose_device(device)
    if name == "cuda":  # MLX has every format
        devices.choose_weights(weights, place)


def check_sealing(name: str) -> None:
    """Refuse a backend that cannot seal its cache: one that can has a module ``sealing``.

    Raises:
        BackendError: naming it.
    """
    with put_off():
        found = find_spec(f"omni_{name}.sealing")
    if found is None:
        raise BackendError(
            f"the {name} backend cannot seal its cache; choose another --backend, or a cache of "
            "16 bits"
        )


def load_backend(
    name: str, checkpoint: Checkpoint, device: str, weights: str, streams: int = 1
) -> Backend:
    """Load a checkpoint's weights on a backend, for steps of so many streams of one layout."""
    with put_off():
        twin = import_module(f"omni_{name}")
    backend: Backend = twin.load(checkpoint, device=device, weights=weights, streams=streams)
    return backend


def expected_element(name: str, device: str, weights: str) -> int:
    """Bytes that a key or value number will take, as far as can be told before loading."""
    if weights in ("f32", "bf16"):
        return 4 if weights == "f32" else 2
    return 4 if on_cpu(name, device) else 2


def on_cpu(name: str, device: str) -> bool:
    """Whether a device is the CPU, as far as can be told before loading."""
    if device == "auto":
        return not (_mlx_gpu() if name == "mlx" else _nvidia_gpu())
    return device == "cpu"


def _mlx_gpu() -> bool:
    import mlx.core as mx

    return bool(mx.is_available(mx.gpu))


def _nvidia_gpu() -> bool:
    """Whether the driver sees a GPU; asking it takes milliseconds, importing torch seconds."""
    library = "nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return False
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return found and count.value > 0
