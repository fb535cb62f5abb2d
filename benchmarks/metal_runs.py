"""What is measured on MLX's GPU: attention beside MLX's own, holes, writes, memory."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.live_cells import SHAPES, K, Live, Shape, scattered
from benchmarks.metal_cases import Case, build
from benchmarks.metal_claims import taken_ms
from benchmarks.metal_clock import Pace
from benchmarks.metal_contest import Run, contest, read_bandwidth, tidy
from benchmarks.metal_memory import memory_over_units
from benchmarks.metal_writes import move, store
from metal_kernels.cutting import Gpu
from omni_core.backend import PAGE, Backend
from omni_core.model_config import TextConfig

Row = dict[str, Any]
_COLD = 240e6
"""Bytes of caches that a graph reads, so that no layer's are still on the chip the next time."""
_FEWEST = 2
"""Layers: with fewer, one would be read again at once."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Attributes:
        shapes: models.
        dtypes: of caches and queries.
        decode: live cells.
        prefill: new tokens and the live cells before them.
        holes: live cells in an arena of which a half is free pages, on the first shape.
        stored: new tokens, on the first shape.
        moved: cells, on the first shape.
        read: bytes of the plain read.
        units, longest, budget: of the stream whose memory is watched.
        pace: how long things are timed.
    """

    shapes: tuple[Shape, ...] = SHAPES
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    decode: tuple[int, ...] = (2 * K, 3 * K, 8 * K, 32 * K, 64 * K)
    prefill: tuple[tuple[int, int], ...] = tuple(
        (new, live) for live in (3 * K, 32 * K) for new in (79, 700, 2300)
    )
    holes: tuple[int, ...] = (3 * K, 8 * K, 32 * K)
    stored: tuple[int, ...] = (1, 79, 700, 2300)
    moved: tuple[int, ...] = (64, 1024)
    read: int = 1 << 30
    units: int = 500
    longest: int = 1000
    budget: int = 3072
    pace: Pace = field(default_factory=Pace)

    @staticmethod
    def small() -> Size:
        """For ``--quick``."""
        return Size(
            SHAPES[:1],
            ("bfloat16",),
            decode=(3 * K, 8 * K, 32 * K),
            prefill=((79, 3 * K), (700, 3 * K)),
            holes=(8 * K,),
            stored=(700,),
            moved=(1024,),
            units=100,
            pace=Pace(rounds=10, seconds=1.0),
        )


@dataclass(frozen=True)
class Machine:
    """What runs here.

    Attributes:
        run: carries out launches.
        gpu: how work is cut for it.
        capacity: bytes that it can hold.
        open_model: the whole twin with a small model, and that model's backbone.
    """

    run: Run
    gpu: Gpu
    capacity: int
    open_model: Callable[[], tuple[Backend, TextConfig]]


class NoRoom(Exception):
    """A case is larger than what the GPU holds."""


