"""The backend: plans in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

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
from omni_core.paging.mirror import LiveCells, TableMirror
from omni_core.plan_checks import check_layout, check_merge, check_step
from omni_core.quantization import LayerTables
from omni_core.quantization.tables_file import tables_of, uncalibrated
from omni_core.stored_weights import AUDIO_PREFIX, VISION_PREFIX, check_weights, has_own_head
from omni_core.units import Int32
from omni_cuda import aggregation, devices, ops, weights
from omni_cuda.arena import Arena, Cells
from omni_cuda.attention import Gathered, GroupView
from omni_cuda.backbone import Backbone
from omni_cuda.encoders import audio as audio_tower
from omni_cuda.encoders import building
from omni_cuda.encoders import vision as vision_tower
from omni_cuda.encoders.both import Encoders
from omni_cuda.pools import Pools, PoolsView
from omni_cuda.rotary import StepRotary
from omni_cuda.sealing import Sealer

if TYPE_CHECKING:
    from omni_cuda.steps import PagedSteps


_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def _computing(
    method: Callable[Concatenate[TorchBackend, _Given], _Found],
) -> Callable[Concatenate[TorchBackend, _Given], _Found]:
    """Run a method with the backend's card as the current one, and without gradients."""

    @wraps(method)
    def run(self: TorchBackend, *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with devices.current(self._device), torch.inference_mode():
            return method(self, *args, **kwargs)

    return run


class TorchBackend:
    """The Qwen2.5-Omni thinker in PyTorch. Implements :class:`omni_core.backend.Backend`."""

    def __init__(
        self,
        config: ThinkerConfig,
        backbone: Backbone,
        vision: nn.Module,
        audio: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        streams: int,
        kernels: bool | None = None,
        tables: Callable[[], Sequence[LayerTables]] | None = None,
    ) -> None:
        """Take parts that are filled.

        Args:
            config, backbone, vision, audio: of one model.
            device, dtype: where the parts are, and their numbers.
            streams: of one layout that each step runs.
            kernels: whether Triton's are used; by default wherever they can be.
            tables: gives what sealing takes of each layer, once something is to be sealed; by
                default nothing was measured.
        """
        self.config = config
        self.backbone = backbone
        self.vision = vision
        self.audio = audio
        self.streams = streams
        self._device = device
        self._dtype = dtype
        self._weight_bytes = weights.weight_bytes(backbone, vision, audio)
        self.arena: Arena | None = None
        self.mirror: TableMirror | None = None
        self.allocations = 0
        self._kernels = devices.has_kernels(device) if kernels is None else kernels
        # Kernels read sealed pages as halves: who asks for float32 wants more.
        self._reads_sealed = dtype is not torch.float32
        self._steps: PagedSteps | None = None
        self._tables = tables or partial(uncalibrated, config.text)
        self._sealer: Sealer | None = None
        self._seen: aggregation.DeviceMemory | None = None
        self._ops = ops.fused() if self._kernels else ops.SPELLED_OUT
        self._encoders = Encoders(vision, audio, device, dtype, self._ops)

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, *, device: str, weights: str, streams: int
    ) -> TorchBackend:
        """Build and fill all three parts; see :func:`omni_cuda.load`."""
        place = devices.choose_device(device)
        dtype, bits = devices.choose_weights(weights, place)
        config = thinker_config(checkpoint.config)
        check_weights(checkpoint, config)
        with torch.device("meta"):
            backbone = Backbone(config.text)
        vision, audio = vision_tower.build(config.vision), audio_tower.build(config.audio)
        towers = [(vision, VISION_PREFIX), (audio, AUDIO_PREFIX)]
        numbers = sum(p.numel() for part in (backbone, vision, audio) for p in part.parameters())
        devices.settle_threads(place, numbers)
        own_head = has_own_head(checkpoint, config)
        _require_room(backbone, towers, own_head, place, dtype, bits)
        with _out_of_memory("the weights"):
            _fill(checkpoint, config, backbone, towers, place, dtype, bits)
        tables = partial(tables_of, checkpoint, config.text)
        return cls(config, backbone, vision, audio, place, dtype, streams, tables=tables)

    @property
    def name(self) -> str:
        """The twin's name."""
        return "cuda"

    @property
    def device(self) -> str:
        """The device's name, for people."""
        name = devices.device_name(self._device)
        without = not self._kernels or (self.arena is not None and self._steps is None)
        spelled_out = self._device.type == "cuda" and without
        return f"{name}, without Triton's kernels" if spelled_out else name

    @property
    def element(self) -> int:
        """Bytes of one key or value number."""
        return self._dtype.itemsize

    def allocate(self, layout: ArenaLayout) -> None:
        """Allocate the arena, all pages free.

        Raises:
            BudgetError: the device cannot hold it.
            PlanError: the layout is not this model's.
            OmniError: what the checkpoint says of sealing is damaged, or of another model.
        """
        check_layout(layout, self.config.text, self.streams, seals=True)
        seals = layout.sealed_pages > 0
        # The old arena goes first: two would not fit.
        self.arena = self.mirror = self._steps = self._sealer = self._seen = None
        self.allocations += 1
        with devices.current(self._device):
            arena = Arena(layout, self._device, self._dtype)
            kernels = self._kernels and (self._reads_sealed or not seals)
            tables = self._tables() if seals else None
            self._sealer = Sealer(layout, tables, self._device, kernels) if tables else None
            self._steps = self._paged(arena, layout, tables) if kernels else None
        self.arena, self.mirror = arena, TableMirror(layout)

    @_computing
    def encode(
        self, vision: Sequence[VisionInput], audio: Sequence[npt.NDArray[np.float32]]
    ) -> torch.Tensor:
        """Embeddings ``[streams, rows, hidden]``, vision first; all streams see the same media."""
        with _out_of_memory("the encoders"), _exact_convolutions(self._dtype):
            rows = self._encoders(vision, audio)
            if not rows:
                none = (0, self.config.text.hidden)
                rows = [torch.zeros(none, device=self._device, dtype=self._dtype)]
            return torch.cat(rows).expand(self.streams, -1, -1)

    @_computing
    def stack(self, units: Sequence[torch.Tensor]) -> torch.Tensor:
        """Embeddings ``[streams, rows, hidden]`` whose stream ``s`` is that of ``units[s]``."""
        with _out_of_memory(f"the embeddings of {len(units)} streams"):
            return torch.stack([unit[stream] for stream, unit in enumerate(units)])

    @_computing
    def merge(self, embeddings: torch.Tensor, plan: MergePlan) -> torch.Tensor:
        """Embeddings ``[streams, k, hidden]``, the means of rows of others."""
        check_merge(plan, embeddings.shape[1])
        with _out_of_memory("aggregation"):
            return aggregation.merge(embeddings, plan)

    def vision_memory(self) -> aggregation.DeviceMemory:
        """An empty one."""
        hidden, running = self.config.text.hidden, partial(_out_of_memory, "aggregation")
        self._seen = aggregation.DeviceMemory(hidden, self._device, self._dtype, running)
        return self._seen

    @_computing
    def forward(self, plan: StepPlan, embeddings: torch.Tensor | None = None) -> StepResult:
        """Run a step.

        Raises:
            PlanError: the plan does not fit; nothing has changed.
            BackendError: the device ran out of memory; nothing has changed.
        """
        _, mirror = self._allocated()
        mirror.check(plan)
        encoded = 0 if embeddings is None else embeddings.shape[1]
        check_step(plan, self.config.text.vocab, self.streams, encoded)
        with _out_of_memory(f"a step of {plan.tokens.shape[1]} tokens"):
            if self._steps is None:
                return self._gathered(plan, mirror, embeddings)
            if not (plan.mass and self._sealer):
                return self._steps.run(plan, mirror, embeddings)
            # No kernel tells of the mass of sealed cells.
            found = self._gathered(plan, mirror, embeddings)
            self._steps.note(plan)
            return found

    @_computing
    def move(self, plan: MovePlan) -> None:
        """Seal and copy cells, then change the page tables.

        Raises:
            BackendError: what is to be sealed holds a number that is not finite, or the device ran
                out of memory; no cell has changed.
        """
        arena, mirror = self._allocated()
        mirror.check(plan)
        with _out_of_memory(f"a move of {plan.source.size + plan.seals.cells[0].size} cells"):
            if self._sealer and len(plan.seals):
                self._sealer.seal(arena, plan, mirror)
                if self._steps:
                    self._steps.seal(plan)
            if self._steps:
                self._steps.move(plan)
            else:
                arena.copy(Cells.of(plan.source, self._device), Cells.of(plan.target, self._device))
        mirror.commit(plan)

    @_computing
    def read(self, layer: int, cells: Int32) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Keys and values ``[streams, n, kv_heads, head_dim]`` of cells of a model's layer."""
        arena, _ = self._allocated()
        stored = arena.gather(layer % arena.keys.shape[0], Cells.of(cells, self._device))
        keys, values = (devices.download(part.transpose(0, 1)) for part in stored)
        return keys, values

    @_computing
    def write(
        self, layer: int, cells: Int32, keys: npt.NDArray[Any], values: npt.NDArray[Any]
    ) -> None:
        """Store what :meth:`read` gave."""
        arena, _ = self._allocated()
        stored = [self._upload(part).view(self._dtype).transpose(0, 1) for part in (keys, values)]
        arena.write(layer % arena.keys.shape[0], Cells.of(cells, self._device), *stored)

    @_computing
    def read_sealed(self, layer: int, pages: Int32) -> npt.NDArray[np.uint8]:
        """Sealed pages ``uint8[streams, n, kv_heads, bytes]`` of a model's layer."""
        arena, sealer = self._sealing()
        return sealer.read(arena, layer % arena.keys.shape[0], pages)

    @_computing
    def write_sealed(self, layer: int, pages: Int32, stored: npt.NDArray[np.uint8]) -> None:
        """Store what :meth:`read_sealed` gave."""
        arena, sealer = self._sealing()
        sealer.write(arena, layer % arena.keys.shape[0], pages, stored)

    def sealed_by(self) -> str:
        """By what sealed pages are read, see :func:`omni_core.quantization.digest`."""
        return self._sealing()[1].digest

    @_computing
    def restore(self, plan: RestorePlan) -> None:
        """Take page tables over for cells that have been written."""
        _, mirror = self._allocated()
        mirror.check(plan)
        if self._steps:
            self._steps.restore(plan)
        mirror.commit(plan)

    def listen(self, hear: Callable[[int, npt.NDArray[np.float32]], None]) -> None:
        """Tell of each layer's queries, for calibration; no kernels run from now on.

        To be called before :meth:`allocate`.

        Args:
            hear: gets the layer's number and ``float32[streams, T, q_heads, head_dim]``, not
                rotated.
        """
        self._kernels, self._ops = False, ops.SPELLED_OUT
        text = self.config.text
        for number, layer in enumerate(self.backbone.model.layers):

            def heard(_: nn.Module, __: Any, found: torch.Tensor, number: int = number) -> None:
                queries = found[..., : text.q_heads * text.head_dim]
                hear(number, queries.unflatten(-1, (-1, text.head_dim)).float().cpu().numpy())

            layer.self_attn.qkv_proj.register_forward_hook(heard)

    def memory(self) -> MemoryReport:
        """Memory now."""
        arena = self.arena.bytes if self.arena else 0
        tables = self._sealer.bytes if self._sealer else 0
        if self._steps and self._steps.shared.reader:
            tables += self._steps.shared.reader.bytes
        seen = self._seen.bytes if self._seen else 0
        return devices.measure(self._device, self._weight_bytes + arena + tables + seen)

    def _allocated(self) -> tuple[Arena, TableMirror]:
        if self.arena is None or self.mirror is None:
            raise PlanError("no arena is allocated; call allocate before the first plan")
        return self.arena, self.mirror

    def _sealing(self) -> tuple[Arena, Sealer]:
        arena, _ = self._allocated()
        if self._sealer is None:
            raise PlanError("the arena has no sealed pages; allocate one with some first")
        return arena, self._sealer

    def _paged(
        self, arena: Arena, layout: ArenaLayout, tables: Sequence[LayerTables] | None
    ) -> PagedSteps:
        from omni_cuda.sealed_paged import SealedReader
        from omni_cuda.step import Shared
        from omni_cuda.steps import PagedSteps

        parts, graphs = (self.backbone, self._ops, self.config.text), self._device.type == "cuda"
        try:
            with _out_of_memory("the first step"):
                reader = SealedReader(layout, tables, self._device) if tables else None
                return PagedSteps(Shared(*parts, arena, layout, graphs, reader))
        except BackendError as error:
            raise BudgetError(str(error)) from error

    def _gathered(
        self, plan: StepPlan, mirror: TableMirror, embeddings: torch.Tensor | None
    ) -> StepResult:
        """A step without kernels."""
        arena, _ = self._allocated()
        live = mirror.preview(plan)
        masses = [
            torch.zeros(group.cells.size, device=self._device) if plan.mass else None
            for group in live
        ]
        rotary = StepRotary(plan.positions, self.config.text, self._device)
        attends = [
            self._attend(plan, index, group, mirror, rotary, mass)
            for index, (group, mass) in enumerate(zip(live, masses, strict=True))
        ]
        rows = self._upload(plan.logits).long()
        logits = self.backbone(self._embed(plan, embeddings), attends, arena, rows, self._ops)
        mass = tuple(found.cpu().numpy() for found in masses if found is not None)
        found = logits.cpu().numpy()
        mirror.commit(plan)
        return StepResult(found, mass if plan.mass else None)

    def _attend(
        self,
        plan: StepPlan,
        index: int,
        live: LiveCells,
        mirror: TableMirror,
        rotary: StepRotary,
        mass: torch.Tensor | None,
    ) -> Gathered | Pools:
        """Attention of a layer group."""
        if self._sealer is not None:
            first = index * mirror.layout.layers_per_group, mirror.layout.pages
            modality, device = mirror.modality, self._device
            of = plan.cells[index], live, plan.order, rotary, modality, first, mass, device
            return Pools(PoolsView.of(*of), self._sealer, rotary.tables())
        view = GroupView(
            Cells.of(plan.cells[index], self._device),
            Cells.of(live.cells, self._device),
            self._upload(live.order),
            self._upload(live.bias),
            self._upload(plan.order),
            rotary.turns(live.runs()),
            mass,
        )
        return Gathered(view, rotary.tables())

    def _embed(self, plan: StepPlan, embeddings: torch.Tensor | None) -> torch.Tensor:
        ids = self._upload(np.maximum(plan.tokens, 0))
        x = self.backbone.model.embed_tokens(ids)
        places = np.flatnonzero(plan.rows >= 0)
        if embeddings is not None and places.size:
            taken = self._upload(plan.rows[places]).long()
            x[:, self._upload(places)] = embeddings[:, taken].to(x.dtype)
        return x

    def _upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return devices.upload(array, self._device)


