"""Files of any size, rate and codec, written frame by frame from arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

TICKS = 1000
"""Of a picture's clock, a second."""


@dataclass(frozen=True)
class Film:
    """Pictures ``uint8[H, W, 3]``, seconds when each is shown, and a pixel's width by height."""

    frames: Sequence[np.ndarray]
    times: Sequence[float]
    codec: str = "libx264"
    form: str = "yuv444p"
    pixel: Fraction | None = None

    @classmethod
    def steady(cls, frames: Sequence[np.ndarray], fps: float, **how: str) -> Film:
        """Frames at a fixed rate."""
        return cls(frames, [number / fps for number in range(len(frames))], **how)


@dataclass(frozen=True)
class Track:
    """Sound ``float32[channels, samples]`` at ``rate``."""

    samples: np.ndarray
    rate: int
    codec: str = "pcm_s16le"

    @property
    def layout(self) -> str:
        return {1: "mono", 2: "stereo", 6: "5.1"}[len(self.samples)]


def card(width: int, height: int) -> np.ndarray:
    """Four quarters: red, green, blue and grey."""
    made = np.empty((height, width, 3), np.uint8)
    middle, half = height // 2, width // 2
    made[:middle, :half], made[:middle, half:] = (200, 40, 40), (40, 180, 40)
    made[middle:, :half], made[middle:, half:] = (40, 40, 200), (128, 128, 128)
    return made


def write_odd(path: Path, film: Film | None, track: Track | None) -> Path:
    """A file in the container of the path's suffix."""
    with av.open(str(path), "w") as file:
        video = None if film is None else _picture_stream(file, film)
        audio: Any = None
        if track is not None:
            audio = file.add_stream(track.codec, rate=track.rate, layout=track.layout)
        if film is not None:
            for rgb, time in zip(film.frames, film.times, strict=True):
                frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
                frame = frame.reformat(format=film.form)
                frame.pts, frame.time_base = round(time * TICKS), Fraction(1, TICKS)
                file.mux(video.encode(frame))
            file.mux(video.encode(None))
        if track is not None:
            _write_sound(file, audio, track)
    return path


def _picture_stream(file: Any, film: Film) -> Any:
    stream = file.add_stream(film.codec, rate=TICKS)
    stream.height, stream.width = film.frames[0].shape[:2]
    stream.pix_fmt = film.form
    stream.codec_context.time_base = Fraction(1, TICKS)
    if film.pixel is not None:
        stream.codec_context.sample_aspect_ratio = film.pixel
    if film.codec == "libx264":
        stream.options = {"crf": "8", "preset": "ultrafast", "tune": "zerolatency"}
    return stream


def _write_sound(file: Any, stream: Any, track: Track) -> None:
    context = stream.codec_context
    resampler = av.AudioResampler(context.format, context.layout, context.sample_rate)
    fifo = av.AudioFifo()
    frame = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(track.samples, np.float32), format="fltp", layout=track.layout
    )
    frame.sample_rate, frame.pts, frame.time_base = track.rate, 0, Fraction(1, track.rate)
    for made in (*resampler.resample(frame), *resampler.resample(None)):
        fifo.write(made)
    size = context.frame_size or 1024
    while (part := fifo.read(size, partial=True)) is not None:
        file.mux(stream.encode(part))
    file.mux(stream.encode(None))


def turned(path: Path) -> Path:
    """An mp4 file of a picture alone whose header says to show it a quarter turn clockwise."""
    data = path.read_bytes()
    place = data.index(b"tkhd") + 44
    one = 1 << 16
    height = int.from_bytes(data[place + 40 : place + 44], "big")
    matrix = [0, one, 0, -one, 0, 0, height, 0, 1 << 30]
    spelled = b"".join(value.to_bytes(4, "big", signed=True) for value in matrix)
    path.write_bytes(data[:place] + spelled + data[place + 36 :])
    return path


def scaled(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """A picture at another size."""
    grows = height >= frame.shape[0]
    how = cv2.INTER_CUBIC if grows else cv2.INTER_AREA
    return cv2.resize(frame, (width, height), interpolation=how)


def resampled(samples: np.ndarray, rate: int, target: int) -> np.ndarray:
    """Sound ``float32[n]`` at another rate, as if heard through it: nothing above half of it."""
    count = round(samples.size * target / rate)
    made = np.fft.irfft(np.fft.rfft(samples)[: count // 2 + 1], count) * (count / samples.size)
    return made.astype(np.float32)
