"""What attention costs on each layout: kernels alone, on the states that streams go through.

The cache runs as it does in a session, over a backend that only attends. The page layout is read
by its listing of live subblocks. The other way to read a cache is to walk the span, all tiles from
the first page in use to the last, and to take nothing from dead ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.stream_loop_clock import Clock
from benchmarks.stream_loop_models import ModelShape
from benchmarks.stream_loop_stream import SPOKEN, LoopStream
from omni_core.backend import PAGE, ArenaLayout, MovePlan, StepPlan, StepResult
from omni_core.budget import cell_bytes
from omni_core.frames import most_frames
from omni_core.model_config import TextConfig
from omni_core.paging import EagerLayout, Layout, NativeLayout, PageLayout
from omni_core.paging.listing import Listing, list_subblocks, most_room, most_rows
from omni_core.paging.mirror import ListedPages, TableMirror, unpack_occupancy
from omni_core.units import Int32
from omni_cuda.devices import nothing_freed
from omni_cuda.kernels.attention import PageList, attend_pages
from omni_cuda.kernels.launching import roomy
from omni_cuda.kernels.move import move_cells
from omni_cuda.kernels.tiling import split

LAYOUTS: dict[str, Layout] = {
    "native": NativeLayout(),
    "eager": EagerLayout(),
    "page": PageLayout(),
    "page with frames": PageLayout(),
}
FRAMED = "page with frames"
"""A flat cache knows no position frames: layouts are compared without, and ours runs with too."""
_ALIKE = 2e-2
"""Most that two readings of the same cells may differ."""
WALKED = ("native", "eager")
"""Layouts of a flat cache, whose span a kernel walks; they are read by a listing too."""


def walked_span(live: ListedPages, programs: int, room: int) -> Listing:
    """Every subblock from the first page in use to the last, with nothing alive in dead ones.

    Args and result as of :func:`omni_core.paging.listing.list_subblocks`.
    """
    first = int(live.pages.min())
    pages = np.arange(first, int(live.pages.max()) + 1, dtype=np.int32)
    used = live.pages - first
    words = np.zeros((pages.size, 2), np.uint32)
    words[used] = live.occupancy
    shift = np.full(pages.size, live.shift[-1], np.int32)
    shift[used] = live.shift
    checked = np.zeros(pages.size, np.bool_)
    checked[used] = live.checked
    # Dead cells of a page that is seen in part are as old as the oldest that lives there.
    alive = unpack_occupancy(live.occupancy[live.checked])
    oldest = np.where(alive, live.order, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    order = np.where(alive, live.order, oldest)
    # The listing leaves out what is dead: it is told of a cell in each, and then put right.
    told = ListedPages(pages, np.where(words == 0, 1, words), shift, checked, order)
    listing = list_subblocks(told, programs, room)
    rows = listing.rows.view(np.uint32).reshape(-1, 2, 2).copy()
    listed = rows[:, 1] != 0
    true = words.reshape(-1)[np.where(listed, rows[:, 0] - 2 * first, 0)]
    rows[:, 1] = np.where(listed, true, 0)
    return replace(listing, rows=rows.view(np.int64).reshape(-1, 2))


READINGS: dict[str, Callable[[ListedPages, int, int], Listing]] = {
    "listed": list_subblocks,
    "walked": walked_span,
}


class AttentionBackend:
    """Attends with random queries over an arena of random numbers, and takes the time.

    Attributes:
        tables: most shifts of position at once.
        spent: milliseconds by reading and phase, ``prefill`` and ``decode``; and of moves.
        tiles: that were gone through, by the same names.
    """

    name, device, element = "attention", "gpu", 2

    def __init__(
        self,
        text: TextConfig,
        readings: tuple[str, ...],
        framed: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._text, self._readings, self._dtype = text, readings, dtype
        self._place, self.allocations = device, 0
        # Without frames there is the prefix's and one for all else.
        self.tables = most_frames(text.max_positions, None, 1 << 30) if framed else 2
        self.spent: dict[str, float] = {}
        self.tiles: dict[str, int] = {}

    def allocate(self, layout: ArenaLayout) -> None:
        """An arena and the fixed buffers that launches read."""
        self.allocations += 1
        self._mirror, self.pages = TableMirror(layout), layout.pages
        shape = (layout.layers_per_group, 1, layout.pages, layout.kv_heads, PAGE, layout.head_dim)
        self._keys, self._values = (
            torch.randn(shape, device=self._place, dtype=self._dtype) for _ in range(2)
        )
        self._order = torch.zeros(layout.pages, PAGE, dtype=torch.int64, device=self._place)
        self._bias = torch.zeros(layout.pages, PAGE, device=self._place)
        self._launches: dict[int, _Launch] = {}
        if self._place.type == "cuda":
            # Compiled before they are timed.
            for overlap in (False, True):
                self._move(np.zeros(1, np.int32), np.ones(1, np.int32), overlap)

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        """Attend over what the step sees; zeros for logits."""
        live = self._mirror.preview_pages(plan)[0]
        self._mirror.commit(plan)
        count = plan.order.size
        self._order.copy_(torch.from_numpy(self._mirror.order))
        fresh, found = count not in self._launches, []
        if fresh:
            self._launches[count] = _Launch(self, count)
        phase = "decode" if count == 1 else "prefill"
        launch = self._launches[count]
        for reading in self._readings:
            listing = READINGS[reading](live, launch.programs, launch.room)
            launch.take(listing, plan.order)
            if fresh:
                found.append(launch.output())
            name = f"{reading} {phase}"
            self.spent[name] = self.spent.get(name, 0.0) + launch.milliseconds()
            tiles = int((listing.segments[:, 2] - listing.segments[:, 0]).sum())
            self.tiles[name] = self.tiles.get(name, 0) + tiles
        for other in found[1:]:
            # Two readings of the same cells; a NaN is no small difference.
            if not (other - found[0]).norm() <= _ALIKE * found[0].norm():
                raise RuntimeError(f"readings of {count} new tokens on one state differ")
        return StepResult(np.zeros((1, plan.logits.size, 2), np.float32))

    def move(self, plan: MovePlan) -> None:
        """Copy cells in all layers."""
        overlap = bool(np.isin(plan.target, plan.source).any())
        taken = self._move(plan.source, plan.target, overlap)
        self.spent["move"] = self.spent.get("move", 0.0) + taken
        self._mirror.commit(plan)

    def _move(self, source: Int32, target: Int32, overlap: bool) -> float:
        """Milliseconds that a move takes."""
        cells = [torch.from_numpy(part).to(self._place) for part in (source, target)]
        pool = (self._keys, self._values, self._order, self._bias)
        return _milliseconds(
            lambda: move_cells(*cells, *pool, overlap=overlap), self._place, times=1
        )


class _Launch:
    """All layers' attention of so many queries as one graph over fixed buffers."""

    def __init__(self, backend: AttentionBackend, count: int) -> None:
        place, text = backend._place, backend._text
        self._backend, self._place = backend, place
        element = backend._dtype.itemsize
        processors = 1
        if place.type == "cuda":
            processors = torch.cuda.get_device_properties(place).multi_processor_count
        group = text.q_heads // text.kv_heads
        tables = backend.tables
        sizes = count, group, text.kv_heads, element, processors, tables
        self.programs, shares = split(*sizes, roomy=roomy(place))
        most = most_rows(backend.pages, tables)
        self.room = most_room(most, tables, self.programs)
        shape = (tables, 1, count, text.q_heads, text.head_dim)
        self._queries = torch.randn(shape, device=place, dtype=backend._dtype)

        def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=place)

        self._pages = PageList(
            rows=empty(self.programs * self.room + 1, 2),
            bounds=empty(self.programs * self.room, 2),
            segments=empty(max(self.programs, 2 * tables), 4, dtype=torch.int32),
            programs=self.programs,
            order=backend._order,
            bias=None,
            query_order=empty(count),
            shares=shares,
        )
        self._graph: Any = None

    def take(self, listing: Listing, order: npt.NDArray[np.int64]) -> None:
        """Put a listing into the buffers."""
        self._pages.segments.zero_()
        for name in ("rows", "bounds", "segments"):
            values = torch.from_numpy(getattr(listing, name))
            getattr(self._pages, name)[: len(values)].copy_(values)
        self._pages.query_order.copy_(torch.from_numpy(order))

    def milliseconds(self) -> float:
        """Time of one run over all layers."""
        if self._place.type != "cuda":
            return _milliseconds(self._run, self._place, times=1)
        if self._graph is None:
            self._run()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with nothing_freed(), torch.cuda.graph(self._graph):
                self._run()
        return _milliseconds(self._graph.replay, self._place, times=2)

    def output(self) -> torch.Tensor:
        """The first layer's attention, in float32."""
        keys, values = self._backend._keys[0], self._backend._values[0]
        scale = keys.shape[-1] ** -0.5
        return attend_pages(self._queries, keys, values, self._pages, scale).float()

    def _run(self) -> None:
        keys, values = self._backend._keys, self._backend._values
        for layer in range(keys.shape[0]):
            attend_pages(
                self._queries, keys[layer], values[layer], self._pages, keys.shape[-1] ** -0.5
            )