def _require_room(
    backbone: Backbone,
    towers: list[tuple[nn.Module, str]],
    own_head: bool,
    device: torch.device,
    dtype: torch.dtype,
    bits: int | None,
) -> None:
    numbers = sum(p.numel() for part in [backbone, *dict(towers)] for p in part.parameters())
    if not own_head:
        numbers -= backbone.lm_head.weight.numel()
    size = numbers * dtype.itemsize
    if bits is not None:
        size -= weights.saved_bytes(backbone.model.layers, bits, dtype)
    devices.require_room(size, device, "the model", "use --weights 8 or 4, or a smaller model")


def _fill(
    checkpoint: Checkpoint,
    config: ThinkerConfig,
    backbone: Backbone,
    towers: list[tuple[nn.Module, str]],
    device: torch.device,
    dtype: torch.dtype,
    bits: int | None,
) -> None:
    weights.fill_backbone(backbone, checkpoint, config, device, dtype, bits)
    backbone.eval().requires_grad_(False)
    for tower, prefix in towers:
        weights.fill(tower, checkpoint, config.prefix + prefix, device, dtype)
        building.place_tables(tower, device)


def _out_of_memory(what: str) -> AbstractContextManager[None]:
    remedy = "lower --budget, use --weights 8 or 4, or a smaller picture"
    return devices.out_of_memory(what, remedy)


@contextmanager
def _exact_convolutions(dtype: torch.dtype) -> Iterator[None]:
    # cuDNN rounds float32 convolutions to TF32 unless told otherwise.
    if dtype is torch.float32 and torch.backends.cudnn.is_available():
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    else:
        yield
