"""A batch as one run of bytes, which crosses to another process or a device in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Spec = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""Name, dtype, shape and first byte of each array."""

_ALIGN = 16
_KEPT = {"f": np.float32, "b": np.bool_}


def pack(arrays: Mapping[str, Any]) -> tuple[npt.NDArray[np.uint8], Spec]:
    """Arrays as bytes; integers become int32."""
    spec, parts, start = [], [], 0
    for name, array in arrays.items():
        kept = np.ascontiguousarray(array, _KEPT.get(array.dtype.kind, np.int32))
        spec.append((name, kept.dtype.name, kept.shape, start))
        size = -(-kept.nbytes // _ALIGN) * _ALIGN
        parts.append((start, kept))
        start += size
    buffer = np.zeros(start, np.uint8)
    for first, kept in parts:
        buffer[first : first + kept.nbytes] = kept.reshape(-1).view(np.uint8)
    return buffer, tuple(spec)


def upload(buffer: npt.NDArray[np.uint8], device: torch.device) -> torch.Tensor:
    """The bytes on a device; the copy runs on while this returns."""
    held = torch.from_numpy(buffer)
    if device.type == "cuda":
        held = held.pin_memory()
    return held.to(device, non_blocking=True)


def unpack(buffer: torch.Tensor, spec: Spec) -> dict[str, torch.Tensor]:
    """Views of the bytes as the tensors that they are."""
    found = {}
    for name, kind, shape, start in spec:
        dtype = getattr(torch, kind)
        size = int(np.prod(shape)) * dtype.itemsize
        found[name] = buffer[start : start + size].view(dtype).view(shape)
    return found
