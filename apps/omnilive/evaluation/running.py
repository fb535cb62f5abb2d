"""Every setting over every stream: rendered ahead, encoded once, then run setting by setting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from omni_core import Model
from omni_core.batch import Encoded, StreamBatch
from omnilive.evaluation import scenes
from omnilive.evaluation.exam import Exam
from omnilive.evaluation.marks import Marks
from omnilive.evaluation.settings import Setting
from omnilive.evaluation.sitting import Sitting, sit
from streamworld.banks import Bank


@dataclass(frozen=True)
class Outcome:
    """What came of a setting: a mark for each question, and one sitting for each batch."""

    marks: Marks
    sittings: list[Sitting]


def measure(
    settings: Sequence[Setting],
    exams: Sequence[Exam],
    bank: Bank,
    load: Callable[[int], Model],
    *,
    batch: int,
    layout: str,
    note: Callable[[str], None],
) -> list[Outcome]:
    """What came of each setting.

    Args:
        settings: policies and budgets.
        exams: streams and questions, one a seed.
        bank: what the streams are made of.
        load: the model for steps of so many streams.
        batch: most streams in step; a policy that scores by attention mass, and
            aggregation, run them one by one.
        layout: where tokens are placed.
        note: told how far it has come.
    """
    parts = [(exam, part) for exam in exams for part in _parts(exam.script.streams, batch)]
    marks: list[list[Marks]] = [[] for _ in settings]
    sittings: list[list[Sitting]] = [[] for _ in settings]
    began = time.monotonic()
    with scenes.renderer(bank) as render:
        coming = render(parts[0][0].script.take(parts[0][1]))
        for done, (exam, streams) in enumerate(parts, 1):
            media = [one.result() for one in coming]
            if done < len(parts):
                following, rows = parts[done]
                coming = render(following.script.take(rows))
            for number, (sitting, part) in _sat(settings, exam, streams, media, load, layout):
                marks[number].append(Marks.of(exam, part, sitting.right))
                sittings[number].append(sitting)
            spent = time.monotonic() - began
            left = spent / done * (len(parts) - done)
            note(
                f"seed {exam.seed}, streams {streams.start + 1} to {streams.stop} of "
                f"{exam.script.streams}: {spent:.0f} s"
                + (f", about {left:.0f} s to go" if left else "")
            )
    pairs = zip(marks, sittings, strict=True)
    return [Outcome(Marks.join(marked), sat) for marked, sat in pairs]


def _sat(
    settings: Sequence[Setting],
    exam: Exam,
    streams: slice,
    media: Sequence[scenes.Media],
    load: Callable[[int], Model],
    layout: str,
) -> Iterator[tuple[int, tuple[Sitting, slice]]]:
    together = [number for number, setting in enumerate(settings) if not setting.alone]
    alone = [number for number, setting in enumerate(settings) if setting.alone]
    groups = [(streams, together)] if together else []
    groups += [(slice(at, at + 1), alone) for at in range(streams.start, streams.stop) if alone]
    for group, numbers in groups:
        rows = media[group.start - streams.start : group.stop - streams.start]
        model, encoded = load(len(rows)), list[Encoded]()
        for number in numbers:
            setting = settings[number]
            run = StreamBatch(
                model,
                streams=len(rows),
                budget=setting.budget,
                retention=setting.policy,
                layout=layout,
                longest=exam.longest,
                aggregation=setting.aggregation,
                layers=setting.layers,
                **setting.cache,
            )
            encoded = encoded or [run.encode(unit) for unit in zip(*rows, strict=True)]
            yield number, (sit(run, encoded, exam, group), group)


def _parts(streams: int, batch: int) -> Iterator[slice]:
    """Streams in as few batches as will do, all about as large."""
    count = -(-streams // batch)
    for number in range(count):
        yield slice(streams * number // count, streams * (number + 1) // count)
