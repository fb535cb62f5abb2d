"""Arrays of a step in fixed places on the device: one copy a step, and addresses that stay.

A captured graph reads the same addresses each time it runs, so a plan's arrays are written into
one pinned block, which is copied whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNED = 256
_TORCH = {np.int32: torch.int32, np.int64: torch.int64, np.float32: torch.float32}

Shapes = Mapping[str, tuple[type[np.generic], tuple[int, ...]]]


class Staging:
    """Named arrays of fixed shapes, on the host to be written and on the device to be read.

    Two host blocks take turns, so that one can be written while the other is still on its way.

    Attributes:
        device: the tensors by name.
    """

    def __init__(self, shapes: Shapes, device: torch.device) -> None:
        starts, size = {}, 0
        for name, (dtype, shape) in shapes.items():
            starts[name] = size
            nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            size += -(-nbytes // _ALIGNED) * _ALIGNED
        pinned = device.type == "cuda"
        self._blocks = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._block = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent = [torch.cuda.Event() for _ in range(2)] if pinned else None
        self._turn = 0
        self.device: dict[str, torch.Tensor] = {}
        self._hosts: list[dict[str, npt.NDArray[Any]]] = [{}, {}]
        for name, (dtype, shape) in shapes.items():
            count = int(np.prod(shape))
            begin, end = starts[name], starts[name] + count * np.dtype(dtype).itemsize
            self.device[name] = self._block[begin:end].view(_TORCH[dtype]).view(shape)
            for block, host in zip(self._blocks, self._hosts, strict=True):
                host[name] = block.numpy()[begin:end].view(dtype).reshape(shape)

    def host(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays to write, with what they held two steps ago."""
        if self._sent:
            # Free since the step before the last, unless the device lags that far behind.
            self._sent[self._turn].synchronize()
        return self._hosts[self._turn]

    def send(self) -> None:
        """Copy what was written; the device's arrays have it for all that is launched from now."""
        self._block.copy_(self._blocks[self._turn], non_blocking=True)
        if self._sent:
            self._sent[self._turn].record()
        self._turn = 1 - self._turn
