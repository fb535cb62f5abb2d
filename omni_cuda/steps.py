"""Steps through kernels: plans in fixed buffers, lengths in buckets, graphs where they pay.

A decode step is hundreds of kernels of a few microseconds: launched one by one, the card would wait
for Python. A step of a shape that was seen before is captured as a CUDA graph and replayed; what
differs between steps lies in buffers that the graph reads.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from omni_core.backend import PAGE, ArenaLayout, MovePlan, RestorePlan, StepPlan
from omni_core.model_config import TextConfig
from omni_core.paging.listing import Lister, most_room, most_rows
from omni_core.paging.mirror import ListedPages, TableMirror
from omni_core.units import Int32
from omni_cuda.arena import Arena
from omni_cuda.backbone import Backbone
from omni_cuda.devices import upload
from omni_cuda.kernels.attention import PageList
from omni_cuda.kernels.move import move_cells
from omni_cuda.kernels.tiling import programs
from omni_cuda.paged import Paged
from omni_cuda.rotary import DeviceRotary
from omni_cuda.staging import Staging

_LONGEST_GRAPH = 1024
"""Tokens beyond which launching is hidden behind the work."""
_MOST_SHAPES = 16
"""Shapes of steps whose buffers and graphs are kept."""
_MOST_LOGITS = 8
"""Rows of logits of a step whose buffers are kept: of many they are large."""


@dataclass(frozen=True)
class StepShape:
    """What a captured step is fixed to.

    Attributes:
        tokens: new tokens with their padding.
        tables: shifts of position with their padding.
        logits: rows whose logits are wanted.
        merged: whether cells have biases.
        mass: whether attention mass is wanted.
    """

    tokens: int
    tables: int
    logits: int
    merged: bool
    mass: bool


class PagedSteps:
    """Runs the steps and moves of one arena. Nothing in a step waits for the device but its end."""

    def __init__(
        self,
        backbone: Backbone,
        text: TextConfig,
        arena: Arena,
        layout: ArenaLayout,
        graphs: bool,
    ) -> None:
        self._backbone, self._text, self._arena, self._layout = backbone, text, arena, layout
        self._device, self._graphs = arena.keys.device, graphs
        self._rotary = DeviceRotary(text, self._device)
        # The last page is where padding goes.
        shape = (layout.pages + 1, PAGE)
        self._order = torch.zeros(shape, dtype=torch.int64, device=self._device)
        self._bias = torch.zeros(shape, dtype=torch.float32, device=self._device)
        self._processors = 1
        if self._device.type == "cuda":
            found = torch.cuda.get_device_properties(self._device)
            self._processors = found.multi_processor_count
            self._pool = torch.cuda.graph_pool_handle()
        self._kept: OrderedDict[StepShape, _Step] = OrderedDict()
        if graphs:
            self._warm()

    def run(
        self, plan: StepPlan, mirror: TableMirror, embeddings: torch.Tensor | None
    ) -> tuple[npt.NDArray[np.float32], tuple[npt.NDArray[np.float32], ...]]:
        """Logits ``float32[streams, k, vocab]`` and mass a layer group, as a step result has."""
        live = mirror.preview_pages(plan)
        shifts = max(np.unique(group.shift).size for group in live)
        shape = StepShape(
            bucket(plan.rows.size),
            1 << max(0, shifts - 1).bit_length(),
            plan.logits.size,
            mirror.merged,
            plan.mass,
        )
        step = self._step(shape)
        step.stage(plan, live)
        step.embed(plan, embeddings)
        step.compute()
        logits = step.logits()
        mass = [step.mass[g].cpu().numpy() for g in range(len(live))] if plan.mass else []
        cells = [group.cells for group in mirror.preview(plan)] if plan.mass else []
        return logits, tuple(found[at] for found, at in zip(mass, cells, strict=True))

    def move(self, plan: MovePlan) -> None:
        """Copy cells with their places in the stream."""
        overlap = bool(np.isin(plan.target, plan.source).any())
        source, target = (upload(cells, self._device) for cells in (plan.source, plan.target))
        keys, values = self._arena.keys, self._arena.values
        move_cells(source, target, keys, values, self._order, self._bias, overlap=overlap)

    def restore(self, plan: RestorePlan) -> None:
        """Take over where in the stream the cells' tokens are."""
        for cells, order in zip(plan.cells, plan.order, strict=True):
            places = upload(cells, self._device, torch.int64)
            self._order.view(-1)[places] = upload(order, self._device)

    @torch.inference_mode()
    def _warm(self) -> None:
        """Compile and capture a decode step before somebody waits for it; all pages are free."""
        step = self._step(StepShape(1, 2, 1, merged=False, mass=False))
        for _ in range(2):
            step.compute()

    def _step(self, shape: StepShape) -> _Step:
        if shape.logits > _MOST_LOGITS:
            return _Step(self, shape)
        step = self._kept.pop(shape, None)
        if step is None:
            while len(self._kept) >= _MOST_SHAPES:
                self._kept.popitem(last=False)
            step = _Step(self, shape)
        self._kept[shape] = step
        return step


