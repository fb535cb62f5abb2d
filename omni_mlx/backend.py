"""The backend: plans in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omni_core.backend import ArenaLayout, MemoryReport, MovePlan, StepPlan
from omni_core.checkpoints import Checkpoint
from omni_core.errors import BackendError, BudgetError, PlanError
from omni_core.frontend.base import VisionInput
from omni_core.model_config import ThinkerConfig, thinker_config
from omni_core.paging.mirror import TableMirror
from omni_core.reference.rotary import rotary_tables
from omni_mlx.arena import Arena
from omni_mlx.attention import Visibility, sparse_page_attention, visibility
from omni_mlx.backbone import Backbone
from omni_mlx.devices import ComputeDevice, choose_device
from omni_mlx.encoders.audio import AudioTower
from omni_mlx.encoders.vision import VisionTower
from omni_mlx.weights import Part, load_parts

_CACHE_FLOOR, _CACHE_SHARE = 16 * 2**20, 8
"""Freed memory that MLX may keep for reuse: bytes at least, and one part in so many of weights and
arena. Without a limit, each new length of a unit would add to it."""
_PENDING = 256 * 2**20
"""Temporary bytes of a step's layers after which they are carried out."""


def open_backend(checkpoint: Checkpoint, device: str, weights: str, streams: int) -> MlxBackend:
    """What :func:`omni_mlx.load` gives.

    Raises:
        BackendError, BudgetError, CheckpointError: as there.
    """
    place = choose_device(device)
    if weights not in ("auto", "f32", "bf16", "8", "4"):
        raise BackendError(f"weights {weights!r} are unknown; use auto, f32, bf16, 8 or 4")
    bits = int(weights) if weights in ("8", "4") else None
    exact = weights == "f32" or (weights != "bf16" and place.is_cpu)
    return MlxBackend(checkpoint, place, mx.float32 if exact else mx.bfloat16, bits, streams)


