"""The attention of one step: what each layer group writes and reads, and what each cell got."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from omni_core.backend import StepPlan
from omni_core.model_config import TextConfig
from omni_core.paging.mirror import LiveCells
from omni_core.units import Int32
from omni_mlx.arena import Arena
from omni_mlx.attention import (
    SCORES,
    Orders,
    Visibility,
    sparse_page_attention,
    turned_attention,
    visibility,
)
from omni_mlx.rotary import StepRotary, Turns, rotate


@dataclass(frozen=True)
class _Group:
    write: mx.array
    read: mx.array
    turns: Turns
    sight: Visibility | Orders


class StepAttention:
    """One step over the arena.

    Scores are spelled out where cells lie in several frames or their mass is wanted; elsewhere
    MLX's fused kernels do the same.

    Attributes:
        mass: ``float32[n]`` a layer group, where the plan asks for it; else empty.
    """

    def __init__(
        self,
        plan: StepPlan,
        live: list[LiveCells],
        arena: Arena,
        text: TextConfig,
        dtype: mx.Dtype,
    ) -> None:
        self._arena, self._text = arena, text
        self._rotary = StepRotary(plan.positions, text)
        self._scale = text.head_dim**-0.5
        self.mass = [mx.zeros(group.cells.size) for group in live] if plan.mass else []
        self._groups = [
            self._group(plan, cells, group, dtype)
            for cells, group in zip(plan.cells, live, strict=True)
        ]

    def __call__(
        self, group: int, layer: int, queries: mx.array, keys: mx.array, values: mx.array
    ) -> mx.array:
        """Store keys and values of a group's layer, then attend; see ``backbone.Attend``."""
        of = self._groups[group]
        self._arena.write(layer, of.write, rotate(keys, *self._rotary.tables()), values)
        stored = self._arena.read(layer, of.read)
        if isinstance(of.sight, Visibility):
            return sparse_page_attention(of.turns(queries)[0], *stored, of.sight, self._scale)
        out, mass = turned_attention(queries, *stored, of.turns, of.sight, self._scale)
        if self.mass:
            self.mass[group] = self.mass[group] + mass
        return out

    def pending(self) -> list[mx.array]:
        """What has to be evaluated beside the arena."""
        return self.mass

    def temporary(self, group: int, streams: int, tokens: int) -> int:
        """Bytes of gathered cells and scores that a layer of a group needs while it runs, roughly.

        Gathered cells are counted in the arena's numbers; scores are float32, in a few copies.
        """
        of = self._groups[group]
        gathered = 2 * streams * of.read.size * self._text.head_dim * self._arena.keys[0].itemsize
        if isinstance(of.sight, Visibility):
            return gathered
        scores = streams * self._text.q_heads * tokens * of.read.shape[1]
        return gathered + 3 * 4 * min(scores, SCORES)

    def _group(self, plan: StepPlan, cells: Int32, live: LiveCells, dtype: mx.Dtype) -> _Group:
        turns = self._rotary.turns(live.runs())
        spelled = live.cells.size and (plan.mass or len(turns.runs) > 1)
        sight = Orders.of(live, plan.order) if spelled else visibility(live, plan.order, dtype)
        return _Group(self._arena.rows(cells), self._arena.rows(live.cells), turns, sight)