class Runs:
    """Rows as they come, from one GPU.

    Attributes:
        rows: what was found, or why it was not.
    """

    def __init__(self, seed: int, machine: Machine) -> None:
        self.rows: list[Row] = []
        self.machine = machine
        self.draw = np.random.default_rng(seed)
        mx.random.seed(seed)

    def all(self, size: Size) -> None:
        """Measure everything; what fails leaves a row that says so."""
        self._row({"part": "read bandwidth"}, partial(self.ceiling, size))
        for dtype in size.dtypes:
            for shape in size.shapes:
                for live in size.decode:
                    self._attend("decode", shape, dtype, 0, live, size.pace)
                for new, live in size.prefill:
                    self._attend("prefill", shape, dtype, new, live, size.pace)
        shape, dtype = size.shapes[0], size.dtypes[0]
        about: Row = {"shape": shape.name, "dtype": dtype}
        for live in size.holes:
            row = {"part": "holes", **about, "new": 1, "live": live, "holes": 0.5}
            self._row(row, partial(self.holes, shape, dtype, live, size.pace))
        for count in size.stored:
            row = {"part": "store", **about, "new": count}
            self._row(row, partial(self.store, shape, dtype, count, size.pace))
        for count in size.moved:
            row = {"part": "move", **about, "cells": count}
            self._row(row, partial(self.move, shape, dtype, count, size.pace))
        self._row({"part": "memory"}, partial(self.memory, size))

    def ceiling(self, size: Size) -> Row:
        """The GPU's read bandwidth, as MLX's own reductions reach it."""
        found, way = read_bandwidth(min(size.read, self.machine.capacity // 8), size.pace)
        return {"gb_per_s": found / 1e9, "way": way}

    def attend(self, shape: Shape, dtype: str, new: int, cells: int, pace: Pace) -> Row:
        """Decode on an arena a quarter larger than needed, prefill on half of an arena's pages."""
        old, own = -(-cells // PAGE), -(-new // PAGE)
        live = scattered(self.draw, cells, 2 * (old + own) if new else old * 5 // 4, new)
        layers = self._layers(shape, live.arena * PAGE + live.cells, live.cells, cold=bool(new))
        case = build(shape, live, layers, self.machine.gpu, dtype)
        row = {
            "layers": layers,
            "programs": case.of.programs,
            "bytes": layers * shape.layer_bytes(live.cells),
            "flops": layers * shape.flops(cells - (0 if new else 1), max(new, 1)),
        }
        return row | contest(case, self.machine.run, pace)

    def holes(self, shape: Shape, dtype: str, cells: int, pace: Pace) -> Row:
        """Decode with half of the pages free, against the same cells in an arena without."""
        pages = -(-cells // PAGE)
        layers = self._layers(shape, 2 * pages * PAGE + cells, cells, cold=False)
        found: dict[str, Row] = {}
        for name, arena in (("full", pages), ("holed", 2 * pages)):
            live = scattered(self.draw, cells, arena)
            case = build(shape, live, layers, self.machine.gpu, dtype)
            found[name] = contest(case, self.machine.run, pace)
            del case
            tidy()
        row = {"layers": layers, **found["holed"]}
        if "ours_ms" in row and "ours_ms" in found["full"]:
            row["full_ms"] = found["full"]["ours_ms"]
            row["over_full"] = taken_ms(row) / taken_ms(found["full"])
        return row

    def store(self, shape: Shape, dtype: str, new: int, pace: Pace) -> Row:
        """New tokens put into dead cells of an arena with as many others."""
        live = scattered(self.draw, new, 3 * -(-new // PAGE), new)
        case = self._small(shape, live, dtype)
        return {"layers": case.layers, **store(self.draw, case, self.machine.run, pace)}

    def move(self, shape: Shape, dtype: str, cells: int, pace: Pace) -> Row:
        """As many cells as are alive, copied to the dead half of an arena."""
        case = self._small(shape, scattered(self.draw, cells, 2 * -(-cells // PAGE)), dtype)
        return {"layers": case.layers, **move(self.draw, case, cells, self.machine.run, pace)}

    def memory(self, size: Size) -> Row:
        """What MLX holds over units of varied lengths through the whole twin."""
        backend, text = self.machine.open_model()
        return memory_over_units(backend, text, size.units, size.longest, size.budget)

    def _small(self, shape: Shape, live: Live, dtype: str) -> Case:
        layers = self._layers(shape, live.arena * PAGE, live.cells, cold=False)
        return build(shape, live, layers, self.machine.gpu, dtype)

    def _layers(self, shape: Shape, held: int, read: int, cold: bool) -> int:
        """Layers of a case: the model's, or as many as there is room for.

        Args:
            shape: of the model.
            held: cells of a layer, copies counted in.
            read: cells that a layer's attention reads.
            cold: whether enough to read them from memory will do.

        Raises:
            NoRoom: there is none for two.
        """
        wanted = shape.layers
        if cold:
            wanted = min(wanted, max(_FEWEST, math.ceil(_COLD / shape.layer_bytes(read))))
        # The reference and what makes random numbers want some room too.
        room = self.machine.capacity * 0.8 - 1.5e9
        fits = int(room // (shape.layer_bytes(held) * 1.05))
        if fits < _FEWEST:
            needed = _FEWEST * shape.layer_bytes(held) / 1e9
            raise NoRoom(f"two layers take {needed:.1f} GB, {max(room, 0) / 1e9:.1f} GB are there")
        return min(wanted, fits)

    def _attend(self, part: str, shape: Shape, dtype: str, new: int, live: int, pace: Pace) -> None:
        about = {"part": part, "shape": shape.name, "dtype": dtype, "new": new or 1, "live": live}
        self._row(about, partial(self.attend, shape, dtype, new, live, pace))

    def _row(self, about: Row, measured: Callable[[], Row]) -> None:
        """A row; what is measured may fail without the others."""
        start = time.perf_counter()
        try:
            self.rows.append(about | _rounded(measured()))
        except NoRoom as lacking:
            self.rows.append({**about, "skipped": str(lacking)})
        except Exception as failure:  # All other rows are still worth having.
            lines = str(failure).strip().splitlines() or [""]
            self.rows.append({**about, "failed": f"{type(failure).__name__}: {lines[0][:200]}"})
        row = self.rows[-1]
        how = row.get("failed") or row.get("skipped") or row.get("wrong") or _short(row)
        words = ", ".join(str(word) for word in about.values())
        print(f"{words}: {how} ({time.perf_counter() - start:.1f} s)", file=sys.stderr, flush=True)
        tidy()


def _rounded(value: Any) -> Any:
    """Floats to six decimals, at any depth."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def _short(row: Row) -> str:
    """A row in a few words."""
    if "gb_per_s" in row:
        return f"{row['gb_per_s']:,.0f} GB/s by {row['way']}"
    if "gb_moved_per_s" in row:
        return f"{row['ours_ms']:.3f} ms, {row['gb_moved_per_s']:,.0f} GB/s"
    if "growth" in row:
        used = f"{row['last_bytes'] / 1e6:,.1f} MB in use, {row['growth']:.4f} x the first fifth's"
        return f"{used}; {row['kept_bytes'] / 1e6:,.1f} MB kept for reuse"
    over = f", {row['over_full']:.3f} x full" if "over_full" in row else ""
    said = f"ours {row['ours_ms']:.3f} ms, MLX {row['dense_ms']:.3f} ms, {row['ratio']:.2f} x"
    if "gpu_ratio" in row:
        said += f"; of the GPU {row['ours_gpu_ms']:.3f} and {row['dense_gpu_ms']:.3f} ms"
        said += f", {row['gpu_ratio']:.2f} x"
    return said + over
