"""A backend in NumPy float64: two random layers over the oracle attention, to test the core.

Sealed pages hold what :mod:`omni_core.quantization` makes of their cells, and are read as decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from omni_core.aggregation.memory import HostMemory, means
from omni_core.backend import (
    PAGE,
    SUBBLOCK,
    ArenaLayout,
    MemoryReport,
    MergePlan,
    MovePlan,
    RestorePlan,
    StepPlan,
    StepResult,
)
from omni_core.frontend.base import Bracket, Cursor, UnitMedia, UnitTokens, VisionInput
from omni_core.model_config import TextConfig
from omni_core.paging.mirror import TableMirror
from omni_core.plan_checks import check_layout, check_merge
from omni_core.quantization import (
    LayerTables,
    SealedSubblock,
    codec,
    decode_keys,
    decode_values,
    digest,
    load,
    seal,
    store,
)
from omni_core.reference.attention import attention_shares, weighted_values
from omni_core.reference.rotary import rotary_tables, rotate
from omni_core.session import Model
from omni_core.units import EMBEDDED, Modality, Role, TokenBlock

TEXT = TextConfig(
    vocab=97,
    hidden=24,
    intermediate=32,
    layers=2,
    q_heads=4,
    kv_heads=2,
    head_dim=8,
    rms_eps=1e-6,
    rope_theta=1e4,
    mrope_section=(2, 1, 1),
    max_positions=4096,
    tied=True,
)
SEALABLE = replace(TEXT, head_dim=16, mrope_section=(4, 2, 2))
"""The same with heads that can be sealed."""


class NumpyBackend:
    """Embeds, attends twice, returns logits. Dead cells hold NaN, sealed or not."""

    name, device, element = "numpy", "cpu", 8

    def __init__(self, seed: int = 0, streams: int = 1, text: TextConfig = TEXT) -> None:
        self.streams, self.text = streams, text
        generator = np.random.default_rng(seed)
        self.embedding = generator.normal(size=(text.vocab, text.hidden))
        self.head = generator.normal(size=(text.vocab, text.hidden)) / 3
        q, kv = text.q_heads * text.head_dim, text.kv_heads * text.head_dim
        self.layers = [
            {
                name: generator.normal(size=shape) / 5
                for name, shape in {
                    "q": (text.hidden, q),
                    "k": (text.hidden, kv),
                    "v": (text.hidden, kv),
                    "o": (q, text.hidden),
                }.items()
            }
            for _ in range(text.layers)
        ]
        self.fail_in: int | None = None
        self.forwards = self.allocations = 0

    def allocate(self, layout: ArenaLayout) -> None:
        check_layout(layout, self.text, self.streams, seals=True)
        self.layout, self.mirror = layout, TableMirror(layout)
        self.allocations += 1
        cells = (self.streams, layout.pages * PAGE)
        shape = (layout.layers_per_group, *cells, layout.kv_heads, layout.head_dim)
        self.keys, self.values = np.full(shape, np.nan), np.full(shape, np.nan)
        self.decoded: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}
        if layout.sealed_pages:
            self.codec = codec(layout.codec, layout.bits)
            sealed = (layout.sealed_pages, layout.kv_heads, layout.sealed.bytes)
            # Bytes that decode to NaN.
            self.sealed = np.full((*shape[:2], *sealed), 255, np.uint8)

    def tables(self, layer: int) -> LayerTables:
        return LayerTables.uncalibrated(layer, self.text.kv_heads, self.text.head_dim)

    def rotary(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        text = self.text
        return rotary_tables(positions, text.head_dim, text.rope_theta, text.mrope_section)

    def encode(self, vision: Sequence[VisionInput], audio: Sequence[np.ndarray]) -> Any:
        rows = [v.patches for v in vision] + [a.T for a in audio]
        if not rows:
            return None
        found = np.concatenate(rows)[:, : TEXT.hidden].astype(np.float64)
        return np.broadcast_to(found, (self.streams, *found.shape))

    def stack(self, units: Sequence[Any]) -> Any:
        return np.stack([unit[stream] for stream, unit in enumerate(units)])

    def merge(self, embeddings: Any, plan: MergePlan) -> Any:
        check_merge(plan, embeddings.shape[-2])
        return np.stack([means(rows, plan) for rows in embeddings])

    def vision_memory(self) -> HostMemory:
        return HostMemory(TEXT.hidden, np.float64)

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        self.forwards += 1
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0:
                self.fail_in = None
                raise RuntimeError("the backend failed")
        self.mirror.check(plan)
        assert plan.tokens.shape == (self.streams, plan.rows.size)
        x = self.embedding[np.maximum(plan.tokens, 0)]
        embedded = plan.rows >= 0
        if embedded.any():
            x[:, embedded] = embeddings[..., plan.rows[embedded], :]
        cos, sin = self.rotary(plan.positions)
        live = self.mirror.preview(plan)
        mass = [np.zeros(group.cells.size) for group in live]
        for index, weights in enumerate(self.layers):
            group, at = divmod(index, self.layout.layers_per_group)
            heads = (plan.rows.size, -1, self.text.head_dim)
            cells = live[group].cells
            for stream in range(self.streams):
                keys, values = self.keys[at][stream], self.values[at][stream]
                y = x[stream]
                q = (y @ weights["q"]).reshape(heads)
                keys[plan.cells[group]] = rotate((y @ weights["k"]).reshape(heads), cos, sin)
                values[plan.cells[group]] = (y @ weights["v"]).reshape(heads)
                held, given = self.held(index, stream, cells)
                shares = attention_shares(
                    [
                        (rotate(q, *self.rotary(plan.positions + shift)), held[start:stop])
                        for start, stop, shift in live[group].runs()
                    ],
                    plan.order,
                    live[group].order,
                    live[group].bias,
                    self.text.head_dim**-0.5,
                )
                out = weighted_values(shares, given)
                mass[group] += shares.sum(axis=(0, 1))
                x[stream] = y + out.reshape(len(y), -1) @ weights["o"]
        self.mirror.commit(plan)
        logits = (x[:, plan.logits] @ self.head.T).astype(np.float32)
        return StepResult(logits, tuple(mass) if plan.mass else None)

    def held(self, layer: int, stream: int, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of live cells, as they are read."""
        at, first = layer % self.layout.layers_per_group, self.layout.pages * PAGE
        plain = np.minimum(cells, first - 1)
        keys, values = self.keys[at][stream][plain], self.values[at][stream][plain]
        for subblock in np.unique(cells[cells >= first] // SUBBLOCK).tolist():
            found = self.decode(layer, stream, subblock)
            here = np.flatnonzero(cells // SUBBLOCK == subblock)
            keys[here], values[here] = (part[cells[here] % SUBBLOCK] for part in found)
        return keys, values

    def decode(self, layer: int, stream: int, subblock: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values ``[32, kv_heads, D]`` of a sealed subblock, decoded once."""
        if (layer, stream, subblock) not in self.decoded:
            page, half = divmod(subblock, 2)
            stored = self.sealed[layer % self.layout.layers_per_group, stream]
            found = load(self.layout.sealed, stored[page - self.layout.pages], half)
            modality = Modality(self.mirror.modality[page])
            keys = decode_keys(found, self.codec, self.tables(layer))
            values = decode_values(found, modality, self.codec, self.tables(layer))
            self.decoded[layer, stream, subblock] = keys.swapaxes(0, 1), values.swapaxes(0, 1)
        return self.decoded[layer, stream, subblock]

    def move(self, plan: MovePlan) -> None:
        self.mirror.check(plan)
        sealed = self.seal(plan) if len(plan.seals) else []
        for at, stream, subblock, found in sealed:
            page, half = divmod(subblock, 2)
            store(
                found, self.layout.sealed, self.sealed[at, stream, page - self.layout.pages], half
            )
        for pool in (self.keys, self.values):
            pool[:, :, plan.target] = pool[:, :, plan.source]
        self.mirror.commit(plan)
        left = np.concatenate([plan.source, plan.seals.cells[0]])
        for pool in (self.keys, self.values):
            pool[:, :, np.setdiff1d(left, plan.target)] = np.nan

    def seal(self, plan: MovePlan) -> list[tuple[int, int, int, SealedSubblock]]:
        """What a plan seals: layer within its group, stream, subblock, what is to be stored."""
        found, per_group = [], self.layout.layers_per_group
        for source, target, modality in zip(
            plan.seals.source, plan.seals.target, self.mirror.sealed_modality(plan), strict=True
        ):
            cells = source[source >= 0]
            group = self.mirror.group[cells[0] // PAGE]
            for at in range(per_group):
                tables = self.tables(group * per_group + at)
                for stream in range(self.streams):
                    given = self.keys[at][stream][cells], self.values[at][stream][cells]
                    coded = seal(*given, Modality(modality), self.codec, tables)
                    found.append((at, stream, int(target), coded))
                    self.decoded.pop((tables.layer, stream, int(target)), None)
        return found

    def read(self, layer: int, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = layer % self.layout.layers_per_group
        return self.keys[at][:, cells], self.values[at][:, cells]

    def write(self, layer: int, cells: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        at = layer % self.layout.layers_per_group
        self.keys[at][:, cells], self.values[at][:, cells] = keys, values

    def read_sealed(self, layer: int, pages: np.ndarray) -> np.ndarray:
        at = layer % self.layout.layers_per_group
        return self.sealed[at][:, pages - self.layout.pages]

    def write_sealed(self, layer: int, pages: np.ndarray, stored: np.ndarray) -> None:
        at = layer % self.layout.layers_per_group
        self.sealed[at][:, pages - self.layout.pages] = stored

    def sealed_by(self) -> str:
        return digest([self.tables(layer) for layer in range(self.text.layers)])

    def restore(self, plan: RestorePlan) -> None:
        self.mirror.check(plan)
        self.mirror.commit(plan)

    def memory(self) -> MemoryReport:
        size = self.layout.bytes(self.element)
        return MemoryReport(size, 0, size, size, "process")


class PlainFrontend:
    """Units of ``vision`` and ``audio`` tokens between delimiters, positions one a token."""

    seconds, fps, stop_tokens = 1.0, 1.0, frozenset({1})

    def __init__(self, vision: int = 9, audio: int = 5, brackets: bool = False) -> None:
        self.vision, self.audio, self.brackets = vision, audio, brackets
        self.largest_unit = vision + audio + 4

    def open(self, system: str) -> tuple[TokenBlock, Cursor]:
        ids = [2 + ord(c) % 90 for c in system]
        return TokenBlock.text(ids, 0, Role.PREFIX), Cursor(len(ids))

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        share = (media.stop - media.start) / self.seconds
        spans = [
            (Modality.VISION, self.vision),
            (Modality.AUDIO, max(1, round(self.audio * share))),
        ]
        position, row, blocks = cursor.position, 0, []
        role = Role.BRACKET if self.brackets else Role.DELIMITER
        open_now = not self.brackets or cursor.bracket is None
        if cursor.bracket is not None and cursor.bracket.stop != media.start:
            senses = (Modality.AUDIO, Modality.VISION)
            blocks += [self._delimiter(94, position, sense, role, 1) for sense in senses]
            position, open_now = position + 1, True
        if self.brackets and open_now:
            blocks += [self._delimiter(93, position, sense, role) for sense, _ in spans]
            position += 1
        for sense, count in spans:
            if not self.brackets:
                blocks.append(self._delimiter(93, position, sense, role))
                position += 1
            block = TokenBlock.text([EMBEDDED] * count, position, Role.CONTENT)
            kind = np.full(count, sense, np.int8)
            rows = np.arange(row, row + count, dtype=np.int32)
            blocks.append(
                TokenBlock(
                    block.tokens, rows, block.positions, kind, kind, block.role, block.offset
                )
            )
            position, row = position + count, row + count
            if not self.brackets:
                blocks.append(self._delimiter(94, position, sense, role, 1))
                position += 1
        seed = int(media.start * 1000)
        generator = np.random.default_rng(
            seed if media.audio is None else [seed, *media.audio.astype(int)]
        )
        patches = generator.normal(size=(self.vision, TEXT.hidden)).astype(np.float32)
        mel = generator.normal(size=(TEXT.hidden, spans[1][1])).astype(np.float32)
        bracket = Bracket(position, True, True, stop=media.stop) if self.brackets else None
        unit = UnitTokens(TokenBlock.join(blocks), (VisionInput(patches, (1, 3, 3)),), (mel,))
        return unit, Cursor(position, bracket)

    def question(self, text: str, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        ids = [2 + ord(c) % 90 for c in text]
        marks, position = [], cursor.position
        if cursor.bracket is not None:
            senses = (Modality.AUDIO, Modality.VISION)
            marks = [self._delimiter(94, position, sense, Role.BRACKET, 1) for sense in senses]
            position += 1
        block = TokenBlock.join([*marks, TokenBlock.text(ids, position, Role.PROMPT)])
        return block, Cursor(position + len(ids))

    def answer(self, token: int, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        block = TokenBlock.text([token], cursor.position, Role.GENERATED)
        return block, Cursor(cursor.position + 1)

    def resume(self, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        return TokenBlock.text([1, 2], cursor.position, Role.PROMPT), Cursor(cursor.position + 2)

    def text(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    @staticmethod
    def _delimiter(
        token: int, position: int, sense: Modality, role: Role, offset: int = 0
    ) -> TokenBlock:
        block = TokenBlock.text([token], position, role)
        return TokenBlock(
            block.tokens,
            block.rows,
            block.positions,
            block.modality,
            np.full(1, sense, np.int8),
            block.role,
            np.full(1, offset, np.int32),
        )


def plain_model(text: TextConfig = TEXT, **shape: Any) -> Model:
    """A model of both, fresh."""
    frontend, backend = PlainFrontend(**shape), NumpyBackend(text=text)
    return Model(backend, frontend, text, "plain", identity="seed 0", weights="f64")


def second(index: int, length: float = 1.0, audio: np.ndarray | None = None) -> UnitMedia:
    """A unit's media: the plain frontend draws its content from start time and sound."""
    return UnitMedia(float(index), index + length, audio=audio)
