"""A clip as units of the stream."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from omni_core import Model, UnitMedia
from omni_core.frontend.base import SAMPLE_RATE
from omni_core.frontend.framing import UnitFramer
from omnilive.clip import Clip, probe
from omnilive.decoding import Warn
from omnilive.media import Media, Picture

_LARGEST_PIECE = 1.0


def open_clip(path: Path | str, like: Model) -> Iterator[UnitMedia]:
    """A clip's units, decoded as they are taken, of the length and frame rate that a model wants.

    A clip without sound gives units whose ``audio`` is None; the last unit keeps its own length.

    Raises:
        MediaError: not readable, or without picture and sound; while reading, if nothing in it can
            be decoded.
    """
    clip = probe(path)
    framer = framer_for(clip, like, block=True)
    return _units(timeline(clip, logging.getLogger("omnilive").warning), framer)


def framer_for(clip: Clip, model: Model, *, block: bool, start: float = 0.0) -> UnitFramer:
    """A framer for a clip's streams and a model's units, from second ``start`` of the stream."""
    return UnitFramer(
        model.frontend.seconds,
        model.frontend.fps,
        picture=clip.picture is not None,
        sound=clip.sound is not None,
        start=start,
        block=block,
    )


def timeline(
    clip: Clip, warn: Warn, loop: int = 1, duration: float | None = None, start: float = 0.0
) -> Iterator[Media]:
    """A clip's media, played ``loop`` times in a row, or over and over for ``duration`` seconds.

    The clip begins at second ``start`` of the stream.
    """
    base, turn = start, 0
    last = None if duration is None else start + duration
    missing = clip.missing
    if missing:
        warn(f"{clip.path}: no {missing}; the stream goes on without it")
    while turn < loop or last is not None:
        end = base
        for item in clip.play(warn if turn == 0 else _unheard):
            item = replace(item, time=base + item.time)
            end = max(end, item.stop)
            if last is None or item.stop <= last:
                yield item
            elif item.time < last:
                yield _shortened(item, last)
            elif item.time > last + _LARGEST_PIECE:
                break
        if last is not None and end >= last:
            return
        base, turn = end, turn + 1


def push(framer: UnitFramer, item: Media) -> bool:
    """Hand one piece of media over; False once the framer is closed."""
    if isinstance(item, Picture):
        return framer.push_frame(item.time, item.rgb)
    return framer.push_sound(item.time, item.samples)


def _units(media: Iterator[Media], framer: UnitFramer) -> Iterator[UnitMedia]:
    end = 0.0
    for item in media:
        push(framer, item)
        end = max(end, item.stop)
        yield from _waiting(framer)
    framer.end_picture(end)
    framer.close()
    yield from _waiting(framer)


def _waiting(framer: UnitFramer) -> Iterator[UnitMedia]:
    while (unit := framer.pop(0)) is not None:
        yield unit


def _shortened(item: Media, stop: float) -> Media:
    if isinstance(item, Picture):
        return replace(item, length=stop - item.time)
    return replace(item, samples=item.samples[: round((stop - item.time) * SAMPLE_RATE)])


def _unheard(_: str) -> None:
    """What a clip warns of at its first turn need not be said again."""
