"""The text backbone in NumPy float64: keeps every key unrotated, and knows of no cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.backend import ArenaLayout, MovePlan, StepPlan, StepResult
from omni_core.paging.mirror import LiveCells, TableMirror
from omni_core.reference.attention import attention_shares, weighted_values
from omni_core.reference.rotary import rotary_tables, rotate
from tests.parity.oracle import part
from tests.parity.tiny import ROPE_THETA, Shape

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """A step as it was asked, what was alive in it, and what the backend answered."""

    plan: StepPlan
    live: list[LiveCells]
    embeddings: npt.NDArray[np.float32] | None
    result: StepResult


class Watched:
    """A backend that notes each step, with page tables of its own, beside running it."""

    def __init__(self, backend: Any, twin: Any) -> None:
        self._backend, self._twin = backend, twin
        self.steps: list[Step] = []
        self.moved = 0

    def allocate(self, layout: ArenaLayout) -> None:
        self._backend.allocate(layout)
        self._mirror = TableMirror(layout)

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        live = self._mirror.preview(plan)
        result: StepResult = self._backend.forward(plan, embeddings)
        self._mirror.commit(plan)
        rows = None if embeddings is None else self._twin.array(embeddings)
        self.steps.append(Step(plan, live, rows, result))
        return result

    def move(self, plan: MovePlan) -> None:
        self._backend.move(plan)
        self._mirror.commit(plan)
        self.moved += plan.source.size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@dataclass
class _Kept:
    """Tokens so far: orders, positions in their frames, keys and values of each layer."""

    order: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    keys: list[Float64] = field(default_factory=list)
    values: list[Float64] = field(default_factory=list)


class Exact:
    """One stream. Each step reads its keys where the step sees them: at their positions - shift."""

    def __init__(self, model: Any, shape: Shape) -> None:
        text = part(model, "ThinkerTextModel")
        self._weights = {n: w.double().cpu().numpy() for n, w in text.named_parameters()}
        self._head = model.lm_head.weight.double().cpu().numpy()
        self._eps, self._shape = text.norm.variance_epsilon, shape
        none = np.zeros((0, shape.kv_heads, shape.head_dim))
        self._kept = _Kept(
            np.zeros(0, np.int64),
            np.zeros((3, 0), np.int64),
            [none] * shape.layers,
            [none] * shape.layers,
        )

    def step(self, step: Step, stream: int = 0, origin: int = 0) -> tuple[Float64, list[Float64]]:
        """Logits ``[k, vocab]``, and mass ``[n]`` a layer group.

        ``origin`` is where the step's frame begins: all angles are taken from there on.
        """
        plan, kept, depth = step.plan, self._kept, self._shape.layers // len(step.live)
        x = self._weights["embed_tokens.weight"][np.maximum(plan.tokens[stream], 0)]
        if step.embeddings is not None:
            given = step.embeddings[stream, np.maximum(plan.rows, 0)]
            x = np.where((plan.rows >= 0)[:, None], given, x)
        kept.order = np.append(kept.order, plan.order)
        kept.positions = np.concatenate([kept.positions, plan.positions], 1)
        mass = [np.zeros(live.order.size) for live in step.live]
        for layer in range(self._shape.layers):
            live = step.live[layer // depth]
            x = x + self._attend(layer, x, plan, live, mass[layer // depth], origin)
            x = x + self._mlp(layer, self._norm(x, f"layers.{layer}.post_attention_layernorm"))
        return self._norm(x, "norm")[plan.logits] @ self._head.T, mass

    def _attend(
        self, layer: int, x: Float64, plan: StepPlan, live: LiveCells, mass: Float64, origin: int
    ) -> Float64:
        kept, name = self._kept, f"layers.{layer}."
        x = self._norm(x, name + "input_layernorm")
        q, k, v = (
            self._linear(x, f"{name}self_attn.{letter}_proj").reshape(
                len(x), -1, self._shape.head_dim
            )
            for letter in "qkv"
        )
        kept.keys[layer] = np.concatenate([kept.keys[layer], k])
        kept.values[layer] = np.concatenate([kept.values[layer], v])
        seen = np.searchsorted(kept.order, live.order)
        keys = rotate(
            kept.keys[layer][seen], *self._tables(kept.positions[:, seen] - live.shift + origin)
        )
        queries = rotate(q, *self._tables(plan.positions + origin))
        scale = self._shape.head_dim**-0.5
        shares = attention_shares([(queries, keys)], plan.order, live.order, live.bias, scale)
        mass += shares.sum(axis=(0, 1))
        out = weighted_values(shares, kept.values[layer][seen]).reshape(len(x), -1)
        return self._linear(out, name + "self_attn.o_proj")

    def _mlp(self, layer: int, x: Float64) -> Float64:
        gate = self._linear(x, f"layers.{layer}.mlp.gate_proj")
        up = self._linear(x, f"layers.{layer}.mlp.up_proj")
        return self._linear(gate / (1 + np.exp(-gate)) * up, f"layers.{layer}.mlp.down_proj")

    def _linear(self, x: Float64, name: str) -> Float64:
        return x @ self._weights[name + ".weight"].T + self._weights.get(name + ".bias", 0.0)

    def _norm(self, x: Float64, name: str) -> Float64:
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._eps)
        return x / scale * self._weights[name + ".weight"]

    def _tables(self, positions: npt.NDArray[Any]) -> tuple[Any, Any]:
        shape = self._shape
        return rotary_tables(positions, shape.head_dim, ROPE_THETA, shape.sections)
