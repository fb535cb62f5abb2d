"""First tokens: turns are those of the world, counted as they end, and held against the bound."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from benchmarks import first_token, harness, virtual_devices
from benchmarks.virtual_devices import RATE

MODEL = {"model": "embedded", "backend": "cuda", "device": "cpu"}


class Played:
    """``omnilive live``, as its events tell of it; it answers the turns it is told to.

    A unit a second, an answer three seconds after its question was played.
    """

    returncode = 0

    def __init__(self, latencies: list[float | None], wrong: int = -1) -> None:
        self._latencies, self._wrong = latencies, wrong
        self.sounds: list[np.ndarray] = []
        self.environment: dict[str, str] = {}
        self.signals: list[int] = []
        self.play, self.send_signal = self.sounds.append, self.signals.append

    def __call__(self, command: list[str], **_: Any) -> Self:
        self.command = command
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def stdout(self) -> Iterator[str]:
        truths = [turn.truth for turn in first_token.turns(len(self._latencies))]
        heard, due, t = 0, 0.0, 0.0
        while not self.signals:
            t += 1.0
            assert t < 999
            yield json.dumps({"event": "unit", "t": t})
            if len(self.sounds) > heard:
                heard, due = heard + 1, t + 3
            if due and t >= due:
                latency, due = self._latencies[heard - 1], 0.0
                text = "nothing" if heard - 1 == self._wrong else truths[heard - 1]
                answer = {"event": "answer", "t": t, "question": "", "text": text}
                if latency is not None:
                    yield json.dumps({"event": "token", "t": t, "text": text})
                    yield json.dumps(answer | {"latency_ms": latency})
        yield json.dumps({"event": "summary", "t": t, **MODEL})


def conversed(played: Played, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    @contextmanager
    def microphone() -> Iterator[Played]:
        yield played

    monkeypatch.setattr(first_token, "virtual_microphone", microphone)
    monkeypatch.setattr(first_token.subprocess, "Popen", played)
    return first_token.converse(len(played._latencies), words)


def test_turns_are_spoken_questions_about_what_is_on_the_screen() -> None:
    turns, again = list(first_token.turns(12)), list(first_token.turns(12))
    assert len(turns) == 12
    for turn, same in zip(turns, again, strict=True):
        assert turn.truth == same.truth and np.array_equal(turn.sound, same.sound)
        assert turn.frame.dtype == np.uint8 and turn.frame.shape == (336, 336, 3)
        assert turn.sound.dtype == np.float32 and 2 * RATE <= turn.sound.size < 3 * RATE
        before = turn.sound.size - 2 * RATE
        assert not turn.sound[:before].any() and turn.sound[before:].any()
        assert turn.truth and turn.frame.any()
    # They begin at any time of a unit, and are about different things.
    assert len({turn.sound.size for turn in turns}) > 8
    assert len({turn.truth for turn in turns}) > 4


def test_turns_are_put_one_after_another_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played([200.0, 100.0, 900.0, 300.0], wrong=2)
    row = conversed(played, monkeypatch, "--model", "embedded")
    spoken = [turn.sound for turn in first_token.turns(4)]
    assert all(np.array_equal(*pair) for pair in zip(played.sounds, spoken, strict=True))
    assert row | MODEL == row and row["turns"] == 4
    assert (row["not_answered"], row["right"]) == (0, 3)
    assert row["latency_ms"] == [200.0, 100.0, 900.0, 300.0]
    assert (row["latency_ms_median"], row["latency_ms_most"]) == (250.0, 900.0)
    assert row["latency_ms_p90"] == 720.0
    # The second one would end it at once.
    assert played.signals == [signal.SIGINT]
    assert {"--jsonl", "--camera", "--model"} <= set(played.command)


def test_a_turn_that_nobody_heard_is_counted_and_the_next_one_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played([None, 100.0, None])
    row = conversed(played, monkeypatch)
    assert len(played.sounds) == 3 and (row["not_answered"], row["right"]) == (2, 1)
    assert row["latency_ms"] == [100.0]


@pytest.mark.parametrize(("code", "latencies"), [(1, [100.0]), (0, [None])])
def test_a_run_that_fails_or_hears_nothing_has_no_figures(
    code: int, latencies: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(latencies)
    played.returncode = code
    with pytest.raises(virtual_devices.Lacking, match=f"omnilive live ended with {code}"):
        conversed(played, monkeypatch)


def test_who_ends_it_ends_the_run_that_it_listens_to() -> None:
    lives = "import time; print('up', flush=True); time.sleep(60)"
    with (
        pytest.raises(KeyboardInterrupt),
        first_token._taken_along([sys.executable, "-c", lives], os.environ) as process,
    ):
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, harness.HOLDS),
        ({"latency_ms_median": 1000.0, "not_answered": 2}, harness.HOLDS),
        ({"latency_ms_median": 1000.1}, harness.FAILS),
        ({"not_answered": 3}, harness.FAILS),
    ],
)
def test_the_claims(
    changed: dict[str, float],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"part": "spoken turns", **MODEL, "turns": 48, "not_answered": 0, "right": 48}
    row |= {"latency_ms_median": 400.0, "latency_ms": [400.0] * 48} | changed
    counts = list[int]()
    monkeypatch.setattr(first_token, "converse", lambda count, _: (counts.append(count), row)[1])
    assert first_token.main(["--out", str(tmp_path)]) == code
    (file,) = tmp_path.iterdir()
    document = json.loads(file.read_text())
    assert file.name.startswith("first-token-") and document["rows"] == [row]
    assert counts == [48] and not document["quick"]
    assert all(claim["holds"] for claim in document["claims"]) == (code == harness.HOLDS)
    assert "not answered" in capsys.readouterr().out
    assert first_token.main(["--quick", "--out", str(tmp_path / "quick")]) in (0, 1)
    (file,) = (tmp_path / "quick").iterdir()
    assert counts == [48, 6] and json.loads(file.read_text())["quick"]


@pytest.mark.shipped
def test_one_turn_on_virtual_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("onnxruntime", reason="pip install -e '.[live]' in the checkout")
    arguments = ["--turns", "1", "--backend", "cuda", "--device", "cpu", "--out", str(tmp_path)]
    code = first_token.main(arguments)
    out, err = capsys.readouterr()
    if code == harness.LACKS and "apt-get install" in err:
        pytest.skip(err.strip().splitlines()[-1])
    assert code in (harness.HOLDS, harness.FAILS), out + err
    (file,) = tmp_path.iterdir()
    document = json.loads(file.read_text())
    (row,) = document["rows"]
    assert row | MODEL == row and document["quick"]
    # How soon is the machine's affair, and the claim's.
    assert (row["turns"], row["not_answered"], row["right"]) == (1, 0, 1)
    assert len(row["latency_ms"]) == 1 and row["latency_ms"][0] > 0
    (median, answered) = document["claims"]
    assert median["value"] == pytest.approx(row["latency_ms"][0] / 1e3, abs=1e-4)
    assert median["holds"] == (code == harness.HOLDS) and answered["holds"]


def test_without_a_sound_server_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(virtual_devices, "shutil", SimpleNamespace(which=lambda _: None))
    assert first_token.main(["--turns", "1"]) == harness.LACKS
    out, err = capsys.readouterr()
    assert out == "" and "apt-get install pulseaudio" in err.splitlines()[-1]


def test_a_count_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        first_token.main(["--turns", "-1"])
    assert end.value.code == 2 and "expected 1 or more" in capsys.readouterr().err
