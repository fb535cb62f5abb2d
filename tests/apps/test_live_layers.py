"""``--layer-budgets``, from the words to what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core import Recording
from omni_core.layer_budgets import GradientNorms, LayerBudgets, document
from omnilive.cli import main
from omnilive.layering import told
from omnilive.live import DEMO
from omnilive.models import prepare

Events = list[dict[str, Any]]
SHORT = ("--duration", "30", "--budget", "512")
pytestmark = pytest.mark.shipped


@pytest.fixture
def twin() -> str:
    """The one that is quick on a CPU; that the other plans alike is a test of its own."""
    pytest.importorskip("torch")
    return "cuda"


@pytest.fixture
def layers_file(tmp_path: Path) -> str:
    """A calibration of the shipped model, whose first layers are made to weigh most."""
    pytest.importorskip("torch")
    prepared = prepare(backend="cuda")
    norms, count = GradientNorms(), prepared.config.text.layers
    norms.add(np.arange(count, 0, -1) ** 2, np.zeros(count))
    about = {"model": "embedded", "identity": prepared.described(4).identity}
    file = tmp_path / "layers.json"
    file.write_text(json.dumps(document(norms, about)))
    return str(file)


def live(capsys: pytest.CaptureFixture[str], twin: str, *words: str) -> Events:
    where = ("--source", str(DEMO), "--backend", twin, "--device", "cpu")
    code = main(["live", *where, "--fast", "--jsonl", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_layers_keep_their_own_budgets_recorded_replayed_and_explained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, twin: str, layers_file: str
) -> None:
    folder, why = tmp_path / "r", tmp_path / "why"
    words = ("--layer-budgets", layers_file, *SHORT, "--ask", "25: what do you see?")
    events = live(capsys, twin, *words, "--record", str(folder), "--explain", str(why))
    units = [event["kv"]["by_group"] for event in events if event["event"] == "unit"]
    for found in units:
        budgets = found["budget"]
        assert budgets == sorted(budgets, reverse=True) and budgets[0] > budgets[-1]
        assert sum(budgets) == 512 * len(budgets)
        assert (np.asarray(found["cells"]) <= budgets).all()
    # What the stream tells of its layers moves a few cells.
    assert units[0]["budget"] != units[20]["budget"]
    assert len(set(units[-1]["cells"])) > 1
    summary = events[-1]
    assert summary["evicted"] > 0 and summary["kv"]["by_group"] == units[-1]
    rows = [row for row in why.read_text().splitlines() if row.startswith("  ")]
    each = "/".join(map(str, units[-1]["cells"]))
    assert f"| {each} |" in rows[-1] and "512 cells, by layer" in why.read_text()
    assert "cells of each | page maps" in why.read_text()
    told_of = Recording(folder).meta["layers"]
    assert len(told_of["sensitivity"]) == len(budgets)
    assert main(["replay", str(folder), "--backend", twin, "--device", "cpu", "--jsonl"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["compared"] == report["agreed"] > 20


def test_a_session_goes_on_with_its_layer_budgets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, twin: str, layers_file: str
) -> None:
    folder = str(tmp_path / "s")
    before = live(capsys, twin, "--layer-budgets", layers_file, *SHORT, "--save", folder)
    code = main(["live", "--source", str(DEMO), "--resume", folder, "--layer-budgets", layers_file])
    assert code == 2
    assert "--layer-budgets cannot be given with --resume" in capsys.readouterr().err
    rest = live(capsys, twin, "--resume", folder, "--duration", "4")
    first = next(event for event in rest if event["event"] == "unit")
    assert first["kv"]["by_group"]["budget"] == before[-1]["kv"]["by_group"]["budget"]
    assert rest[-1]["units"] == before[-1]["units"] + 4


@pytest.mark.parametrize("more", [(), ("--aggregate", "--kv-bits", "4")])
def test_both_twins_plan_alike(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str], layers_file: str
) -> None:
    pytest.importorskip("mlx.core")
    words = ("--layer-budgets", layers_file, *more, "--duration", "20", "--budget", "256")
    ends = [live(capsys, twin, *words)[-1] for twin in ("mlx", "cuda")]
    assert ends[0]["plans"] == ends[1]["plans"]
    assert ends[0]["kv"] == ends[1]["kv"] and ends[0]["evicted"] > 0
    assert ends[0]["kv"].get("bits", 16) == (4 if more else 16)


def test_people_are_told_of_layers(capsys: pytest.CaptureFixture[str], layers_file: str) -> None:
    words = ("--backend", "cuda", "--device", "cpu", "--fast", "--layer-budgets", layers_file)
    assert main(["live", "--source", str(DEMO), *words, *SHORT]) == 0
    err = capsys.readouterr().err
    assert "layout page, by layer\n" in err
    assert " stay in a layer on average, " in err
    (line,) = (row for row in err.splitlines() if row.startswith("  layers  "))
    layers = line.count(" of ")
    assert layers > 1 and f"pages of layer group {layers} of {layers}:" in err
    assert told(None) == "" and told(LayerBudgets((1.0,))) == ", by layer"


@pytest.mark.parametrize("command", [("live", "--fast"), ("eval", "streamworld")])
def test_budgets_by_layer_of_nothing_are_refused(
    command: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")

    def load_backend(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("omnilive.backends.load_backend", load_backend)
    where = ("--backend", "cuda", "--device", "cpu")
    file = str(tmp_path / "none.json")
    assert main([*command, *where, "--layer-budgets", file]) == 1
    assert f"{file}: cannot be read" in capsys.readouterr().err
    words = ("--layer-budgets", file, "--retention", "no-slide")
    assert main([*command, *where, *words]) == 2
    assert "--retention no-slide evicts nothing" in capsys.readouterr().err
    assert main([*command, *where, "--layer-blend", "0.5,0"]) == 2
    assert "--layer-blend weighs what --layer-budgets says" in capsys.readouterr().err
    for wrong in ("1", "0.5,x", "0.9,0.2", "-1,0"):
        with pytest.raises(SystemExit) as end:
            main([*command, f"--layer-blend={wrong}"])
        assert end.value.code == 2 and "weights" in capsys.readouterr().err


@pytest.mark.parametrize("still", [False, True])
def test_an_evaluation_shares_cells_out_where_any_are_evicted(
    still: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path, layers_file: str
) -> None:
    out = tmp_path / "found.json"
    size = ("--units", "24", "--streams", "2", "--questions", "4", "--seeds", "1")
    rules = ("--retention", "no-slide", "--retention", "omnipick", "--budget", "1/2")
    words = ("--backend", "cuda", "--device", "cpu", "--layer-budgets", layers_file)
    words = (*words, "--layer-blend", "0.8,0") if still else words
    main(["eval", "streamworld", *words, *rules, *size, "--out", str(out)])
    assert "omnipick, by layer" in capsys.readouterr().out
    whole, kept = json.loads(out.read_text())["rows"]
    assert "layers" not in whole and len(kept["layers"]["sensitivity"]) > 1
    assert kept["layers"]["blend"]["dynamic"] == (0 if still else 0.025)
    assert kept["cells"] <= kept["budget"] < whole["cells"]
