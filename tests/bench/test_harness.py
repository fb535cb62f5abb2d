"""What all benchmarks share: files, claims, arguments, and how they end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_token, harness, layout, perplexity, same_answers
from benchmarks.harness import Claim, Report, as_process, results_of, seed, shown
from omnilive import interrupts


def test_what_is_no_number_is_null_in_json(tmp_path: Path) -> None:
    rows = [{"part": "a", "error": inf, "each": [1.5, nan, (2, -inf)], "in": {"it": nan}}]
    found = [Claim("a", nan, 1.0), Claim("b", inf, 1.0), Claim("c", inf, 1.0, least=True)]

    def refused(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    path = Report("x", rows, found).write(tmp_path)
    document = json.loads(path.read_text(), parse_constant=refused)
    assert document["rows"] == [
        {"part": "a", "error": None, "each": [1.5, None, [2, None]], "in": {"it": None}}
    ]
    assert [claim["value"] for claim in document["claims"]] == [None, None, None]
    assert [claim["holds"] for claim in document["claims"]] == [False, False, True]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = Report("x", [{"part": "a"}], []).write(tmp_path)
    before = path.read_text()
    with pytest.raises(TypeError):
        Report("x", [{"part": Path}], []).write(tmp_path)
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "bound", "least", "text"),
    [
        (1.5, 1.0, False, "1.500"),
        (1.000146, 1.0, False, "1.0001"),
        (1.000046, 1.0, False, "1.00005"),
        (1.000001, 1.0, False, "1.000001"),
        (0.90996, 0.91, True, "0.90996"),
        (1.0368, 1.04, True, "1.037"),
        (0, 0, False, "0.000"),
        (nan, 1.0, False, "-"),
    ],
)
def test_a_value_has_the_digits_that_tell_what_became_of_it(
    value: float, bound: float, least: bool, text: str
) -> None:
    assert shown(Claim("a", value, bound, least).row()) == text


def test_only_a_whole_run_as_it_is_recorded_takes_a_records_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [{"part": "a"}, {"part": "b", "failed": "ValueError: no"}]
    whole = Report("x", rows, [])
    assert whole.folder(None) == harness.ROOT / "benchmarks" / "results"
    assert whole.figures(None) == harness.ROOT / "docs" / "figures"
    parts = [
        Report("x", [*rows, {"part": "run", "failed": why}], [])
        for why in (harness.INTERRUPTED, harness.TIME_UP)
    ]
    others = [Report("x", rows, [], quick=True), Report("x", rows, [], changed=True)]
    for report in (*parts, *others):
        assert report.folder(None) == report.figures(None) == harness.BESIDE
        assert report.folder(tmp_path) == report.figures(tmp_path) == tmp_path
    for report, partial in [(whole, False), *((one, True) for one in parts)]:
        assert json.loads(report.write(tmp_path).read_text())["partial"] is partial
        report.finish()
        assert ("takes no record's place" in capsys.readouterr().out) is partial


def test_a_seed_is_a_number_that_can_be_drawn_from() -> None:
    assert seed("0") == 0 and seed("31") == 31
    for wrong in ("-1", "1.5", "", "x", str(2**63)):
        with pytest.raises(argparse.ArgumentTypeError, match=r"expected a number, 0 to 2\^63 - 1"):
            seed(wrong)


def test_files_of_other_benchmarks_are_not_read(tmp_path: Path) -> None:
    read, file = results_of("attention"), tmp_path / "file.json"
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be read"):
        read(str(file))
    for wrong in (
        "{",
        "[]",
        "3",
        '{"benchmark": "soak", "rows": []}',
        '{"benchmark": "attention"}',
    ):
        file.write_text(wrong)
        with pytest.raises(argparse.ArgumentTypeError, match="is no results file of attention"):
            read(str(file))
    file.write_text('{"benchmark": "attention", "rows": [1]}')
    assert read(str(file))["rows"] == [1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_line_and_an_exit_code(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        signal.raise_signal(number)
        raise AssertionError("it went on")

    before = signal.getsignal(number)
    assert as_process(main) == 128 + number
    assert capsys.readouterr().err == "interrupted: nothing more is written\n"
    assert signal.getsignal(number) == before
    assert as_process(lambda: 3) == 3


def test_sigterm_is_to_a_benchmark_what_ctrl_c_is() -> None:
    def main() -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            return harness.FAILS
        return harness.HOLDS

    assert as_process(main) == harness.FAILS


SLEEPS = """
import sys, time
from benchmarks.harness import as_process

def main():
    print("up", flush=True)
    time.sleep(60)

sys.exit(as_process(main))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_ended_says_so_in_a_line(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.communicate(timeout=30) == ("", "interrupted: nothing more is written\n")
    assert process.returncode == 128 + number


@pytest.mark.parametrize("module", [first_token, layout, perplexity, same_answers])
def test_what_cannot_tell_a_part_lets_an_interrupt_through(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> Any:
        raise interrupts.Terminated(signal.SIGTERM)

    work = {first_token: "converse", layout: "full_pages", perplexity: "SmolLM2"}
    monkeypatch.setattr(module, work.get(module, "compare"), interrupted)
    monkeypatch.setattr(layout, "sweep", interrupted)
    monkeypatch.setattr(same_answers, "_lacking", list)
    arguments = ["--quick", "--out", str(tmp_path)]
    assert as_process(lambda: int(module.main(arguments))) == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "changed"),
    [([], False), (["--questions", "200"], False), (["--questions", "5"], True)],
)
def test_fewer_questions_are_no_record(
    words: Sequence[str], changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def compare(folder: Path, bank: object, count: int) -> Any:
        asked.append(count)
        return same_answers.Findings([])

    kept: list[Report] = []
    monkeypatch.setattr(same_answers, "_lacking", list)
    monkeypatch.setattr(same_answers, "compare", compare)
    monkeypatch.setattr(same_answers.Findings, "show", lambda self: None)
    monkeypatch.setattr(same_answers.Findings, "claims", lambda self: [])
    monkeypatch.setattr(Report, "write", lambda self, out: kept.append(self))
    same_answers.main([*words, "--out", str(tmp_path)])
    assert kept[0].changed is changed and asked == [5 if changed else 200]
