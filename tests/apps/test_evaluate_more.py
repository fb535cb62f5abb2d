"""More of ``omnilive eval streamworld``."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omni_core.aggregation import Counts
from omni_core.errors import BackendError, CheckpointError, OmniError
from omni_core.retention import Fifo, NoSlide, OmniPick
from omnilive import evaluate
from omnilive.cli import main
from omnilive.evaluation import claims, exam, scenes, sitting
from omnilive.evaluation.claims import Claim, Floor
from omnilive.evaluation.marks import Marks, highest
from omnilive.evaluation.rows import row
from omnilive.evaluation.settings import Extent, Setting
from omnilive.evaluation.sitting import Sitting, sit
from omnilive.evaluation.size import Size, check_room
from omnilive.evaluation.world import check_model
from omnilive.models import prepare
from omnilive.options import EvalOptions, ModelOptions
from streamworld.scoring import interval


def row_of(policy: Any, share: str, right: float, kinds: tuple[str, ...] = ()) -> dict[str, Any]:
    drawn = exam.draw(1, 8, 64, 24)
    chance = np.random.default_rng(5).random(drawn.questions.unit.shape)
    sat = Sitting(chance < right, 181, 10**6, 512, 2.0)
    marks = Marks.of(drawn, slice(0, 8), sat.right)
    made = row(Setting(policy, 181, share), 64, 8, marks, [sat])
    return made | {"kinds": {k: v for k, v in made["kinds"].items() if k not in kinds}}


def test_few_questions_rule_no_true_share_out_too_often() -> None:
    # Clopper and Pearson's limits, as tables have them.
    assert highest(0, 1) == pytest.approx(0.975)
    assert highest(8, 10) == pytest.approx(0.9748, abs=1e-4)
    assert highest(0, 10) == pytest.approx(0.3085, abs=1e-4)
    assert highest(9, 9) == 1.0 and interval(2000, 2304)[1] < highest(2000, 2304) < 0.8823
    for count in (1, 2, 5, 8, 40):
        for share in (0.9, 0.95, 0.98):
            chance = np.random.default_rng(count).binomial(count, share, 20_000)
            fails = np.asarray([highest(right, count) < share for right in range(count + 1)])
            assert fails[chance].mean() < 0.03


def test_a_kind_that_was_not_asked_is_unchecked() -> None:
    rows = [row_of(NoSlide(), "all", 0.9, kinds=("first",))]
    assert Floor(64, "first", None, 0.5).check(rows) == Claim(
        "first, 64 units, all kept", None, ">=", 50.0
    )


def test_of_the_simple_policies_the_best_is_held_against_perfection() -> None:
    rows = [row_of(Fifo(), "1/16", 0.3), row_of(Fifo(), "1/16", 1.1) | {"policy": "h2o"}]
    (perfect,) = claims.of_policies(rows)
    assert perfect.holds is False and "(h2o)" in perfect.name
    (perfect,) = claims.of_policies([rows[0], row_of(OmniPick(), "1/16", 1.1)])
    assert perfect.holds and "(fifo)" in perfect.name


def test_a_link_to_nowhere_is_no_absence_of_claims(tmp_path: Path) -> None:
    (tmp_path / claims.FILE).symlink_to("nowhere.json")
    with pytest.raises(CheckpointError, match=r"claims\.json"):
        claims.read_floors(tmp_path)


@pytest.mark.parametrize(
    ("changed", "counted"),
    [({}, True), ({"quick": True}, False), ({"budgets": ("1/8",)}, False)],
)
def test_what_the_world_claims_counts_in_its_own_table(changed: Any, counted: bool) -> None:
    options = EvalOptions(ModelOptions(), **changed)
    prepared: Any = SimpleNamespace(name="some")
    fails, holds = Claim("too easy", 9.0, ">=", 50.0), Claim("hard", 60.0, ">=", 50.0)
    assert evaluate._verdict(options, prepared, [], [], [holds])
    assert evaluate._verdict(options, prepared, [], [], [fails]) is not counted
    assert not evaluate._verdict(options, prepared, [], [fails], [holds])
    assert evaluate._verdict(options, prepared, [], [replace(fails, value=None)], [])


def test_a_row_has_the_most_and_the_sum_of_its_sittings() -> None:
    drawn = exam.draw(1, 2, 8, 6)
    right = np.ones((2, 6), np.bool_)
    sat = [Sitting(right, 50, 3000, 16, 1.0), Sitting(right, 70, 2000, 8, 3.0)]
    made = row(Setting(Fifo(), 99, "1/2"), 8, 2, Marks.of(drawn, slice(0, 2), right), sat)
    assert (made["cells"], made["bytes"], made["units_per_second"]) == (70, 3000, 6.0)


def test_everything_fits_even_where_a_unit_may_be_larger_than_the_stream() -> None:
    short = Extent(prefix=22, unit=45, largest=86, units=1, longest=33)
    assert short.stream == 67 and short.all == short.least == 124


class Clock:
    """A clock, a batch whose steps take time, and whose bytes fall again."""

    model, streams, most_cells, aggregated = None, 2, 7, Counts(9, 4, 5)

    def __init__(self, drawn: exam.Exam, size: tuple[int, ...]) -> None:
        self.now, self.unit, self.bytes, self.drawn = 0.0, -1, 0, drawn

    def append(self, _: Any) -> None:
        self.now, self.unit = self.now + 1, self.unit + 1

    def usage(self) -> dict[str, int]:
        return {"bytes": 900 if self.unit == 2 else 100}

    def branch(self, tokens: Any) -> Any:
        self.now += 0.25
        return np.zeros((*tokens.shape, 9), np.float32)


def test_a_sitting_counts_most_bytes_and_the_time_of_units(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = exam.draw(1, 2, 8, 12)
    batch: Any = Clock(drawn, (2,))
    monkeypatch.setattr(sitting.time, "perf_counter", lambda: batch.now)
    sat = sit(batch, [None] * 8, drawn, slice(0, 2))
    moments = len(set(drawn.questions.unit[0].tolist()))
    assert (sat.bytes, sat.units) == (900, 16)
    # The first question at each moment is counted, the others are not.
    assert sat.seconds == pytest.approx(8 + 0.25 * moments)


def test_logits_that_are_not_finite_are_no_answer() -> None:
    drawn = exam.draw(1, 2, 8, 6)
    batch: Any = Clock(drawn, (2,))
    batch.branch = lambda tokens: np.full((*tokens.shape, 9), np.nan, np.float32)
    with pytest.raises(BackendError, match="not finite"):
        sit(batch, [None] * 8, drawn, slice(0, 2))


@pytest.mark.shipped
def test_a_model_of_longer_units_is_refused() -> None:
    pytest.importorskip("torch")
    prepared = prepare(backend="cuda", device="cpu")
    check_model(prepared)
    frontend: Any = SimpleNamespace(seconds=2.0, fps=1.0)
    with pytest.raises(CheckpointError, match="a unit is 2 s"):
        check_model(replace(prepared, frontend=frontend))


@pytest.mark.parametrize("option", ["--units", "--streams", "--questions", "--seeds"])
@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_what_no_machine_can_hold_is_refused_at_once(
    option: str,
    quick: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("omnilive.evaluate.prepare", lambda **_: pytest.fail("looked for a model"))
    assert main(["eval", "streamworld", *quick, option, "999999999"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "999999999" in err and "GB; lower --units" in err
    assert [line for line in err.splitlines() if "MLX computes slowly" not in line] == [
        err.splitlines()[-1]
    ]


def test_what_a_run_holds_is_counted_in_bytes() -> None:
    size, seeds = Size(units=24, streams=4, questions=12, batch=1), 2
    drawn = [exam.draw(seed, size.streams, size.units, size.questions) for seed in range(seeds)]
    arrays = [
        getattr(part, field.name)
        for one in drawn
        for part in (one, one.script, one.questions)
        for field in fields(part)
    ]
    held = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    # Media of one batch, and of the next.
    for at in range(2):
        script = drawn[0].script.take(slice(at, at + 1))
        for unit in scenes.stream(script, scenes.load(None, "test")):
            held += unit.frames[0].nbytes + unit.audio.nbytes
    check_room(size, seeds, held)
    with pytest.raises(OmniError, match="2 x 4 streams of 24 units with 12 questions each take"):
        check_room(size, seeds, round(held * 0.95))
