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
from typing import Any

import pytest
from clips import write_clip

from omni_core import Session
from omnilive.cli import main
from omnilive.interrupts import at_once
from omnilive.output import JsonLines

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
