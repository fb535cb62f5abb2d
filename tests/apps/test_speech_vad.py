"""Finding speech: the probabilities of silero-vad's own torch model, whatever the chunks."""

from __future__ import annotations

import builtins
import hashlib
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnilive.speech import SpeechError, vad
from omnilive.speech.turns import Began, Ended, Turns
from omnilive.speech.vad import STEP, STEP_SAMPLES, Samples, SpeechDetector
from streamworld import spec
from streamworld.banks import SHIPPED, load
from streamworld.mu_law import EXPANDED

QUESTION = "what digit is it"
CLIP = "870c96537e51b05e"


def needs_onnxruntime() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (the `live` extra)")


@cache
def question() -> Samples:
    """A second of a voice that asks something, out of the bank that ships."""
    bank = load(SHIPPED, "test")
    label = len(spec.WORDS) + [form[2] for form in spec.SPOKEN_FORMS].index(QUESTION)
    clip = bank.clip_start[label] + 7
    start, length = bank.clip_offset[clip], bank.clip_length[clip]
    said = bank.sound[start : start + length]
    found = hashlib.sha256(said.tobytes()).hexdigest()[:16]
    assert found == CLIP, f"another clip ({found}): compute REFERENCE anew with silero-vad"
    return EXPANDED[said].astype(np.float32)


def sound() -> Samples:
    """Half a second of silence, a question, silence, a chord, and noise."""
    seconds = np.arange(12_000) / 16_000
    chord = sum(np.sin(2 * np.pi * pitch * seconds) for pitch in (220.0, 277.2, 329.6)) * 0.1
    noise = np.random.default_rng(5).random(8_000) * 0.2 - 0.1
    quiet = np.zeros(8_000)
    return np.concatenate([quiet, question(), quiet, chord, noise]).astype(np.float32)


# silero-vad 6.2.3's torch model (silero_vad.jit), fed with sound() 512 samples at a time.
REFERENCE = (
    *(0.0017, 0.0069, 0.0089, 0.0079, 0.0059, 0.006, 0.0059, 0.0056, 0.0054, 0.0052, 0.005),
    *(0.0049, 0.0047, 0.0046, 0.0044, 0.1151, 0.5607, 0.98, 0.9976, 0.9993, 0.9967, 0.9704),
    *(0.9996, 0.9983, 0.9968, 0.9978, 0.9974, 0.9998, 0.9999, 0.9998, 1.0, 0.9997, 0.9998),
    *(0.9999, 0.885, 0.9981, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.4574, 0.8151, 0.6192, 0.4149),
    *(0.2477, 0.0638, 0.0224, 0.0122, 0.0082, 0.0066, 0.006, 0.0055, 0.005, 0.0047, 0.0044),
    *(0.0042, 0.0041, 0.0039, 0.0037, 0.026, 0.0861, 0.0158, 0.013, 0.0048, 0.0057, 0.0073),
    *(0.0039, 0.0044, 0.005, 0.0026, 0.0038, 0.0059, 0.0033, 0.0039, 0.0058, 0.0043, 0.0055),
    *(0.0044, 0.0029, 0.0037, 0.0035, 0.0023, 0.0025, 0.0337, 0.0117, 0.0067, 0.0079, 0.0083),
    *(0.0093, 0.0088, 0.0136, 0.0126, 0.0096, 0.0117, 0.0117, 0.0141, 0.0118, 0.0106),
)


@pytest.fixture(name="detector")
def _detector() -> SpeechDetector:
    needs_onnxruntime()
    return SpeechDetector()


def chunks(samples: Samples, sizes: list[int]) -> list[Samples]:
    """Cut at these lengths, the last piece being what is left."""
    return np.split(samples, np.cumsum(sizes))


def test_gives_what_the_torch_model_gives(detector: SpeechDetector) -> None:
    steps = detector.feed(sound())
    times, probabilities = np.array(steps).T
    np.testing.assert_allclose(probabilities, REFERENCE, atol=2e-4)
    np.testing.assert_array_equal(times, np.arange(len(REFERENCE)) * STEP)


