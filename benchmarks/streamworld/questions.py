"""Questions about streams, with their one right answer, drawn for whole batches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamworld import spec
from streamworld.asking import ASKS
from streamworld.script import SPLITS, Script
from streamworld.seen import Asked, Seen
from streamworld.sentences import FORMS, filled

Ints = npt.NDArray[Any]

ASK = {(ask.kind, ask.topic): number for number, ask in enumerate(ASKS)}
"""Number of each (kind, topic)."""
_FALLBACK = ASK["now", "thing"]


@dataclass(frozen=True)
class Questions:
    """``Q`` questions about each of ``S`` streams.

    Attributes:
        ask: index into ``ASKS``: kind and topic, ``int16[S, Q]``.
        form: which of its sentences, ``int16[S, Q]``; -1 where it is spoken in the stream.
        slots: what fills the sentence's gaps, ``int16[S, Q, 2]``.
        unit: asked when this unit has ended, ``int32[S, Q]``.
        evidence: the unit that holds the answer, -1 where there is no one unit, ``int32[S, Q]``.
        answer: codes of ``spec.ANSWERS``, -1 for no second word, ``int16[S, Q, 2]``.
    """

    ask: Ints
    form: Ints
    slots: Ints
    unit: Ints
    evidence: Ints
    answer: Ints

    @property
    def lag(self) -> Ints:
        """Units between evidence and question, -1 where no one unit holds it."""
        return np.where(self.evidence < 0, -1, self.unit - self.evidence)

    def kind(self, stream: int, slot: int) -> tuple[str, str]:
        """Kind and topic of one question; a spoken one's are those of what is asked."""
        ask = ASKS[int(self.ask[stream, slot])]
        return ask.kind, ask.topic

    def text(self, stream: int, slot: int) -> str:
        """The question's sentence; empty where it is spoken in the stream."""
        ask, form = int(self.ask[stream, slot]), int(self.form[stream, slot])
        return "" if form < 0 else filled(ASKS[ask], form, self.slots[stream, slot])

    def answer_text(self, stream: int, slot: int) -> str:
        """The answer in words."""
        return answer_words(self.answer[stream, slot])


def answer_words(codes: Sequence[int] | Ints) -> str:
    """Answer codes as text."""
    if codes[0] == spec.ANSWER[spec.OUTSIDE]:
        return spec.OUTSIDE_LINE
    return " ".join(spec.ANSWERS[code] for code in codes if code >= 0)


def draw(
    script: Script,
    seed: int,
    per_stream: int,
    *,
    asked_at: Sequence[int] = (-1,),
    kinds: Sequence[tuple[str, str]] | None = None,
    mix: Mapping[tuple[str, str], float] | None = None,
) -> Questions:
    """Questions for every stream; slot ``q`` is asked after unit ``asked_at[q % len(asked_at)]``.

    Args:
        script: the streams.
        seed: of the draw.
        per_stream: questions a stream.
        asked_at: units, counted from the end where negative: one layout for the whole batch.
        kinds: kind and topic of each slot, in place of a draw; where a stream cannot be asked
            that, its slot asks what is on screen now.
        mix: weights by kind and topic, in place of each ask's own.

    The first slot of a stream that ends in a spoken question is that question, if it is asked at
    the stream's end.
    """
    rng = np.random.default_rng([seed, SPLITS.index(script.split), script.units, per_stream])
    weight = np.asarray(
        [ask.weight if mix is None else mix.get((ask.kind, ask.topic), 0.0) for ask in ASKS]
    )
    made = _empty(script.streams, per_stream)
    for number, place in enumerate(asked_at):
        unit = place % script.units
        slots = np.arange(number, per_stream, len(asked_at))
        rows = np.repeat(np.arange(script.streams), slots.size)
        columns = np.tile(slots, script.streams)
        made.unit[rows, columns] = unit
        left = np.arange(rows.size)
        for attempt in range(8):
            if kinds is None:
                ask = rng.choice(len(ASKS), left.size, p=weight / weight.sum())
            else:
                ask = np.asarray([ASK[kind] for kind in kinds])[columns[left]]
            able = _ask(made, script, rng, unit, rows[left], columns[left], ask, attempt == 0)
            left = left[~able]
            if not left.size:
                break
        ask = np.full(left.size, _FALLBACK)
        _ask(made, script, rng, unit, rows[left], columns[left], ask, False)
    _put_spoken(made, script, rng)
    return made


def records(script: Script, questions: Questions, stream: int) -> list[dict[str, Any]]:
    """One stream's questions in the shape of public streaming benchmarks, in order of time."""
    found = []
    for slot in range(questions.unit.shape[1]):
        kind, topic = questions.kind(stream, slot)
        seconds = int(questions.unit[stream, slot]) + 1
        minutes, second = divmod(seconds, 60)
        text = questions.text(stream, slot)
        found.append(
            {
                "time_stamp": f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}",
                "seconds": seconds,
                "question": text or spec.SPOKEN_FORMS[int(script.spoken[stream])][2],
                "spoken": not text,
                "answer": questions.answer_text(stream, slot),
                "kind": kind,
                "topic": topic,
                "lag": int(questions.lag[stream, slot]),
            }
        )
    return sorted(found, key=lambda record: record["seconds"])


def _empty(streams: int, per_stream: int) -> Questions:
    size = (streams, per_stream)
    return Questions(
        np.full(size, _FALLBACK, np.int16),
        np.zeros(size, np.int16),
        np.full((*size, 2), -1, np.int16),
        np.zeros(size, np.int32),
        np.full(size, -1, np.int32),
        np.full((*size, 2), -1, np.int16),
    )


def _ask(
    made: Questions,
    script: Script,
    rng: np.random.Generator,
    unit: int,
    rows: Ints,
    columns: Ints,
    ask: Ints,
    vain: bool,
) -> npt.NDArray[np.bool_]:
    """Fill the places where the ask can be put; whether each was."""
    done = np.zeros(rows.size, bool)
    for number in np.unique(ask):
        here = np.flatnonzero(ask == number)
        seen = Seen.of(script, rows[here], unit, vain=vain)
        asked: Asked = ASKS[number].put(seen, rng)
        able = np.flatnonzero(asked.valid)
        where = rows[here[able]], columns[here[able]]
        made.ask[where] = number
        made.form[where] = rng.integers(0, len(FORMS[ASKS[number].sentences]), able.size)
        made.slots[where] = asked.slots[able]
        made.answer[where] = asked.answer[able]
        made.evidence[where] = asked.evidence[able]
        done[here[able]] = True
    return done


def _put_spoken(made: Questions, script: Script, rng: np.random.Generator) -> None:
    rows = np.flatnonzero((script.spoken >= 0) & (made.unit[:, 0] == script.units - 1))
    for number, (kind, topic, _) in enumerate(spec.SPOKEN_FORMS):
        here = rows[script.spoken[rows] == number]
        if not here.size:
            continue
        ask = ASK[kind, topic]
        seen = Seen.of(script, here, script.units - 1)
        asked = ASKS[ask].put(seen, rng)
        if not asked.valid.all():
            raise ValueError(f"a stream ends in {kind} {topic}, which it cannot be asked")
        made.ask[here, 0], made.form[here, 0] = ask, -1
        made.slots[here, 0], made.answer[here, 0] = asked.slots, asked.answer
        made.evidence[here, 0] = asked.evidence
