"""A clip through the whole of omnilive, on either backend, with the embedded checkpoint."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip, write_two_sizes

from omni_core import Recording, Session
from omni_core.errors import BackendError
from omni_core.replay import first_difference
from omnilive import load, open_clip
from omnilive.cli import main
from omnilive.clip import probe
from omnilive.models import EMBEDDED_FOLDER

Events = list[dict[str, Any]]


@pytest.fixture(params=["mlx", "cuda"])
def backend(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    return name


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short recording on whichever backend there is."""
    folder = tmp_path_factory.mktemp("recorded")
    clip = write_clip(folder / "clip.mp4", seconds=1.0)
    record = folder / "recording"
    words = ["live", "--source", str(clip), "--fast", "--device", "cpu", "--record", str(record)]
    assert main(words) == 0
    return record


def live(capsys: pytest.CaptureFixture[str], backend: str, clip: Path, *words: str) -> Events:
    where = ("--backend", backend, "--device", "cpu", "--max-tokens", "5")
    code = main(["live", "--source", str(clip), "--fast", "--jsonl", *where, *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def of(events: Events, kind: str) -> Events:
    return [event for event in events if event["event"] == kind]


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["live", "--fast", *words]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("omnilive: ") == 1
    last = err.splitlines()[-1]
    assert last.startswith("omnilive: ")
    return last


def test_events_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.4)
    asks = ["--ask", "1.5: and now?", "--ask", "0: what comes?", "--ask", "2.4: and then?"]
    events = live(capsys, backend, clip, "--budget", "1024", *asks)
    units = of(events, "unit")
    assert [unit["t"] for unit in units] == pytest.approx([1.0, 1.5, 2.4])
    for unit in units:
        assert set(unit) == {"event", "t", "unit", "tokens", "kv", "memory", "dropped", "lag_ms"}
        assert set(unit["tokens"]) == {"vision", "audio", "text"}
        assert set(unit["kv"]) == {"cells", "pages", "span", "bytes", "budget"}
        assert unit["tokens"]["vision"] > 0 and unit["tokens"]["audio"] > 0
        assert unit["kv"]["cells"] <= unit["kv"]["budget"] == 1024
        assert unit["dropped"] == {"frames": 0, "samples": 0} and unit["lag_ms"] == 0
    answers = of(events, "answer")
    assert [(answer["t"], answer["question"]) for answer in answers] == [
        (0.0, "what comes?"),
        (1.5, "and now?"),
        (2.4, "and then?"),
    ]
    tokens = of(events, "token")
    assert "".join(token["text"] for token in tokens) == "".join(a["text"] for a in answers)
    warnings = [warning["message"] for warning in of(events, "warning")]
    assert len(warnings) == 1 and "untrained" in warnings[0]
    assert events[-1]["event"] == "summary"
    assert events[-1]["units"] == 3 and events[-1]["backend"] == backend


def test_both_backends_make_the_same_plans_and_replay_each_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("mlx.core")
    pytest.importorskip("torch")
    clip = write_clip(tmp_path / "clip.mp4", seconds=6.3)
    words = ["--ask", "2.5: what is it?", "--budget", "440", "--loop", "3", "--temperature", "0.8"]
    runs = {
        name: live(capsys, name, clip, *words, "--record", str(tmp_path / name))
        for name in ("mlx", "cuda")
    }
    assert of(runs["mlx"], "evict")
    assert runs["mlx"][-1]["plans"] == runs["cuda"][-1]["plans"]
    recordings = [Recording(tmp_path / name) for name in runs]
    assert first_difference(*recordings) is None
    folders = [str(tmp_path / name) for name in runs]
    assert main(["replay", folders[0], "--compare", folders[1]]) == 0
    assert "the plans are equal" in capsys.readouterr().out
    for recorded, other in (("mlx", "cuda"), ("cuda", "mlx")):
        words = ["replay", str(tmp_path / recorded), "--backend", other, "--device", "cpu"]
        assert main([*words, "--jsonl"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["compared"] == report["agreed"] > 0
        assert report["worst"] <= 1e-3


@pytest.mark.shipped
@pytest.mark.parametrize(("bits", "least"), [("8", 1e-4), ("4", 1e-2)])
def test_a_replay_allows_for_each_backends_rounding_of_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bits: str, least: float
) -> None:
    pytest.importorskip("mlx.core")
    pytest.importorskip("torch")
    demo = EMBEDDED_FOLDER.parent / "demo.mp4"
    record = ("--weights", bits, "--duration", "4", "--record", str(tmp_path / "r"))
    live(capsys, "cuda", demo, *record)
    words = ["replay", str(tmp_path / "r"), "--device", "cpu", "--jsonl", "--backend"]
    for replayed, gap in ((["mlx"], least), (["cuda", "--weights", "f32"], least), (["cuda"], 0.0)):
        assert main([*words, *replayed]) == 0
        report = json.loads(capsys.readouterr().out)
        assert gap <= report["worst"] < (report["tolerance"] if gap else 1e-3)
        assert (report["tolerance"] > 1e-3) == (gap > 0)


def test_recordings_with_other_plans_are_told_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    for name, question in (("one", "what?"), ("two", "who?")):
        words = ["--ask", f"1: {question}", "--record", str(tmp_path / name)]
        live(capsys, backend, clip, *words)
    assert main(["replay", str(tmp_path / "one"), "--compare", str(tmp_path / "two")]) == 1
    assert "plan 3: StepPlan" in capsys.readouterr().err


def test_a_recording_without_questions_is_compared_unit_by_unit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=3.0)
    live(capsys, backend, clip, "--record", str(tmp_path / "r"))
    words = ["replay", str(tmp_path / "r"), "--backend", backend, "--device", "cpu", "--jsonl"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["compared"] == report["agreed"] == 3
    lines = (tmp_path / "r" / "plans.jsonl").read_text().splitlines()
    (tmp_path / "r" / "plans.jsonl").write_text(lines[0] + "\n")
    assert main(words) == 1
    assert "no logits to compare" in capsys.readouterr().err


def test_a_replay_that_differs_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    folder = tmp_path / "recording"
    live(capsys, backend, clip, "--ask", "1: what?", "--record", str(folder))
    lines = (folder / "plans.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    for step in steps:
        if step.get("values"):
            step["values"][0][0][0] += 1.0
    text = "\n".join(json.dumps(step) for step in steps)
    (folder / "plans.jsonl").write_text(text + "\n")
    assert main(["replay", str(folder), "--backend", backend, "--device", "cpu"]) == 1
    assert "the logits differ by" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"backend": None}, "lacks `backend`"),
        ({"model": None}, "lacks `model`"),
        ({"element": None}, "lacks `element`"),
        ({"arena": None}, "lacks `arena`"),
        ({"backend": 5}, "`backend` is 5, expected a text"),
        ({"model": 5}, "`model` is 5, expected a text"),
        ({"weights": "zz"}, "`weights` is 'zz', expected one of auto"),
        ({"weights": []}, "`weights` is [], expected a text"),
        ({"element": "x"}, "`element` is 'x', expected a whole number"),
        ({"element": 8}, "`element` is 8, expected 2 or 4"),
        ({"element": True}, "`element` is True"),
        ({"arena": [1]}, "`arena` is [1], expected an object"),
        ({"arena": {"pages": 30}}, "expected numbers for pages, groups"),
        ({"pages": -1}, "expected numbers for pages"),
        ({"pages": "x"}, "expected numbers for pages"),
        ({"pages": 10**12}, "expected numbers for pages"),
        ({"groups": 0}, "expected numbers for pages"),
        ({"streams": 2}, "recorded with (layers, key heads, head_dim, streams)"),
        ({"kv_heads": 7}, "but embedded has"),
    ],
)
def test_a_recording_is_looked_through_before_it_is_replayed(
    change: dict[str, Any],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recording: Path,
) -> None:
    def load_backend(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("omnilive.backends.load_backend", load_backend)
    folder = Path(shutil.copytree(recording, tmp_path / "recording"))
    meta = json.loads((folder / "session.json").read_text())
    for key, value in change.items():
        place = meta["arena"] if key in meta["arena"] else meta
        place[key] = value
        if value is None:
            del place[key]
    (folder / "session.json").write_text(json.dumps(meta))
    assert main(["replay", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err


@pytest.mark.parametrize("weights", ["bf16", "8", "4"])
def test_smaller_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str, weights: str
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    events = live(capsys, backend, clip, "--weights", weights, "--ask", "1: what?")
    assert len(of(events, "token")) > 0 and events[-1]["units"] == 1


def test_mute_clip(capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str) -> None:
    events = live(capsys, backend, write_clip(tmp_path / "mute.mp4", rate=None))
    assert all(unit["tokens"]["audio"] == 0 for unit in of(events, "unit"))
    assert all(unit["tokens"]["vision"] > 0 for unit in of(events, "unit"))
    told = [w["message"] for w in of(events, "warning") if "no sound" in w["message"]]
    assert len(told) == 1


def test_sound_without_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    clip = write_clip(tmp_path / "sound.m4a", seconds=2.37, fps=None)
    events = live(capsys, backend, clip)
    units = of(events, "unit")
    assert len(units) == 3 and units[-1]["t"] == pytest.approx(2.37, abs=0.1)
    assert all(unit["tokens"]["vision"] == 0 for unit in units)
    assert units[0]["tokens"]["audio"] == 25 > units[-1]["tokens"]["audio"] > 0


def test_sizes_that_change(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    units = of(live(capsys, backend, write_two_sizes(tmp_path / "sizes.mkv")), "unit")
    assert len(units) == 2 and all(unit["tokens"]["vision"] > 0 for unit in units)


def test_loop_and_duration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.2)
    units = of(live(capsys, backend, clip, "--loop", "3"), "unit")
    assert [unit["t"] for unit in units] == pytest.approx([1, 2, 3, 3.6], abs=0.1)
    units = of(live(capsys, backend, clip, "--duration", "2.5", "--ask", "2.5: so?"), "unit")
    assert [unit["t"] for unit in units] == [1.0, 2.0, 2.5]


def test_question_past_an_end_that_no_container_states(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
) -> None:
    clip = write_clip(tmp_path / "clip.mkv", seconds=0.8)
    monkeypatch.setattr("omnilive.live.probe", lambda path: replace(probe(path), duration=None))
    words = ["--ask", "0.5: now?", "--ask", "7: later?", "--backend", backend, "--device", "cpu"]
    assert main(["live", "--source", str(clip), "--fast", "--jsonl", *words]) == 1
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert [answer["question"] for answer in of(events, "answer")] == ["now?"]
    assert "the stream ended at 0.8" in err.splitlines()[-1]
    assert "before the question at 7 s" in err.splitlines()[-1]


def test_question_past_an_end_that_was_rounded_up(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.4)
    monkeypatch.setattr("omnilive.live.probe", lambda path: replace(probe(path), duration=1.46))
    events = live(capsys, backend, clip, "--ask", "1.45: now?")
    assert [answer["t"] for answer in of(events, "answer")] == [1.4]
    assert any("comes there" in warning["message"] for warning in of(events, "warning"))


def test_budget_that_is_too_small(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_backend(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("omnilive.backends.load_backend", load_backend)
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    record = tmp_path / "recording"
    for budget in ("0", "100", "20kB"):
        words = ("--source", str(clip), "--budget", budget, "--record", str(record))
        assert "too small" in failure(capsys, *words)
    words = ("--source", str(clip), "--budget", "900GB")
    assert "lower --budget" in failure(capsys, *words)
    words = ("--source", str(clip), "--budget", "1024", "--system", "a b c " * 400)
    assert "too small" in failure(capsys, *words)
    assert not record.exists()


def test_a_start_that_fails_leaves_no_recording(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
) -> None:
    def session(*_: object, **__: object) -> None:
        raise BackendError("the device went away")

    monkeypatch.setattr("omnilive.live.Session", session)
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    (tmp_path / "there").mkdir()
    for name, exists in (("there", True), ("new", False)):
        folder = tmp_path / name
        words = ["--source", str(clip), "--record", str(folder), "--fast", "--device", "cpu"]
        assert main(["live", "--jsonl", "--backend", backend, *words]) == 1
        assert capsys.readouterr().err.splitlines()[-1] == "omnilive: the device went away"
        assert folder.exists() == exists
        assert not exists or not list(folder.iterdir())


def test_text_output(capsys: pytest.CaptureFixture[str], tmp_path: Path, backend: str) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    words = ["--ask", "1: what is on screen?", "--backend", backend, "--device", "cpu"]
    assert main(["live", "--source", str(clip), "--fast", "--max-tokens", "4", *words]) == 0
    out, err = capsys.readouterr()
    question, answer = out.splitlines()
    assert question == "[1.0 s] what is on screen?"
    assert answer.startswith("> ") and len(answer.split()) > 1
    assert "untrained" in err and "1.00 s  4 text" in err and f"backend {backend} on" in err


def test_six_lines_of_python(
    tmp_path: Path, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.4, rate=None)
    session = Session(load(backend=backend, device="cpu"), budget=1024)
    with caplog.at_level(logging.WARNING, "omnilive"):
        for unit in open_clip(clip, session.model):
            session.append(unit)
    assert session.ask("What is on screen?", max_tokens=3).strip()
    assert session.summary()["units"] == 3
    assert [record.message for record in caplog.records] == [
        f"{clip}: no sound; the stream goes on without it"
    ]