def _milliseconds(run: Callable[[], None], place: torch.device, times: int) -> float:
    """The quickest of some runs: what the device takes, without the host where there is one."""
    taken = []
    for _ in range(times):
        if place.type == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            stop.record()
            stop.synchronize()
            taken.append(start.elapsed_time(stop))
        else:
            begin = time.perf_counter()
            run()
            taken.append((time.perf_counter() - begin) * 1e3)
    return min(taken)


def run_layout(
    shape: ModelShape,
    policy: str,
    layout: str,
    unit: int,
    budget: int,
    target: int,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """A stream's attention and moves on one layout, as a row."""
    framed = layout == FRAMED
    text = shape.text if framed else replace(shape.text, max_positions=1 << 30)
    # Without frames every page has one shift, as a walked span needs it.
    readings = ("walked", "listed") if layout in WALKED else ("listed",)
    backend = AttentionBackend(text, readings, framed, device, dtype)
    frame = None if framed else 1 << 28
    stream = LoopStream(
        backend,  # type: ignore[arg-type]
        text,
        policy,
        LAYOUTS[layout],
        budget,
        unit,
        Clock(),
        frame,
    )
    # The system prompt is read outside the session's time.
    backend.spent.clear()
    backend.tiles.clear()
    units = 0
    while stream.position < target:
        stream.say(stream.read(unit, None), SPOKEN)
        units += 1
    moved = stream.cache.tables.moved_cells
    return {
        "part": "layout",
        "model": shape.name,
        "policy": policy,
        "layout": layout,
        "read": readings[0],
        "unit": unit,
        "budget": budget,
        "units": units,
        "cells": len(stream.cache.ledger),
        "moved_cells": moved,
        "moved_bytes": moved * cell_bytes(text, 2),
        "move_ms": round(backend.spent.get("move", 0.0), 4),
        "ms": {k: round(v, 4) for k, v in backend.spent.items() if k != "move"},
        "tiles": backend.tiles,
    }
