"""Ctrl-C at any time: from the first import on, while starting, before and in an answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clips import write_clip

from omni_core import Session
from omnilive import backends
from omnilive.cli import main
from omnilive.interrupts import at_once, gently, put_off
from omnilive.output import JsonLines
from omnilive.terminal import put, say

# Presses Ctrl-C when a module is first looked for.
PRESSED = """
import os, runpy, signal, sys
class Press:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(cls)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press)
sys.argv = ["omnilive", "live", "--backend", "mlx", "--device", "cpu", "--fast"]
runpy.run_module("omnilive", run_name="__main__", alter_sys=True)
"""


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def live(tmp_path: Path, *words: str) -> list[str]:
    pytest.importorskip("mlx.core")
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    where = ["--backend", "mlx", "--device", "cpu", "--fast", "--jsonl"]
    return ["live", "--source", str(clip), *where, *words]


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "module", ["omnilive.interrupts", "argparse", "numpy", "omnilive.live", "av", "mlx.core"]
)
def test_while_modules_are_imported(module: str) -> None:
    pytest.importorskip("mlx.core")
    done = subprocess.run(
        [sys.executable, "-c", PRESSED.format(module=module)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "omnilive: interrupted\n"


@pytest.mark.parametrize("module", ["omnilive.cli", "omni_core"])
def test_the_way_to_main_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=True,
    )
    assert not {"numpy", "av", "argparse", "dataclasses"} & set(done.stdout.split())


def test_a_second_one_leaves_the_cleaning_up_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remove = shutil.rmtree

    def interrupted_removal(*arguments: Any, **options: Any) -> None:
        press()
        remove(*arguments, **options)
        press()

    def session(*_: object, **__: object) -> None:
        press()

    record = tmp_path / "some" / "new" / "folder"
    words = live(tmp_path, "--record", str(record))
    monkeypatch.setattr("omnilive.live.Session", session)
    monkeypatch.setattr(shutil, "rmtree", interrupted_removal)
    assert main(words) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "omnilive: interrupted"
    assert not (tmp_path / "some").exists()


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")],
)
def test_signals_that_end_it_before_there_is_a_stream(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    code: int,
    line: str,
) -> None:
    def session(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("omnilive.live.Session", session)
    assert main(live(tmp_path, "--record", str(tmp_path / "run"))) == code
    assert capsys.readouterr().err.splitlines()[-1] == f"omnilive: {line}"
    assert not (tmp_path / "run").exists()


def test_a_hang_up_that_nohup_has_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with at_once(), gently(lambda: pytest.fail("it was told to stop")) as ending:
            signal.raise_signal(signal.SIGHUP)
        assert ending.code == 0 and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_is_a_hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[None] = []
    master, slave = os.openpty()
    with (
        os.fdopen(slave, "w") as stdout,
        os.fdopen(os.dup(slave), "w") as stderr,
        gently(lambda: stops.append(None)) as ending,
    ):
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        put("there\n")
        os.close(master)
        put("gone\n")
        assert (ending.code, len(stops)) == (129, 1)
        say("lost")
        assert (ending.code, len(stops)) == (129, 2)
        # From here on it goes nowhere, and nothing is left that Python would stumble over.
        put("still\n")
        say("still")
        assert len(stops) == 2
        monkeypatch.undo()


def test_who_reads_may_be_ended_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = os.pipe()
    os.close(source)
    with os.fdopen(target, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with gently(lambda: None) as ending:
            signal.raise_signal(signal.SIGTERM)
            put("nobody reads")
        assert ending.code == 143
        monkeypatch.undo()


@pytest.mark.parametrize("load", ["check", "load_backend"])
def test_a_signal_within_a_librarys_import_comes_after_it(
    load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def imported(name: str) -> SimpleNamespace:
        signal.raise_signal(signal.SIGTERM)
        done.append(name)
        return SimpleNamespace(choose_device=done.append, load=lambda *_, **__: done.append("load"))

    monkeypatch.setattr(backends, "import_module", imported)
    arguments = {"check": ("mlx", "auto", "f32"), "load_backend": ("mlx", None, "auto", "f32")}
    with gently(lambda: done.append("stop")):
        getattr(backends, load)(*arguments[load])
    assert done[0].startswith("omni_mlx") and done[1] == "stop"


def test_signals_are_put_off_and_come_after() -> None:
    done: list[str] = []
    with gently(lambda: done.append("stop")) as ending:
        with put_off():
            signal.raise_signal(signal.SIGTERM)
            done.append("whole")
        assert done == ["whole", "stop"] and ending.code == 143
    with pytest.raises(KeyboardInterrupt), gently(lambda: None), put_off():
        press()
        press()
        done.append("whole again")
    assert done[-1] == "whole again"


def test_one_after_a_second_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    before = signal.getsignal(signal.SIGINT)
    with at_once():
        for now, counts in ((100.0, True), (100.9, False), (101.5, True)):  # noqa: B007
            if counts:
                with pytest.raises(KeyboardInterrupt):
                    press()
            else:
                press()
    assert signal.getsignal(signal.SIGINT) is before


def test_while_a_question_is_shown_it_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(JsonLines, "question", lambda *_: press())
    assert main(live(tmp_path, "--ask", "1: what?", "--ask", "2: who?")) == 0
    kinds = [event["event"] for event in events(capsys)]
    assert kinds == ["warning", "unit", "summary"]


def test_at_the_very_start_of_an_answer_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = Session.ask

    def pressed(self: Session, question: str) -> str:
        press()
        return ask(self, question)

    monkeypatch.setattr(Session, "ask", pressed)
    words = live(tmp_path, "--ask", "1: what?", "--ask", "1: who?", "--max-tokens", "40")
    assert main(words) == 0
    shown = events(capsys)
    assert sum(event["event"] == "answer" for event in shown) == 1
    assert sum(event["event"] == "token" for event in shown) <= 2
    assert shown[-1]["event"] == "summary" and shown[-1]["units"] == 1