@settings(max_examples=15)
@given(sizes=st.lists(st.integers(0, 3000), max_size=30))
def test_chunks_change_nothing(sizes: list[int]) -> None:
    needs_onnxruntime()
    whole, cut = _one_detector(), _one_detector(second=True)
    whole.reset(), cut.reset()
    expected = whole.feed(sound())
    steps, events, turns = [], [], Turns()
    for piece in chunks(sound(), sizes):
        fed = cut.feed(piece)
        steps += fed
        events += turns.feed(fed)
    assert steps == expected
    assert events == Turns().feed(expected)
    assert [type(event) for event in events] == [Began, Ended]


@cache
def _one_detector(second: bool = False) -> SpeechDetector:
    return SpeechDetector()


def test_the_question_is_one_turn(detector: SpeechDetector) -> None:
    began, ended = Turns().feed(detector.feed(sound()))
    assert isinstance(began, Began) and isinstance(ended, Ended)
    said = len(question()) / 16_000
    assert began.time == pytest.approx(0.5, abs=0.15)
    assert ended.stop == pytest.approx(0.5 + said, abs=0.15)
    assert ended.decided == pytest.approx(0.5 + said + 0.6, abs=0.15)


def test_silence_is_no_turn(detector: SpeechDetector) -> None:
    hiss = np.random.default_rng(3).normal(0, 1e-3, 80_000).astype(np.float32)
    for quiet in (np.zeros(80_000, np.float32), hiss):
        turns = Turns()
        assert turns.feed(detector.feed(quiet)) + turns.close(5.0) == []


def test_broken_samples_are_silence_and_counted(detector: SpeechDetector) -> None:
    holed = sound()
    holed[100:110] = np.nan
    holed[-4000:-3995] = np.inf
    silenced = np.where(np.isfinite(holed), holed, 0).astype(np.float32)
    found = detector.feed(holed)
    assert detector.broken == 15
    detector.reset()
    assert found == detector.feed(silenced)
    assert detector.broken == 15


def test_samples_out_of_range_do_not_poison_it(detector: SpeechDetector) -> None:
    detector.feed(np.full(4096, 1e30, np.float32))
    detector.feed(np.zeros(16_000, np.float32))
    assert max(probability for _, probability in detector.feed(question())) > 0.9


def test_reset_forgets_all(detector: SpeechDetector) -> None:
    first = detector.feed(sound())
    detector.feed(question()[:700])
    detector.reset(12.5)
    again = detector.feed(sound())
    assert [probability for _, probability in again] == [probability for _, probability in first]
    assert again[0][0] == 12.5


def test_times_follow_the_clock(detector: SpeechDetector) -> None:
    quiet = np.zeros(STEP_SAMPLES, np.float32)
    assert detector.feed(quiet, 3.0)[0][0] == 3.0
    # A clock that arrives unsteadily is counted through, a hole and a leap back are not.
    assert detector.feed(quiet, 3.05)[0][0] == 3.0 + STEP
    assert detector.feed(quiet[:300], 9.0) == []
    assert detector.feed(quiet, 4.0)[0][0] == 4.0


def test_nothing_is_said_on_stderr() -> None:
    needs_onnxruntime()
    code = (
        "import numpy; from omnilive.speech.vad import SpeechDetector;"
        "SpeechDetector().feed(numpy.zeros(600, 'f'))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_tells_to_install_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__import__", _without("onnxruntime", builtins.__import__))
    with pytest.raises(SpeechError, match=r"pip install -e '\.\[live\]'") as raised:
        SpeechDetector()
    assert "\n" not in str(raised.value)


def _without(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def load_other(module: str, *args: Any, **kwargs: Any) -> Any:
        if module == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(module, *args, **kwargs)

    return load_other


def test_tells_that_the_network_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_onnxruntime()
    monkeypatch.setattr(vad, "MODEL", vad.MODEL.with_name("gone.onnx"))
    with pytest.raises(SpeechError, match=r"gone\.onnx cannot be read .*install omnilive again"):
        SpeechDetector()


def test_its_licence_ships_beside_it() -> None:
    licence = vad.MODEL.with_name("silero_vad.LICENSE").read_text()
    assert "MIT License" in licence and "Silero Team" in licence
