"""The command as a user meets it: help, wrong words, files that cannot be played; one line each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clips import write_clip, write_subtitles

from omni_core.paging import LAYOUTS
from omni_core.retention import POLICIES
from omnilive.cli import main
from omnilive.grammar import parser, subcommands
from omnilive.options import LAYOUT, RETENTION, Ask, parse_ask

BLOCKED = """
import runpy, sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {blocked!r} else super().find_spec(name, path, target)
sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
sys.argv = ["omnilive", *{words!r}]
runpy.run_module("omnilive", run_name="__main__", alter_sys=True)
"""
BACKENDS = ("mlx", "torch", "transformers", "sounddevice")
MEDIA = ("av", "cv2", "tokenizers", "huggingface_hub")


def omnilive(*words: str, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omnilive", *words]
    if blocked:
        command = [sys.executable, "-c", BLOCKED.format(blocked=blocked, words=words)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False
    )


def refused(code: int, *words: str) -> str:
    """The one line on stderr of a run that ends with ``code`` and says nothing on stdout."""
    done = omnilive("live", *words)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("omnilive: "), done.stderr
    return lines[0]


@pytest.mark.parametrize(
    "words", [("--help",), ("live", "--help"), ("eval", "streamworld", "--help"), ("--version",)]
)
def test_help_needs_neither_backend_nor_codecs(words: tuple[str, ...]) -> None:
    done = omnilive(*words, blocked=BACKENDS + MEDIA)
    assert done.returncode == 0 and done.stderr == ""
    assert "omnilive" in done.stdout


@pytest.mark.parametrize(
    ("backend", "absent"),
    [
        ("mlx", ("torch", "transformers", "sounddevice", "cv2")),
        ("cuda", ("mlx", "mlx_lm", "sounddevice", "cv2")),
    ],
)
def test_a_clip_needs_one_backend_and_no_sound_library(
    backend: str, absent: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("mlx.core" if backend == "mlx" else "torch")
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    words = ("live", "--source", str(clip), "--fast", "--backend", backend, "--device", "cpu")
    done = omnilive(*words, "--jsonl", blocked=absent)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert events == ["unit", "summary"]


@pytest.mark.parametrize(
    "words",
    [
        ("live",),
        ("live", "--source", "clip.mp4"),
        ("live", "--camera", "0", "--mic", "none"),
        ("calibrate", "retention", "--source", "clip.mp4", "--out", "sinks.json"),
        ("calibrate", "layers", "--source", "clip.mp4", "--out", "layers.json"),
        ("devices",),
        ("doctor",),
    ],
)
def test_without_pyav_one_line_says_what_to_install(words: tuple[str, ...]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = omnilive(*words, blocked=("av", "mlx"))
    says = "picture and sound need PyAV, which cannot be loaded: No module named 'av'; "
    says += "pip install -e . in the checkout"
    assert done.returncode == 1
    if words != ("doctor",):
        assert (done.stdout, done.stderr) == ("", f"omnilive: {says}\n")
        return
    found = done.stdout.splitlines()
    assert [line for line in found if line.startswith("FAIL")] == [
        f"FAIL  {part}: {says}" for part in ("backend cuda", "cameras", "microphones")
    ]
    # The rest is checked all the same.
    assert any("voice: " in line for line in found) and done.stderr == ""


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (("live", "--fast"), "tokenizers"),
        (("doctor",), "tokenizers"),
        (("eval", "streamworld", "--quick"), "tokenizers"),
        (("live", "--model", "nobody/nothing"), "huggingface_hub"),
    ],
)
def test_without_what_reads_a_checkpoint_one_line_says_what_to_install(
    words: tuple[str, ...], package: str
) -> None:
    # Its name alone: transformers, which also needs them, is only looked for.
    pytest.importorskip("torch", reason="torch is not installed")
    done = omnilive(*words, "--backend", "cuda", blocked=(package,))
    told = done.stdout if words == ("doctor",) else done.stderr
    (line,) = [line for line in told.splitlines() if "cannot be loaded" in line]
    assert f"{package}, which" in line or f"{package} package, which" in line
    assert line.startswith(("omnilive: ", "FAIL  backend cuda: "))
    assert f"No module named '{package}'; pip install -e . in the checkout" in line
    assert done.returncode == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["live", "--ask", "what is this?"], 'SECONDS: QUESTION, as in "12.5: what is on screen?"'),
        (["live", "--ask", "-1: what?"], "SECONDS: QUESTION"),
        (["live", "--budget", "many"], "neither cells"),
        (["live", "--budget", "12.5"], "cells come whole"),
        (["live", "--max-tokens", "0"], "'0' is not a whole number from 1"),
        (["live", "--temperature", "nan"], "'nan' is not a number from 0"),
        (["live", "--loop", "2", "--duration", "5"], "not allowed with"),
        (["live", "--weights", "3"], "invalid choice: '3'"),
        (["live", "--retention", "all"], "invalid choice: 'all'"),
        (["lives"], "invalid choice: 'lives'"),
        ([], "COMMAND"),
        (["replay"], "DIR"),
        (["live", "--layout", "paged"], "invalid choice: 'paged'"),
        (["calibrate"], "WHAT"),
        (["calibrate", "layout"], "invalid choice: 'layout'"),
        (["calibrate", "layers"], "--out"),
        (["calibrate", "layers", "--out", "s", "--units", "0"], "a whole number from 1"),
        (["calibrate", "retention"], "--out"),
        (["calibrate", "retention", "--out", "s", "--cover", "0"], "a share from 0.001 to 1"),
        (["calibrate", "retention", "--out", "s", "--cover", "1.5"], "a share from 0.001 to 1"),
        (["calibrate", "retention", "--out", "s", "--recent", "0"], "a whole number from 1"),
    ],
)
def test_wrong_words(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and out == ""
    assert err.startswith("omnilive: ") and err.count("\n") == 1
    assert says in err


NINES = "9" * 400


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (option, form.format(number))
        for option, forms in {
            "--ask": ["{}: x", "{}.5: x"],
            "--budget": ["{}", "{}B", "{}.5GB"],
            "--max-tokens": ["{}"],
            "--loop": ["{}"],
            "--duration": ["{}", "{}.5"],
            "--temperature": ["{}", "{}.5"],
            "--seed": ["{}"],
        }.items()
        for form in forms
        for number in ("inf", "nan", "-1", "1e400", NINES, NINES * 20)
    ],
)
def test_absurd_numbers_are_wrong_usage(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["live", f"{option}={value}"])
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and out == ""
    assert err.startswith(f"omnilive: argument {option}: ") and err.count("\n") == 1
    assert len(err) < 300


@pytest.mark.parametrize(
    ("backend", "option", "value"),
    [("mlx", "--device", "xx"), ("cuda", "--device", "xx")],
)
def test_what_a_backend_has_not_is_refused_first(backend: str, option: str, value: str) -> None:
    pytest.importorskip("mlx.core" if backend == "mlx" else "torch")
    assert repr(value) in refused(1, "--backend", backend, option, value)


def test_files_that_cannot_be_played(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no clip")
    words = write_subtitles(tmp_path / "words.srt")
    assert "not readable as a clip" in refused(1, "--source", str(text))
    assert "no usable stream" in refused(1, "--source", str(words))
    assert "no such file" in refused(1, "--source", str(tmp_path / "none.mp4"))


def test_question_past_the_end_is_wrong_usage(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    line = refused(2, "--source", str(clip), "--ask", "20: what?", "--loop", "3")
    assert "the question at 20 s" in line and "at 6 s" in line


def test_recording_into_a_full_folder_is_refused_first(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    line = refused(1, "--source", str(clip), "--record", str(tmp_path / "full"))
    assert "not empty" in line
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_an_unexpected_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("of all\nthings")

    monkeypatch.setattr("omnilive.live.run", fail)
    assert main(["live"]) == 1
    err = capsys.readouterr().err
    assert err == "omnilive: unexpected ZeroDivisionError: of all things (--debug shows where)\n"
    with pytest.raises(ZeroDivisionError):
        main(["live", "--debug"])


def test_timed_questions() -> None:
    assert parse_ask("12.5: what is on screen?") == Ask(12.5, "what is on screen?")
    assert parse_ask(" 3 :who: you? ") == Ask(3.0, "who: you?")
    for wrong in ("", "what?", "12.5", "12.5:", "12.5:  ", "1e3: what?", "inf: what?"):
        with pytest.raises(ValueError, match="SECONDS: QUESTION"):
            parse_ask(wrong)


def test_names_are_the_cores() -> None:
    assert set(RETENTION) == set(POLICIES)
    assert set(LAYOUT) == set(LAYOUTS)


def test_each_command_is_listed_and_helps() -> None:
    calibrate = ("calibrate retention", "calibrate values", "calibrate layers")
    assert list(subcommands()) == [
        *("live", "replay", *calibrate, "eval streamworld", "bench", "devices", "doctor")
    ]
    for name, command in subcommands().items():
        assert name.split()[0] in parser().format_help()
        assert command.format_help().startswith(f"usage: omnilive {name}")
