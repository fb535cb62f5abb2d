"""The attention benchmark: its gate under the interpreter, who is left out, what is claimed."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import attention, harness, live_cells
from benchmarks.attention_claims import HISTORY, Row, claims, note_shares, over_history, passed
from omni_core.reference.attention import masked_attention
from tests.bench.without_gpu import check_refusal, run

K = 1024
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "attention.py"
GATED = """
import json
from dataclasses import replace
import numpy as np
import torch
from torch.nn.attention import SDPBackend
from benchmarks import attention_peers as peers
from benchmarks.attention_cases import build
from benchmarks.live_cells import KINDS, Shape, holed, scattered

peers._BACKENDS = dict.fromkeys(peers._BACKENDS, SDPBackend.MATH)
draw, cpu = np.random.default_rng(5), torch.device("cpu")
torch.manual_seed(5)
shape = Shape("small", 2, 6, 2, 64)
lives = {kind: holed(draw, 128, 0.5, kind) for kind in KINDS}
lives |= {"short": scattered(draw, 70, 5), "prefill": scattered(draw, 128, 9, 70)}
found = {}
for name, live in lives.items():
    case = build(shape, live, 2, cpu, 2, torch.float16)
    # That one is for kernels that know which corner is meant; PyTorch's own takes the other.
    ways = [peers.ours(case), *(way for way in peers.dense(case) if "causal" not in way.name)]
    found[name] = {way.name: case.error(1, way.shown(way.run(1))) for way in ways}
spoilt = replace(case, pages=replace(case.pages, order=case.pages.order - 1))
way = peers.ours(spoilt)
found["one cell too many"] = {"ours": case.error(1, way.shown(way.run(1)))}
print(json.dumps(found))
"""


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    check_refusal(BENCHMARK, tmp_path)


def test_cases_pass_the_gate_under_the_interpreter_and_a_spoilt_one_does_not() -> None:
    done = run("-c", GATED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    spoilt = found.pop("one cell too many")
    assert list(found) == ["pages", "subblocks", "cells", "short", "prefill"]
    for name, errors in found.items():
        assert len(errors) == (4 if name == "prefill" else 10), name
        assert max(errors.values()) < 2e-3, name
    assert spoilt["ours"] > 1e-2


def test_the_reference_is_the_oracle() -> None:
    torch = pytest.importorskip("torch")
    cases = pytest.importorskip("benchmarks.attention_cases")
    draw = np.random.default_rng(2)
    for count, cells in ((1, 33), (7, 40), (40, 40)):
        queries = draw.standard_normal((count, 6, 16))
        keys, values = draw.standard_normal((2, cells, 2, 16))
        order = np.arange(cells)
        bias = np.zeros(cells)
        oracle = masked_attention(queries, keys, values, order[cells - count :], order, bias, 0.3)
        q = torch.from_numpy(queries).float()
        k, v = (torch.from_numpy(x).float().transpose(0, 1)[None] for x in (keys, values))
        np.testing.assert_allclose(cases.expected(q, k, v, 0.3), oracle, atol=1e-5)


def test_cells_are_as_many_as_asked_for_and_in_order() -> None:
    draw = np.random.default_rng(1)
    for kind in live_cells.KINDS:
        for share in (0.25, 0.5, 0.75):
            live = live_cells.holed(draw, 2048, share, kind)
            assert live.cells == 2048
            assert live.arena == round(32 / (1 - share))
            assert np.unique(live.pages).size == live.pages.size and live.alive.any(axis=1).all()
    live = live_cells.scattered(draw, 2048, 64, 79)
    assert live.cells == 2048 + 79 and live.pages.size == 34
    assert live.order[live.alive].tolist() == list(range(2048 + 79))
    assert live.query_order.tolist() == list(range(2048, 2048 + 79))


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The contest, with a clock of its own in place of a card's."""
    ring = pytest.importorskip("benchmarks.attention_contest")

    class Graph:
        def replay(self) -> None:
            pass

    monkeypatch.setattr(ring, "captured", lambda one, layers: (Graph(), one.run(layers - 1)))
    monkeypatch.setattr(ring, "_eager", lambda one: 9.0 if one.name == "slow" else 0.1)
    monkeypatch.setattr(ring, "alternated", lambda graphs, rounds: dict.fromkeys(graphs, 0.5))
    return ring


