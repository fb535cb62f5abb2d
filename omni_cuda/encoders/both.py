"""Both towers on one device: media in, embeddings out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from omni_core.frontend.base import VisionInput
from omni_cuda.devices import upload
from omni_cuda.encoders import audio as audio_tower
from omni_cuda.encoders import vision as vision_tower
from omni_cuda.encoders.graphs import Call
from omni_cuda.graphs import Captures
from omni_cuda.ops import Ops

_MOST_SHAPES = 16
"""Grids and lengths of sound whose graphs are kept."""


class Encoders:
    """Runs both towers; what follows from a grid or a length of sound alone is found once."""

    def __init__(
        self,
        vision: nn.Module,
        audio: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        ops: Ops,
    ) -> None:
        vision_tower.norm_with(vision, ops)
        self._vision, self._audio = vision, audio
        self._device, self._dtype = device, dtype
        self._kept: OrderedDict[Hashable, Call] = OrderedDict()

    def __call__(
        self, vision: Sequence[VisionInput], audio: Sequence[npt.NDArray[np.float32]]
    ) -> list[torch.Tensor]:
        """Embeddings ``[rows, hidden]`` of each grid, then of each log-mel ``[mel_bins, frames]``.

        Nothing waits for the device.
        """
        # All is on its way before the first tower keeps the device busy.
        calls = [(self._seeing(given.grid), self._send(given.patches)) for given in vision]
        for mel in audio:
            heard = self._send(audio_tower.chunks(self._audio, mel))
            calls.append((self._hearing(mel.shape[1]), heard))
        return [call(given) for call, given in calls]

    @cached_property
    def _captures(self) -> Captures | None:
        return Captures(self._device) if self._device.type == "cuda" else None

    def _seeing(self, grid: tuple[int, int, int]) -> Call:
        make = partial(vision_tower.prepare, self._vision, grid, self._device)
        return self._call(grid, make, grid[0] * grid[1] * grid[2])

    def _hearing(self, frames: int) -> Call:
        make = partial(audio_tower.prepare, self._audio, frames, self._device)
        return self._call(frames, make, frames)

    def _call(
        self,
        shape: Hashable,
        make: Callable[[], Callable[[torch.Tensor], torch.Tensor]],
        size: int,
    ) -> Call:
        call = self._kept.pop(shape, None)
        if call is None:
            while len(self._kept) >= _MOST_SHAPES:
                self._kept.popitem(last=False)
            call = Call(make(), size, self._captures)
        self._kept[shape] = call
        return call

    def _send(self, array: npt.NDArray[np.float32]) -> torch.Tensor:
        """An array on the device, in the towers' numbers."""
        given = upload(array, torch.device("cpu"), self._dtype)
        if self._device.type != "cuda":
            return given.to(self._device)
        # PyTorch keeps pinned memory until it has been read, and for the next array after that.
        return given.pin_memory().to(self._device, non_blocking=True)
