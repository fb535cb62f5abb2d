"""What graphs take on MLX's GPU: by the clock on the wall, and of the GPU's own time.

On the wall, the clock starts before a graph is handed to the GPU: where that takes as long as the
GPU does, it is the host that is timed. So each graph is handed over a second time behind reads that
keep the GPU busy for longer than the host needs. What both take, less what the reads take alone, is
the GPU's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

import mlx.core as mx

Graph = Callable[[], list[mx.array]]
"""Builds what is to be timed; nothing of it has run."""

_WARM, _LEAST = 2, 3
_COVER = 2.5
"""How long the reads are to last, over the time that the host needs."""
_MOST_READS = 200


@dataclass(frozen=True)
class Pace:
    """How long things are timed.

    Attributes:
        rounds: of which the median counts, behind two that warm up.
        seconds: after which no more rounds begin, three done; of each way to time.
        sweep: bytes that are read before each run, so that it finds none of its caches on the chip.
        clock: in seconds.
    """

    rounds: int = 20
    seconds: float = 4.0
    sweep: int = 256 << 20
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Taken:
    """Medians of a graph, in milliseconds.

    Attributes:
        ms: until the GPU has finished.
        host_ms: until all launches have been handed to it; where that is almost as long, the host
            is what limits.
        gpu_ms: of the GPU alone; None where most times the host was not done before the reads were.
    """

    ms: float
    host_ms: float
    gpu_ms: float | None = None


def timed(graphs: Mapping[str, Graph], pace: Pace) -> dict[str, Taken]:
    """What each graph takes in both ways, one after the other in every round, from a cold cache."""
    taken = alternated(graphs, pace)
    sweep = _sweep(pace)
    (read,) = alternated({"read": lambda: [sweep.sum()]}, replace(pace, seconds=0)).values()
    host = max((each.host_ms for each in taken.values()), default=0.0)
    reads = min(_MOST_READS, max(1, math.ceil(_COVER * host / read.ms)))
    gpu = _behind(graphs, sweep, reads, pace)
    return {name: replace(each, gpu_ms=gpu[name]) for name, each in taken.items()}


def alternated(graphs: Mapping[str, Graph], pace: Pace) -> dict[str, Taken]:
    """What each graph takes by the clock on the wall, in turns as :func:`timed`."""
    sweep = _sweep(pace)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in graphs}
    for _ in _rounds(pace):
        for name, graph in graphs.items():
            outputs = graph()
            mx.eval(sweep.sum())
            mx.synchronize()
            start = pace.clock()
            mx.async_eval(outputs)
            handed = pace.clock()
            mx.synchronize()
            times[name].append((pace.clock() - start, handed - start))
    # The first two rounds warm up.
    return {
        name: Taken(*(median(each) * 1e3 for each in zip(*pairs[_WARM:], strict=True)))
        for name, pairs in times.items()
    }


def _behind(
    graphs: Mapping[str, Graph], sweep: mx.array, reads: int, pace: Pace
) -> dict[str, float | None]:
    """The GPU's milliseconds of each graph, behind so many reads."""
    alone: list[float] = []
    both: dict[str, list[tuple[float, float]]] = {name: [] for name in graphs}
    for _ in _rounds(pace):
        start = _begun(sweep, reads, pace)
        mx.synchronize()
        alone.append(pace.clock() - start)
        for name, graph in graphs.items():
            outputs = graph()
            start = _begun(sweep, reads, pace)
            mx.async_eval(outputs)
            handed = pace.clock()
            mx.synchronize()
            both[name].append((pace.clock() - start, handed - start))
    whole = median(alone[_WARM:])
    found: dict[str, float | None] = {}
    for name, pairs in both.items():
        covered = [took for took, handed in pairs[_WARM:] if handed <= whole]
        most = 2 * len(covered) > len(pairs) - _WARM
        found[name] = (median(covered) - whole) * 1e3 if most else None
    return found


def _begun(sweep: mx.array, reads: int, pace: Pace) -> float:
    """When the reads were begun."""
    queued = [sweep.sum() for _ in range(reads)]
    mx.synchronize()
    start = pace.clock()
    mx.async_eval(queued)
    return start


def _sweep(pace: Pace) -> mx.array:
    sweep = mx.zeros(pace.sweep // 4)
    mx.eval(sweep)
    return sweep


def _rounds(pace: Pace) -> Iterator[int]:
    begun = pace.clock()
    for turn in range(_WARM + pace.rounds):
        if turn >= _WARM + _LEAST and pace.clock() - begun > pace.seconds:
            return
        yield turn
