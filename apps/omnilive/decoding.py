"""Decoding a file's pictures and sounds, each with a reader of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.errors import MediaError
from omni_core.frontend.base import SAMPLE_RATE
from omni_core.frontend.framing import LONGEST_JUMP
from omnilive.codecs import av
from omnilive.media import Picture, Sound, silence

# Containers round timestamps, some to 1 ms; below this, sound is taken as unbroken.
_JITTER = SAMPLE_RATE // 20
_PADDING = SAMPLE_RATE // 10

Warn = Callable[[str], None]
_Piece = tuple[float | None, npt.NDArray[np.float32]]


def open_container(path: Path) -> Any:
    """Open a file.

    Raises:
        MediaError: not there, or not readable.
    """
    if not path.exists():
        raise MediaError(f"{path}: no such file; give --source a video or sound file")
    if not path.is_file():
        raise MediaError(f"{path}: not a file; give --source a video or sound file")
    try:
        return av.open(str(path))
    except (av.FFmpegError, OSError, ValueError) as error:
        raise MediaError(f"{path}: not readable as a clip: {_reason(error)}") from None


def usable_stream(container: Any, kind: str) -> Any:
    """The first ``video`` or ``audio`` stream to decode, cover pictures left out, or None."""
    for stream in getattr(container.streams, kind):
        cover = bool(stream.disposition & av.stream.Disposition.attached_pic)
        # A stream that this FFmpeg has no decoder for has no codec context.
        if stream.codec_context is not None and not cover:
            return stream
    return None


def pictures(path: Path, origin: float, warn: Warn) -> Iterator[Picture]:
    """Frames, upright and of square pixels, at seconds from the container's time ``origin``.

    Raises:
        MediaError: timestamps that leap by over an hour.
    """
    last, length, stretch = -1.0, 0.04, _pixel_shape(path)
    for frame in _decoded(path, "video", warn):
        if frame.duration and frame.time_base:
            length = float(frame.duration * frame.time_base)
        time = last + length if frame.time is None else frame.time - origin
        if time <= last or time < 0:
            continue
        _check_leap(path, "picture", last, time)
        last = time
        image = frame.to_ndarray(format="rgb24", width=round(frame.width * stretch))
        rgb = np.rot90(image, round(frame.rotation / 90))
        yield Picture(time, np.ascontiguousarray(rgb), length)


def _pixel_shape(path: Path) -> float:
    """Width of the picture's pixels over their height, as DVDs and some cameras have it other."""
    with open_container(path) as container:
        ratio = usable_stream(container, "video").sample_aspect_ratio
    # What lies beyond is no camera's, but a damaged header.
    return float(ratio) if ratio and 0.25 <= ratio <= 4 else 1.0


def sounds(path: Path, origin: float, end: float | None, warn: Warn) -> Iterator[Sound]:
    """Sound from second 0 on without a gap: pauses in the file's timestamps become silence.

    ``end`` is the container's time at which it says that sound ends, or None if it does not.

    Raises:
        MediaError: timestamps that leap by over an hour.
    """
    done = 0
    for time, samples in _unpadded(_resampled(path, warn), end):
        ahead = 0 if time is None else round((time - origin) * SAMPLE_RATE) - done
        if ahead > _JITTER:
            _check_leap(path, "sound", done / SAMPLE_RATE, (done + ahead) / SAMPLE_RATE)
            yield from silence(done / SAMPLE_RATE, (done + ahead) / SAMPLE_RATE)
            done += ahead
        elif ahead < -_JITTER:
            samples = samples[-ahead:]
        if samples.size:
            yield Sound(done / SAMPLE_RATE, samples)
            done += samples.size


def _check_leap(path: Path, what: str, last: float, time: float) -> None:
    """Refuse a hole that would have to be filled for hours: the timestamps are wrong."""
    last = max(0.0, last)
    if time - last > LONGEST_JUMP:
        raise MediaError(
            f"{path}: the {what} leaps from {last:.1f} s to {time:.1f} s, over the "
            f"{LONGEST_JUMP:.0f} s that a pause may last; write the clip anew with timestamps of "
            "one running clock"
        )


def _unpadded(pieces: Iterator[_Piece], end: float | None) -> Iterator[_Piece]:
    """Leave out what an encoder filled its last block with: under 0.1 s beyond ``end``."""
    tail: list[_Piece] = []
    for time, samples in pieces:
        if end is None or time is None or time + samples.size / SAMPLE_RATE <= end:
            yield time, samples
            continue
        inside = max(0, round((end - time) * SAMPLE_RATE))
        if inside:
            yield time, samples[:inside]
        tail.append((time + inside / SAMPLE_RATE, samples[inside:]))
        if sum(part.size for _, part in tail) > _PADDING:
            # So much is no padding: the container is wrong about its end.
            yield from tail
            end = None


def _resampled(path: Path, warn: Warn) -> Iterator[_Piece]:
    form: tuple[Any, ...] | None = None
    resampler: Any = None
    for frame in _decoded(path, "audio", warn):
        now = (frame.format.name, frame.layout.name, frame.sample_rate)
        if now != form:
            if resampler is not None:
                yield from _converted(resampler, None)
            form, resampler = now, av.AudioResampler("fltp", rate=SAMPLE_RATE)
        yield from _converted(resampler, frame)
    if resampler is not None:
        yield from _converted(resampler, None)


def _converted(resampler: Any, frame: Any) -> Iterator[_Piece]:
    # With None the resampler hands out the tail that its filter still holds.
    for out in resampler.resample(frame):
        # The resampler's own mono is 3 dB louder than the mean of the channels, and clips.
        yield out.time, out.to_ndarray().mean(axis=0, dtype=np.float32).clip(-1, 1)


def _decoded(path: Path, kind: str, warn: Warn) -> Iterator[Any]:
    """Frames of one stream.

    Each stream has a reader of its own, so that a file with all picture before all sound plays in
    step without one of them being held in memory.
    """
    damaged = 0
    with open_container(path) as container:
        stream = usable_stream(container, kind)
        stream.thread_type = "AUTO"
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    break
                yield from packet.decode()
            except av.EOFError:
                break
            except (av.FFmpegError, OSError):
                damaged += 1
                if damaged == 1:
                    warn(f"{path}: damaged {kind} data; what cannot be decoded is skipped")
                if damaged > 1000:
                    raise MediaError(f"{path}: too much damaged {kind} data") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]
