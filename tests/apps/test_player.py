"""Playing a clip: paced or not, stopped, failing, and what Ctrl-C and a closed pipe do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip

from omni_core.errors import MediaError
from omni_core.frontend.framing import UnitFramer
from omnilive.cli import main
from omnilive.clip import probe
from omnilive.interrupts import gently
from omnilive.media import Media, Picture, Sound
from omnilive.player import Player
from omnilive.stream import timeline

FRAME = np.zeros((8, 8, 3), np.uint8)


@dataclass
class Scripted:
    """A clip of 0.1 s pieces that may warn, and may fail at a second."""

    seconds: float
    fails: float = float("inf")
    missing: str | None = None
    path: Path = Path("scripted")

    def play(self, warn: Callable[[str], None]) -> Iterator[Media]:
        warn("a scratch")
        for number in range(round(self.seconds * 10)):
            if number / 10 >= self.fails:
                raise MediaError("scripted: broken here")
            yield Picture(number / 10, FRAME, 0.1)
            yield Sound(number / 10, np.full(1600, 0.5, np.float32))


def player(clip: Scripted, warnings: list[str], paced: bool, loop: int = 1) -> Player:
    framer = UnitFramer(1.0, 1.0, block=not paced)
    return Player(
        clip,
        framer,
        paced=paced,
        loop=loop,
        duration=None,
        warn=warnings.append,
    )


def test_unpaced_loses_nothing_however_slow_the_taker() -> None:
    warnings: list[str] = []
    units = []
    for unit in player(Scripted(9.5), warnings, paced=False, loop=2).units():
        time.sleep(0.01)
        units.append(unit)
    assert [unit.stop for unit in units] == [float(n) for n in range(1, 20)]
    assert all(len(unit.frames) == 1 for unit in units)
    assert all(unit.audio is not None and unit.audio.size == 16_000 for unit in units)
    assert warnings == ["a scratch"]


def test_paced_keeps_the_clips_time() -> None:
    began = time.monotonic()
    playing = player(Scripted(1.5), [], paced=True)
    arrivals = [(unit.stop, time.monotonic() - began) for unit in playing.units()]
    assert [stop for stop, _ in arrivals] == [1.0, 1.5]
    for stop, arrival in arrivals:
        assert stop - 0.05 <= arrival < stop + 1.0
    assert playing.lag(1.0) >= 400 and playing.lag(60.0) == 0


def test_a_failure_in_the_reader_reaches_the_taker_after_what_came_before() -> None:
    taken = []
    with pytest.raises(MediaError, match="broken here"):
        taken += player(Scripted(5, fails=2.5), [], paced=False).units()
    units = []
    playing = player(Scripted(5, fails=2.5), [], paced=False)
    with pytest.raises(MediaError, match="broken here"):
        for unit in playing.units():
            units.append(unit.stop)
    assert units[:2] == [1.0, 2.0]


def test_stop_ends_a_reader_that_waits_for_room() -> None:
    playing = player(Scripted(60), [], paced=False)
    for _ in playing.units():
        time.sleep(0.3)
        began = time.monotonic()
        playing.stop()
    assert time.monotonic() - began < 2
    assert not playing._thread.is_alive()


def test_looped_media_stay_in_order_and_without_gaps(tmp_path: Path) -> None:
    clip = probe(write_clip(tmp_path / "clip.mp4", seconds=1.2, sound_seconds=1.0))
    heard = seen = 0.0
    for item in timeline(clip, print, loop=3):
        if isinstance(item, Sound):
            assert item.time == pytest.approx(heard, abs=1e-4)
            heard = item.stop
        else:
            assert item.time >= seen
            seen = item.time
    assert heard == pytest.approx(3.6, abs=0.05) and seen == pytest.approx(3.5, abs=0.05)


def test_first_ctrl_c_is_gentle_the_second_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    calls: list[None] = []
    with pytest.raises(KeyboardInterrupt), gently(lambda: calls.append(None)):
        os.kill(os.getpid(), signal.SIGINT)
        assert len(calls) == 1
        os.kill(os.getpid(), signal.SIGINT)
    assert len(calls) == 1
    assert signal.getsignal(signal.SIGINT) is before
    assert "Ctrl-C again ends at once" in capfd.readouterr().err


def test_second_ctrl_c_is_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omnilive.live.run", interrupted)
    assert main(["live"]) == 130
    assert capsys.readouterr().err == "omnilive: interrupted\n"


def started(clip: Path, *words: str) -> subprocess.Popen[str]:
    pytest.importorskip("mlx.core")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "omnilive", "live", "--source", str(clip), "--jsonl"]
    return subprocess.Popen(
        [*command, "--backend", "mlx", "--device", "cpu", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_ctrl_c_ends_a_run_in_good_order(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    run = started(clip, "--duration", "60")
    assert run.stdout is not None
    for line in run.stdout:
        if json.loads(line)["event"] == "unit":
            break
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=20)
    assert time.monotonic() - began < 2
    assert run.returncode == 0
    assert json.loads(out.splitlines()[-1])["event"] == "summary"
    assert "Traceback" not in err


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", seconds=2.0)
    run = started(clip, "--fast", "--loop", "50")
    assert run.stdout is not None and run.stderr is not None
    run.stdout.readline()
    run.stdout.close()
    assert run.wait(timeout=30) == 0
    lines = run.stderr.read().splitlines()
    run.stderr.close()
    assert lines == []
