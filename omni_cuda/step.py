"""Steps of one shape: their buffers, and the CUDA graph that runs them once one has run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omni_core.backend import PAGE, ArenaLayout, StepPlan
from omni_core.model_config import TextConfig
from omni_core.paging.listing import (
    Lister,
    most_room,
    most_rows,
    most_sealed_room,
    most_sealed_rows,
)
from omni_core.paging.mirror import ListedPages
from omni_core.units import Modality
from omni_cuda.arena import Arena
from omni_cuda.backbone import Backbone
from omni_cuda.graphs import Captures
from omni_cuda.kernels.attention import PageList
from omni_cuda.kernels.launching import roomy
from omni_cuda.kernels.sealed_list import SealedList
from omni_cuda.kernels.tiling import Split, sealed_split, split
from omni_cuda.ops import Ops
from omni_cuda.paged import Paged
from omni_cuda.rotary import DeviceRotary
from omni_cuda.sealed_paged import SealedPart, SealedReader
from omni_cuda.staging import Staging

_LONGEST_GRAPH = 1024
"""Tokens beyond which launching is hidden behind the work."""
_STRETCHES = 8
"""Copies of rows, up to which no index is sent."""


@dataclass(frozen=True)
class StepShape:
    """What a captured step is fixed to.

    Attributes:
        tokens: new tokens with their padding.
        tables: shifts of position with their padding.
        logits: rows whose logits are wanted.
        embedded: whether encoders' rows come with it.
        merged: whether cells have biases.
        mass: whether attention mass is wanted.
    """

    tokens: int
    tables: int
    logits: int
    embedded: bool
    merged: bool
    mass: bool


class Shared:
    """What the steps of an arena share.

    Attributes:
        backbone, ops, text, arena, layout: what runs on what.
        reader: of sealed pages; None in an arena without any.
        order, bias: of each cell of both pools, ``[all_pages + 1, PAGE]``, int64 and float32; the
            last page is where padding goes.
        processors: multiprocessors of the card.
        captures: for graphs; None where there are none.
    """

    def __init__(
        self,
        backbone: Backbone,
        ops: Ops,
        text: TextConfig,
        arena: Arena,
        layout: ArenaLayout,
        graphs: bool,
        reader: SealedReader | None = None,
    ) -> None:
        self.backbone, self.ops, self.text = backbone, ops, text
        self.arena, self.layout, self.reader = arena, layout, reader
        self.device = arena.keys.device
        self.rotary = DeviceRotary(text, self.device)
        shape = (layout.all_pages + 1, PAGE)
        self.order = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self.bias = torch.zeros(shape, dtype=torch.float32, device=self.device)
        self.processors = 1
        if self.device.type == "cuda":
            found = torch.cuda.get_device_properties(self.device)
            self.processors = found.multi_processor_count
        self.captures = Captures(self.device) if graphs else None

    @cached_property
    def inputs(self) -> torch.Tensor:
        """Room for what enters the layers, of the longest step that is captured, flat."""
        embedding = self.backbone.model.embed_tokens.weight
        return embedding.new_zeros(self.layout.streams * _LONGEST_GRAPH * self.text.hidden)

    @cached_property
    def mass(self) -> torch.Tensor:
        """What each cell got in a step, ``float32[groups, pages * PAGE]``."""
        return torch.zeros(self.layout.groups, self.layout.pages * PAGE, device=self.device)


class Step:
    """Runs plans of one shape, from buffers whose addresses stay."""

    def __init__(self, shared: Shared, shape: StepShape) -> None:
        self._shared, self._shape = shared, shape
        text, layout, device = shared.text, shared.layout, shared.device
        element = shared.arena.keys.element_size()
        cut = (shape.tokens, text.q_heads // text.kv_heads, text.kv_heads * layout.streams)
        about = element, shared.processors, shape.tables, roomy(device)
        self._programs, self._shares = split(*cut, *about)
        self._dealt = self._programs > 1
        room = most_room(most_rows(layout.pages, shape.tables), shape.tables, self._programs)
        self._sealed, sealed_room = Split(1, 1), None
        if shared.reader is not None:
            sealed = shared.processors, shape.tables, layout.sealed_pages
            self._sealed = sealed_split(*cut, *sealed, self._dealt)
            rows = most_sealed_rows(layout.sealed_pages, shape.tables)
            sealed_room = most_sealed_room(rows, shape.tables, self._sealed.programs)
        rooms = self._programs, room, self._sealed.programs, sealed_room
        self._listers = [Lister(*rooms) for _ in range(layout.groups)]
        listed = self._sealed.programs * (sealed_room or 0)
        self._staging = Staging(self._arrays(self._programs * room, listed), device)
        size = layout.streams * shape.tokens * text.hidden
        # Steps take turns, so one room does for all that have a graph.
        inputs = shared.inputs
        if shape.tokens > _LONGEST_GRAPH:
            inputs = inputs.new_zeros(size)
        self._x = inputs[:size].view(layout.streams, shape.tokens, text.hidden)
        out = (layout.streams, shape.logits, text.vocab)
        self._logits = torch.zeros(out, dtype=torch.float32, device=device)
        self._capturable = shared.captures is not None and shape.tokens <= _LONGEST_GRAPH
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ran = False

    def stage(self, plan: StepPlan, live: list[ListedPages]) -> None:
        """Write a plan's arrays and what it reads to the device's buffers."""
        host = self._staging.host()
        _pad(host["positions"], plan.positions, 0)
        _pad(host["tokens"], np.maximum(plan.tokens, 0), 0)
        _pad(host["order"], plan.order, int(plan.order[-1]))
        _pad(host["bias"], np.log(plan.counts), 0)
        _pad(host["cells"], plan.cells, -1)
        _pad(host["places"], plan.cells, self._shared.layout.all_pages * PAGE)
        host["logits"][:] = plan.logits
        for index, group in enumerate(live):
            listing = self._listers[index].list(group)
            behind, segments = listing.first_sealed, listing.segments
            host["rows"][index, :-1] = listing.rows[:behind]
            plain = len(segments) - len(listing.modality)
            _pad_rows(host["segments"][index, : self._plain], segments[:plain])
            if self._shared.reader is not None:
                host["sealed_rows"][index, :-1] = listing.rows[behind:]
                sealed = segments[plain:] - np.asarray([behind, behind, behind, 0], np.int32)
                _pad_rows(host["segments"][index, self._plain :], sealed)
                _pad(host["modality"][index], listing.modality, 0)
            _pad(host["shifts"][index], listing.shifts, 0)
            if self._shape.tokens > 1:
                host["bounds"][index] = listing.bounds
        self._staging.send()

    def embed(self, plan: StepPlan, embeddings: torch.Tensor) -> None:
        """Put the inputs of an embedded step in place: tokens', and rows of what encoders gave."""
        self._look_up()
        rows = plan.rows
        edges = np.flatnonzero((np.diff(rows) != 1) | (rows[:-1] < 0)) + 1
        stretches = [
            (start, stop)
            for start, stop in pairwise([0, *edges.tolist(), rows.size])
            if rows[start] >= 0
        ]
        if len(stretches) <= _STRETCHES:
            # The usual case: rows follow each other but for the delimiters between.
            for start, stop in stretches:
                first = int(rows[start])
                self._x[:, start:stop] = embeddings[:, first : first + stop - start]
        else:
            at = np.flatnonzero(rows >= 0)
            places, taken = (torch.from_numpy(each).to(self._x.device) for each in (at, rows[at]))
            self._x[:, places] = embeddings[:, taken].to(self._x.dtype)

    def compute(self) -> None:
        """Launch the step."""
        # A first run has gone before, see :meth:`Captures.take`.
        captures = self._shared.captures
        if captures and self._graph is None and self._ran and self._capturable:
            taken = captures.take(self._launch)
            # A capture needs memory of its own: without it, the step runs as it did before.
            self._graph, self._capturable = taken and taken[0], taken is not None
        if self._graph is not None:
            self._graph.replay()
        else:
            self._launch()
        self._ran = True

    def room(self) -> torch.Tensor:
        """Where a step's logits go on the host: memory of the caller's own."""
        # Pinned memory is kept by PyTorch: this costs no more than a copy out of a fixed place.
        pinned = self._shared.device.type == "cuda"
        return torch.empty(self._logits.shape, dtype=torch.float32, pin_memory=pinned)

    def logits(self, room: torch.Tensor) -> Callable[[], npt.NDArray[np.float32]]:
        """What waits for the device and gives ``float32[streams, k, vocab]``, in that room."""
        if self._shared.device.type != "cuda" or not self._shape.logits:
            room.copy_(self._logits)
            return room.numpy
        room.copy_(self._logits, non_blocking=True)
        there = torch.cuda.Event()
        there.record()

        def wait() -> npt.NDArray[np.float32]:
            there.synchronize()
            rows: npt.NDArray[np.float32] = room.numpy()
            return rows

        return wait

    @property
    def _plain(self) -> int:
        """Segments of cells of 16 bits."""
        # Where rows are dealt out, those of sealed pages follow at once, for one merge of both.
        return self._programs if self._dealt else 2 * self._shape.tables

    def _arrays(self, listed: int, sealed: int) -> dict[str, tuple[Any, tuple[int, ...]]]:
        shape, layout = self._shape, self._shared.layout
        count, groups = shape.tokens, layout.groups
        arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
            "positions": (np.int32, (3, count)),
            "shifts": (np.int32, (groups, shape.tables)),
            "tokens": (np.int64, (layout.streams, count)),
            "order": (np.int64, (count,)),
            "bias": (np.float32, (count,)),
            "cells": (np.int32, (groups, count)),
            "places": (np.int64, (groups, count)),
            "logits": (np.int64, (shape.logits,)),
            "rows": (np.int64, (groups, listed + 1, 2)),
            # A single token sees all that is listed whole.
            "bounds": (np.int64, (groups, listed if count > 1 else 1, 2)),
        }
        segments = 0
        if self._shared.reader is not None:
            parts = len(Modality) * shape.tables
            segments = self._sealed.programs if self._dealt else parts
            arrays["sealed_rows"] = (np.int64, (groups, sealed + 1, 2))
            arrays["modality"] = (np.int32, (groups, segments))
        arrays["segments"] = (np.int32, (groups, self._plain + segments, 4))
        return arrays

    def _launch(self) -> None:
        shared, given = self._shared, self._staging.device
        places = given["places"]
        shared.order.view(-1).index_put_((places,), given["order"].expand_as(places))
        shared.bias.view(-1).index_put_((places,), given["bias"].expand_as(places))
        if not self._shape.embedded:
            self._look_up()
        if self._shape.mass:
            shared.mass.zero_()
        attends = [self._attend(group) for group in range(places.shape[0])]
        # The residual stream is used up, but is written anew before each step.
        logits = shared.backbone(self._x, attends, shared.arena, given["logits"], shared.ops)
        self._logits.copy_(logits)

    def _look_up(self) -> None:
        """The tokens' embeddings become the step's input."""
        weight = self._shared.backbone.model.embed_tokens.weight
        tokens = self._staging.device["tokens"].view(-1)
        torch.index_select(weight, 0, tokens, out=self._x.view(-1, self._x.shape[2]))

    def _attend(self, group: int) -> Paged:
        shared, given = self._shared, self._staging.device
        cos, sin = shared.rotary.tables(given["positions"], given["shifts"][group])
        bias = shared.bias if self._shape.merged else None
        segments = given["segments"][group]
        pages = PageList(
            given["rows"][group],
            given["bounds"][group],
            segments[: self._plain],
            self._programs,
            shared.order,
            bias,
            given["order"],
            self._shares,
        )
        mass = shared.mass[group] if self._shape.mass else None
        sealed = None
        if shared.reader is not None:
            listed = SealedList(
                given["sealed_rows"][group],
                segments[self._plain :],
                self._sealed.programs,
                bias,
                given["modality"][group],
                shared.layout.pages,
                self._sealed.shares,
            )
            first = group * shared.layout.layers_per_group
            merged = segments if self._dealt else None
            sealed = SealedPart(listed, shared.reader, first, merged)
        return Paged(pages, given["cells"][group], cos, sin, mass, sealed)


def _pad(room: npt.NDArray[Any], values: npt.NDArray[Any], rest: int) -> None:
    room[..., : values.shape[-1]] = values
    room[..., values.shape[-1] :] = rest


def _pad_rows(room: npt.NDArray[Any], rows: npt.NDArray[Any]) -> None:
    room[: len(rows)] = rows
    room[len(rows) :] = 0
