"""The backend: plans in, logits out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from metal_kernels import sealed_check
from metal_kernels.run import run
from omni_core.backend import (
    ArenaLayout,
    MemoryReport,
    MergePlan,
    MovePlan,
    RestorePlan,
    StepPlan,
    StepResult,
)
from omni_core.checkpoints import Checkpoint
from omni_core.errors import BackendError, BudgetError, PlanError
from omni_core.frontend.base import VisionInput
from omni_core.model_config import ThinkerConfig, thinker_config
from omni_core.paging.mirror import TableMirror
from omni_core.plan_checks import check_layout, check_merge, check_step
from omni_core.quantization.tables_file import tables_of
from omni_core.stored_weights import (
    AUDIO_PREFIX,
    FORMATS,
    VISION_PREFIX,
    check_weights,
    has_own_head,
)
from omni_core.units import Int32
from omni_mlx import aggregation, self_check
from omni_mlx.arena import Arena
from omni_mlx.backbone import Backbone
from omni_mlx.devices import ComputeDevice, choose_device, gpu
from omni_mlx.encoders.audio import AudioTower
from omni_mlx.encoders.vision import VisionTower
from omni_mlx.paged import Kernels, PagedAttention
from omni_mlx.pools import PoolsAttention
from omni_mlx.sealing import Sealer
from omni_mlx.step import StepAttention
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
    if weights not in FORMATS:
        raise BackendError(f"weights {weights!r} are unknown; use one of {', '.join(FORMATS)}")
    bits = int(weights) if weights in ("8", "4") else None
    exact = weights == "f32" or (weights != "bf16" and place.is_cpu)
    if exact and not place.is_cpu:
        # MLX multiplies float32 in TF32 on GPUs that have it, unless told before its first product.
        os.environ.setdefault("MLX_ENABLE_TF32", "0")
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
        self._kernels: Kernels | None = None
        self._tables = partial(tables_of, checkpoint, self._config.text)
        self._sealer: Sealer | None = None
        self._sealed_fault: str | None = None
        self._seal_fault: str | None = None
        self._seen: aggregation.DeviceMemory | None = None
        self.allocations = 0
        prefix = self._config.prefix
        check_weights(checkpoint, self._config)
        with device.running("loading"):
            self._backbone = Backbone(self._config.text, has_own_head(checkpoint, self._config))
            self._vision = VisionTower(self._config.vision)
            self._audio = AudioTower(self._config.audio)
            parts = [
                Part(self._backbone, prefix, bits),
                Part(self._vision, prefix + VISION_PREFIX),
                Part(self._audio, prefix + AUDIO_PREFIX),
            ]
            self._weight_bytes = load_parts(parts, checkpoint, dtype, device.capacity)
            self._fault: str | None = None
            if not device.is_cpu:
                self._fault = self_check.fault(self._config.text, dtype, gpu(), run)
            mx.clear_cache()

    @property
    def device(self) -> str:
        """The device's name, for people, and why its kernels are left out where they are."""
        told, fault = self._device.label, self._fault or self._sealed_fault
        if fault is not None:
            told += f", without kernels: {fault}"
        if self._seal_fault is not None:
            told += f", sealing on the host: {self._seal_fault}"
        return told

    @property
    def element(self) -> int:
        """Bytes of one key or value number."""
        return self._dtype.size

    def allocate(self, layout: ArenaLayout) -> None:
        """Allocate the arena, all pages free; an earlier one is let go first.

        Raises:
            BudgetError: the device cannot hold it beside the weights.
            PlanError: it is laid out for another model.
            OmniError: what the checkpoint says of sealing is damaged, or of another model.
        """
        check_layout(layout, self._config.text, self._streams, seals=True)
        self._arena = self._mirror = self._kernels = self._sealer = self._seen = None
        self._sealed_fault = self._seal_fault = None
        self.allocations += 1
        needed = layout.bytes(self.element)
        if self._weight_bytes + needed > self._device.capacity:
            raise BudgetError(
                f"the cache takes {needed / 1e9:.1f} GB beside {self._weight_bytes / 1e9:.1f} GB "
                f"of weights, but {self._device.label} holds {self._device.capacity / 1e9:.1f} GB; "
                "use a smaller --budget or --weights 4"
            )
        with self._device.running("allocating the cache"):
            self._arena = Arena(layout, self._dtype)
            kernels = not self._device.is_cpu and self._fault is None
            if layout.sealed_pages:
                if kernels:
                    self._ask_of_sealed(layout)
                seals = run if kernels and self._seal_fault is None else None
                self._sealer = Sealer(layout, self._tables(), seals)
            if kernels and self._sealed_fault is None:
                self._kernels = Kernels(self._config.text, layout, gpu(), run, self._sealer)
        self._mirror = TableMirror(layout)
        held = self.memory().accounted
        spare = max(_CACHE_FLOOR, held // _CACHE_SHARE)
        mx.set_cache_limit(spare)
        if not self._device.is_cpu:
            # Weights and arena are read at every step: a Mac is not to page them out in between.
            mx.set_wired_limit(min(self._device.capacity, held + spare))

    def _ask_of_sealed(self, layout: ArenaLayout) -> None:
        """Whether this GPU's kernels read sealed pages, and seal, as is meant."""
        dtype, heads = str(self._dtype).removeprefix("mlx.core."), self._config.text.q_heads
        self._sealed_fault = sealed_check.fault(layout, heads, dtype, gpu(), run)
        self._seal_fault = sealed_check.seal_fault(layout, dtype, run)

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

    def stack(self, units: Sequence[mx.array]) -> mx.array:
        """Embeddings ``[streams, rows, hidden]`` whose stream ``s`` is that of ``units[s]``."""
        with self._device.running("the encoders"):
            embeddings = mx.stack([unit[stream] for stream, unit in enumerate(units)])
            mx.eval(embeddings)
        return embeddings

    def merge(self, embeddings: mx.array, plan: MergePlan) -> mx.array:
        """Embeddings ``[streams, k, hidden]``, the means of rows of others."""
        check_merge(plan, embeddings.shape[1])
        with self._device.running("aggregation"):
            return aggregation.merge(embeddings, plan)

    def vision_memory(self) -> aggregation.DeviceMemory:
        """An empty one."""
        hidden = self._config.text.hidden
        self._seen = aggregation.DeviceMemory(hidden, self._device, self._dtype)
        return self._seen

    def forward(self, plan: StepPlan, embeddings: mx.array | None = None) -> StepResult:
        """Run a step.

        Raises:
            PlanError: the plan fits neither arena, vocabulary nor embeddings.
            BackendError: MLX failed; the page tables are as before.
        """
        arena, mirror = self._ready()
        mirror.check(plan)
        encoded = 0 if embeddings is None else embeddings.shape[1]
        check_step(plan, self._config.text.vocab, self._streams, encoded)
        with self._device.running("a step"):
            attention = self._attention(plan)
            hidden = self._run(self._embed(plan, embeddings), attention)
            if plan.logits.size:
                logits = self._backbone.logits(hidden[:, mx.array(plan.logits)])
                arena.settle(logits, *attention.pending())
                answer = np.array(logits)
            else:
                # Nothing asks for the last layer's output, and MLX computes only what is asked for.
                arena.settle(*attention.pending())
                answer = np.zeros((self._streams, 0, self._config.text.vocab), np.float32)
            mass = tuple(np.array(group) for group in attention.mass) if plan.mass else None
        mirror.commit(plan)
        return StepResult(answer, mass)

    def _attention(self, plan: StepPlan) -> StepAttention | PagedAttention | PoolsAttention:
        """By kernels on a GPU that runs them, elsewhere spelled out in MLX's operations."""
        arena, mirror = self._ready()
        # What sealed cells get of the attention no kernel tells.
        if self._kernels is not None and not (self._sealer and plan.mass):
            return PagedAttention(plan, mirror, arena, self._kernels)
        if self._sealer is not None:
            return PoolsAttention(plan, mirror, arena, self._sealer, self._config.text)
        dtype = mx.float32 if self._device.is_cpu else self._dtype
        return StepAttention(plan, mirror.preview(plan), arena, self._config.text, dtype)

    def _run(
        self, hidden: mx.array, attention: StepAttention | PagedAttention | PoolsAttention
    ) -> mx.array:
        arena, _ = self._ready()
        text, layers = self._config.text, arena.layout.layers_per_group
        streams, tokens, _ = hidden.shape
        activations = streams * tokens * (8 * text.hidden + 3 * text.intermediate) * self.element
        pending = 0
        for index, block in enumerate(self._backbone.model.layers):
            group, layer = divmod(index, layers)
            # The next group writes to the arrays that the last one reads; and kernels in flight
            # keep what they gathered, which over all layers would be the arena once more.
            if index and (layer == 0 or pending > _PENDING):
                arena.settle(hidden, *attention.pending())
                pending = 0
            hidden = block(hidden, partial(attention, group, layer))
            pending += activations + attention.temporary(group, streams, tokens)
        return hidden

    def _embed(self, plan: StepPlan, embeddings: mx.array | None) -> mx.array:
        hidden = self._backbone.embed(mx.array(np.maximum(plan.tokens, 0)))
        media = plan.rows >= 0
        if embeddings is None or not media.any():
            return hidden
        given = embeddings[:, mx.array(np.maximum(plan.rows, 0))]
        return mx.where(mx.array(media)[:, None], given.astype(hidden.dtype), hidden)

    def move(self, plan: MovePlan) -> None:
        """Seal and copy cells, then change the page tables.

        Raises:
            BackendError: what is to be sealed holds a number that is not finite; no cell has
                changed.
        """
        arena, mirror = self._ready()
        mirror.check(plan)
        if self._sealer and len(plan.seals):
            with self._device.running("sealing"):
                self._sealer.seal(arena, plan, mirror)
        if plan.source.size:
            with self._device.running("a move"):
                if self._kernels is not None:
                    self._kernels.move(arena, plan)
                else:
                    arena.copy(plan.source, plan.target)
        mirror.commit(plan)

    def read(self, layer: int, cells: Int32) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Keys and values ``[streams, n, kv_heads, head_dim]`` of cells of a model's layer."""
        arena, _ = self._ready()
        with self._device.running("saving the cache"):
            stored = arena.read(layer % arena.layout.layers_per_group, arena.rows(cells))
            keys, values = (_bits(part.swapaxes(1, 2)) for part in stored)
        return keys, values

    def write(
        self, layer: int, cells: Int32, keys: npt.NDArray[Any], values: npt.NDArray[Any]
    ) -> None:
        """Store what :meth:`read` gave."""
        arena, _ = self._ready()
        with self._device.running("restoring the cache"):
            stored = [mx.array(part).view(self._dtype).swapaxes(1, 2) for part in (keys, values)]
            arena.write(layer % arena.layout.layers_per_group, arena.rows(cells), *stored)
            arena.settle()

    def read_sealed(self, layer: int, pages: Int32) -> npt.NDArray[np.uint8]:
        """Sealed pages ``uint8[streams, n, kv_heads, bytes]`` of a model's layer."""
        arena, sealer = self._sealing()
        with self._device.running("saving the cache"):
            return sealer.read(arena, layer % arena.layout.layers_per_group, pages)

    def write_sealed(self, layer: int, pages: Int32, stored: npt.NDArray[np.uint8]) -> None:
        """Store what :meth:`read_sealed` gave."""
        arena, sealer = self._sealing()
        with self._device.running("restoring the cache"):
            sealer.write(arena, layer % arena.layout.layers_per_group, pages, stored)

    def sealed_by(self) -> str:
        """By what sealed pages are read, see :func:`omni_core.quantization.digest`."""
        return self._sealing()[1].digest

    def restore(self, plan: RestorePlan) -> None:
        """Take page tables over for cells that have been written."""
        _, mirror = self._ready()
        mirror.check(plan)
        mirror.commit(plan)

    def memory(self) -> MemoryReport:
        """Memory now, by MLX's own count."""
        arena = self._arena.layout.bytes(self.element) if self._arena else 0
        tables = self._sealer.bytes if self._sealer else 0
        return MemoryReport(
            measured=mx.get_active_memory(),
            cached=mx.get_cache_memory(),
            peak=mx.get_peak_memory(),
            accounted=self._weight_bytes + arena + tables + (self._seen.bytes if self._seen else 0),
            source="mlx",
        )

    def _ready(self) -> tuple[Arena, TableMirror]:
        if self._arena is None or self._mirror is None:
            raise BackendError("no arena yet; call allocate first")
        return self._arena, self._mirror

    def _sealing(self) -> tuple[Arena, Sealer]:
        arena, _ = self._ready()
        if self._sealer is None:
            raise PlanError("the arena has no sealed pages; allocate one with some first")
        return arena, self._sealer


def _bits(array: mx.array) -> npt.NDArray[Any]:
    """An array in NumPy, bfloat16 as its bits in uint16, which NumPy has no other name for."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
