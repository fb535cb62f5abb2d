"""The soak: short runs hold its claims, what leaks or grows does not, devices are in step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import harness, soak, virtual_devices
from benchmarks.soak_real_time import REST, Followed
from benchmarks.soak_run import WARM_UP, Part, Soak, Stopwatch
from benchmarks.soak_stream import SCENE, SHORTEST, Moment, stream
from benchmarks.virtual_devices import RATE, noise, numbered
from omni_core import UnitMedia
from omni_core.paging.table import PageTables
from omnilive.models import Prepared, prepare

MINUTES = 6.0


@pytest.fixture
def prepared(untrained: Path) -> Prepared:
    pytest.importorskip("torch", reason="torch is not installed")
    return prepare(str(untrained), "cuda", "cpu")


def failing(rows: list[dict[str, Any]]) -> list[str]:
    return [claim.name for claim in soak.counted(rows) if not claim.holds]


def test_a_short_run_holds_and_goes_through_all_that_a_long_one_does(prepared: Prepared) -> None:
    rows = soak.soak(prepared, MINUTES)
    assert failing(rows) == []
    about, parts = rows[0], rows[1:]
    assert [part["part"] for part in parts] == [f"part {n}" for n in range(1, soak.PARTS + 1)]
    assert about["minutes"] == MINUTES and about["reach"] == 32_768
    assert max(part["most_cells"] for part in parts) > soak.BUDGET * 7 // 8
    assert min(part["shortest_unit_s"] for part in parts) < 0.5
    assert sum(part["watches"] for part in parts) == pytest.approx((MINUTES - 1) * 6, abs=1)
    assert sum(part["questions"] for part in parts) == pytest.approx((MINUTES - 1) * 2, abs=2)
    # Positions go on for the whole stream, and so do distances until the range is reached.
    assert parts[-1]["position"] > 300 * 25
    assert [part["most_furthest"] for part in parts] == sorted(p["most_furthest"] for p in parts)
    assert len(soak.timed(rows)) == 2 and all(claim.value > 0 for claim in soak.timed(rows))
    soak.show(rows)
    assert json.loads(json.dumps(rows)) == rows


def test_ctrl_c_ends_it_early_with_what_ran(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*lengths: float) -> Iterator[Moment]:
        for moment in stream(*lengths):
            if moment.media.stop > 170:
                raise KeyboardInterrupt
            yield moment

    monkeypatch.setattr(soak, "stream", interrupted)
    arguments = ["--minutes", "6", "--model", prepared.name, "--backend", "cuda"]
    soak.main([*arguments, "--device", "cpu", "--out", str(tmp_path)])
    (file,) = tmp_path.iterdir()
    document = json.loads(file.read_text())
    about, *parts = document["rows"]
    assert document["quick"] and document["partial"] and about["minutes"] == 2.2
    assert [part["part"] for part in parts] == ["part 1", "part 2"]
    assert "part 2 over part 1" in document["claims"][0]["name"]


def test_ctrl_c_before_two_parts_leaves_nothing(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: float) -> Iterator[Moment]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(soak, "stream", interrupted)
    arguments = ["--model", prepared.name, "--backend", "cuda", "--device", "cpu"]
    with pytest.raises(KeyboardInterrupt):
        soak.main([*arguments, "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def keeps_a_page(release: Callable[..., None]) -> Callable[..., None]:
    """A release that once forgets to give an emptied page back."""
    lost: list[int] = []

    def broken(tables: PageTables, cells: np.ndarray) -> None:
        before = tables._group.copy()
        release(tables, cells)
        freed = np.flatnonzero(tables._group != before)
        if freed.size and not lost:
            lost.append(int(freed[0]))
            tables._group[lost[0]] = before[lost[0]]

    return broken


def keeps_a_cell(release: Callable[..., None]) -> Callable[..., None]:
    """A release that leaves one of several cells alive."""
    return lambda tables, cells: release(tables, cells[..., : max(1, cells.shape[-1] - 1)])


@pytest.mark.parametrize(
    ("fault", "claim"),
    [(keeps_a_page, "neither free nor hold"), (keeps_a_cell, "the tables hold and the ledger not")],
)
def test_a_leak_is_noticed(
    fault: Any, claim: str, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PageTables, "release", fault(PageTables.release))
    monkeypatch.setattr(soak, "PARTS", 1)
    rows = soak.soak(prepared, 1.6)
    assert any(claim in name for name in failing(rows))


def test_a_policy_that_keeps_too_much_is_noticed(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_core.cache.Cache.decide", lambda cache: None)
    monkeypatch.setattr(soak, "PARTS", 1)
    assert "cells alive, most" in failing(soak.soak(prepared, 1.6))


def test_units_without_a_sense_are_not_taken_for_quick_ones(prepared: Prepared) -> None:
    parts: list[Part] = []
    seconds = WARM_UP + 180
    moments = list(stream(seconds + SCENE, prepared.frontend.seconds, prepared.frontend.fps))
    Soak(prepared.load(), 512, prepared.watch).run(moments, seconds, 1, parts.append)
    (part,) = parts
    counted = [one.media for one in moments if one.media.stop > WARM_UP][: len(part.unit)]
    assert len(part.whole) == sum(bool(one.frames) and one.audio is not None for one in counted)
    assert len(part.whole) < len(part.unit)


def test_growth_fails_its_claims() -> None:
    part = dict.fromkeys(("most_memory", "most_rss", "most_cells", "most_furthest"), 100)
    part |= {"most_leaked": 0, "most_astray": 0, "unit_ms_quiet": 10.0}
    part |= {"first_token_ms_quiet": 10.0}
    about = {"part": "run", "budget": 512, "reach": 1000}
    level = [about, {"part": "hour 1", **part}, {"part": "hour 8", **part}]
    assert failing(level) == [] and all(claim.holds for claim in soak.timed(level))
    for name in ("most_memory", "most_rss"):
        assert len(failing([*level[:2], level[2] | {name: 103}])) == 1
    assert failing([*level[:2], level[2] | {"most_furthest": 1000}]) == ["positions apart, most"]
    slow = soak.timed([*level[:2], level[2] | {"unit_ms_quiet": 11.2}])
    assert [claim.holds for claim in slow] == [False, True]


def test_the_stream_has_units_of_all_lengths_and_every_sense_is_off_at_times() -> None:
    minutes = 4
    moments = list(stream(minutes * 60, 1.0, 1.0))
    units = [moment.media for moment in moments]
    assert units[0].start == 0.0 and units[-1].stop >= minutes * 60 - 1
    assert all(one.stop == two.start for one, two in pairwise(units))
    lengths = np.array([unit.stop - unit.start for unit in units])
    assert (
        lengths.max() == pytest.approx(1.0)
        and (lengths < 0.999).mean() > 0.05
        and lengths.min() < 0.5
    )
    off = [(not unit.frames, unit.audio is None) for unit in units]
    assert {(False, False), (True, False), (False, True)} <= set(off)
    for unit in units:
        if unit.audio is not None:
            assert unit.audio.size == round((unit.stop - unit.start) * RATE)
    asked = [moment.asked for moment in moments if moment.asked is not None]
    assert len(asked) == -(-minutes * 60 // SCENE) // 2
    assert {bool(one.text) for one in asked} == {True, False}
    assert any(one.truth is None for one in asked) and sum(bool(one.truth) for one in asked) > 3
    # What was typed cuts its unit early, but not to nothing.
    asking = [moment.media for moment in moments if moment.asked is not None]
    assert min(unit.stop - unit.start for unit in asking) > SHORTEST - 1e-3


def test_time_is_summed_by_kind() -> None:
    watch = Stopwatch()
    with watch.span("decode"), watch.span("forward", unit=3) as span:
        span.add(tokens=4)
    assert set(watch.taken) == {"decode", "forward"}
    assert watch.taken["decode"] >= watch.taken["forward"] > 0


def followed(late: float = 0.0, lost: int = 0) -> Followed:
    """Twenty seconds as devices would give them; sound ``late`` or without some samples."""
    played = noise(20 - REST)
    sound = np.zeros(20 * RATE, np.float32)
    at = round((1.0 + late) * RATE)
    heard = np.delete(played, slice(5 * RATE, 5 * RATE + lost))
    sound[at : at + heard.size] = heard
    units = [
        UnitMedia(n, n + 1.0, (numbered(10 * n),), sound[n * RATE : (n + 1) * RATE])
        for n in range(20)
    ]
    given = {10 * n: 100.0 + n for n in range(20)}
    return Followed(units, [1.0] * 20, given, played, 101.0, 100.0, {})


def test_skew_and_loss_are_measured() -> None:
    missing, picture, sound = followed().late()
    assert missing == 0 and picture.size == sound.size > 14
    np.testing.assert_allclose(picture, 0.0, atol=1e-6)
    np.testing.assert_allclose(sound, 0.0, atol=1e-6)
    missing, picture, sound = followed(late=0.25).late()
    assert missing == 0
    np.testing.assert_allclose(picture - sound, -0.25, atol=1e-6)
    missing, picture, sound = followed(lost=RATE // 10).late()
    assert missing > 10 * RATE
    # From where samples are lost the stream runs ahead of what was played.
    assert abs(sound[0]) < 1e-6 and sound[-1] == pytest.approx(-0.1)


def test_a_quarter_minute_of_virtual_devices(
    untrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    arguments = ["--real-time", "0.25", "--model", str(untrained), "--out", str(tmp_path)]
    code = soak.main([*arguments, "--backend", "cuda", "--device", "cpu"])
    out, err = capsys.readouterr()
    if code == harness.LACKS:
        pytest.skip(err.strip().splitlines()[-1])
    assert code == harness.HOLDS, out + err
    (file,) = tmp_path.iterdir()
    (row,) = json.loads(file.read_text())["rows"]
    assert row["missing_samples"] == row["short_samples"] == 0
    assert row["measured_units"] >= 10 and row["skew_ms_most"] < 1000


def test_without_a_sound_server_one_line_says_what_to_install(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(virtual_devices.shutil, "which", lambda _: None)
    arguments = ["--real-time", "0.25", "--model", prepared.name, "--backend", "cuda"]
    assert soak.main([*arguments, "--device", "cpu"]) == harness.LACKS
    assert "apt-get install pulseaudio" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--minutes", "1"], ["--real-time", "0"], ["--real-time", "100"]]
)
def test_lengths_that_cannot_be_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        soak.main(arguments)
    assert end.value.code == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "-1", "5.9", "nan", "inf"])
def test_spans_that_cannot_be_run_are_refused(
    minutes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        soak.main(["--minutes", minutes])
    assert ended.value.code == 2
    assert f"--minutes is {float(minutes):g}, expected 6 or more" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SystemExit) as ended:
            soak.main(["--quick", "--out", str(out)])
        assert ended.value.code == 2
        assert f"{out} cannot be made" in capsys.readouterr().err
