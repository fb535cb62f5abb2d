"""A sealing backend followed by the order of tokens: what it must store, what it must answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from omni_core.backend import PAGE, ArenaLayout, MovePlan, StepPlan, StepResult
from omni_core.paging.mirror import LiveCells, TableMirror
from omni_core.quantization import (
    LayerTables,
    codec,
    decode_keys,
    decode_values,
    load,
    seal,
    store,
)
from omni_core.reference.attention import attention_shares, weighted_values
from omni_core.reference.rotary import rotate
from omni_core.units import Modality
from tests.parity.exact import Exact, Float64, Step
from tests.parity.oracle import distance
from tests.parity.tiny import Shape


class Sealed(Exact):
    """Float64 over given keys and values: each token's as its own step stored them, or decoded."""

    def __init__(self, model: Any, shape: Shape) -> None:
        super().__init__(model, shape)
        self.pairs: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def _attend(
        self, layer: int, x: Float64, plan: StepPlan, live: LiveCells, mass: Float64, origin: int
    ) -> Float64:
        name = f"layers.{layer}."
        x = self._norm(x, name + "input_layernorm")
        queries = self._linear(x, f"{name}self_attn.q_proj")
        queries = queries.reshape(len(x), -1, self._shape.head_dim)
        pairs = [self.pairs[layer, order] for order in live.order.tolist()]
        keys, values = (np.stack(part).astype(np.float64) for part in zip(*pairs, strict=True))
        runs = [
            (rotate(queries, *self._tables(plan.positions + shift)), keys[start:stop])
            for start, stop, shift in live.runs()
        ]
        scale = self._shape.head_dim**-0.5
        shares = attention_shares(runs, plan.order, live.order, live.bias, scale)
        mass += shares.sum(axis=(0, 1))
        return self._linear(
            weighted_values(shares, values).reshape(len(x), -1), name + "self_attn.o_proj"
        )


class Followed:
    """A backend whose every step and seal is compared, one stream after another.

    Attributes:
        sealed: tokens that have been sealed.
        compared: rows of logits that were compared.
        logits: of each step.
    """

    def __init__(
        self,
        backend: Any,
        twin: Any,
        tiny: Any,
        tables: Sequence[LayerTables] | None = None,
        streams: int = 1,
        mass: bool = True,
        tolerance: float = 1e-4,
    ) -> None:
        self._mass, self._tolerance = mass, tolerance
        self._backend, self._twin, self._shape = backend, twin, tiny.shape
        shape = tiny.shape
        self._tables = tables or [
            LayerTables.uncalibrated(layer, shape.kv_heads, shape.head_dim)
            for layer in range(shape.layers)
        ]
        self._exact = [Sealed(tiny.model, shape) for _ in range(streams)]
        self.sealed = self.compared = 0
        self.logits: list[np.ndarray] = []

    def allocate(self, layout: ArenaLayout) -> None:
        self._backend.allocate(layout)
        self.layout, self._mirror = layout, TableMirror(layout)

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        live = self._mirror.preview(plan)
        result: StepResult = self._backend.forward(replace(plan, mass=self._mass), embeddings)
        self._mirror.commit(plan)
        given = None if embeddings is None else self._twin.array(embeddings)
        for layer in range(self._shape.layers):
            cells = plan.cells[layer // self.layout.layers_per_group]
            stored = self._backend.read(layer, cells)
            for stream, exact in enumerate(self._exact):
                for n, order in enumerate(plan.order.tolist()):
                    exact.pairs[layer, order] = stored[0][stream, n], stored[1][stream, n]
        masses = [np.zeros(group.order.size) for group in live]
        for stream, exact in enumerate(self._exact):
            logits, mass = exact.step(Step(plan, live, given, result), stream)
            masses = [whole + part for whole, part in zip(masses, mass, strict=True)]
            if plan.logits.size:
                assert distance(result.logits[stream], logits) < self._tolerance
                self.compared += plan.logits.size
        assert (result.mass is not None) == self._mass
        for found, wanted in zip(result.mass or (), masses, strict=self._mass):
            assert found.shape == wanted.shape
            assert np.abs(found - wanted).max() < 1e-4 * wanted.max()
        self.logits.append(result.logits)
        return result

    def move(self, plan: MovePlan) -> None:
        depth, pages = self.layout.layers_per_group, np.unique(plan.seals.target // 2)
        orders = self._mirror.order.reshape(-1)
        group = self._mirror.group[plan.seals.source[:, 0] // PAGE]
        layers = range(self._shape.layers) if pages.size else []
        before = {layer: self._backend.read_sealed(layer, pages).copy() for layer in layers}
        wanted = {layer: stored.copy() for layer, stored in before.items()}
        told = []
        for n, kind in enumerate(self._mirror.sealed_modality(plan).tolist()):
            source, target = plan.seals.source[n], int(plan.seals.target[n])
            cells = source[source >= 0]
            at = int(np.searchsorted(pages, target // 2))
            for layer in range(group[n] * depth, (group[n] + 1) * depth):
                self._store(layer, cells, Modality(kind), wanted[layer][:, at], target % 2)
                # Layers of one place in their groups lie in one pool.
                for other in range(layer % depth, self._shape.layers, depth):
                    wanted[other][:, at] = wanted[layer][:, at]
                told.append((layer, orders[cells].tolist(), Modality(kind), at, target % 2))
            self.sealed += cells.size
        self._backend.move(plan)
        self._mirror.commit(plan)
        for layer in layers:
            found = self._backend.read_sealed(layer, pages)
            np.testing.assert_array_equal(found, wanted[layer])
        for layer, tokens, modality, at, half in told:
            chosen = codec(self.layout.codec, self.layout.bits)
            for stream, exact in enumerate(self._exact):
                coded = load(self.layout.sealed, wanted[layer][stream, at], half)
                keys = decode_keys(coded, chosen, self._tables[layer])
                values = decode_values(coded, modality, chosen, self._tables[layer])
                for n, order in enumerate(tokens):
                    exact.pairs[layer, order] = keys[:, n], values[:, n]

    def _store(
        self, layer: int, cells: np.ndarray, modality: Modality, pages: np.ndarray, half: int
    ) -> None:
        """What cells are to become in a page of each stream."""
        chosen = codec(self.layout.codec, self.layout.bits)
        keys, values = self._backend.read(layer, cells)
        for stream, page in enumerate(pages):
            coded = seal(keys[stream], values[stream], modality, chosen, self._tables[layer])
            store(coded, self.layout.sealed, page, half)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
