"""Queries, keys and values of real models, as attention sees them, to compare codecs on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.perplexity_model import SmolLM2
from omni_core import Model, Session, UnitMedia
from omni_core.backend import SUBBLOCK
from omni_core.ledger import LedgerView
from omni_core.reference.rotary import rotary_tables, rotate
from omni_core.retention import NoSlide, Policy
from omni_core.units import Int8, Int64, Modality
from omni_core.watcher import ClosedUnit

Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]
SINKS, STRETCH = 8, 32
"""Of text, which has no units, the survivors are the first tokens of each stretch."""
ROOM = 8192
"""Cells that hold any stream that is captured here."""


@dataclass(frozen=True)
class Captured:
    """A stream in a model, without the system prompt.

    Attributes:
        model: its name.
        queries: ``float32[layers, T, q_heads, D]``, rotated by position.
        keys, values: ``float32[layers, T, kv_heads, D]``, keys rotated by position.
        modality: ``int8[T]``.
        survives: ``bool[T]``, what retention kept of it at the end.
    """

    model: str
    queries: Float32
    keys: Float32
    values: Float32
    modality: Int8
    survives: Bool

    def groups(self, kind: Modality, survivors: bool) -> Int64:
        """Tokens ``int64[n, 32]`` that are sealed together: in order and of one modality.

        Of all tokens, or of the survivors alone; what does not fill a subblock is left out.
        """
        wanted = (self.modality == kind) & (self.survives | (not survivors))
        found = np.flatnonzero(wanted)
        return found[: found.size // SUBBLOCK * SUBBLOCK].reshape(-1, SUBBLOCK)


def of_stream(model: Model, units: Iterable[UnitMedia], name: str, budget: int) -> Captured:
    """What a model makes of a stream, and what OmniPick keeps of it in so many cells.

    Args:
        model: on PyTorch, in float32 on the CPU.
        units: the stream.
        name: of the model, for rows.
        budget: of the OmniPick.
    """
    stream = list(units)
    thinned = _Onlooker()
    _play(model, stream, budget, model.omnipick, thinned)
    whole, listener = _Onlooker(), _Listener(model.backend)
    _play(replace(model, backend=listener), stream, ROOM, NoSlide(), whole)
    text = model.text
    queries, keys, values = listener.captured(text.q_heads, text.kv_heads)
    # The prefix is the first step, and in a position frame of its own.
    skipped = listener.starts[1]
    places = np.concatenate(listener.positions, axis=1)[:, skipped:]
    cos, sin = rotary_tables(places, text.head_dim, text.rope_theta, text.mrope_section)
    turned = [
        np.stack([rotate(layer[skipped:].astype(np.float64), cos, sin) for layer in part])
        for part in (queries, keys)
    ]
    orders = np.arange(skipped, skipped + places.shape[1])
    return Captured(
        name,
        turned[0].astype(np.float32),
        turned[1].astype(np.float32),
        values[:, skipped:],
        whole.modality[skipped:],
        np.isin(orders, thinned.order),
    )


def of_text(model: SmolLM2, ids: npt.NDArray[np.int64]) -> Captured:
    """What SmolLM2 makes of a text; sinks stand for survivors."""
    parts: list[tuple[Float32, Float32, Float32]] = []

    def attend(layer: int, queries: Float32, keys: Float32, values: Float32) -> Float32:
        parts.append((queries, keys, values))
        return attention(queries, keys, values)

    model.log_probabilities(ids[:-1], 0, ids[1:], attend)
    stacked = (np.stack(part) for part in zip(*parts, strict=True))
    places = np.arange(ids.size - 1)
    modality = np.full(places.size, Modality.TEXT, np.int8)
    return Captured("SmolLM2-135M", *stacked, modality, places % STRETCH < SINKS)


def attention(queries: Float32, keys: Float32, values: Float32) -> Float32:
    """Causal attention ``float32[T, q_heads, D]`` of a stretch of tokens on itself."""
    given = shares(queries, keys).reshape(keys.shape[1], -1, *2 * [len(keys)])
    mixed = given @ values.swapaxes(0, 1)[:, None]
    return mixed.transpose(2, 0, 1, 3).reshape(queries.shape)


def shares(queries: Float32, keys: Float32) -> Float32:
    """What each query gives each token up to its own: ``float32[q_heads, T, T]``."""
    count, kv_heads, size = keys.shape
    grouped = queries.reshape(count, kv_heads, -1, size).transpose(1, 2, 0, 3)
    scores = (grouped @ keys.transpose(1, 2, 0)[:, None]) * np.float32(size**-0.5)
    scores[..., np.triu(np.ones((count, count), np.bool_), 1)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights.reshape(-1, count, count)


class _Listener:
    """A PyTorch backend whose projections and positions are kept, step by step."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.positions: list[npt.NDArray[np.int32]] = []
        self.starts = [0]
        self._rows: list[list[Float32]] = [[] for _ in backend.backbone.model.layers]

    def forward(self, plan: Any, embeddings: Any = None) -> Any:
        hooks = [
            layer.self_attn.qkv_proj.register_forward_hook(
                lambda _, given, found, rows=rows: rows.append(found[0].numpy().copy())
            )
            for layer, rows in zip(self._backend.backbone.model.layers, self._rows, strict=True)
        ]
        try:
            return self._backend.forward(plan, embeddings)
        finally:
            for hook in hooks:
                hook.remove()
            self.positions.append(plan.positions)
            self.starts.append(self.starts[-1] + plan.tokens.shape[1])

    def captured(self, q_heads: int, kv_heads: int) -> tuple[Float32, Float32, Float32]:
        """Queries, keys and values ``[layers, T, heads, D]``, none rotated."""
        rows = np.stack([np.concatenate(layer) for layer in self._rows])
        heads = rows.reshape(*rows.shape[:2], q_heads + 2 * kv_heads, -1)
        queries, keys, values = np.split(heads, [q_heads, q_heads + kv_heads], axis=2)
        return queries, keys, values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class _Onlooker:
    """Keeps the order and the modality of what is alive when the last unit has closed."""

    mass = False

    def __init__(self) -> None:
        self.order: Int64 = np.zeros(0, np.int64)
        self.modality: Int8 = np.zeros(0, np.int8)

    def stepped(self, view: LedgerView, unit: int, mass: Any) -> None:
        """Nothing to see."""

    def evicting(self, view: LedgerView, gone: Bool, why: Any) -> None:
        """Nothing to see."""

    def closed(self, closed: ClosedUnit) -> None:
        self.order, self.modality = closed.view.order.copy(), closed.view.modality.copy()


def _play(
    model: Model, stream: list[UnitMedia], budget: int, policy: Policy, watcher: _Onlooker
) -> None:
    session = Session(model, budget=budget, retention=policy, max_tokens=1, watcher=watcher)
    for unit in stream:
        session.append(unit)
