"""Terminals that go, whoever they belong to: the run ends, and what is no terminal does not."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from virtual_devices import VirtualCamera

from omnilive import hangups
from omnilive.interrupts import gently
from omnilive.terminal import OutputError, put, say

if os.name != "posix":
    pytest.skip("there are no pseudo terminals here", allow_module_level=True)

GREY = np.full((112, 112, 3), 90, np.uint8)


class Broken:
    """A file that fails as on a broken disk, which is how a terminal fails that has gone."""

    encoding = "utf-8"

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.fileno, self.close = self._file.fileno, self._file.close

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_file_on_a_broken_disk_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[None] = []
    files = [Broken(tmp_path / name) for name in ("out", "err")]
    with gently(lambda: stops.append(None)) as ending:
        monkeypatch.setattr(sys, "stdout", files[0])
        monkeypatch.setattr(sys, "stderr", files[1])
        with pytest.raises(OutputError, match=f"cannot be written: {os.strerror(errno.EIO)}"):
            put("an answer\n")
        say("a remark, which the run goes on without")
        monkeypatch.undo()
    assert ending.code == 0 and stops == []
    for file in files:
        file.close()


def test_a_terminal_that_goes_in_silence_is_a_hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    master, slave = os.openpty()
    monkeypatch.setattr(hangups, "_STREAMS", (slave,))
    with gently(told.set) as ending, hangups.noticed():
        assert "terminal" in {thread.name for thread in threading.enumerate()}
        os.close(master)
        assert told.wait(10)
    assert ending.code == 129
    assert "terminal" not in {thread.name for thread in threading.enumerate()}
    os.close(slave)


def test_what_stays_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    null = os.open(os.devnull, os.O_WRONLY)
    closed = os.dup(null)
    os.close(closed)
    source, target = os.pipe()
    os.close(source)
    with (tmp_path / "file").open("wb") as file:
        monkeypatch.setattr(hangups, "_STREAMS", (slave, null, closed, target, file.fileno()))
        with gently(lambda: pytest.fail("it was told to stop")) as ending, hangups.noticed():
            os.write(slave, b"still there")
            assert os.read(master, 11) == b"still there"
    assert ending.code == 0
    assert "terminal" not in {thread.name for thread in threading.enumerate()}
    for descriptor in (master, slave, null, target):
        os.close(descriptor)


@pytest.mark.parametrize("when", ["before", "while it starts", "while it runs"])
def test_a_terminal_that_nobody_controls_ends_it_all_the_same(
    when: str, untrained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run, errors = tmp_path / "run", tmp_path / "errors"
    events = run / "events.jsonl"
    master, slave = os.openpty()
    if when == "before":
        os.close(master)
    with VirtualCamera(lambda _: GREY) as camera, errors.open("wb") as stderr:
        words = ["--camera", camera.address, "--mic", "none", "--duration", "600"]
        words += ["--backend", "cuda", "--device", "cpu", "--model", str(untrained)]
        with subprocess.Popen(
            [sys.executable, "-m", "omnilive", "live", *words, "--record", str(run)],
            stdin=slave,
            stdout=slave,
            stderr=stderr,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "dumb"},
        ) as process:
            try:
                if when == "while it starts":
                    until(run.exists)
                    os.close(master)
                if when == "while it runs":
                    until(lambda: events.exists() and b'"unit"' in events.read_bytes())
                    os.close(master)
                assert process.wait(60) == 128 + signal.SIGHUP
            finally:
                process.kill()
    os.close(slave)
    said = errors.read_text()
    if when == "while it runs":
        assert json.loads(events.read_text().splitlines()[-1])["event"] == "summary", said
    else:
        assert said.splitlines()[-1] == "omnilive: hung up" and not run.exists()
    assert "Traceback" not in said
