"""A training step, recorded once for each kind of batch as a CUDA graph and then replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from training.batch import Batch
from training.packing import Spec, unpack

Values = dict[str, torch.Tensor]
Step = Callable[[Batch], Values]

_WARM = 2
"""Steps of a kind that run before it is recorded."""


@dataclass
class _Recording:
    runs: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    given: torch.Tensor | None = None
    made: Values | None = None


class Recorder:
    """Runs a step on packed batches: as a graph on a GPU, plainly elsewhere.

    Args:
        step: must not wait for the device.
        record: whether to use graphs.
    """

    def __init__(self, step: Step, record: bool) -> None:
        self._step, self._record = step, record
        self._pool: Any = torch.cuda.graph_pool_handle() if record else None
        self._kinds: dict[Spec, _Recording] = {}

    def __call__(self, given: torch.Tensor, spec: Spec) -> Values:
        """One step; gives copies of what the step gives."""
        if not self._record:
            return self._plain(given, spec)
        kind = self._kinds.setdefault(spec, _Recording())
        kind.runs += 1
        if kind.runs <= _WARM:
            # On a stream of its own, as the recording will run.
            main, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                made = self._plain(given, spec)
            main.wait_stream(side)
            return made
        if kind.graph is None or kind.given is None:
            kind.given, kind.graph = given.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(kind.graph, pool=self._pool):
                kind.made = self._plain(kind.given, spec)
        kind.given.copy_(given)
        kind.graph.replay()
        return {name: value.clone() for name, value in (kind.made or {}).items()}

    def _plain(self, given: torch.Tensor, spec: Spec) -> Values:
        made = self._step(Batch.of(unpack(given, spec)))
        return {name: value.detach() for name, value in made.items()}
