"""Calls of one shape, and the CUDA graph that makes them once one has been made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from omni_cuda.graphs import Captures

_LONGEST_GRAPH = 10_000
"""Patches or frames beyond which the work hides the launching, and a graph takes much memory."""


class Call:
    """Computes from inputs of one shape."""

    def __init__(
        self, compute: Callable[[torch.Tensor], torch.Tensor], size: int, captures: Captures | None
    ) -> None:
        """Take what is computed.

        Args:
            compute: launches it, and waits for nothing.
            size: patches or frames.
            captures: for graphs; None where there are none.
        """
        self._compute = compute
        self._captures = captures if size <= _LONGEST_GRAPH else None
        self._captured: _Captured | None = None
        self._ran = False

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        """What is computed from ``given``; the caller's own."""
        # Libraries choose their kernels in the first call, which a capture cannot do.
        if self._ran and self._captures is not None and self._captured is None:
            self._captured = self._capture(given, self._captures)
            if self._captured is None:
                # A capture needs memory of its own: without it, calls are made as before.
                self._captures = None
        self._ran = True
        if self._captured is None:
            return self._compute(given)
        self._captured.given.copy_(given)
        self._captured.graph.replay()
        return self._captured.found.clone()

    def _capture(self, like: torch.Tensor, captures: Captures) -> _Captured | None:
        """The graph for inputs that are ``like`` these; None where there is no room for one."""
        try:
            given = torch.empty_like(like)
        except RuntimeError:
            return None
        taken = captures.take(lambda: self._compute(given))
        return None if taken is None else _Captured(taken[0], given, taken[1])


@dataclass(frozen=True)
class _Captured:
    """A graph with what it reads and what it writes."""

    graph: torch.cuda.CUDAGraph
    given: torch.Tensor
    found: torch.Tensor
