"""Several ways to one result, side by side: each gated, then timed in turns by CUDA graphs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.attention_cases import BOUND
from omni_cuda.devices import nothing_freed

ROUNDS = 40
_SWEEP = 256 << 20
"""Bytes read before each run, so that it finds none of its caches on the chip."""
_LAUNCH = 0.2
"""Milliseconds that a launch from Python may take more than another's."""


def _as_it_is(out: torch.Tensor) -> torch.Tensor:
    return out


@dataclass(frozen=True)
class Contender:
    """A way to compute a layer's attention.

    Attributes:
        name: for people.
        run: computes a layer; called again and again with the same memory.
        shown: its output as ``[T, q_heads, head_dim]``, for the gate.
    """

    name: str
    run: Callable[[int], torch.Tensor]
    shown: Callable[[torch.Tensor], torch.Tensor] = _as_it_is


@dataclass(frozen=True)
class Outcome:
    """How it went.

    Attributes:
        ms: of all layers, in one graph; None where it was not timed.
        error: the largest that the gate saw; None where it did not run.
        why: it was not timed.
    """

    ms: float | None = None
    error: float | None = None
    why: str | None = None


def contest(
    ours: Contender,
    peers: Sequence[Contender],
    layers: int,
    gate: Callable[[int, torch.Tensor], float],
    rounds: int = ROUNDS,
) -> tuple[Outcome, dict[str, Outcome]]:
    """Ours, and each peer by name; a peer may fail, ours may not.

    Args:
        ours, peers: who takes part.
        layers: how many each runs through; what runs alternates, so that clocks and heat are
            shared.
        gate: the error of an output of a layer.
        rounds: of which the median counts.
    """
    found: dict[str, Outcome] = {}
    eager: dict[str, float] = {}
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    first = gate(0, ours.shown(ours.run(0)))
    last, graphs[ours.name] = _gated(ours, layers, gate)
    for peer in peers:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                found[peer.name] = _judged(gate(0, peer.shown(peer.run(0))))
                if found[peer.name].why is None:
                    eager[peer.name] = _eager(peer)
            except Exception as failure:  # Whatever a peer fails with, ours is to be measured.
                found[peer.name] = Outcome(why=said(failure, [str(one.message) for one in heard]))
    # A look at one layer tells which have no chance; what launching it from here takes may differ.
    best = min(eager.values(), default=0.0)
    for peer in peers:
        if peer.name not in eager:
            continue
        if eager[peer.name] > 1.5 * best + _LAUNCH:
            why = f"slower: {eager[peer.name]:.3f} ms a layer, where the best took {best:.3f}"
            found[peer.name] = Outcome(error=found[peer.name].error, why=why)
            continue
        try:
            error, graph = _gated(peer, layers, gate)
            found[peer.name] = _judged(max(error, found[peer.name].error or 0.0))
            if found[peer.name].why is None:
                graphs[peer.name] = graph
        except Exception as failure:
            found[peer.name] = Outcome(why=said(failure))
    times = alternated(graphs, rounds)
    for name in graphs:
        if name != ours.name:
            found[name] = Outcome(times[name], found[name].error)
    mine = _judged(max(first, last))
    return Outcome(None if mine.why else times[ours.name], mine.error, mine.why), found


def best_of(peers: dict[str, Outcome]) -> tuple[str, float] | None:
    """The fastest that was timed."""
    timed = [(outcome.ms, name) for name, outcome in peers.items() if outcome.ms is not None]
    return (min(timed)[1], min(timed)[0]) if timed else None


def said(error: Exception, warned: Sequence[str] = ()) -> str:
    """An error's kind and its first line, and those of what was warned of before."""
    lines = str(error).strip().splitlines() or [""]
    # PyTorch warns of why a backend does not take a call, and names lines of its own.
    heard = [line.split(" (Triggered", 1)[0].strip()[:200] for line in warned]
    return "; ".join([f"{type(error).__name__}: {lines[0][:200]}", *list(dict.fromkeys(heard))[:6]])


def captured(contender: Contender, layers: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of all layers, and where it leaves the output of the last."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        contender.run(0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with nothing_freed(), torch.cuda.graph(graph):
        for layer in range(layers):
            out = contender.run(layer)
    return graph, out


def alternated(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, one after the other in every round, from a cold cache."""
    sweep = torch.zeros(_SWEEP // 4, device="cuda")
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in graphs}
    for _ in range(rounds + 2):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            sweep.sum()
            start.record()
            graph.replay()
            end.record()
            marks[name].append((start, end))
    torch.cuda.synchronize()
    # The first two rounds warm up.
    return {name: median(a.elapsed_time(b) for a, b in pairs[2:]) for name, pairs in marks.items()}


def tidy() -> None:
    """Give back what the last case held."""
    gc.collect()
    torch.cuda.empty_cache()


def _judged(error: float) -> Outcome:
    return Outcome(error=error, why=None if error <= BOUND else f"wrong: error {error:.3g}")


def _gated(
    contender: Contender, layers: int, gate: Callable[[int, torch.Tensor], float]
) -> tuple[float, torch.cuda.CUDAGraph]:
    graph, out = captured(contender, layers)
    graph.replay()
    return gate(layers - 1, contender.shown(out)), graph


def _eager(contender: Contender) -> float:
    """Milliseconds of one layer, launched from here: the best of three."""
    times = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        contender.run(0)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return min(times[1:])
