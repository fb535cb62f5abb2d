"""Two ways to the same attention, side by side: each gated, then timed in turns.

A run is all layers in one graph, each layer's queries the output of the one before it, as in a
model: nothing overlaps that could not there. The graph is built before the clock starts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from benchmarks.metal_cases import Case
from benchmarks.metal_clock import Graph, Pace, alternated, timed
from benchmarks.metal_shapes import BOUNDS
from metal_kernels import attention
from metal_kernels.launch import Launch

Run = Callable[[Launch, Mapping[str, mx.array]], list[mx.array]]
"""Carries out a launch, see :func:`metal_kernels.run.run`."""


@dataclass(frozen=True)
class Way:
    """A way to compute attention.

    Attributes:
        queries: the first layer's, as this way wants them to lie.
        layer: a layer's output from its queries, which lies as they do.
        shown: either as ``[1, T, q_heads, head_dim]``, for the gate.
    """

    queries: mx.array
    layer: Callable[[mx.array, int], mx.array]
    shown: Callable[[mx.array], mx.array]


def ours(case: Case, run: Run) -> Way:
    """The kernels over pages, with as many programs as the GPU's cores want."""
    attend = attention.attend(case.of)
    merge = attention.merge(case.of) if case.of.programs > 1 else None

    def layer(queries: mx.array, index: int) -> mx.array:
        there = {"queries": queries, "keys": case.keys[index], "values": case.values[index]}
        out, sums = run(attend, case.inputs | there)
        if merge is not None:
            out, _ = run(merge, {"found": out, "found_sums": sums})
        return out

    return Way(case.queries, layer, lambda out: out)


def dense(case: Case) -> Way:
    """MLX's fused attention over a contiguous copy of the live cells of all layers."""
    copies = [case.contiguous(index) for index in range(case.layers)]
    queries = mx.contiguous(case.queries.swapaxes(1, 2))
    mx.eval(copies, queries)
    mask = "causal" if case.of.count > 1 else None

    def layer(queries: mx.array, index: int) -> mx.array:
        keys, values = copies[index]
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=case.scale, mask=mask
        )

    return Way(queries, layer, lambda out: out.swapaxes(1, 2))


def chain(way: Way, layers: int) -> list[mx.array]:
    """The queries of the first layer, then what each layer makes of them; nothing has run."""
    made = [way.queries]
    for index in range(layers):
        made.append(way.layer(made[-1], index))
    return made


def _last(way: Way, layers: int) -> list[mx.array]:
    return chain(way, layers)[-1:]


def gated(way: Way, case: Case) -> float:
    """The larger error of the first and the last layer."""
    made = [way.shown(each) for each in chain(way, case.layers)]
    mx.eval(made)
    ends = {0, case.layers - 1}
    return max(case.error(index, made[index], made[index + 1]) for index in ends)


def contest(case: Case, run: Run, pace: Pace) -> dict[str, Any]:
    """Ours beside MLX's, as parts of a row: ``*_ms`` of all layers, no time where it is wrong."""
    ways = {"ours": ours(case, run), "dense": dense(case)}
    errors = {name: gated(way, case) for name, way in ways.items()}
    row: dict[str, Any] = {f"{name}_error": error for name, error in errors.items()}
    right = {name: way for name, way in ways.items() if errors[name] <= BOUNDS[case.of.dtype]}
    wrong = [f"{name}: error {errors[name]:.3g}" for name in ways if name not in right]
    if wrong:
        row["wrong"] = ", ".join(wrong)
    graphs = {name: partial(_last, way, case.layers) for name, way in right.items()}
    for name, taken in timed(graphs, pace).items():
        row |= {f"{name}_ms": taken.ms, f"{name}_host_ms": taken.host_ms}
        if taken.gpu_ms is not None:
            row[f"{name}_gpu_ms"] = taken.gpu_ms
    if len(right) == 2:
        row["ratio"] = row["dense_ms"] / row["ours_ms"]
        if "dense_gpu_ms" in row and row.get("ours_gpu_ms", 0) > 0:
            row["gpu_ratio"] = row["dense_gpu_ms"] / row["ours_gpu_ms"]
    return row


def read_bandwidth(size: int, pace: Pace) -> tuple[float, str]:
    """Bytes that the GPU reads in a second, and by which of MLX's reductions; ``size`` are read."""
    ways: dict[str, Graph] = {}
    reductions = {"sum": mx.sum, "max": mx.max}
    for dtype in (mx.float32, mx.bfloat16):
        source = mx.random.normal((size // dtype.size,), dtype)
        mx.eval(source)
        name = str(dtype).removeprefix("mlx.core.")
        for kind, reduction in reductions.items():
            ways[f"{kind} of {name}"] = partial(_reduced, reduction, source)
    times = alternated(ways, pace)
    best = min(times, key=lambda name: times[name].ms)
    return size / times[best].ms * 1e3, best


def _reduced(reduction: Callable[[mx.array], mx.array], source: mx.array) -> list[mx.array]:
    return [reduction(source)]


def tidy() -> None:
    """Give back what the last case held."""
    gc.collect()
    mx.clear_cache()
