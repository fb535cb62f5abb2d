"""Clips through an aggregated session, and what became of each second's vision tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core import Model, Recorder, Recording, Session, UnitMedia
from omni_core.aggregation import Aggregation
from omni_core.aggregation.unit import vision_tokens
from omni_core.backend import MergePlan
from omni_core.frontend.base import Cursor
from omnilive.evaluation import scenes
from omnilive.stream import open_clip
from streamworld import banks, script

BUDGET = 4096


@dataclass(frozen=True)
class Second:
    """One unit of a clip with a single frame.

    Attributes:
        frame: ``uint8[H, W, 3]``.
        shape: rows and columns of its tokens.
        group: ``int32[rows * columns]``, line by line: the first place of the token that each
            entered as, or -1 where it was left out.
    """

    frame: npt.NDArray[np.uint8]
    shape: tuple[int, int]
    group: npt.NDArray[np.int32]

    @property
    def entered(self) -> int:
        """Tokens that entered."""
        return int(np.unique(self.group[self.group >= 0]).size)

    @property
    def left_out(self) -> int:
        """Tokens that were left out."""
        return int((self.group < 0).sum())


def follow(model: Model, media: Iterable[UnitMedia], rule: Aggregation) -> list[Second]:
    """What became of each unit that has a picture, by the recording of a session."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "run")
        with Session(
            model, budget=BUDGET, retention="fifo", aggregation=rule, recorder=recorder
        ) as session:
            for unit in media:
                session.append(unit)
        return list(_seconds(Recording(Path(folder) / "run"), model))


def _seconds(recording: Recording, model: Model) -> Iterator[Second]:
    media: UnitMedia | None = None
    merge: MergePlan | None = None
    for entry in recording.entries():
        if entry.media is not None:
            yield from _second(model, media, merge)
            media, merge = entry.media, None
        elif isinstance(entry.plan, MergePlan):
            merge = entry.plan
    yield from _second(model, media, merge)


def _second(model: Model, media: UnitMedia | None, merge: MergePlan | None) -> Iterator[Second]:
    if media is None or not media.frames:
        return
    unit, _ = model.frontend.unit(media, Cursor())
    _, high, wide = unit.vision[0].grid
    tokens = vision_tokens(unit.block).size
    side = int(np.sqrt(high * wide / tokens))
    group = np.arange(tokens, dtype=np.int32)
    if merge is not None:
        group = np.full(tokens, -1, np.int32)
        seen = merge.source < tokens
        first = np.full(len(merge), tokens, np.int32)
        np.minimum.at(first, merge.target, merge.source)
        group[merge.source[seen]] = first[merge.target[seen]]
    yield Second(media.frames[0], (high // side, wide // side), group)


def held_still(media: Sequence[UnitMedia]) -> Iterator[UnitMedia]:
    """The clip with its first picture all the time."""
    for unit in media:
        yield UnitMedia(unit.start, unit.stop, media[0].frames, unit.audio)


def row(name: str, seconds: Sequence[Second]) -> dict[str, Any]:
    """For JSON: a clip's tokens in and out."""
    seen = sum(second.group.size for second in seconds)
    entered = sum(second.entered for second in seconds)
    left_out = sum(second.left_out for second in seconds)
    return {
        "part": "clip",
        "clip": name,
        "seconds": len(seconds),
        "seen": seen,
        "entered": entered,
        "shown": left_out,
        "merged": seen - entered - left_out,
        "share": round(entered / seen, 5),
        "by_second": [second.entered for second in seconds],
    }


def clips(
    model: Model, sources: Sequence[Path], seconds: int, rule: Aggregation
) -> Iterator[tuple[str, list[Second]]]:
    """Each clip by name, then the first one again with a picture that does not change."""
    for source in sources:
        media = list(islice(open_clip(source, model), seconds))
        yield source.name, follow(model, media, rule)
        if source == sources[0]:
            yield f"{source.name}, held still", follow(model, held_still(media), rule)


def world(model: Model, streams: int, units: int, rule: Aggregation) -> dict[str, Any]:
    """Streams of the stream world, whose script says when the scene changes."""
    bank = scenes.load(banks.SHIPPED, "test")
    written = script.write(1, streams, units, "test")
    tokens = {"stays": 0, "changes": 0}
    left_out, entered = dict(tokens), dict(tokens)
    for stream in range(streams):
        media = scenes.stream(written.take(slice(stream, stream + 1)), bank)
        for age, second in zip(written.age[stream], follow(model, media, rule), strict=True):
            kind = "stays" if age else "changes"
            tokens[kind] += second.group.size
            left_out[kind] += second.left_out
            entered[kind] += second.entered
    return {
        "part": "world",
        "streams": streams,
        "units": units,
        **{f"seen_{kind}": count for kind, count in tokens.items()},
        **{f"entered_{kind}": count for kind, count in entered.items()},
        **{f"shown_{kind}": count for kind, count in left_out.items()},
    }
