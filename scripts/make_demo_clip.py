"""Draw, speak and write the demo clip and the list of what it shows and says.

Usage: ``python scripts/make_demo_clip.py [FOLDER]``

Needs the ``espeak-ng`` program. The clip, ``demo.mp4``, is H.264 and AAC; ``demo.json`` beside it
says what is shown and said when, and asks questions about it. The same bytes come out for the same
versions of OpenCV, PyAV and espeak-ng.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import wave
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).resolve().parent.parent / "apps/omnilive/assets"
WIDTH, HEIGHT, FPS = 320, 240, 12
RATE = 16_000
PEAK = 0.5

Image = npt.NDArray[np.uint8]
Sound = npt.NDArray[np.float32]

COLOURS = {
    "red": (220, 40, 40),
    "blue": (40, 80, 220),
    "yellow": (240, 210, 40),
    "green": (40, 170, 70),
    "orange": (245, 140, 30),
    "purple": (140, 60, 180),
    "white": (245, 245, 245),
}


@dataclass(frozen=True)
class Scene:
    """A stretch of the clip.

    Attributes:
        start, stop: seconds.
        colour: of the figure, a key of ``COLOURS``.
        figure: a shape's name, or a digit.
        says: words spoken from ``at`` on; ``beep`` for a tone; empty for silence.
        at: seconds.
    """

    start: float
    stop: float
    colour: str
    figure: str
    says: str = ""
    at: float = 0.0


SCENES = (
    Scene(0, 3, "red", "circle", "hello", 1.0),
    Scene(3, 6, "blue", "square", "apple", 4.0),
    Scene(6, 9, "yellow", "7"),
    Scene(9, 12, "green", "triangle", "water", 10.0),
    Scene(12, 15, "white", "3", "beep", 13.0),
    Scene(15, 18, "orange", "star", "The cat is on the roof.", 15.5),
    Scene(18, 21, "purple", "circle"),
    Scene(21, 24, "red", "5", "music", 22.0),
    Scene(24, 27, "yellow", "square", "beep", 25.0),
    Scene(27, 30, "blue", "triangle", "goodbye", 28.0),
)

QUESTIONS = (
    {"time": 5, "question": "What colour is the square?", "answer": "blue", "kind": "now"},
    {"time": 8, "question": "Which digit is on screen?", "answer": "7", "kind": "now"},
    {"time": 12, "question": "Which word was just spoken?", "answer": "water", "kind": "heard"},
    {"time": 14, "question": "Which digit came before this one?", "answer": "7", "kind": "past"},
    {"time": 18, "question": "Where is the cat?", "answer": "on the roof", "kind": "heard"},
    {"time": 20, "question": "What is on screen?", "answer": "a purple circle", "kind": "now"},
    {"time": 24, "question": "Which word was spoken first?", "answer": "hello", "kind": "past"},
    {
        "time": 27,
        "question": "What was shown when you heard apple?",
        "answer": "a blue square",
        "kind": "together",
    },
    {"time": 29.5, "question": "How many beeps were there?", "answer": "2", "kind": "count"},
)


def corners(
    figure: str, centre: tuple[float, float], radius: float, turn: float
) -> npt.NDArray[Any]:
    """Corner points of a polygon, turned by ``turn`` radians, in 1/16 of a pixel."""
    count = {"triangle": 3, "square": 4, "star": 10}[figure]
    angle = turn + 2 * np.pi * np.arange(count) / count - np.pi / 2
    reach = np.where(np.arange(count) % 2, 0.45, 1.0) if figure == "star" else np.ones(count)
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * (radius * reach)[:, None] + centre
    return np.round(points * 16).astype(np.int32)


def draw(scene: Scene, seconds: float) -> Image:
    """The picture at a time of the clip: a figure that drifts and sways before a shaded wall."""
    column = np.linspace(60, 110, WIDTH)[None, :, None]
    row = np.linspace(-20, 20, HEIGHT)[:, None, None]
    image = np.clip(column + row + np.array([0, 6, 14]), 0, 255).astype(np.uint8)
    along = (seconds - scene.start) / (scene.stop - scene.start)
    centre = (WIDTH * (0.35 + 0.3 * along), HEIGHT * (0.5 + 0.06 * np.sin(4 * np.pi * along)))
    colour, radius = COLOURS[scene.colour], 68.0
    if scene.figure.isdigit():
        font, size, thick = cv2.FONT_HERSHEY_SIMPLEX, 5.0, 18
        (wide, high), _ = cv2.getTextSize(scene.figure, font, size, thick)
        corner = (round(centre[0] - wide / 2), round(centre[1] + high / 2))
        cv2.putText(image, scene.figure, corner, font, size, colour, thick, cv2.LINE_AA)
    elif scene.figure == "circle":
        point = (round(centre[0] * 16), round(centre[1] * 16))
        cv2.circle(image, point, round(radius * 16), colour, -1, cv2.LINE_AA, 4)
    else:
        turn = 0.15 * np.sin(2 * np.pi * along) + (np.pi / 4 if scene.figure == "square" else 0)
        points = corners(scene.figure, centre, radius * 1.15, turn)
        cv2.fillPoly(image, [points], colour, cv2.LINE_AA, 4)
    return image


def speak(words: str) -> Sound:
    """Words in an English voice, at ``RATE``."""
    command = ["espeak-ng", "-v", "en-gb", "-s", "140", "--stdout", words]
    spoken = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(spoken)) as file:
        rate = file.getframerate()
        # The header of a piped file does not know its length.
        samples = np.frombuffer(spoken[44:], np.int16).astype(np.float32)
    times = np.arange(0, len(samples) / rate, 1 / RATE)
    sound = np.interp(times, np.arange(len(samples)) / rate, samples)
    return (PEAK / np.abs(sound).max() * sound).astype(np.float32)


def beep() -> Sound:
    """Half a second of 880 Hz, faded in and out."""
    times = np.arange(RATE // 2) / RATE
    fade = np.minimum(1, np.minimum(times, times[::-1]) / 0.02)
    return (0.6 * PEAK * fade * np.sin(2 * np.pi * 880 * times)).astype(np.float32)


def soundtrack(scenes: tuple[Scene, ...]) -> Sound:
    """The sound of the whole clip, digital silence where nothing is said."""
    track = np.zeros(round(scenes[-1].stop * RATE), np.float32)
    for scene in scenes:
        if scene.says:
            sound = beep() if scene.says == "beep" else speak(scene.says)
            start = round(scene.at * RATE)
            if start + len(sound) > scene.stop * RATE:
                raise ValueError(f"{scene.says!r} at {scene.at} s outlasts its scene")
            track[start : start + len(sound)] += sound
    return track


def encode(file: Path, scenes: tuple[Scene, ...], track: Sound) -> None:
    """Write the clip; one thread and no dates in the container, so that bytes repeat."""
    with av.open(str(file), "w", options={"fflags": "+bitexact", "movflags": "+faststart"}) as out:
        options = {"crf": "23", "preset": "slow", "threads": "1", "flags": "+bitexact"}
        video = out.add_stream("libx264", rate=FPS, options=options)
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        audio = out.add_stream("aac", rate=RATE, layout="mono", options={"flags": "+bitexact"})
        audio.bit_rate = 48_000
        for index in range(round(scenes[-1].stop * FPS)):
            seconds = index / FPS
            scene = next(scene for scene in scenes if seconds < scene.stop)
            picture = av.VideoFrame.from_ndarray(draw(scene, seconds), format="rgb24")
            picture.pts, picture.time_base = index, Fraction(1, FPS)
            out.mux(video.encode(picture))
        for start in range(0, len(track), 1024):
            block = np.ascontiguousarray(track[None, start : start + 1024])
            sound = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
            sound.sample_rate, sound.pts, sound.time_base = RATE, start, Fraction(1, RATE)
            out.mux(audio.encode(sound))
        out.mux(video.encode(None))
        out.mux(audio.encode(None))


def listing(scenes: tuple[Scene, ...]) -> dict[str, Any]:
    """``demo.json``: scenes in order, then questions with their answers."""
    shown = [
        {
            "start": scene.start,
            "stop": scene.stop,
            "shows": f"{scene.colour} {scene.figure}",
            "says": scene.says,
            "at": scene.at if scene.says else None,
        }
        for scene in scenes
    ]
    return {
        "clip": "demo.mp4",
        "seconds": scenes[-1].stop,
        "scenes": shown,
        "questions": list(QUESTIONS),
    }


def write(folder: Path) -> None:
    """Write ``demo.mp4`` and ``demo.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    encode(folder / "demo.mp4", SCENES, soundtrack(SCENES))
    text = json.dumps(listing(SCENES), indent=2) + "\n"
    (folder / "demo.json").write_bytes(text.encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the demo clip.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    if shutil.which("espeak-ng") is None:
        sys.exit("espeak-ng is not installed: install it with your package manager, then try again")
    write(folder)
