"""``--explain``, ``--sinks``, ``--layout``, and the page map in the terminal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from clips import write_clip

from omni_core.calibration import FORMAT
from omni_core.explain import BARS, PLAIN_BARS
from omni_core.paging import LAYOUTS
from omnilive.cli import main

SINKS = {"format": FORMAT, "version": 1, "sinks": {"vision": 2, "audio": 1}}


@pytest.fixture(params=["mlx", "cuda"])
def backend(request: pytest.FixtureRequest) -> list[str]:
    name = str(request.param)
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    return ["--backend", name, "--device", "cpu", "--fast", "--max-tokens", "4"]


@pytest.fixture
def never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_backend(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("omnilive.backends.load_backend", load_backend)


def rows(file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_a_line_a_unit(
    tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=3.0)
    file = tmp_path / "why.txt"
    words = ["--source", str(clip), "--loop", "4", "--budget", "440", "--ask", "2: what is it?"]
    assert main(["live", *words, *backend, "--explain", str(file)]) == 0
    text, err = file.read_text(encoding="utf-8"), capsys.readouterr().err
    assert "model embedded, 440 cells" in text and "retention omnipick, layout page" in text
    found = rows(file)
    assert len(found) == 13 and float(found[-1].split()[1]) == 12.0
    assert any(row.split(" | ")[2].split() != ["-", "-"] for row in found)
    # What the terminal ends with is the last line's map.
    lines = err.splitlines()
    at = lines.index("pages:")
    assert lines[at + 1].strip() == found[-1].split(" | ")[-1]
    assert all(len(line) <= 80 for line in lines[at:]) and "a mark is 32 cells" in lines[at + 2]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_by_name(
    tmp_path: Path, backend: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    file = tmp_path / "why.txt"
    words = ["--source", str(clip), "--layout", name, "--retention", "h2o", *backend]
    assert main(["live", *words, "--explain", str(file)]) == 0
    assert f"retention h2o, layout {name}" in file.read_text(encoding="utf-8")
    assert f"layout {name}" in capsys.readouterr().err
    assert ("M" in rows(file)[0]) == (name != "page")


def test_sinks_are_those_of_the_file(tmp_path: Path, backend: list[str]) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=3.0)
    sinks, record = tmp_path / "sinks.json", tmp_path / "recording"
    sinks.write_text(json.dumps(SINKS))
    words = ["--source", str(clip), "--record", str(record), *backend]
    assert main(["live", *words, "--sinks", str(sinks)]) == 0
    policy = json.loads((record / "session.json").read_text())["policy"]
    assert (policy["vision"], policy["audio"], policy["text"]) == (2, 1, 16)


def test_sinks_of_another_model_are_told(
    tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    sinks = tmp_path / "sinks.json"
    for model, told in (("other/model", True), ("embedded", False)):
        sinks.write_text(json.dumps(SINKS | {"about": {"model": model}}))
        assert main(["live", "--source", str(clip), *backend, "--sinks", str(sinks)]) == 0
        assert ("was measured on other/model, not on embedded" in capsys.readouterr().err) == told


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1, 2]", "no retention calibration"),
        (json.dumps(SINKS | {"sinks": {"vision": -4}}).encode(), "-4 vision sinks"),
        (json.dumps(SINKS | {"version": 9}).encode(), "version 9"),
    ],
)
def test_bad_sinks(
    tmp_path: Path, content: bytes | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sinks.json"
    if content is not None:
        file.write_bytes(content)
    assert main(["live", "--sinks", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert says in err and str(file) in err


@pytest.mark.usefixtures("never_loaded")
def test_sinks_are_for_omnipick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--sinks", str(tmp_path / "s.json"), "--retention", "fifo"]) == 2
    assert "--sinks is for --retention omnipick, not for fifo" in capsys.readouterr().err


@pytest.mark.usefixtures("never_loaded")
def test_a_file_that_cannot_be_written_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, says in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "e.txt", "there is no folder"),
    ):
        assert main(["live", "--explain", str(file)]) == 1
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1


def test_a_stream_that_fails_leaves_the_lines_so_far(
    tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=3.0)
    file = tmp_path / "why.txt"
    words = ["--source", str(clip), "--loop", "9", "--budget", "440", "--retention", "no-slide"]
    assert main(["live", *words, *backend, "--explain", str(file)]) == 1
    assert "keeps them all" in capsys.readouterr().err
    assert 3 <= len(rows(file)) < 27


def test_a_terminal_without_blocks_gets_digits(
    tmp_path: Path, backend: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, "ascii", write_through=True))
    assert main(["live", "--source", str(clip), *backend]) == 0
    lines = raw.getvalue().decode("ascii").splitlines()
    shown = lines[lines.index("pages:") + 1]
    assert shown.startswith("  0:P") and set(shown) & set(PLAIN_BARS[1:])
    assert not set(shown) & set(BARS)


def test_programs_get_no_map(
    tmp_path: Path, backend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    assert main(["live", "--source", str(clip), "--jsonl", *backend]) == 0
    out, err = capsys.readouterr()
    assert "pages:" not in out + err
    assert all(json.loads(line) for line in out.splitlines())


def test_a_file_in_use_is_never_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    sinks = tmp_path / "sinks.json"
    sinks.write_text(json.dumps(SINKS), encoding="utf-8")
    asks = tmp_path / "asks.json"
    asks.write_text('[{"seconds": 1, "question": "what?"}]', encoding="utf-8")
    inputs = {path: path.read_bytes() for path in (clip, sinks, asks)}
    live = ["live", "--source", str(clip), "--fast", "--sinks", str(sinks)]
    live += ["--questions", str(asks), "--explain"]
    calibrate = ["calibrate", "retention", "--source", str(clip), "--out"]
    for words in (*([*live, str(path)] for path in inputs), [*calibrate, str(clip)]):
        assert main(words) != 0
        assert "in use by this command" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in inputs} == inputs
