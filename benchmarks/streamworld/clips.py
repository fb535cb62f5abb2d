"""Streams as real clips: an mp4 with picture and sound, and its questions as JSON."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from streamworld import render, spec
from streamworld.banks import Bank
from streamworld.questions import Questions, records
from streamworld.render_frames import SQUARE, Size
from streamworld.script import Script

SCALE = 3
"""Clips show the world's frames this many times larger where no other size is asked for."""
_SOUND_FRAME = 1024


def write(
    path: Path,
    script: Script,
    stream: int,
    bank: Bank,
    *,
    fps: int = 5,
    questions: Questions | None = None,
    size: Size = SQUARE,
    pixels: Size | None = None,
) -> None:
    """One stream as ``path`` (mp4: H.264 at ``fps``, AAC at 16 kHz, mono).

    Frames are rendered at ``size``, height and width, and enlarged to ``pixels`` by repeating
    pixels, or to three times their size. Sides in the file are even.

    Its questions and what is seen and heard each second go to the JSON file of the same name.
    """
    units = script.take(slice(stream, stream + 1)).flat()
    pictures = [render.frames(units, bank, (step + 0.5) / fps, size) for step in range(fps)]
    frames = np.stack(pictures, axis=1).reshape(-1, *size, 3)
    height, width = pixels or (size[0] * SCALE, size[1] * SCALE)
    rows, columns = np.arange(height) * size[0] // height, np.arange(width) * size[1] // width
    _encode(path, frames, (rows[:, None], columns), render.sounds(units, bank).reshape(-1), fps)
    asked = [] if questions is None else records(script, questions, stream)
    told = {"clip": path.name, "seconds": script.units, **description(script, stream)}
    path.with_suffix(".json").write_text(json.dumps({**told, "questions": asked}, indent=1) + "\n")


def description(script: Script, stream: int) -> dict[str, Any]:
    """What a stream shows and says, second by second."""
    return {
        "shows": [" ".join(spec.thing_words(int(t))) for t in script.thing[stream]],
        "says": [spec.sound_word(int(s)) for s in script.sound[stream]],
    }


def _encode(
    path: Path,
    frames: npt.NDArray[np.uint8],
    shown: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]],
    samples: npt.NDArray[np.float32],
    fps: int,
) -> None:
    """Write a file whose pixels are those of ``frames`` in the rows and columns of ``shown``."""
    with av.open(str(path), "w") as file:
        video: Any = file.add_stream("libx264", rate=fps)
        video.width, video.height = shown[1].size, shown[0].size
        video.pix_fmt = "yuv420p"
        video.options = {"crf": "20", "preset": "veryfast"}
        audio: Any = file.add_stream("aac", rate=spec.SAMPLE_RATE, layout="mono")
        audio.bit_rate = 64_000
        per_frame = spec.SAMPLE_RATE // fps
        done = 0
        for number, small in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(small[shown], format="rgb24")
            picture.pts, picture.time_base = number, Fraction(1, fps)
            file.mux(video.encode(picture))
            # Sound goes beside the picture that it belongs to, so that players need no seeking.
            while done + _SOUND_FRAME <= min(samples.size, (number + 1) * per_frame):
                file.mux(audio.encode(_sound(samples[done : done + _SOUND_FRAME], done)))
                done += _SOUND_FRAME
        if done < samples.size:
            file.mux(audio.encode(_sound(samples[done:], done)))
        file.mux(video.encode(None))
        file.mux(audio.encode(None))


def _sound(samples: npt.NDArray[np.float32], start: int) -> Any:
    frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
    frame.sample_rate = spec.SAMPLE_RATE
    frame.pts, frame.time_base = start, Fraction(1, spec.SAMPLE_RATE)
    return frame
