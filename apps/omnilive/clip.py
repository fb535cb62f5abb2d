"""A clip as a timeline: pictures and 16 kHz mono sound in the order of their capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.errors import MediaError
from omnilive import decoding
from omnilive.codecs import av
from omnilive.media import Media, silence


@dataclass(frozen=True)
class Clip:
    """A file with picture, sound, or both, looked through but not decoded yet.

    Attributes:
        path: the file.
        duration: seconds as the container states them, or None.
        origin: the container's time that counts as 0 here: the earliest start of the two streams.
        sound_end: the container's time at which sound ends, where it states that to the sample.
        picture, sound: what the streams are, for people; None where there is no such stream.
    """

    path: Path
    duration: float | None
    origin: float
    sound_end: float | None
    picture: str | None
    sound: str | None

    @property
    def missing(self) -> str | None:
        """What the clip lacks, ``picture`` or ``sound``."""
        if self.picture is None:
            return "picture"
        return "sound" if self.sound is None else None

    def play(self, warn: Callable[[str], None]) -> Iterator[Media]:
        """The clip's media in order of ``ready``; sound, if any, without gaps from 0 to the end.

        Raises:
            MediaError: nothing in the file can be decoded.
        """
        pictures = decoding.pictures(self.path, self.origin, warn)
        sounds = decoding.sounds(self.path, self.origin, self.sound_end, warn)
        picture = next(pictures, None) if self.picture else None
        sound = next(sounds, None) if self.sound else None
        if picture is None and sound is None:
            raise MediaError(
                f"{self.path}: neither picture nor sound can be decoded; the file is damaged"
            )
        heard = seen = 0.0
        while picture is not None or sound is not None:
            if sound is not None and (picture is None or sound.ready <= picture.ready):
                heard = sound.ready
                yield sound
                sound = next(sounds, None)
            elif picture is not None:
                if self.sound and sound is None:
                    yield from silence(heard, picture.time)
                    heard = max(heard, picture.time)
                seen = picture.stop
                yield picture
                picture = next(pictures, None)
        if self.sound:
            yield from silence(heard, seen)


def probe(path: Path | str) -> Clip:
    """Look through a clip.

    Raises:
        MediaError: not there, not readable, or without picture and sound.
    """
    path = Path(path)
    with decoding.open_container(path) as container:
        video, audio = (decoding.usable_stream(container, kind) for kind in ("video", "audio"))
        if video is None and audio is None:
            kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
            raise MediaError(
                f"{path}: no usable stream: it holds {kinds}, but picture or sound is needed"
            )
        starts = [
            float(stream.start_time * stream.time_base)
            for stream in (video, audio)
            if stream is not None and stream.start_time is not None
        ]
        length = container.duration or 0
        duration = length / av.time_base if length > 0 else None
        origin = min(starts, default=0.0)
        # MP4's edit list says what is to be played; the decoder hands out whole blocks.
        exact = "mp4" in container.format.name
        return Clip(
            path,
            duration,
            origin,
            origin + duration if exact and duration else None,
            _describe_picture(video),
            None if audio is None else f"sound at {audio.rate} Hz",
        )


def _describe_picture(video: Any) -> str | None:
    if video is None:
        return None
    rate = video.average_rate
    return f"{video.width}x{video.height}" + (f" at {float(rate):g} fps" if rate else "")
