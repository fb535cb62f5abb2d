"""A batch of streams with their questions, made on the CPU: integers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omni_core.frontend.qwen2_5_omni import QwenOmniFrontend
from streamworld import asking, questions, script, spec, tokens
from training.augment import CHANCES
from training.layout import arrange, frontend, layout
from training.packing import Spec, pack, unpack, upload
from training.shape import SQUARE, Shape, config
from training.thinning import delimiters_alone, thin

ROOM = 16
"""Tokens of a stream for each of its questions, markup and answer included; most need less."""
TURN = 20
"""Tokens of a turn between units: a question, its answer and the markup."""
_POOL = 16
EARLY = 0.5
"""Weight of the answer at the word that a question asks for."""

Ints = npt.NDArray[Any]


PUSHED = {"when": 1.8, "after": 1.8, "did": 1.5, "nth": 2.0, "count": 1.4, "before digit": 2.0}
"""How much more often training asks for what is hard to find or to add up."""
MIX = {
    (ask.kind, ask.topic): ask.weight
    * PUSHED.get(f"{ask.kind} {ask.topic}", PUSHED.get(ask.kind, 1.0))
    for ask in asking.ASKS
}


@dataclass(frozen=True)
class Plan:
    """What a batch is: the same plan and seed give the same batch.

    ``long`` is the share of spoken questions that lie anywhere in three seconds. ``size`` is the
    height and width of the frames. ``thin`` is the share of streams whose questions see little of
    old units; ``recent`` leaves those of all streams older than so many units with their delimiters
    alone.
    """

    units: int
    streams: int
    questions: int
    split: str = "train"
    spoken: float = 0.15
    long: float = 0.0
    mix: Mapping[tuple[str, str], float] | None = None
    turns: int = 0
    size: tuple[int, int] = SQUARE
    thin: float = 0.0
    recent: int | None = None


@dataclass(frozen=True)
class Batch:
    """Arrays of ``N = S * U`` units and of ``S`` streams with ``Q`` branches in ``B`` tokens.

    With the tokens of a stream: ``T`` in all, among them ``K`` of turns between units.

    Attributes:
        units: the fields of the script's units, each ``[N]`` or ``[N, dice]``.
        chance: ``float32[N, 16]`` for changes to the spectrograms.
        order, positions, first, ends, visible, owner: the arrangement of the streams.
        recent, kept: what questions see of old units.
        turns: ``int32[S, K]``, tokens of the turns between units.
        ids: ``int32[S, B]``, tokens of the branches, one branch after the other.
        branch: ``int32[S, B]``, which branch a token is of; ``Q`` for padding.
        offset: ``int32[S, B]``, its place in its branch.
        targets: ``int32[S, B]``, the token that should follow.
        weights: ``float32[S, B]``, what a wrong one costs.
        final: ``bool[S, B]``, where the answer is read.
        asked: ``bool[S, Q]``, false for a question that found no room.
        unit: ``int32[S, Q]``, the unit after which it is asked.
        ask: index into ``asking.ASKS``, ``int32[S, Q]``.
        lag: units since the evidence or -1, ``int32[S, Q]``.
        heard: whether it is asked in the stream's own sound, ``bool[S, Q]``.
        size: height and width of the frames, known without the device.
    """

    units: dict[str, Any]
    chance: Any
    order: Any
    positions: Any
    first: Any
    ends: Any
    visible: Any
    owner: Any
    recent: Any
    kept: Any
    turns: Any
    ids: Any
    branch: Any
    offset: Any
    targets: Any
    weights: Any
    final: Any
    asked: Any
    unit: Any
    ask: Any
    lag: Any
    heard: Any
    size: tuple[int, int] = SQUARE

    def tensors(self) -> dict[str, Any]:
        """All arrays by name, those of the units as ``units.name``.

        ``size`` is the shape of an array without elements, so that it is in a packed batch's spec.
        """
        named = {f"units.{name}": array for name, array in self.units.items()}
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "units"}
        return named | rest | {"size": np.empty((*self.size, 0), np.int32)}

    @classmethod
    def of(cls, tensors: dict[str, Any]) -> Batch:
        """From :meth:`tensors`."""
        units = {n[6:]: array for n, array in tensors.items() if n.startswith("units.")}
        rest = {n: array for n, array in tensors.items() if not n.startswith("units.")}
        height, width, _ = rest.pop("size").shape
        return cls(units, **rest, size=(height, width))

    def to(self, device: torch.device) -> Batch:
        """The same as tensors on a device, where integers are int32."""
        buffer, spec = pack(self.tensors())
        return Batch.of(unpack(upload(buffer, device), spec))


def make_packed(plan: Plan, seed: int) -> tuple[npt.NDArray[np.uint8], Spec]:
    """:func:`make` as bytes."""
    return pack(make(plan, seed).tensors())


def make(plan: Plan, seed: int) -> Batch:
    """Write scripts, draw questions and lay the branches out."""
    written = script.write(
        seed, plan.streams, plan.units, plan.split, spoken=plan.spoken, long=plan.long
    )
    rng = np.random.default_rng([seed, 17])
    moments = _moments(rng, plan)
    drawn = questions.draw(written, seed, plan.questions, asked_at=moments, mix=plan.mix)
    flat = written.flat()
    units = {field.name: getattr(flat, field.name) for field in fields(flat)}
    chance = rng.random((len(flat), CHANCES), np.float32)
    places = np.sort(rng.integers(0, plan.units, plan.turns))
    laid = layout(world_frontend(), plan.size)
    turns = spoken_turns(written, seed, places.tolist(), laid.resume)
    streams = arrange(laid, plan.units, places.tolist(), TURN)
    arranged = (getattr(streams, field.name) for field in fields(streams))
    packed = branches(drawn)
    if plan.recent is None:
        thinned = thin(rng, plan.thin, plan.streams, laid, streams)
    else:
        thinned = delimiters_alone(plan.recent, plan.streams, laid, streams)
    seen = thinned.recent, thinned.kept
    rest = drawn.unit, drawn.ask, drawn.lag, drawn.form < 0, plan.size
    return Batch(units, chance, *arranged, *seen, turns, *packed, *rest)


@cache
def world_frontend() -> QwenOmniFrontend:
    """The frontend of any model of the stream world: layouts do not depend on its size."""
    vocabulary = tokens.tokenizer().get_vocab()
    return frontend(config(Shape(), vocabulary, len(vocabulary)))


def spoken_turns(
    written: script.Script, seed: int, places: Sequence[int], resume: Ints
) -> npt.NDArray[np.int32]:
    """A question with its right answer for each place, ``int32[S, places * TURN]``.

    Of many questions one is taken that has the very length; where there is none, line feeds fill
    up a shorter one.
    """
    if not places:
        return np.zeros((written.streams, 0), np.int32)
    drawn = questions.draw(written, seed + 1, len(places) * _POOL, asked_at=tuple(places))
    asked, lengths, answers, answer_lengths = tokens.encode(drawn)
    room = TURN - resume.size + 1
    # The end of the answer is the first token of what opens the next turn.
    total = np.where(drawn.form < 0, TURN, lengths + answer_lengths)
    made = np.full((written.streams, len(places), TURN), resume[-1], np.int32)
    for number in range(len(places)):
        here = slice(number, None, len(places))
        fits = np.where(total[:, here] <= room, total[:, here], 0)
        best = number + fits.argmax(axis=1) * len(places)
        for stream, slot in enumerate(best):
            question = asked[stream, slot, : lengths[stream, slot]]
            answer = answers[stream, slot, : answer_lengths[stream, slot] - 1]
            text = np.concatenate([question, answer, resume])
            made[stream, number, : text.size] = text
    return made.reshape(written.streams, -1)


def _moments(rng: np.random.Generator, plan: Plan) -> tuple[int, ...]:
    """Units after which to ask: half of the questions come at the end, the others anywhere."""
    early = max(1, plan.questions // 6)
    spread = rng.integers(0, plan.units, early)
    return (-1,) * early + tuple(int(unit) for unit in spread)


def branches(drawn: questions.Questions) -> tuple[Ints, ...]:
    """Branches in a row: :class:`Batch`'s fields from ``ids`` to ``asked``."""
    asked, lengths, answers, answer_lengths = tokens.encode(drawn)
    total = lengths + answer_lengths
    streams, count = total.shape
    room = -(-count * ROOM // 8) * 8 + 16
    start = np.cumsum(total, axis=1) - total
    fits = start + total <= room
    line = np.arange(int(total.max()))
    stream, branch, offset = np.nonzero((line < total[:, :, None]) & fits[:, :, None])
    place = start[stream, branch] + offset
    after = offset - lengths[stream, branch]
    question = asked[stream, branch, np.minimum(offset, asked.shape[2] - 1)]
    answer = answers[stream, branch, np.clip(after, 0, answers.shape[2] - 1)]

    def packed(values: Any, kind: Any, rest: int = 0) -> Ints:
        made = np.full((streams, room), rest, kind)
        made[stream, place] = values
        return made

    ids = np.where(after < 0, question, answer)
    final = (after >= -1) & (after < answer_lengths[stream, branch] - 1)
    follows = answers[stream, branch, np.clip(after + 1, 0, answers.shape[2] - 1)]
    early = _WORD_TOKENS[ids] & (after < -1)
    weights = np.where(final, 1.0, np.where(early, EARLY, 0.0))
    return (
        packed(ids, np.int32),
        packed(branch, np.int32, count),
        packed(offset, np.int32),
        packed(follows, np.int32),
        packed(weights, np.float32),
        packed(final, np.bool_),
        fits,
    )


def _word_tokens() -> Ints:
    """Which tokens are a spoken word's or a thing's, inside a sentence."""
    marked = np.zeros(tokens.tokenizer().get_vocab_size(), bool)
    for word in (*spec.WORDS, *spec.COLOURS, *spec.SHAPES, *spec.CLOTHES, *spec.DIGITS):
        marked[tokens.word_id(word)] = True
    return marked


_WORD_TOKENS = _word_tokens()