class MlxBackend:
    """The Qwen2.5-Omni thinker in MLX: two towers, the text backbone and the arena.

    MLX's allocator is one for the whole process: the latest arena sets the limit of what is kept
    for reuse, and :meth:`memory` counts all of the process's arrays.
    """

    name = "mlx"

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: ComputeDevice,
        dtype: mx.Dtype,
        bits: int | None,
        streams: int,
    ) -> None:
        self._config: ThinkerConfig = thinker_config(checkpoint.config)
        self._device, self._dtype, self._streams = device, dtype, streams
        self._arena: Arena | None = None
        self._mirror: TableMirror | None = None
        prefix = self._config.prefix
        stored_head = f"{prefix}lm_head.weight" in checkpoint.tensors
        with device.running("loading"):
            self._backbone = Backbone(self._config.text, stored_head or not self._config.text.tied)
            self._vision = VisionTower(self._config.vision)
            self._audio = AudioTower(self._config.audio)
            parts = [
                Part(self._backbone, prefix, bits),
                Part(self._vision, f"{prefix}visual."),
                Part(self._audio, f"{prefix}audio_tower."),
            ]
            self._weight_bytes = load_parts(parts, checkpoint, dtype, device.capacity)
            mx.clear_cache()

    @property
    def device(self) -> str:
        """The device's name, for people."""
        return self._device.label

    @property
    def element(self) -> int:
        """Bytes of one key or value number."""
        return self._dtype.size

    def allocate(self, layout: ArenaLayout) -> None:
        """Allocate the arena, all pages free; an earlier one is let go first.

        Raises:
            BudgetError: the device cannot hold it beside the weights.
            PlanError: it is laid out for another model.
        """
        text = self._config.text
        found = (layout.groups * layout.layers_per_group, layout.kv_heads, layout.head_dim)
        expected = (text.layers, text.kv_heads, text.head_dim)
        if found != expected:
            raise PlanError(
                f"an arena of {found} layers, key heads and head_dim, but the model has {expected}"
            )
        self._arena = self._mirror = None
        needed = layout.bytes(self.element)
        if self._weight_bytes + needed > self._device.capacity:
            raise BudgetError(
                f"the cache takes {needed / 1e9:.1f} GB beside {self._weight_bytes / 1e9:.1f} GB "
                f"of weights, but {self._device.label} holds {self._device.capacity / 1e9:.1f} GB; "
                "use a smaller --budget or --weights 4"
            )
        with self._device.running("allocating the cache"):
            self._arena = Arena(layout, self._dtype)
        self._mirror, self._streams = TableMirror(layout), layout.streams
        mx.set_cache_limit(max(_CACHE_FLOOR, self.memory().accounted // _CACHE_SHARE))

    def encode(
        self, vision: Sequence[VisionInput], audio: Sequence[npt.NDArray[np.float32]]
    ) -> mx.array:
        """Embeddings ``[streams, rows, hidden]``, vision first; all streams get the same."""
        with self._device.running("the encoders"):
            parts = [self._vision(item) for item in vision] + [self._audio(item) for item in audio]
            rows = mx.concatenate([mx.zeros((0, self._config.text.hidden), self._dtype), *parts])
            embeddings = mx.broadcast_to(rows, (self._streams, *rows.shape))
            mx.eval(embeddings)
        return embeddings

    def forward(
        self, plan: StepPlan, embeddings: mx.array | None = None
    ) -> npt.NDArray[np.float32]:
        """Run a step; logits ``float32[streams, k, vocab]``.

        Raises:
            PlanError: the plan fits neither arena, vocabulary nor embeddings.
            BackendError: MLX failed; the page tables are as before.
        """
        arena, mirror = self._ready()
        mirror.check(plan)
        self._check(plan, embeddings)
        with self._device.running("a step"):
            live = mirror.preview(plan)
            dtype = mx.float32 if self._device.is_cpu else self._dtype
            sight = [visibility(cells, plan.order, dtype) for cells in live]
            read = [arena.rows(cells.cells) for cells in live]
            write = [arena.rows(cells) for cells in plan.cells]
            hidden = self._run(self._embed(plan, embeddings), plan, sight, read, write)
            if plan.logits.size:
                logits = self._backbone.logits(hidden[:, mx.array(plan.logits)])
                arena.settle(logits)
                answer = np.array(logits)
            else:
                # Nothing asks for the last layer's output, and MLX computes only what is asked for.
                arena.settle()
                answer = np.zeros((self._streams, 0, self._config.text.vocab), np.float32)
        mirror.commit(plan)
        return answer

    def _run(
        self,
        hidden: mx.array,
        plan: StepPlan,
        sight: list[Visibility],
        read: list[mx.array],
        write: list[mx.array],
    ) -> mx.array:
        arena, _ = self._ready()
        text, layers = self._config.text, arena.layout.layers_per_group
        tables = rotary_tables(plan.positions, text.head_dim, text.rope_theta, text.mrope_section)
        cos, sin = (mx.array(table) for table in tables)

        def attend(
            layer: int, group: int, queries: mx.array, keys: mx.array, values: mx.array
        ) -> mx.array:
            arena.write(layer, write[group], keys, values)
            stored = arena.read(layer, read[group])
            return sparse_page_attention(queries, *stored, sight[group], text.head_dim**-0.5)

        pending = 0
        for index, block in enumerate(self._backbone.model.layers):
            group, layer = divmod(index, layers)
            # The next group writes to the arrays that the last one reads; and kernels in flight
            # keep what they gathered, which over all layers would be the arena once more.
            if index and (layer == 0 or pending > _PENDING):
                arena.settle(hidden)
                pending = 0
            hidden = block(hidden, cos, sin, partial(attend, layer, group))
            pending += self._temporary(hidden.shape[0] * hidden.shape[1], read[group].size)
        return hidden

    def _temporary(self, tokens: int, rows: int) -> int:
        """Bytes that a layer needs while it runs, roughly: gathered cells and activations."""
        text = self._config.text
        gathered = 2 * self._streams * rows * text.head_dim
        return (gathered + tokens * (8 * text.hidden + 3 * text.intermediate)) * self.element

    def _embed(self, plan: StepPlan, embeddings: mx.array | None) -> mx.array:
        hidden = self._backbone.embed(mx.array(np.maximum(plan.tokens, 0)))
        media = plan.rows >= 0
        if embeddings is None or not media.any():
            return hidden
        given = embeddings[:, mx.array(np.maximum(plan.rows, 0))]
        return mx.where(mx.array(media)[:, None], given.astype(hidden.dtype), hidden)

    def _check(self, plan: StepPlan, embeddings: mx.array | None) -> None:
        rows = 0 if embeddings is None else embeddings.shape[1]
        if plan.rows.size == 0 or plan.rows.max() >= rows:
            raise PlanError(
                f"the plan has {plan.rows.size} tokens and reads embedding "
                f"{plan.rows.max(initial=-1)} of {rows}; encode its unit first"
            )
        if plan.tokens.shape[0] != self._streams or plan.tokens.max() >= self._config.text.vocab:
            raise PlanError(
                f"tokens of {plan.tokens.shape[0]} streams up to id {plan.tokens.max()}, expected "
                f"{self._streams} streams and ids below {self._config.text.vocab}"
            )

    def move(self, plan: MovePlan) -> None:
        """Copy cells, then change the page tables."""
        arena, mirror = self._ready()
        mirror.check(plan)
        if plan.source.size:
            with self._device.running("a move"):
                arena.copy(plan.source, plan.target)
        mirror.commit(plan)

    def memory(self) -> MemoryReport:
        """Memory now, by MLX's own count."""
        arena = self._arena.layout.bytes(self.element) if self._arena else 0
        return MemoryReport(
            measured=mx.get_active_memory(),
            cached=mx.get_cache_memory(),
            peak=mx.get_peak_memory(),
            accounted=self._weight_bytes + arena,
            source="mlx",
        )

    def _ready(self) -> tuple[Arena, TableMirror]:
        if self._arena is None or self._mirror is None:
            raise BackendError("no arena yet; call allocate first")
        return self._arena, self._mirror
