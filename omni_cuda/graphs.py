"""Capturing launches as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

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
        # Not PyTorch's own stream for captures, whose workspaces any other capture gives back.
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.MemPool()

    def take(self, launch: Callable[[], _Made]) -> tuple[torch.cuda.CUDAGraph, _Made] | None:
        """The graph of what is launched, and what that gives; None where there is no room for one.

        Args:
            launch: has run before: kernels are compiled and chosen by a first run, which a capture
                cannot do.
        """
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        try:
            with nothing_freed(), torch.cuda.stream(self.stream):
                # Other threads may use the card meanwhile.
                graph.capture_begin(self.pool.id, capture_error_mode="thread_local")
                try:
                    made = launch()
                finally:
                    graph.capture_end()
        except RuntimeError:
            return None
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph, made
