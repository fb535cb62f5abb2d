"""``--aggregate`` and its thresholds, from the words to what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_core import Recording
from omni_core.aggregation import Aggregation
from omnilive.aggregating import chosen, shown, told
from omnilive.cli import main
from omnilive.live import DEMO

Events = list[dict[str, Any]]
SHORT = ("--duration", "6")
pytestmark = pytest.mark.shipped


@pytest.fixture(params=["mlx", "cuda"])
def twin(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    return name


@pytest.fixture
def never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_backend(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("omnilive.backends.load_backend", load_backend)


def live(capsys: pytest.CaptureFixture[str], twin: str, *words: str) -> Events:
    where = ("--source", str(DEMO), "--backend", twin, "--device", "cpu")
    code = main(["live", *where, "--fast", "--jsonl", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("command", [("live", "--fast"), ("eval", "streamworld")])
@pytest.mark.parametrize("word", ["--theta-inter", "--theta-intra"])
@pytest.mark.usefixtures("never_loaded")
def test_a_threshold_of_nothing_is_refused(
    command: tuple[str, str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--device", "cpu", word, "0.5"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert f"{word} 0.5 is for --aggregate" in err


@pytest.mark.parametrize("value", ["0", "1.01", "nan", "much"])
def test_what_is_no_similarity_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["live", "--aggregate", "--theta-inter", value])
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "is not a similarity from 0.001 to 1" in err


def test_what_was_chosen_is_told() -> None:
    assert chosen(False, None, None) is None and told(None) == ""
    assert told(chosen(True, None, None)) == ", aggregated"
    assert told(chosen(True, 0.7, None)) == ", aggregated above 0.7 and 0.85"
    counts = {"seen": 9, "entered": 4, "shown": 3, "merged": 2, "invalid": 0}
    assert shown(counts) == "4 of 9 vision tokens entered (3 seen before, 2 merged)"
    assert shown(dict.fromkeys(counts, 0)) == "0 of 0 vision tokens entered"


def test_a_run_is_aggregated_recorded_replayed_and_explained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, twin: str
) -> None:
    plain = live(capsys, twin, *SHORT)
    assert not any("aggregated" in event for event in plain)
    folder, why = tmp_path / "r", tmp_path / "why.txt"
    words = ("--aggregate", *SHORT, "--ask", "5: what do you see?")
    events = live(capsys, twin, *words, "--record", str(folder), "--explain", str(why))
    units = [event["aggregated"] for event in events if event["event"] == "unit"]
    summary = events[-1]["aggregated"]
    for name, total in summary.items():
        assert total == sum(unit[name] for unit in units)
    assert summary["seen"] == plain[-1]["tokens"]["vision"]
    assert summary["entered"] == events[-1]["tokens"]["vision"] < summary["seen"] / 2
    assert summary["shown"] > 0 and summary["merged"] > 0 and summary["invalid"] == 0
    fewer = events[-1]["kv"]["peak_cells"] - plain[-1]["kv"]["peak_cells"]
    asked = events[-1]["tokens"]["text"] - plain[-1]["tokens"]["text"]
    assert fewer == summary["entered"] - summary["seen"] + asked
    rows = [line for line in why.read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == len(units) + 1 and ", aggregated" in why.read_text()
    told = [row.split(" | ")[1].split() for row in rows]
    assert sum(int(seen.replace("-", "0")) for seen, *_ in told) == summary["seen"]
    assert Recording(folder).meta["aggregation"] == Aggregation().state()
    assert main(["replay", str(folder), "--backend", twin, "--device", "cpu", "--jsonl"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["compared"] == report["agreed"] > 5
    assert 0 < report["merged"] < report["rows"]
    assert main(["replay", str(folder), "--backend", twin, "--device", "cpu"]) == 0
    assert f"{report['merged']} of {report['rows']} embeddings entered" in capsys.readouterr().out


def test_an_aggregated_session_goes_on_as_it_was(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, twin: str
) -> None:
    folder, words = str(tmp_path / "s"), ("--aggregate", "--theta-inter", "0.7")
    live(capsys, twin, *words, *SHORT, "--save", folder)
    for option in (("--aggregate",), ("--theta-intra", "0.9")):
        code = main(["live", "--source", str(DEMO), "--fast", "--resume", folder, *option])
        assert code == 2
        assert f"{option[0]} cannot be given with --resume" in capsys.readouterr().err
    rest = live(capsys, twin, "--resume", folder, *SHORT)
    assert rest[-1]["aggregated"]["seen"] == 2 * 6 * 16
    # The clip begins anew, with a picture that it had when it was saved, or another.
    assert rest[-1]["units"] == 12


def test_people_are_told_what_entered(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    words = ("--backend", "cuda", "--device", "cpu", "--fast", "--aggregate", "--duration", "2")
    assert main(["live", "--source", str(DEMO), *words]) == 0
    err = capsys.readouterr().err
    assert "layout page, aggregated\n" in err
    assert "; 6 of 16 vision tokens entered (10 merged)\n" in err
    assert "; 1 of 16 vision tokens entered (15 seen before)\n" in err
    (line,) = (row for row in err.splitlines() if row.startswith("  picture  "))
    assert line == "  picture  7 of 32 vision tokens entered (15 seen before, 10 merged)"


def test_an_evaluation_aggregates_each_stream_by_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "found.json"
    size = ("--units", "8", "--streams", "2", "--questions", "4", "--seeds", "1")
    words = ("--backend", "cuda", "--device", "cpu", "--retention", "no-slide", "--aggregate")
    main(["eval", "streamworld", *words, *size, "--out", str(out)])
    assert "no-slide, aggregated" in capsys.readouterr().out
    found = json.loads(out.read_text())
    (row,) = found["rows"]
    counts = row["aggregated"]
    assert counts["seen"] == 2 * 8 * 16 and 0 < counts["entered"] < counts["seen"]
    assert row["aggregation"]["inter"] == 0.8
    # What the checkpoint claims is of streams whose tokens all enter.
    assert all(claim["holds"] is None for claim in found["claims"])
