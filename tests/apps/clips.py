"""Small clips, made with PyAV where a test needs them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def write_clip(
    path: Path,
    *,
    seconds: float = 2.0,
    fps: int | None = 10,
    size: tuple[int, int] = (64, 48),
    rate: int | None = 44_100,
    sound_seconds: float | None = None,
    sound_start: float = 0.0,
    hertz: float = 440.0,
) -> Path:
    """Brightening grey frames and a sine; ``fps`` or ``rate`` None leaves that part out."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=fps) if fps else None
        audio = container.add_stream("aac", rate=rate, layout="stereo") if rate else None
        if video is not None:
            video.width, video.height, video.pix_fmt = *size, "yuv420p"
            count = round(seconds * fps)
            for number in range(count):
                grey = 16 + 200 * number // count
                image = np.full((size[1], size[0], 3), grey, np.uint8)
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, fps)
                container.mux(video.encode(frame))
            container.mux(video.encode(None))
        if audio is not None:
            total = round((seconds if sound_seconds is None else sound_seconds) * rate)
            wave = 0.5 * np.sin(2 * np.pi * hertz * np.arange(total) / rate)
            for start in range(0, total, 1024):
                part = np.repeat(wave[None, start : start + 1024], 2, axis=0).astype(np.float32)
                frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="stereo")
                frame.sample_rate = rate
                frame.pts = start + round(sound_start * rate)
                frame.time_base = Fraction(1, rate)
                container.mux(audio.encode(frame))
            container.mux(audio.encode(None))
    return path


def write_two_sizes(path: Path) -> Path:
    """A Matroska clip: 1 s at 641x359, then 1 s at 1280x720, each 5 whole JPEG pictures."""
    with av.open(str(path), "w", format="matroska") as container:
        stream = container.add_stream("mjpeg", rate=5)
        stream.width, stream.height, stream.pix_fmt = 641, 359, "yuvj444p"
        for number in range(10):
            width, height = (641, 359) if number < 5 else (1280, 720)
            encoder = av.CodecContext.create("mjpeg", "w")
            encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuvj444p"
            encoder.time_base = Fraction(1, 5)
            image = np.full((height, width, 3), 20 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuvj444p")
            frame.pts = number
            for packet in encoder.encode(frame) + encoder.encode(None):
                packet.stream, packet.pts, packet.dts = stream, number, number
                packet.time_base = Fraction(1, 5)
                container.mux(packet)
    return path


def write_leap(path: Path, what: str, seconds: float) -> Path:
    """2 s of picture and sound, of which one leaps by ``seconds`` in the middle."""
    with av.open(str(path), "w", format="matroska") as container:
        video = container.add_stream("ffv1", rate=10)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv444p"
        video.codec_context.time_base = Fraction(1, 1000)
        audio = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        for tenth in range(20):
            later = seconds if tenth >= 10 else 0.0
            frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            time = tenth / 10 + (later if what == "picture" else 0.0)
            frame.pts, frame.time_base = round(time * 1000), Fraction(1, 1000)
            container.mux(video.encode(frame))
            sound = av.AudioFrame.from_ndarray(np.ones((1, 1600), np.int16), "s16", "mono")
            time = tenth / 10 + (later if what == "sound" else 0.0)
            sound.sample_rate, sound.pts = 16_000, round(time * 16_000)
            sound.time_base = Fraction(1, 16_000)
            container.mux(audio.encode(sound))
        container.mux(video.encode(None))
        container.mux(audio.encode(None))
    return path


def write_subtitles(path: Path) -> Path:
    """A file that is a container and holds neither picture nor sound."""
    path.write_text("1\n00:00:00,000 --> 00:00:02,000\nhello\n", encoding="utf-8")
    return path
