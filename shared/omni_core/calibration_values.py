"""What sealing takes of a model, measured while streams run: values by modality, and queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from omni_core.backend import Backend, as_floats
from omni_core.ledger import LedgerView
from omni_core.model_config import TextConfig
from omni_core.quantization import LayerTables, value_rotations
from omni_core.quantization.hadamard import hadamard, rotate
from omni_core.quantization.key_feedback import feedback
from omni_core.reference.rotary import rotary_tables
from omni_core.reference.rotary import rotate as turn
from omni_core.retention.base import Bool, Reasons
from omni_core.units import Int32, Modality
from omni_core.watcher import ClosedUnit, Mass

MOST = 4096
"""Tokens of a modality that are kept, evenly spread over all streams."""
_APART = 4
"""One in so many of the kept tokens, the last ones, tell how good a fit to the others is, and one
layer in so many is asked."""

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Found:
    """Of one modality.

    Attributes:
        tokens: that occurred.
        hadamard, fitted: ``|error| / |value|`` of 2-bit values that were not fitted to, by the
            rotation; NaN where there were too few to tell.
        own: whether it gets rotations of its own.
    """

    tokens: int
    hadamard: float
    fitted: float
    own: bool


class ValueSamples:
    """Watches streams, and keeps values of each layer by modality."""

    mass = False

    def __init__(self, backend: Backend, text: TextConfig) -> None:
        self.tokens = dict.fromkeys(Modality, 0)
        self._backend, self._text = backend, text
        self._kept: dict[Modality, list[Float32]] = {kind: [] for kind in Modality}
        self._every = dict.fromkeys(Modality, 1)
        self._next = 0

    def begin(self) -> None:
        """Another stream follows."""
        self._next = 0

    def stepped(self, view: LedgerView, unit: int, mass: Mass | None) -> None:
        """Keep a step's values."""
        new = view.order >= self._next
        self._next = int(view.order[-1]) + 1
        for kind in Modality:
            at = np.flatnonzero(new & (view.modality == kind))
            seen = self.tokens[kind]
            self.tokens[kind] += at.size
            at = at[(seen + np.arange(at.size)) % self._every[kind] == 0]
            if at.size:
                self._kept[kind].append(self._values(view.cells[:, at]))
                self._thin(kind)

    def evicting(self, view: LedgerView, gone: Bool, why: Reasons) -> None:
        """What goes was kept when it came."""

    def closed(self, closed: ClosedUnit) -> None:
        """Nothing is left to do."""

    def fit(self) -> tuple[list[LayerTables], dict[Modality, Found]]:
        """Tables of each layer, without feedback, and what rotations are worth.

        A modality keeps Hadamard where it never occurred, or so seldom that what is fitted to the
        earlier three quarters of its tokens errs more on the last one.
        """
        text = self._text
        shape = (text.layers, text.kv_heads, len(Modality), text.head_dim, text.head_dim)
        rotations = np.empty(shape, np.float32)
        rotations[:] = value_rotations.fallback(text.kv_heads, text.head_dim)
        found = {}
        for kind, parts in self._kept.items():
            values = np.concatenate(parts, axis=1) if parts else None
            found[kind] = Found(self.tokens[kind], np.nan, np.nan, False)
            if values is not None and values.shape[1] >= _APART:
                found[kind] = self._judged(kind, values)
            if values is not None and found[kind].own:
                rotations[:, :, kind] = _fitted(values)
        layers = range(text.layers)
        plain = (LayerTables.uncalibrated(n, text.kv_heads, text.head_dim) for n in layers)
        return [replace(own, rotations=rotations[own.layer]) for own in plain], found

    def _judged(self, kind: Modality, values: Float32) -> Found:
        values = values[::_APART]
        split = values.shape[1] - values.shape[1] // _APART
        others = values[:, split:]
        plain = _error(others, np.broadcast_to(hadamard(values.shape[-1]), _square(values)))
        fitted = _error(others, _fitted(values[:, :split]))
        return Found(self.tokens[kind], plain, fitted, fitted < plain)

    def _values(self, cells: Int32) -> Float32:
        """``float32[layers, n, kv_heads, D]`` of cells ``int32[groups, n]``."""
        a_group = self._text.layers // len(cells)
        found = []
        for layer in range(self._text.layers):
            _, values = self._backend.read(layer, cells[layer // a_group])
            found.append(as_floats(values)[0])
        return np.stack(found)

    def _thin(self, kind: Modality) -> None:
        """Halve what is kept once it is twice too much."""
        if sum(part.shape[1] for part in self._kept[kind]) >= 2 * MOST:
            whole = np.concatenate(self._kept[kind], axis=1)
            self._kept[kind] = [whole[:, ::2].copy()]
            self._every[kind] *= 2


class QueryMoments:
    """Second moments of queries as keys are stored: rotated by position, then by Hadamard."""

    def __init__(self, text: TextConfig) -> None:
        self._text = text
        self._sums = np.zeros((text.layers, text.kv_heads, text.head_dim, text.head_dim))
        self._count = 0

    def add(self, layer: int, queries: Float32, positions: Int32) -> None:
        """Take queries ``float32[T, q_heads, D]`` in, not rotated, at ``positions[3, T]``."""
        text = self._text
        cos, sin = rotary_tables(positions, text.head_dim, text.rope_theta, text.mrope_section)
        placed = rotate(turn(queries.astype(np.float64), cos, sin))
        grouped = placed.reshape(len(queries), text.kv_heads, -1, text.head_dim).swapaxes(0, 1)
        rows = grouped.reshape(text.kv_heads, -1, text.head_dim).astype(np.float64)
        self._sums[layer] += rows.swapaxes(1, 2) @ rows
        self._count += rows.shape[1] if layer == 0 else 0

    def feed(self, tables: list[LayerTables]) -> list[LayerTables]:
        """The tables with feedback of each layer's keys."""
        count = max(self._count, 1)
        return [replace(own, feedback=feedback(self._sums[own.layer] / count)) for own in tables]


def _fitted(values: Float32) -> Float32:
    """Rotations ``float32[layers, kv_heads, D, D]`` for ``values[layers, n, kv_heads, D]``."""
    return np.stack(
        [
            [value_rotations.fitted(layer[:, head]) for head in range(values.shape[2])]
            for layer in values
        ]
    )


def _error(values: Float32, rotations: Float32) -> float:
    """Root mean square over layers and heads of ``|error| / |value|``."""
    squares = [
        value_rotations.error(values[layer, :, head], rotations[layer, head])
        for layer, head in np.ndindex(rotations.shape[:2])
    ]
    return float(np.sqrt(np.mean(squares)))


def _square(values: Float32) -> tuple[int, ...]:
    layers, _, kv_heads, size = values.shape
    return layers, kv_heads, size, size
