"""A backend in NumPy float64: two random layers over the oracle attention, to test the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from omni_core.backend import (
    PAGE,
    ArenaLayout,
    MemoryReport,
    MovePlan,
    RestorePlan,
    StepPlan,
    StepResult,
)
from omni_core.frontend.base import Bracket, Cursor, UnitMedia, UnitTokens, VisionInput
from omni_core.model_config import TextConfig
from omni_core.paging.mirror import TableMirror
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


def _tables(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return rotary_tables(positions, TEXT.head_dim, TEXT.rope_theta, TEXT.mrope_section)


class NumpyBackend:
    """Embeds, attends twice, returns logits. Dead cells hold NaN."""

    name, device, element = "numpy", "cpu", 8

    def __init__(self, seed: int = 0, streams: int = 1) -> None:
        self.streams = streams
        generator = np.random.default_rng(seed)
        self.embedding = generator.normal(size=(TEXT.vocab, TEXT.hidden))
        self.head = generator.normal(size=(TEXT.vocab, TEXT.hidden)) / 3
        q, kv = TEXT.q_heads * TEXT.head_dim, TEXT.kv_heads * TEXT.head_dim
        self.layers = [
            {
                name: generator.normal(size=shape) / 5
                for name, shape in {
                    "q": (TEXT.hidden, q),
                    "k": (TEXT.hidden, kv),
                    "v": (TEXT.hidden, kv),
                    "o": (q, TEXT.hidden),
                }.items()
            }
            for _ in range(TEXT.layers)
        ]
        self.fail_in: int | None = None
        self.forwards = self.allocations = 0

    def allocate(self, layout: ArenaLayout) -> None:
        self.layout, self.mirror = layout, TableMirror(layout)
        self.allocations += 1
        assert layout.streams == self.streams
        cells = (self.streams, layout.pages * PAGE)
        shape = (layout.layers_per_group, *cells, layout.kv_heads, layout.head_dim)
        self.keys, self.values = np.full(shape, np.nan), np.full(shape, np.nan)

    def encode(self, vision: Sequence[VisionInput], audio: Sequence[np.ndarray]) -> Any:
        rows = [v.patches for v in vision] + [a.T for a in audio]
        return np.concatenate(rows)[:, : TEXT.hidden].astype(np.float64) if rows else None

    def stack(self, units: Sequence[Any]) -> Any:
        return np.stack(units)

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
        cos, sin = _tables(plan.positions)
        live = self.mirror.preview(plan)
        mass = [np.zeros(group.cells.size) for group in live]
        for index, weights in enumerate(self.layers):
            group, at = divmod(index, self.layout.layers_per_group)
            heads = (plan.rows.size, -1, TEXT.head_dim)
            cells = live[group].cells
            for stream, (keys, values) in enumerate(
                zip(self.keys[at], self.values[at], strict=True)
            ):
                y = x[stream]
                q = (y @ weights["q"]).reshape(heads)
                keys[plan.cells[group]] = rotate((y @ weights["k"]).reshape(heads), cos, sin)
                values[plan.cells[group]] = (y @ weights["v"]).reshape(heads)
                shares = attention_shares(
                    [
                        (rotate(q, *_tables(plan.positions + shift)), keys[cells[start:stop]])
                        for start, stop, shift in live[group].runs()
                    ],
                    plan.order,
                    live[group].order,
                    live[group].bias,
                    TEXT.head_dim**-0.5,
                )
                out = weighted_values(shares, values[cells])
                mass[group] += shares.sum(axis=(0, 1))
                x[stream] = y + out.reshape(len(y), -1) @ weights["o"]
        self.mirror.commit(plan)
        logits = (x[:, plan.logits] @ self.head.T).astype(np.float32)
        return StepResult(logits, tuple(mass) if plan.mass else None)

    def move(self, plan: MovePlan) -> None:
        self.mirror.check(plan)
        for pool in (self.keys, self.values):
            pool[:, :, plan.target] = pool[:, :, plan.source]
        self.mirror.commit(plan)
        for pool in (self.keys, self.values):
            pool[:, :, np.setdiff1d(plan.source, plan.target)] = np.nan

    def read(self, layer: int, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = layer % self.layout.layers_per_group
        return self.keys[at][:, cells], self.values[at][:, cells]

    def write(self, layer: int, cells: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        at = layer % self.layout.layers_per_group
        self.keys[at][:, cells], self.values[at][:, cells] = keys, values

    def restore(self, plan: RestorePlan) -> None:
        self.mirror.check(plan)
        self.mirror.commit(plan)

    def memory(self) -> MemoryReport:
        size = self.keys.nbytes + self.values.nbytes
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


def plain_model(**shape: Any) -> Model:
    """A model of both, fresh."""
    frontend = PlainFrontend(**shape)
    return Model(NumpyBackend(), frontend, TEXT, "plain", identity="seed 0", weights="f64")


def second(index: int, length: float = 1.0, audio: np.ndarray | None = None) -> UnitMedia:
    """A unit's media: the plain frontend draws its content from start time and sound."""
    return UnitMedia(float(index), index + length, audio=audio)