def contender(ring: Any, name: str, error: float) -> Any:
    def run(layer: int) -> float:
        if error < 0:
            raise RuntimeError("No kernel.\nMore.")
        return error

    return ring.Contender(name, run)


def test_a_peer_that_fails_is_wrong_or_slow_is_left_out(ring: Any) -> None:
    peers = {"good": 1e-3, "wrong": 0.5, "broken": -1.0, "slow": 1e-3, "nan": math.inf}
    ways = [contender(ring, name, error) for name, error in peers.items()]
    mine, found = ring.contest(contender(ring, "ours", 2e-3), ways, 2, lambda _, out: out)
    assert mine == ring.Outcome(0.5, 2e-3)
    assert ring.best_of(found) == ("good", 0.5)
    why = {name: outcome.why for name, outcome in found.items() if outcome.ms is None}
    assert why.pop("slow").startswith("slower: 9.000 ms")
    assert why == {
        "wrong": "wrong: error 0.5",
        "broken": "RuntimeError: No kernel.",
        "nan": "wrong: error inf",
    }


def test_ours_has_no_time_where_it_is_wrong_and_may_not_fail(ring: Any) -> None:
    mine, _ = ring.contest(contender(ring, "ours", 0.02), [], 2, lambda _, out: out)
    assert mine == ring.Outcome(None, 0.02, "wrong: error 0.02")
    with pytest.raises(RuntimeError, match="No kernel"):
        ring.contest(contender(ring, "ours", -1.0), [], 2, lambda _, out: out)


def timed(part: str, new: int, live: int, ours: float, dense: float) -> Row:
    about = {"part": part, "shape": "Qwen2.5-Omni-7B", "new": new, "live": live, "error": 1e-3}
    return {
        **about,
        "ours_ms": ours,
        "dense_ms": dense,
        "ratio": dense / ours,
        "bytes": live * 57344,
    }


def test_claims_follow_the_rows_and_a_failed_case_holds_nothing() -> None:
    rows: list[Row] = [
        {"part": "read bandwidth", "gb_per_s": 4400.0},
        timed("decode", 1, 3 * K, 0.2, 0.27),
        timed("decode", 1, HISTORY, 0.6, 0.7),
        {"part": "decode", "shape": "Qwen2.5-Omni-7B", "new": 1, "live": 128 * K, "failed": "so"},
        {"part": "decode", "shape": "Qwen2.5-Omni-3B", "new": 1, "live": 3 * K, "skipped": "so"},
        timed("prefill", 700, 2 * K, 0.1, 0.1),
        timed("prefill", 700, 3 * K, 0.2, 0.19),
        timed("prefill", 700, HISTORY, 1.5, 1.6),
        {"part": "holes", "live": K, "kind": "pages", "holes": 0.5, "over_full": 1.05},
        {"part": "holes", "live": K, "kind": "cells", "holes": 0.5, "over_full": 3.0},
    ]
    rows += over_history(rows)
    note_shares(rows)
    assert rows[2]["read_share"] == pytest.approx(HISTORY * 57344 / 0.6e-3 / 4400e9, abs=1e-4)
    ratios = {(row["new"], row["live"]): row["ratio"] for row in rows[-3:]}
    assert ratios == pytest.approx({(1, 3 * K): 3.5, (700, 2 * K): 16.0, (700, 3 * K): 8.0})
    holds = {f"{claim.name}, {claim.bound}": claim.holds for claim in claims(rows)}
    about = "Qwen2.5-Omni-7B"
    assert holds == {
        "cases that failed, 0": False,
        "ours: largest error of a head, 0.01": True,
        f"{about}, decode at 3,072: dense over ours, 1.3": True,
        f"{about}, decode at 32,768: dense over ours, 1.1": True,
        f"{about}, decode at 131,072: dense over ours, 1.0": False,
        f"{about}, decode at 131,072: share of read bandwidth, 0.91": False,
        f"{about}, decode at 131,072: plain read, layer by layer, over ours, 0.91": False,
        f"{about}, prefill of 700 on 3,072: dense over ours, 1.0": False,
        f"{about}, prefill of 700 on 32,768: dense over ours, 1.0": True,
        "1,024 cells, half of the pages dead: time a cell over full, 1.1": True,
        "1,024 cells, half of the pages dead: time a cell over full, 0.9": True,
        f"{about}, decode: dense on 32,768 over ours on 3,072, 3.4": True,
        f"{about}, prefill of 700: dense on 32,768 over ours on 3,072, 8.8": False,
    }
    one, many = passed(rows)
    assert "1 new" in one and "12.72 x not passed" in one
    assert "12.72 x passed up to 2,048 live cells; most: 16.0 x with 2,048" in many


