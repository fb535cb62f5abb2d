"""Unit traces: how many tokens of what a model's stream brings, without the media behind them.

Three families of shapes as their public processors make them, and recordings read back. A trace is
a frontend of :mod:`omni_core.frontend.base`, so the real session runs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from omni_core.backend import StepPlan
from omni_core.errors import RecordingError
from omni_core.frontend.base import Bracket, Cursor, UnitMedia, UnitTokens
from omni_core.model_config import TextConfig
from omni_core.recording import Recording
from omni_core.units import EMBEDDED, Modality, Role, TokenBlock

PREFIX = 48
"""Tokens of the system prompt in synthetic traces."""
ANSWER = 32
"""Tokens of the longest answer."""


def text_config(layers: int, q_heads: int, kv_heads: int, hidden: int) -> TextConfig:
    """A backbone's shape, as far as the cache depends on it."""
    return TextConfig(
        vocab=2,
        hidden=hidden,
        intermediate=hidden,
        layers=layers,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=128,
        rms_eps=1e-6,
        rope_theta=1e6,
        mrope_section=(16, 24, 24),
        max_positions=32768,
        tied=False,
    )


MINICPM_45 = text_config(36, 32, 8, 4096)
QWEN_7B = text_config(28, 28, 4, 3584)


@dataclass(frozen=True)
class Shape:
    """What one unit of a stream brings.

    Attributes:
        vision: vision tokens of a unit; of several, each unit draws one.
        audio: audio tokens of a unit.
        seconds: length of a unit.
        brackets: delimiters stand around a whole turn and positions run at 25 a second (the
            2-second template of Qwen2.5-Omni); else around each span, one position a token.
    """

    model: str
    text: TextConfig
    vision: tuple[int, ...]
    audio: int
    seconds: float = 1.0
    brackets: bool = False

    @property
    def name(self) -> str:
        """The model and its vision tokens a unit."""
        low, high = min(self.vision), max(self.vision)
        return f"{self.model} {low}" + (f"-{high}" if high > low else "") + f"+{self.audio}"

    @property
    def largest(self) -> int:
        """Tokens of the largest unit, delimiters included."""
        return max(self.vision) + self.audio + (2 if self.brackets else 4)


SLICES = tuple(range(64, 641, 64))
SHAPES = (
    Shape("MiniCPM-o-4.5", MINICPM_45, (64,), 10),
    Shape("MiniCPM-o-4.5", MINICPM_45, (640,), 10),
    Shape("MiniCPM-o-4.5", MINICPM_45, SLICES, 10),
    Shape("MiniCPM-o-2.6", QWEN_7B, (64,), 25),
    Shape("MiniCPM-o-2.6", QWEN_7B, (640,), 25),
    Shape("MiniCPM-o-2.6", QWEN_7B, SLICES, 25),
    Shape("Qwen2.5-Omni-7B", QWEN_7B, (144,), 50, 2.0, True),
    Shape("Qwen2.5-Omni-7B", QWEN_7B, (768,), 50, 2.0, True),
    Shape("Qwen2.5-Omni-7B", QWEN_7B, (2304,), 50, 2.0, True),
)
"""MiniCPM-o: 64 tokens a slice, one slice to ten. Qwen2.5-Omni: two frames of a small size, of the
largest default size, or of 1344 by 1344 pixels every 2 seconds."""