class _Step:
    """Steps of one shape: their buffers, and their graph once one has run."""

    def __init__(self, steps: PagedSteps, shape: StepShape) -> None:
        self._steps, self._shape = steps, shape
        text, layout, device = steps._text, steps._layout, steps._device
        heads, group = text.kv_heads * layout.streams, text.q_heads // text.kv_heads
        arena = steps._arena
        self._programs = programs(
            shape.tokens, group, heads, arena.keys.element_size(), steps._processors, shape.tables
        )
        rows = most_rows(layout.pages, shape.tables)
        self._room = most_room(rows, shape.tables, self._programs)
        count, groups, listed = shape.tokens, layout.groups, self._programs * self._room
        self._listers = [Lister(self._programs, self._room) for _ in range(groups)]
        self._staging = Staging(
            {
                "positions": (np.int32, (3, count)),
                "shifts": (np.int32, (groups, shape.tables)),
                "tokens": (np.int64, (layout.streams, count)),
                "order": (np.int64, (count,)),
                "bias": (np.float32, (count,)),
                "cells": (np.int32, (groups, count)),
                "places": (np.int64, (groups, count)),
                "logits": (np.int64, (shape.logits,)),
                "rows": (np.int64, (groups, listed + 1, 2)),
                "bounds": (np.int64, (groups, listed, 2)),
                "segments": (np.int32, (groups, max(self._programs, shape.tables), 4)),
            },
            device,
        )
        embedding = steps._backbone.model.embed_tokens.weight
        hidden = (layout.streams, count, text.hidden)
        self._x = torch.zeros(hidden, dtype=embedding.dtype, device=device)
        out = (layout.streams, shape.logits, text.vocab)
        self._logits = torch.zeros(out, dtype=torch.float32, device=device)
        pinned = device.type == "cuda"
        self._found = torch.zeros(out, dtype=torch.float32, pin_memory=pinned)
        self.mass = torch.zeros(groups if shape.mass else 0, layout.pages * PAGE, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ran = False

    def stage(self, plan: StepPlan, live: list[ListedPages]) -> None:
        """Write a plan's arrays and what it reads to the device's buffers."""
        host, count = self._staging.host(), plan.rows.size
        _pad(host["positions"], plan.positions, 0)
        _pad(host["tokens"], np.maximum(plan.tokens, 0), 0)
        _pad(host["order"], plan.order, int(plan.order[-1]))
        _pad(host["bias"], np.log(plan.counts), 0)
        _pad(host["cells"], plan.cells, -1)
        _pad(host["places"], plan.cells, self._steps._layout.pages * PAGE)
        host["logits"][:] = plan.logits
        for index, group in enumerate(live):
            listing = self._listers[index].list(group)
            host["rows"][index, :-1] = listing.rows
            segments = host["segments"][index]
            segments[: len(listing.segments)] = listing.segments
            segments[len(listing.segments) :] = 0
            _pad(host["shifts"][index], listing.shifts, 0)
            if count > 1:
                host["bounds"][index] = listing.bounds
        self._staging.send()

    def embed(self, plan: StepPlan, embeddings: torch.Tensor | None) -> None:
        """Put the step's inputs in place: token embeddings, and rows of what encoders gave."""
        weight = self._steps._backbone.model.embed_tokens.weight
        tokens = self._staging.device["tokens"].view(-1)
        torch.index_select(weight, 0, tokens, out=self._x.view(-1, self._x.shape[2]))
        if embeddings is None:
            return
        # Rows follow each other but for the delimiters between: a few copies, no index to send.
        rows = plan.rows
        edges = np.flatnonzero((np.diff(rows) != 1) | (rows[:-1] < 0)) + 1
        for start, stop in pairwise([0, *edges.tolist(), rows.size]):
            first = int(rows[start])
            if first >= 0:
                self._x[:, start:stop] = embeddings[:, first : first + stop - start]

    def compute(self) -> None:
        """Launch the step."""
        if self._graph is not None:
            self._graph.replay()
            return
        capturing = self._steps._graphs and self._shape.tokens <= _LONGEST_GRAPH
        if not (capturing and self._ran):
            # Kernels are compiled by the first run, which a capture cannot do.
            self._launch()
            self._ran = True
            return
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the card meanwhile.
        with torch.cuda.graph(graph, pool=self._steps._pool, capture_error_mode="thread_local"):
            self._launch()
        self._graph = graph
        graph.replay()

    def logits(self) -> npt.NDArray[np.float32]:
        """Logits ``float32[streams, k, vocab]``; waits for the device where some are wanted."""
        if self._shape.logits:
            self._found.copy_(self._logits, non_blocking=True)
            if self._found.is_pinned():
                torch.cuda.current_stream(self._logits.device).synchronize()
        found: npt.NDArray[np.float32] = self._found.numpy().copy()
        return found

    def _launch(self) -> None:
        steps, given = self._steps, self._staging.device
        places = given["places"]
        steps._order.view(-1).index_put_((places,), given["order"].expand_as(places))
        steps._bias.view(-1).index_put_((places,), given["bias"].expand_as(places))
        self.mass.zero_()
        attends = [self._attend(group, given) for group in range(places.shape[0])]
        # The residual stream is used up, but is written anew before each step.
        logits = steps._backbone(self._x, attends, steps._arena, given["logits"])
        self._logits.copy_(logits)

    def _attend(self, group: int, given: dict[str, torch.Tensor]) -> Paged:
        steps = self._steps
        cos, sin = steps._rotary.tables(given["positions"], given["shifts"][group])
        pages = PageList(
            given["rows"][group],
            given["bounds"][group],
            given["segments"][group],
            self._programs,
            steps._order,
            steps._bias if self._shape.merged else None,
            given["order"],
        )
        mass = self.mass[group] if self._shape.mass else None
        return Paged(pages, given["cells"][group], cos, sin, mass)


def bucket(count: int) -> int:
    """Tokens that a step of ``count`` is padded to, so that few shapes occur."""
    if count <= 2:
        return count
    grain = 16 if count <= 128 else 64
    return -(-count // grain) * grain


def _pad(room: npt.NDArray[np.generic], values: npt.NDArray[np.generic] | Int32, rest: int) -> None:
    room[..., : values.shape[-1]] = values
    room[..., values.shape[-1] :] = rest
