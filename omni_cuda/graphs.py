"""Capturing launches as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from omni_cuda.devices import nothing_freed

_Made = TypeVar("_Made")


class Captures:
    """What graphs share that are replayed one after the other.

    Attributes:
        stream: that they are captured on.
        pool: their memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Not PyTorch's own stream for captures, whose workspaces any other capture gives back.
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.MemPool()
        self._kept: list[Any] = []
        self._opened = False

    def take(self, launch: Callable[[], _Made]) -> tuple[torch.cuda.CUDAGraph, _Made] | None:
        """The graph of what is launched, and what that gives; None where there is no room for one.

        Args:
            launch: has run before: kernels are compiled and chosen by a first run, which a capture
                cannot do.
        """
        if not self._opened:
            self._open()
        return self._capture(launch)

    def _open(self) -> None:
        """Take a graph that stays: PyTorch takes no more into a pool that has lost all of its."""
        self._opened = True
        taken = self._capture(lambda: torch.zeros(1, device=self._device))
        if taken is not None:
            self._kept.append(taken[0])

    def _capture(self, launch: Callable[[], _Made]) -> tuple[torch.cuda.CUDAGraph, _Made] | None:
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        whole = False
        try:
            with nothing_freed(), torch.cuda.stream(self.stream):
                # Other threads may use the card meanwhile.
                graph.capture_begin(self.pool.id, capture_error_mode="thread_local")
                try:
                    made = launch()
                finally:
                    graph.capture_end()
                    whole = True
        except RuntimeError:
            if not whole:
                self._mend(graph)
            return None
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph, made

    def _mend(self, broken: torch.cuda.CUDAGraph) -> None:
        """Leave PyTorch as it was before a capture that was broken off.

        It goes on asking the graph whether memory is for its pool, and takes random numbers to be
        drawn in a capture until another has ended.
        """
        opened = bool(self._kept)
        self._kept.append((broken, self.pool))
        self.pool = torch.cuda.MemPool()
        if opened:
            self._open()
