"""What a sealed stream must equal: each token encoded once, from what its own step had stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_backend import NumpyBackend

from omni_core.backend import PAGE, SUBBLOCK, MovePlan, StepPlan, StepResult
from omni_core.cache import Cache
from omni_core.quantization import codec, decode_keys, decode_values, seal
from omni_core.reference.attention import masked_attention
from omni_core.reference.rotary import rotate
from omni_core.units import Modality


class SealedOracle:
    """Follows a backend's plans by the order of tokens, and knows nothing of cells.

    Attributes:
        sealed: the orders of the tokens that have been sealed, evicted ones too.
        subblocks: how many tokens each sealed subblock got.
        compared: rows of logits compared.
    """

    def __init__(self, backend: NumpyBackend) -> None:
        self.backend, self.cache = backend, None
        self.sealed: set[int] = set()
        self.subblocks: list[int] = []
        self.compared = 0
        self._stored: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._forward, self._move = backend.forward, backend.move
        backend.forward, backend.move = self.forward, self.move

    def watch(self, cache: Cache) -> None:
        self.cache = cache

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        live = self.backend.mirror.preview(plan)
        if self.cache is not None:
            known = self.cache.ledger.view()
            for group, cells in enumerate(known.cells):
                orders = [*known.order[cells >= 0].tolist(), *plan.order.tolist()]
                assert live[group].order.tolist() == orders
        result = self._forward(plan, embeddings)
        per_group = self.backend.layout.layers_per_group
        for layer in range(self.backend.text.layers):
            cells = plan.cells[layer // per_group]
            keys, values = self.backend.read(layer, cells)
            for index, order in enumerate(plan.order.tolist()):
                self._stored[layer, order] = keys[0, index], values[0, index]
        if plan.logits.size:
            expected = self._logits(plan, embeddings, live)
            np.testing.assert_allclose(result.logits[0], expected, rtol=1e-5, atol=1e-5)
            self.compared += plan.logits.size
        return result

    def move(self, plan: MovePlan) -> None:
        taken = []
        try:
            for source, target in zip(plan.seals.source, plan.seals.target.tolist(), strict=True):
                taken.append(self._tokens(source[source >= 0], target, plan))
            self._move(plan)
        except Exception as error:
            # A cache takes what a backend raises for a move that could not be, and goes on.
            pytest.fail(repr(error))
        for orders, modality, layers in taken:
            self.sealed |= set(orders)
            self.subblocks.append(len(orders))
            for layer in layers:
                self._encode(layer, orders, modality)

    def _tokens(
        self, cells: np.ndarray, target: int, plan: MovePlan
    ) -> tuple[list[int], Modality, range]:
        """Orders, modality and layers of what goes to a subblock."""
        view, layout = self.cache.ledger.view(), self.backend.layout
        group, at = np.nonzero(np.isin(view.cells, cells))
        assert at.size == cells.size and np.unique(group).size == 1
        assert view.cells[group[0], at].tolist() == cells.tolist(), "oldest first"
        assert np.unique(view.modality[at]).size == 1, "one rotation"
        assert target // 2 >= layout.pages
        assert not self.sealed & {*view.order[at].tolist()}, "a token is sealed twice"
        told = plan.delta.pages.tolist().index(target // 2)
        assert plan.delta.modality[told] == view.modality[at[0]]
        frames = self.cache.tables._frame[cells // PAGE]
        assert (frames == plan.delta.frame[told]).all()
        first = int(group[0]) * layout.layers_per_group
        layers = range(first, first + layout.layers_per_group)
        return view.order[at].tolist(), Modality(view.modality[at[0]]), layers

    def _encode(self, layer: int, orders: list[int], modality: Modality) -> None:
        pairs = [self._stored[layer, order] for order in orders]
        keys, values = (np.stack(part) for part in zip(*pairs, strict=True))
        layout, tables = self.backend.layout, self.backend.tables(layer)
        chosen = codec(layout.codec, layout.bits)
        coded = seal(keys, values, modality, chosen, tables)
        decoded = (
            decode_keys(coded, chosen, tables),
            decode_values(coded, modality, chosen, tables),
        )
        for index, order in enumerate(orders):
            self._stored[layer, order] = decoded[0][:, index], decoded[1][:, index]

    def _logits(self, plan: StepPlan, embeddings: Any, live: list[Any]) -> np.ndarray:
        backend, text = self.backend, self.backend.text
        x = backend.embedding[np.maximum(plan.tokens[0], 0)]
        embedded = plan.rows >= 0
        if embedded.any():
            x[embedded] = embeddings[plan.rows[embedded]]
        heads = (len(x), -1, text.head_dim)
        for layer, weights in enumerate(backend.layers):
            group = live[layer // backend.layout.layers_per_group]
            keys, values = (
                np.stack(part)
                for part in zip(
                    *(self._stored[layer, order] for order in group.order.tolist()), strict=True
                )
            )
            q = (x @ weights["q"]).reshape(heads)
            # Keys turned by their shift the other way, rather than queries by it.
            turned = rotate(
                keys, *backend.rotary(-np.broadcast_to(group.shift, (3, group.shift.size)))
            )
            out = masked_attention(
                rotate(q, *backend.rotary(plan.positions)),
                turned,
                values,
                plan.order,
                group.order,
                group.bias,
                text.head_dim**-0.5,
            )
            x = x + out.reshape(len(x), -1) @ weights["o"]
        return x[plan.logits] @ backend.head.T


def check_cells(cache: Cache) -> None:
    """No cell twice, none lost; each sealed subblock of one tier, modality and frame."""
    tables, view = cache.tables, cache.ledger.view()
    held = view.cells[view.cells >= 0]
    assert np.unique(held).size == held.size
    assert np.flatnonzero(tables._live.reshape(-1)).tolist() == sorted(held.tolist())
    first = tables.arena.pages
    for cells in view.cells:
        sealed = cells >= first * PAGE
        kinds = tables._kind[cells[sealed] // PAGE]
        assert (kinds % 8 == view.modality[sealed]).all()
        # Within a subblock tokens stand in the order in which they came.
        for subblock in np.unique(cells[sealed] // SUBBLOCK):
            assert (np.diff(cells[cells // SUBBLOCK == subblock]) > 0).all()