class Trace:
    """A stream of one shape with a question now and then. Pure: everything follows from the seed.

    Attributes:
        units: how many units it has.
    """

    fps, stop_tokens = 1.0, frozenset[int]()

    def __init__(self, shape: Shape, units: int, seed: int = 0, every: int = 40) -> None:
        self.shape, self.name, self.text_config, self.units = shape, shape.name, shape.text, units
        self.seconds, self.largest_unit = shape.seconds, shape.largest
        generator = np.random.default_rng([seed, units])
        self._vision = generator.choice(shape.vision, units)
        asked = generator.random(units) < 1 / every
        self._questions = np.where(asked, generator.integers(8, 33, units), 0)
        self._answers = generator.integers(1, ANSWER + 1, units)
        self._spans: dict[tuple[Modality, int], TokenBlock] = {}

    def question_after(self, index: int) -> tuple[int, int] | None:
        """Tokens of the question after a unit and of its answer; None where none is asked."""
        asked = int(self._questions[index])
        return (asked, int(self._answers[index])) if asked else None

    def open(self, system: str) -> tuple[TokenBlock, Cursor]:
        """A prefix of the usual length, whatever the system prompt says."""
        return TokenBlock.text([0] * PREFIX, 0, Role.PREFIX), Cursor(PREFIX)

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        """The unit that starts at that time."""
        index = round(media.start / self.seconds)
        shape, position = self.shape, cursor.position
        vision = self._span(Modality.VISION, int(self._vision[index]))
        audio = self._span(Modality.AUDIO, shape.audio)
        if shape.brackets:
            edges = [] if cursor.bracket else [edge(Modality.VISION, Role.BRACKET)]
            edges += [] if cursor.bracket else [edge(Modality.AUDIO, Role.BRACKET)]
            block = TokenBlock.join([*edges, vision, audio])
            last = position + round(25 * shape.seconds)
            block = at(block, np.minimum(np.arange(len(block)), last - 1 - position) + position)
            return UnitTokens(block), Cursor(last, Bracket(position, True, True))
        image, whole = (edge(sense, Role.DELIMITER) for sense in (Modality.VISION, Modality.AUDIO))
        block = TokenBlock.join([whole, image, vision, image, audio, whole])
        block = at(block, position + np.arange(len(block)))
        return UnitTokens(block), Cursor(position + len(block))

    def question(self, text: str, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """As many tokens as the text has characters; closes an open bracket."""
        block = TokenBlock.text([0] * len(text), cursor.position, Role.PROMPT)
        return block, Cursor(cursor.position + len(block))

    def answer(self, token: int, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """One token."""
        block = TokenBlock.text([token], cursor.position, Role.GENERATED)
        return block, Cursor(cursor.position + 1)

    def resume(self, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """Four tokens of markup."""
        block = TokenBlock.text([0] * 4, cursor.position, Role.PROMPT)
        return block, Cursor(cursor.position + 4)

    def text(self, ids: list[int]) -> str:
        """A character a token."""
        return "." * len(ids)

    def _span(self, sense: Modality, count: int) -> TokenBlock:
        if (sense, count) not in self._spans:
            self._spans[sense, count] = span(sense, count)
        return self._spans[sense, count]


class RecordedTrace(Trace):
    """The units and turns of a recording that ``omnilive live --record`` made.

    Attributes:
        budget: cells of the recorded session.
    """

    def __init__(self, folder: Path) -> None:
        """Read a recording.

        Raises:
            RecordingError: not readable, or without a unit.
        """
        recording = Recording(folder)
        arena, self.budget = recording.meta["arena"], int(recording.meta["budget"])
        layers = arena["groups"] * arena["layers_per_group"]
        config = text_config(layers, arena["kv_heads"], arena["kv_heads"], 1)
        self.name, self.seconds = folder.name, 1.0
        self.text_config = replace(config, head_dim=arena["head_dim"])
        steps, self._turns = _steps(recording)
        self._prefix = sum(plan.order.size for plan in steps[0])
        self._blocks = [_unit(plans) for plans in steps[1:]]
        self.units = len(self._blocks)
        self.largest_unit = max(map(len, self._blocks), default=0)
        if not self.largest_unit:
            raise RecordingError(f"{folder}: no unit with vision or audio; record a longer stream")

    def question_after(self, index: int) -> tuple[int, int] | None:
        """The turn that was recorded after a unit."""
        turn = self._turns[index]
        return None if turn is None else (turn[0], max(1, min(turn[1], ANSWER)))

    def open(self, system: str) -> tuple[TokenBlock, Cursor]:
        """A prefix as long as the recorded one."""
        return TokenBlock.text([0] * self._prefix, 0, Role.PREFIX), Cursor(self._prefix)

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        """The recorded unit."""
        block = self._blocks[round(media.start / self.seconds)]
        if not len(block):
            return UnitTokens(block), cursor
        local = block.positions - block.positions.min()
        block = replace(block, positions=(local + cursor.position).astype(np.int32))
        return UnitTokens(block), Cursor(cursor.position + int(local.max()) + 1)


def span(sense: Modality, count: int) -> TokenBlock:
    """Content of one sense; positions are still to be set."""
    block = TokenBlock.text([EMBEDDED] * count, 0, Role.CONTENT)
    kind = np.full(count, sense, np.int8)
    return replace(block, modality=kind, sense=kind, rows=np.arange(count, dtype=np.int32))


def edge(sense: Modality, role: Role) -> TokenBlock:
    """A delimiter of one sense."""
    return replace(TokenBlock.text([0], 0, role), sense=np.full(1, sense, np.int8))


def at(block: TokenBlock, positions: np.ndarray) -> TokenBlock:
    """The same tokens at other positions, ``[T]``."""
    return replace(block, positions=np.tile(positions.astype(np.int32), (3, 1)))


def _steps(recording: Recording) -> tuple[list[list[StepPlan]], list[tuple[int, int] | None]]:
    """The steps of the prefix and of each unit, and the turn after each unit as token counts."""
    units: list[list[StepPlan]] = [[]]
    turns: list[tuple[int, int] | None] = []
    for entry in recording.entries():
        plan = entry.plan
        if entry.media is not None:
            units.append([])
            turns.append(None)
        elif isinstance(plan, StepPlan):
            if not turns or (plan.rows >= 0).any():
                units[-1].append(plan)
            elif turns[-1] is None:
                turns[-1] = (plan.order.size, 0)
            else:
                asked, answered = turns[-1]
                turns[-1] = (asked, answered + plan.order.size)
    return units, turns


def _unit(plans: Sequence[StepPlan]) -> TokenBlock:
    """A unit's tokens from what its plans tell.

    Vision comes first and has places in the picture, sound has times alone. Text that closes the
    unit too stands around its spans; text at the front alone opens a turn.
    """
    if not plans:
        return TokenBlock.join([])
    rows = np.concatenate([plan.rows for plan in plans])
    positions = np.concatenate([plan.positions for plan in plans], axis=1)
    text = rows < 0
    placed = np.flatnonzero(~text & (positions != positions[0]).any(axis=0))
    heard = np.arange(rows.size) > (int(placed[-1]) if placed.size else -1)
    modality = np.where(heard, Modality.AUDIO, Modality.VISION).astype(np.int8)
    content = np.flatnonzero(~text)
    following = np.searchsorted(content, np.arange(rows.size)).clip(max=content.size - 1)
    sense = np.where(text, modality[content[following]], modality)
    edges = Role.DELIMITER if text[-1] else Role.BRACKET
    offset = np.zeros(rows.size, np.int32)
    for kind in Modality:
        mine = ~text & (modality == kind)
        offset[mine] = np.arange(int(mine.sum()))
    return TokenBlock(
        np.where(text, 0, EMBEDDED).astype(np.int32),
        rows,
        positions,
        np.where(text, Modality.TEXT, modality).astype(np.int8),
        sense,
        np.where(text, edges, Role.CONTENT).astype(np.int8),
        offset,
    )
