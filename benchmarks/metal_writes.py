"""Stores and moves: the kernels that write to the arena where it lies, checked and timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from benchmarks.metal_cases import Case
from benchmarks.metal_clock import Pace, alternated
from benchmarks.metal_contest import Run
from benchmarks.metal_shapes import BOUNDS
from metal_kernels import pages
from metal_kernels.launch import CONSTANT_BELOW
from omni_core.backend import PAGE
from omni_core.units import Int32

Row = dict[str, Any]
_THETA = 1e6


def store(draw: np.random.Generator, case: Case, run: Run, pace: Pace) -> Row:
    """New tokens turned by one table and put into dead cells of all layers, as parts of a row."""
    shape, count, kind = case.shape, case.of.count, getattr(mx, case.of.dtype)
    cells = _dead(draw, case, count)
    at = draw.integers(0, 30_000, count)
    angles = np.outer(at, _THETA ** (-np.arange(shape.head_dim // 2) * 2 / shape.head_dim))
    turns = {name: np.repeat(way(angles)[None], 2, axis=0).astype(np.float32)
             for name, way in (("cosines", np.cos), ("sines", np.sin))}  # fmt: skip
    size = 1, count, shape.kv_heads, shape.head_dim
    fresh = [[mx.random.normal(size, kind) for _ in range(2)] for _ in range(case.layers)]
    cut = {"tables": 1, "pages": case.of.pages}
    launch = pages.store(
        1, count, shape.q_heads, shape.kv_heads, shape.head_dim, dtype=case.of.dtype, **cut
    )
    numbers = pages.store_numbers(count, shape.q_heads, shape.kv_heads, **cut)
    given = {name: mx.array(array) for name, array in turns.items()}
    given |= {
        "queries": case.queries,
        "cells": _padded(cells, -1),
        "numbers": mx.array(np.asarray(numbers, np.int32)),
    }
    mx.eval(given, fresh)

    def graph() -> list[mx.array]:
        made = []
        for (new_keys, new_values), keys, values in zip(fresh, case.keys, case.values, strict=True):
            there = {"new_keys": new_keys, "new_values": new_values, "keys": keys, "values": values}
            made += run(launch, given | there)
        return made

    before = _alive(case, 0)
    mx.eval(graph())
    mx.synchronize()
    found_keys, found_values = (_read(part[0], cells) for part in (case.keys, case.values))
    wanted = _turned(_numbers(fresh[0][0])[0], turns["cosines"][0], turns["sines"][0])
    gap = float(np.linalg.norm(found_keys - wanted) / np.linalg.norm(wanted))
    exact = np.array_equal(found_values, _numbers(fresh[0][1])[0])
    right = gap <= BOUNDS[case.of.dtype] and exact and _alive(case, 0) == before + count
    taken = count * shape.head_dim * kind.size
    # Queries and keys are read and written, values too; tables of angles are small.
    size_of = 2 * taken * (shape.q_heads + 2 * shape.kv_heads) * case.layers
    return _timed(graph, size_of, gap if right else float("inf"), pace)


def move(draw: np.random.Generator, case: Case, count: int, run: Run, pace: Pace) -> Row:
    """Live cells copied to dead ones in all layers, as parts of a row."""
    shape = case.shape
    live = (case.live.pages[:, None] * PAGE + np.arange(PAGE, dtype=np.int32))[case.live.alive]
    source = draw.choice(live, count, replace=False).astype(np.int32)
    target = _dead(draw, case, count)
    of = count, 1, shape.kv_heads, shape.head_dim
    launch = pages.move(*of, pages=case.of.pages, dtype=case.of.dtype)
    numbers = pages.move_numbers(count, shape.kv_heads, pages=case.of.pages)
    given = {
        "source": _padded(source, 0),
        "target": _padded(target, 0),
        "numbers": mx.array(np.asarray(numbers, np.int32)),
    }

    def graph() -> list[mx.array]:
        made = []
        for keys, values in zip(case.keys, case.values, strict=True):
            there = {"keys": keys, "values": values, "from_keys": keys, "from_values": values}
            made += run(launch, given | there)
        return made

    before = _alive(case, 0)
    mx.eval(graph())
    mx.synchronize()
    same = all(
        np.array_equal(_read(part[-1], target), _read(part[-1], source))
        for part in (case.keys, case.values)
    )
    right = same and _alive(case, 0) == before + count
    size = 2 * shape.layer_bytes(count) * case.layers
    return _timed(graph, size, 0.0 if right else float("inf"), pace)


def _timed(graph: Callable[[], list[mx.array]], size: int, error: float, pace: Pace) -> Row:
    row: Row = {"ours_error": error, "bytes": size}
    if np.isinf(error):
        return row | {"wrong": "what is in the cells is not what was to be written"}
    ms = alternated({"ours": graph}, pace)["ours"].ms
    return row | {"ours_ms": ms, "gb_moved_per_s": size / ms / 1e6}


def _turned(
    rows: npt.NDArray[np.float32], cosines: npt.NDArray[Any], sines: npt.NDArray[Any]
) -> npt.NDArray[np.float32]:
    """Keys ``[T, kv_heads, head_dim]``, dimension ``i`` turned with ``i + head_dim / 2``."""
    first, second = np.split(rows, 2, axis=-1)
    c, s = cosines[:, None], sines[:, None]
    return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)


def _dead(draw: np.random.Generator, case: Case, count: int) -> Int32:
    dead = np.ones((case.live.arena, PAGE), np.bool_)
    dead[case.live.pages] = ~case.live.alive
    return draw.choice(np.flatnonzero(dead), count, replace=False).astype(np.int32)


def _read(arena: mx.array, cells: Int32) -> npt.NDArray[np.float32]:
    """``[n, kv_heads, head_dim]`` of a layer, as it is in memory now."""
    return _numbers(arena[0][mx.array(cells // PAGE), :, mx.array(cells % PAGE)])


def _numbers(array: mx.array) -> npt.NDArray[np.float32]:
    return np.array(array.astype(mx.float32))


def _alive(case: Case, layer: int) -> int:
    """Cells of a layer that hold no NaN, in keys and values of all heads."""
    held = mx.isnan(case.keys[layer]) | mx.isnan(case.values[layer])
    return int(mx.logical_not(held.any(axis=(2, 4))).sum())


def _padded(cells: Int32, rest: int) -> mx.array:
    """With room for as many as a kernel wants at least."""
    short = max(0, CONSTANT_BELOW - cells.size)
    return mx.array(np.pad(cells, (0, short), constant_values=rest))
