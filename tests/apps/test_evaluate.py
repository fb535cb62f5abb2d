"""``omnilive eval streamworld``: what it measures, prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import BudgetError, CheckpointError, OmniError
from omni_core.model_config import thinker_config
from omni_core.retention import Fifo, NoSlide
from omni_core.sealing import Sealing
from omnilive.cli import main
from omnilive.evaluation import claims, exam, scenes, tables
from omnilive.evaluation.marks import RECALL, Marks, highest, lag_name
from omnilive.evaluation.rows import Row, row
from omnilive.evaluation.settings import Extent, Setting, settings
from omnilive.evaluation.sitting import Sitting
from omnilive.evaluation.size import choose_model, choose_size
from omnilive.models import EMBEDDED_FOLDER
from omnilive.options import EvalOptions, ModelOptions
from scripts import write_results
from streamworld import banks, questions, tokens
from streamworld.scoring import interval

ROOT = Path(__file__).parents[2]
SMALL = ("eval", "streamworld", "--units", "8", "--streams", "2", "--questions", "6")
EXTENT = Extent(prefix=22, unit=45, largest=86, units=64, longest=33)
TEXT = thinker_config(json.loads((EMBEDDED_FOLDER / "config.json").read_text())).text


def evaluated(out: Path, *words: str) -> dict[str, Any]:
    assert main([*SMALL, "--seeds", "1", "--device", "cpu", "--out", str(out), *words]) == 0
    return json.loads(out.read_text())


def made_row(policy: Any, share: str, right: float, units: int = 64, budget: int = 181) -> Row:
    """A row with all kinds, of which about a share is right."""
    drawn = exam.draw(1, 8, units, 24)
    chance = np.random.default_rng(5).random(drawn.questions.unit.shape)
    marks = Marks.of(drawn, slice(0, 8), chance < right)
    sat = Sitting(chance < right, 181, 10**6, 512, 2.0)
    return row(Setting(policy, budget, share), units, 8, marks, [sat])


@pytest.mark.shipped
def test_both_twins_give_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, shown = {}, {}
    words = ("--retention", "no-slide", "--retention", "omnipick", "--budget", "1/2")
    for backend, library in (("mlx", "mlx.core"), ("cuda", "torch")):
        pytest.importorskip(library)
        found[backend] = evaluated(tmp_path / f"{backend}.json", "--backend", backend, *words)
        shown[backend] = capsys.readouterr().out
    for row_of_mlx, row_of_cuda in zip(found["mlx"]["rows"], found["cuda"]["rows"], strict=True):
        assert row_of_mlx.pop("units_per_second") > 0 < row_of_cuda.pop("units_per_second")
        assert row_of_mlx == row_of_cuda
    whole, half = found["mlx"]["rows"]
    assert (whole["policy"], whole["share"], whole["cells"]) == ("no-slide", "all", 22 + 8 * 45)
    assert (half["policy"], half["share"], half["budget"]) == ("omnipick", "1/2", 191)
    assert 22 < half["cells"] <= 191 and half["bytes"] < whole["bytes"]
    assert whole["questions"] == 12 and whole["right"] >= 8
    assert shown["mlx"].split("units/s")[0] == shown["cuda"].split("units/s")[0]


@pytest.mark.shipped
def test_the_batch_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("--backend", "cuda", "--retention", "fifo", "--retention", "h2o", "--budget", "1/2")
    rows = [
        evaluated(tmp_path / "out.json", *words, "--batch", batch)["rows"] for batch in ("1", "2")
    ]
    assert [one["policy"] for one in rows[0]] == ["fifo", "h2o"]
    for one, other in zip(*rows, strict=True):
        assert one["right"] == other["right"] and one["topics"] == other["topics"]
        assert one["cells"] == other["cells"] <= one["budget"] == 191


@pytest.mark.shipped
def test_the_files_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot = tmp_path / "plot.png"
    words = ("--backend", "cuda", "--budget", "150", "--budget", "1/2", "--quick", "--seeds", "2")
    found = evaluated(tmp_path / "out.json", *words, "--plot", str(plot))
    out, err = capsys.readouterr()
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert found["benchmark"] == "streamworld" and found["seeds"] == [1, 2] and found["quick"]
    assert {"processor", "cores"} <= set(found["machine"]) and "numpy" in found["versions"]
    settings = [(one["policy"], one["share"], one["budget"]) for one in found["rows"]]
    assert settings == [
        ("no-slide", "all", 382),
        *(("fifo", "1/2", 191), ("fifo", "150", 150)),
        *(("omnipick", "1/2", 191), ("omnipick", "150", 150)),
    ]
    for one in found["rows"]:
        assert sum(seed["questions"] for seed in one["seeds"]) == one["questions"] == 24
        for parts in (one["kinds"], one["topics"]):
            counts = [count for name, count in parts.items() if name != "spoken"]
            assert sum(count for _, count in counts) == 24
            assert sum(right for right, _ in counts) == one["right"]
        assert one["low"] <= one["accuracy"] <= one["high"]
    assert all(line == "" or not line.startswith("omnilive:") for line in out.splitlines())
    assert len(re.findall(r"^(no-slide|fifo|omnipick) ", out, re.M)) == 3 * 5
    assert "claims are unchecked" in err and "streams 1 to 2 of 2" in err


@pytest.mark.shipped
def test_a_claimed_floor_that_does_not_hold_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    for file in EMBEDDED_FOLDER.iterdir():
        (tmp_path / file.name).symlink_to(file)
    words = [*SMALL, "--seeds", "1", "--retention", "no-slide", "--backend", "cuda"]
    words += ["--device", "cpu", "--model", str(tmp_path)]
    stated = tmp_path / claims.FILE
    stated.unlink(missing_ok=True)
    claim = {"units": 8, "kind": None, "topic": None, "floor": 0.5}
    later = {"units": 64, "kind": "first", "topic": "word", "floor": 0.9}
    stated.write_text(json.dumps({"streamworld": [claim, later]}))
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "holds" in out and "unchecked" not in out and "1 of 2 claims are unchecked" in err
    monkeypatch.setattr(exam.Exam, "right", lambda *_: np.zeros(2, np.bool_))
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert "FAILS" in out and "does not hold: all questions, 8 units" in err


def test_a_floor_fails_where_the_whole_interval_lies_below() -> None:
    rows = [made_row(NoSlide(), "all", 0.8), made_row(Fifo(), "1/8", 0.3)]
    right, count = rows[0]["kinds"]["now"]
    high = highest(right, count)
    assert interval(right, count)[1] < high < 1
    for floor, holds in ((high - 1e-4, True), (high + 1e-3, False)):
        assert claims.Floor(64, "now", None, floor).check(rows).holds is holds
    assert claims.Floor(64, None, None, 0.99).check(rows).holds is False
    assert claims.Floor(64, "now", "colour", 0.01).check(rows).holds is True
    assert claims.Floor(256, "now", None, 0.9).check(rows).holds is None
    assert claims.Floor(64, "now", None, 0.9).check(rows[1:]).holds is None
    sealed = [one | {"kv_bits": 2} for one in rows]
    assert claims.Floor(64, "now", None, 0.01).check(sealed).holds is None


def test_what_the_benchmark_claims() -> None:
    whole, eighth = made_row(NoSlide(), "all", 0.95), made_row(Fifo(), "1/8", 0.2)
    falls, perfect = claims.of_policies([whole, eighth, made_row(Fifo(), "1/16", 0.9)])
    assert falls.holds and falls.value is not None and falls.value > 50
    assert perfect.holds and "fifo" in perfect.name
    kept, all_right = claims.of_policies([whole, whole | {"policy": "fifo", "share": "1/8"}]), None
    assert [claim.holds for claim in kept] == [False]
    all_right = claims.of_policies([made_row(Fifo(), "1/16", 1.1)])
    assert [claim.holds for claim in all_right] == [False]
    assert claims.of_policies([whole]) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"streamworld": {}}, "expected a list"),
        ({"streamworld": [{"units": 64}]}, "expected the fields floor, kind, topic, units"),
        ({"streamworld": [{"units": 0, "kind": "now", "topic": None, "floor": 0.9}]}, "`units`"),
        ({"streamworld": [{"units": 9, "kind": "now", "topic": None, "floor": 90}]}, "`floor`"),
        (
            {"streamworld": [{"units": 9, "kind": "new", "topic": None, "floor": 0.9}]},
            "nobody asks",
        ),
        ({"streamworld": [{"units": 9, "kind": "now", "topic": "hat", "floor": 1}]}, "nobody asks"),
        ({"streamworld": [{"units": 9, "kind": None, "topic": "word", "floor": 1}]}, "nobody asks"),
    ],
)
def test_claims_that_are_none(content: Any, says: str, tmp_path: Path) -> None:
    assert claims.read_floors(tmp_path) == []
    (tmp_path / claims.FILE).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=says):
        claims.read_floors(tmp_path)


def test_an_answer_is_right_where_greedy_decoding_gives_it() -> None:
    drawn = exam.draw(7, 5, 16, 12)
    streams = slice(1, 5)
    for slot in range(12):
        branch = drawn.branch(streams, slot)
        assert branch.shape[1] <= drawn.longest
        perfect = np.zeros_like(branch)
        for number, stream in enumerate(range(1, 5)):
            asked = tokens.ids_of(drawn.questions.text(stream, slot) + tokens.TURN)
            answer = tokens.answer_ids(drawn.questions.answer[stream, slot])
            line = [*asked, *answer, tokens.special("<|im_end|>")]
            assert branch[number, : len(line) - 1].tolist() == line[:-1]
            perfect[number, : len(line) - 1] = line[1:]
            perfect[number, : len(asked) - 1] = -1
        assert drawn.right(streams, slot, perfect).all()
        wrong = perfect.copy()
        last = int(drawn.asked_length[2, slot] + drawn.answer_length[2, slot]) - 2
        wrong[1, last] = 0
        assert drawn.right(streams, slot, wrong).tolist() == [True, False, True, True]


def test_questions_come_at_the_end_and_after_half_of_the_stream() -> None:
    drawn = exam.draw(1, 3, 64, 12)
    assert [len(drawn.slots(unit)) for unit in (63, 39, 47, 55)] == [6, 2, 2, 2]
    assert exam.draw(1, 3, 1, 4).slots(0) == [0, 1, 2, 3]


def test_marks_are_counted_as_what_was_asked() -> None:
    drawn = exam.draw(3, 6, 40, 24)
    asked = drawn.questions
    right = asked.ask == questions.ASK["now", "thing"]
    marks = Marks.join(
        [Marks.of(drawn, slice(0, 2), right[:2]), Marks.of(drawn, slice(2, 6), right[2:])]
    )
    assert marks.count() == (right.sum(), right.size)
    assert marks.by_topic()["now thing"] == (right.sum(), right.sum())
    kinds = [asked.kind(s, q)[0] for s in range(6) for q in range(24)]
    assert {k: n for k, (_, n) in marks.by_kind().items()} == {k: kinds.count(k) for k in kinds}
    lags = marks.by_lag()
    assert sum(n for kind in lags.values() for _, n in kind.values()) == (asked.lag >= 0).sum()
    assert lags["now"] == {"0": marks.by_kind()["now"]}
    assert {seed: part.count() for seed, part in marks.by_seed().items()} == {3: marks.count()}


def test_lags_and_intervals() -> None:
    assert [lag_name(bucket) for bucket in range(8)] == [
        *("0", "1-3", "4-15", "16-31", "32-63", "64-127", "128-255", "256+"),
    ]
    # Wilson's interval of 8 in 10, and of none in 10, as tables have them.
    assert interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert interval(0, 0) == (0.0, 1.0) and interval(30, 30)[1] == 1.0


def test_budgets_are_shares_cells_or_bytes() -> None:
    cell = 2 * TEXT.layers * TEXT.kv_heads * TEXT.head_dim * 4
    made = settings([Fifo(), NoSlide()], ["1/16", "500", f"{300 * cell}B", "1/2"], EXTENT, TEXT, 4)
    assert [(one.policy.name, one.share, one.budget) for one in made] == [
        ("no-slide", "all", 2902),
        *(("fifo", "1/2", 1451), ("fifo", "500", 500), ("fifo", f"{300 * cell}B", 300)),
        ("fifo", "1/16", 181),
    ]
    assert EXTENT.least == 124
    with pytest.raises(BudgetError, match="1/23 of this stream is the smallest share that works"):
        settings([Fifo()], ["1/24"], EXTENT, TEXT, 4)
    assert settings([Fifo()], ["1/23"], EXTENT, TEXT, 4)[0].budget == 126
    with pytest.raises(BudgetError, match="raise --units"):
        settings([Fifo()], ["60"], Extent(22, 45, 86, 1, 33), TEXT, 4)


def test_budgets_in_bytes_are_those_of_both_pools_where_the_cache_is_sealed() -> None:
    budgets = ["1/16", "500", "12MB"]
    made = settings([Fifo(), NoSlide()], budgets, EXTENT, TEXT, 4, Sealing(2, "all"))
    whole, largest, *rest = made
    assert (whole.budget, [one.budget for one in rest]) == (2902, [500, 181])
    assert largest.share == "12MB" and largest.budget > 4000
    assert all(one.cache == {"kv_bits": 2, "seal": "all"} for one in made)
    with pytest.raises(BudgetError, match=r"0\.0 MB is too small: a cache of 124 cells"):
        settings([Fifo()], ["2kB"], EXTENT, TEXT, 4, Sealing(2))
    with pytest.raises(OmniError, match="head_dim"):
        settings([Fifo()], ["500"], EXTENT, replace(TEXT, head_dim=24), 4, Sealing(2))
    assert settings([Fifo()], ["500"], EXTENT, TEXT, 4)[0].cache["kv_bits"] == 16


@pytest.mark.shipped
def test_a_sealed_cache_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("--backend", "cuda", "--retention", "no-slide")
    plain = evaluated(tmp_path / "plain.json", *words)
    sealed = evaluated(tmp_path / "sealed.json", *words, "--kv-bits", "4", "--seal", "all")
    assert (plain["kv_bits"], sealed["kv_bits"], sealed["seal"]) == (16, 4, "all")
    (one,), (other,) = plain["rows"], sealed["rows"]
    assert (one["kv_bits"], other["kv_bits"], other["seal"]) == (16, 4, "all")
    assert other["cells"] == one["cells"] and other["bytes"] < 0.9 * one["bytes"]
    assert other["right"] >= one["right"] - 2
    assert not any(claim["holds"] for claim in sealed["claims"])


def test_tables_have_a_line_a_setting_and_one_that_counts() -> None:
    rows = [made_row(NoSlide(), "all", 0.9), made_row(Fifo(), "1/8", 0.4)]
    head, whole, eighth, counted = tables.by_kind(rows)
    assert head[:5] == ["policy", "budget", "cells", "all", "95 %"] and "now" in head
    assert whole[:3] == ["no-slide", "all", "181"] and eighth[:2] == ["fifo", "1/8"]
    # Every question is of one kind; those asked aloud are counted once more.
    assert head[-1] == "spoken" and int(counted[-1]) > 0
    assert sum(map(int, counted[5:-1])) == int(counted[3]) == rows[0]["questions"] == 192
    assert float(whole[3]) == pytest.approx(100 * rows[0]["accuracy"], abs=0.06)
    head, *_, counted = tables.by_lag(rows)
    assert head[3:] == ["0", "1-3", "4-15", "16-31", "32-63"]
    recalled = [sum(n for _, n in rows[0]["lags"][kind].values()) for kind in RECALL]
    assert sum(map(int, counted[3:])) == sum(recalled)
    assert tables.by_cost(rows)[1][3:] == ["181", "1.00", "256"]
    shown = tables.text(tables.by_kind(rows)).splitlines()
    assert len(shown) == 5 and len({len(line) for line in shown[:2]}) == 1
    assert tables.markdown(tables.by_cost(rows)).count("\n") == 4


def test_what_is_left_open_fits_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = ModelOptions(device="cpu")
    size = choose_size(EvalOptions(cpu), "cuda")
    assert (size.units, size.streams, size.questions, size.batch) == (64, 32, 24, 8)
    assert choose_size(EvalOptions(ModelOptions(device="cuda")), "cuda").batch == 32
    assert choose_size(EvalOptions(cpu, streams=9), "cuda").batch == 5
    asked = EvalOptions(cpu, ("fifo", "h2o", "fifo"), ("1/3",), units=9, quick=True, batch=2)
    size = choose_size(asked, "cuda")
    assert (size.units, size.streams, size.batch) == (9, 3, 2)
    assert size.retention == ("fifo", "h2o") and size.budgets == ("1/3",)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    slow = choose_size(EvalOptions(cpu, quick=True), "mlx")
    assert slow.units * slow.streams * len(slow.budgets) * 8 <= 64 * 4
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert choose_size(EvalOptions(cpu, quick=True), "mlx").units == 64


def test_a_slow_backend_is_told_where_nobody_chose_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("omnilive.backends.choose", lambda name: "mlx" if name == "auto" else name)
    assert choose_model(ModelOptions(device="cpu")) == ModelOptions(backend="mlx", device="cpu")
    assert "pip install" in capsys.readouterr().err
    for chosen in (ModelOptions(backend="mlx", device="cpu"), ModelOptions(device="gpu")):
        assert choose_model(chosen).backend == "mlx"
    assert not capsys.readouterr().err


def test_a_bank_that_cannot_be_read(tmp_path: Path) -> None:
    for content in (b"", b"PK\x03\x04 cut short", b"nothing of the kind"):
        (tmp_path / "test.npz").write_bytes(content)
        with pytest.raises(OmniError, match="the bank cannot be read"):
            scenes.load(tmp_path, "test")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--retention", "all"], "invalid choice: 'all'"),
        (["--budget", "1/0"], "is no share of the stream"),
        (["--budget", "0/4"], "is no share of the stream"),
        (["--budget", "3/2"], "is no share of the stream"),
        (["--budget", "a/b"], "is no share of the stream"),
        (["--budget", "half"], "neither cells"),
        (["--streams", "0"], "a whole number from 1"),
        (["--questions", "0"], "a whole number from 1"),
        (["--seeds", "0"], "a whole number from 1"),
        (["--units", "0"], "a whole number from 1"),
        (["--batch", "0"], "a whole number from 1"),
    ],
)
def test_wrong_words(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["eval", "streamworld", *words])
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and out == "" and err.count("\n") == 1
    assert says in err


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--budget", "1/100"], 1, "1/23 of this stream is the smallest share that works"),
        (["--budget", "70"], 1, "--budget 70 is 70 cells of 2902"),
        (["--out", "nowhere/out.json"], 1, "there is no folder nowhere"),
        (["--out", "."], 1, "is a folder"),
        (["--plot", "plot.pdf"], 2, "--plot draws PNG"),
        (["--out", "a.png", "--plot", "a.png"], 1, "is in use by this command"),
        (["--retention", "fifo", "--sinks", "sinks.json"], 2, "--sinks is for"),
        (["--banks", "nowhere"], 1, "nowhere/test.npz does not exist"),
        (["--device", "tpu"], 1, "tpu"),
    ],
)
def test_what_is_refused_before_anything_is_loaded(
    words: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("mlx.core")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("omnilive.models.Prepared.load", lambda *_: pytest.fail("loaded"))
    assert main(["eval", "streamworld", "--backend", "mlx", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err
    assert not list(tmp_path.iterdir())


def test_a_model_of_another_world_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlx.core")
    assert main(["eval", "streamworld", "--backend", "mlx"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "its tokenizer lacks" in err and "measure the embedded model" in err


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_that_may_not_be_written_is_refused_before_the_run(
    exists: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.json"
    if exists:
        out.touch()
    closed = out if exists else tmp_path
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != closed)
    assert main(["eval", "streamworld", "--out", str(out)]) == 1
    assert "may not be written to" in capsys.readouterr().err


def test_without_matplotlib_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("omnilive.evaluate.find_spec", lambda _: None)
    assert main(["eval", "streamworld", "--plot", str(tmp_path / "plot.png")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "pip install" in err


def test_workers_render_what_this_process_would(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = scenes.load(None, "test")
    script = exam.draw(2, 2, 3, 1).script
    media = {}
    for cores in (1, 4):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        with scenes.renderer(bank) as render:
            media[cores] = [one.result() for one in render(script)]
    assert [len(stream) for stream in media[1]] == [3, 3]
    for here, there in zip(*(chain(*streams) for streams in media.values()), strict=True):
        assert (here.start, here.stop) == (there.start, there.stop)
        assert here.frames[0].shape == (112, 112, 3)
        assert (here.frames[0] == there.frames[0]).all() and here.audio is not None
        assert here.audio.shape == (16_000,) and (here.audio == there.audio).all()


def test_the_bank_of_the_test_split_ships_with_the_world() -> None:
    file = banks.SHIPPED / "test.npz"
    assert file.parent == Path(sys.modules["streamworld"].__file__ or "").parent
    assert file.stat().st_size < 7_000_000
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert file.parent.relative_to(ROOT).as_posix() in built["targets"]["wheel"]["packages"]
    bank = banks.load(banks.SHIPPED, "test")
    assert (bank.glyph_count > 0).all() and (bank.clip_count > 0).all()
    assert {name.split(":")[0] for name in bank.voices} == {"espeak-ng", "festival"}


def test_the_page_of_results_is_what_was_measured() -> None:
    text = write_results.PAGE.read_text(encoding="utf-8")
    (source,) = re.findall(r"write_results.py (\S+\.json)`", text)
    document = json.loads((ROOT / source).read_text(encoding="utf-8"))
    assert text == write_results.page(document, source), "run scripts/write_results.py again"
    assert write_results.FIGURE.read_bytes().startswith(b"\x89PNG")
