"""The aggregation benchmark: what it counts is what a session does, and what it claims can fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import aggregation, aggregation_clips, aggregation_plots
from benchmarks import aggregation_accuracy as accuracy
from omni_core import Model, Session, UnitMedia
from omni_core.aggregation import Aggregation
from omnilive.models import prepare

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def model() -> Model:
    return prepare(backend="cuda", device="cpu").load()


def pictures(count: int) -> list[UnitMedia]:
    """A picture that stays for two seconds, with its lower half in one colour."""
    found = []
    for index in range(count):
        frame = np.random.default_rng(index // 2).integers(0, 255, (112, 112, 3))
        frame[56:] = 90
        silence = np.zeros(16_000, np.float32)
        found.append(UnitMedia(index, index + 1.0, (frame.astype(np.uint8),), silence))
    return found


def test_what_is_counted_is_what_a_session_tells(model: Model) -> None:
    seconds = aggregation_clips.follow(model, pictures(6), Aggregation())
    told: list[dict[str, int]] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "unit":
            told.append(event["aggregated"])

    session = Session(model, budget=4096, aggregation=Aggregation(), on_event=listen)
    for unit in pictures(6):
        session.append(unit)
    row = aggregation_clips.row("some", seconds)
    for name in ("seen", "entered", "shown", "merged"):
        assert row[name] == sum(one[name] for one in told)
    assert row["by_second"] == [one["entered"] for one in told]
    assert 0 < row["shown"] < row["seen"] and row["merged"] > 0
    # What was left out is grey, and nothing else is.
    for second, one in zip(seconds, told, strict=True):
        kept = aggregation_plots.kept(second)
        grey = (kept == 225).all(axis=2).mean()
        assert grey == pytest.approx(one["shown"] / one["seen"], abs=0.01)


def test_a_held_picture_is_the_first_one_all_the_time() -> None:
    held = list(aggregation_clips.held_still(pictures(4)))
    assert [unit.start for unit in held] == [0, 1, 2, 3]
    assert all(np.array_equal(unit.frames[0], held[0].frames[0]) for unit in held)


def test_the_four_cells(model: Model, tmp_path: Path) -> None:
    size = accuracy.Size(
        seeds=1, streams=1, units=16, questions=4, budgets=("1/2",), policies=("omnipick",)
    )
    rows = accuracy.rows(prepare(backend="cuda", device="cpu"), size, lambda _: None)
    assert [(row["policy"], row["tokens"]) for row in rows] == [
        (policy, tokens)
        for tokens in ("all", "aggregated", "as in the paper")
        for policy in ("no-slide", "omnipick")
    ]
    pairs = [(one["tokens"], other["tokens"]) for one, other in accuracy.pairs(rows)]
    assert pairs == [("all", "aggregated")] * 2
    shares = [row["aggregated"]["entered"] for row in rows if "aggregated" in row]
    # Without a token a frame, fewer enter.
    assert shares[2] < shares[0]
    (claim,) = aggregation.claims(rows)
    assert claim.least and "omnipick at 1/2" in claim.name
    worse = [
        {**row, "accuracy": 0.0} if row["tokens"] == "aggregated" else {**row, "accuracy": 1.0}
        for row in rows
    ]
    assert not next(iter(aggregation.claims(worse))).holds
    aggregation.show(rows)
    if aggregation_plots.accuracy(tmp_path / "a.png", rows) is not None:
        assert (tmp_path / "a.png").stat().st_size > 1000


def test_the_cost_is_that_of_a_stream() -> None:
    from benchmarks.aggregation_cost import BOUND, SCENES, cost
    from benchmarks.stream_loop_models import GATE, backend_of, random_backbone

    text, device = replace(GATE, hidden=256, q_heads=4, kv_heads=2), torch.device("cpu")
    backend = backend_of(text, random_backbone(text, device, torch.float32), device, torch.float32)
    rows = list(cost(backend, text, device, torch.float32, (79,), units=2, name="small"))
    assert [row["scene"] for row in rows] == list(SCENES)
    entered = [row["entered"] for row in rows]
    assert 66 > entered[0] > entered[1] > entered[2] == 1
    assert all(row["share"] > 0 and row["prefill_ms"] > 0 for row in rows)
    assert list(aggregation.claims(rows)) == []
    large = {**rows[0], "tokens": aggregation.CLAIMED}
    claims = list(aggregation.claims([{**large, "share": share} for share in (0.01, 0.04)]))
    assert [claim.holds for claim in claims] == [True, False] and claims[0].bound == BOUND
    aggregation.show(rows)
    assert json.loads(json.dumps(rows)) == rows


def test_claims_about_scenes() -> None:
    clip = {"part": "clip", "clip": "a, held still", "seconds": 3, "seen": 48}
    world = {"part": "world", "shown_stays": 9, "seen_stays": 10, "shown_changes": 3}
    rows = [{**clip, "by_second": [16, 1, 2]}, {**world, "seen_changes": 10}]
    still, stays, changes = aggregation.claims(rows)
    assert still.value == pytest.approx(3 / 32) and still.holds
    assert stays.value == 0.9 and stays.holds and changes.value == 0.3 and not changes.holds


def test_a_clip_that_is_not_there_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--quick", "--device", "cpu", "--out", str(tmp_path)]
    assert aggregation.main([*words, "--source", str(tmp_path / "none.mp4")]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "none.mp4" in err