def test_a_case_that_fails_does_not_lose_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    runs = pytest.importorskip("benchmarks.attention_runs")

    class Card:
        multi_processor_count = 8

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    monkeypatch.setattr(runs, "tidy", lambda: None)
    monkeypatch.setattr(runs.Runs, "ceiling", lambda self: {"gb_per_s": 1.0, "way": "w"})
    monkeypatch.setattr(runs.Runs, "decode", lambda self, shape, cells: 1 / 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 30, 1 << 30))
    size = runs.Size(runs.SHAPES[:1], (64,), ((5, 64),), (), (128,), (0.5,))
    taken = runs.Runs(1, torch.device("cpu"))
    taken.all(size)
    first, failed, *rest = taken.rows
    assert first == {"part": "read bandwidth", "gb_per_s": 1.0, "way": "w"}
    assert failed["failed"] == "ZeroDivisionError: division by zero"
    assert [row["part"] for row in rest] == ["prefill", "holes", "holes", "holes"]
    assert all("GB" in row["skipped"] for row in rest)
    assert "division by zero" in capsys.readouterr().err


def test_plots_are_drawn_from_a_results_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows: list[Row] = [{"part": "read bandwidth", "gb_per_s": 4400.0, "way": "w"}]
    for live in (K, 2 * K, 3 * K, HISTORY):
        rows.append(timed("decode", 1, live, 0.2, 0.3) | {"peers_ms": {}})
        prefill = timed("prefill", 700, live, 0.2, 0.3)
        rows.append(prefill | {"peers_ms": {"FlexAttention": 0.4}, "flops": 10**11})
    hole = {"part": "holes", "live": K, "kind": "pages", "holes": 0.5, "over_full": 1.05}
    rows += [{**hole, "ours_ms": 1.0}, *over_history(rows)]
    file = tmp_path / "attention.json"
    file.write_text(json.dumps({"benchmark": "attention", "rows": rows}))
    done = run(str(BENCHMARK), "--draw", str(file), "--out", str(tmp_path / "plots"))
    assert done.returncode == 0, done.stderr
    drawn = sorted(plot.name for plot in (tmp_path / "plots").iterdir())
    names = ("budgets", "decode", "holes", "prefill")
    assert drawn == [f"attention-{name}.png" for name in names]


@pytest.mark.parametrize("name", ["attention", "sealed_attention"])
def test_an_interrupted_run_leaves_the_record_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    runs = pytest.importorskip(f"benchmarks.{name}_runs")
    benchmark = importlib.import_module(f"benchmarks.{name}")

    class Interrupted:
        def __init__(self, *_: object) -> None:
            self.rows: list[Row] = []

        def all(self, _: object) -> None:
            self.rows.append({"part": "read bandwidth", "gb_per_s": 4500.0, "way": "w"})
            raise KeyboardInterrupt

    monkeypatch.setattr(runs, "Runs", Interrupted)
    monkeypatch.setattr(benchmark, "lacking", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "BESIDE", tmp_path / "beside")
    record = tmp_path / "benchmarks" / "results" / f"{name.replace('_', '-')}-nvidia-h200.json"
    record.parent.mkdir(parents=True)
    record.write_text("the record")
    assert benchmark.main([]) == harness.FAILS
    assert record.read_text() == "the record" and not (tmp_path / "docs").exists()
    assert json.loads((tmp_path / "beside" / record.name).read_text())["partial"]
    assert "no record's place" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--draw", "none.json"], ["--seed", "-3"], ["--seed=x"]])
def test_wrong_arguments_are_refused_before_the_card_is_asked(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attention, "lacking", lambda: pytest.fail("it was asked"))
    with pytest.raises(SystemExit) as ended:
        attention.main(words)
    err = capsys.readouterr().err
    assert ended.value.code == 2 and f"error: argument {words[0].partition('=')[0]}: " in err
