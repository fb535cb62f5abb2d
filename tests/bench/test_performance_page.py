"""The page that tells what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import harness, performance_page
from benchmarks.stream_loop_size import NAMES
from tests.bench.stream_rows import layout_row, stream_row


def attention_rows() -> list[dict[str, Any]]:
    timed = {"shape": NAMES[0], "live": 3072, "ours_ms": 0.2, "dense_ms": 0.26, "ratio": 1.3}
    return [
        {"part": "read bandwidth", "gb_per_s": 4400.0},
        {"part": "decode", "new": 1, "dense": "cuDNN", **timed},
        {"part": "decode", "new": 1, "shape": NAMES[1], "live": 3072, "failed": "out of memory"},
        {"part": "prefill", "new": 700, "dense": "cuDNN", **timed},
        {"part": "over history", "new": 1, **timed},
        {"part": "holes", "kind": "pages", "holes": 0.5, "ns_per_cell": 7.0, "over_full": 1.05}
        | timed,
    ]


def document(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "benchmark": name,
        "device": "NVIDIA H200",
        "quick": False,
        "machine": {"processor": "x", "cores": 16, "system": "Linux x86_64"},
        "versions": {"torch": "2.11"},
        "commit": "0123",
        "rows": rows,
        "claims": [harness.Claim("a claim", 2.0, 1.0, least=True).row()],
    }


def test_the_page_tells_what_the_files_hold_and_what_they_lack() -> None:
    streams = [
        stream_row("transformers", "no-slide", 90.0, 250.0),
        stream_row("ours", "no-slide", 60.0, 60.0),
        stream_row("ours", "omnipick", 20.0, 50.0),
    ]
    further = [row | {"target": 65_536, "session_s": 7.25} for row in streams]
    about = {
        "part": "decode step",
        "model": NAMES[0],
        "cells": 3000,
        "weight_bytes": 14_000_000_000,
    }
    step = about | {"cache_bytes": 8_000_000, "read_bytes_a_second": 4.4e12, "device_ms": None}
    layouts = [layout_row("native", 10.0, 5.0, 0.0), layout_row("page", 9.0, 3.0, 0.5)]
    told = performance_page.page(
        [
            document("attention", attention_rows()),
            document("stream-loop", [*streams, step | {"floor_ms": 3.2, "ms": 4.0, "ratio": 1.25}]),
            document("stream-loop-long", [streams[0] | {"session_s": 99.99}, *further]),
        ]
    )
    assert "| 3.00 | 4.50 | 4.86 |" in told and "| 7.25 |" in told and "99.99" not in told
    assert "| 14.01 | 4.40 | 3.20 | 4.00 | - | 1.25 | - |" in told and "| 13.9 | 72 |" in told
    assert "cuDNN" in told and "out of memory" not in told
    assert told.count("Not measured.") == 3
    assert "after each unit of 700 tokens" in told and "Streams with one:\n\nNone." in told
    assert f"python benchmarks/stream_loop.py --long --model {NAMES[0]}\n" in told
    assert f"- `stream-loop-long`, {NAMES[0]}: NVIDIA H200" in told
    assert f"- {NAMES[0]}, 1 new over a history of 32,768: 12.72 x not passed; most: 1.3 x" in told
    assert "{" not in told and max(len(line) for line in told.splitlines() if "|" not in line) < 400
    told = performance_page.page([document("stream-loop", layouts)])
    assert "| page, listed | 9.0 | 3.0 | 0.5 | 1,234 | 16.7 |" in told
    assert told.count("Not measured.") == 13


def test_a_pause_is_told_where_medians_hide_it() -> None:
    paused = stream_row("ours", "omnipick", 20.0, 50.0) | {"slowest_ms": 150.1, "session_s": 5.25}
    level = stream_row("ours", "no-slide", 60.0, 60.0) | {"slowest_ms": 450.0, "session_s": 6.5}
    told = performance_page.page([document("stream-loop", [paused, level])])
    assert f"| {NAMES[0]} | 700 | 32K | ours, omnipick | 15.00 | 150.10 | 10.0 |" in told
    assert "| 6.50 | 5.25* |" in told and told.count("| 150.10 |") == 1 and "450.00" not in told


def test_three_digits_do_not_hide_a_claim_that_fails() -> None:
    grown = document("stream-loop", []) | {
        "claims": [
            harness.Claim("memory", 1.000146, 1.0).row(),
            harness.Claim("no number", float("nan"), 1.0).row(),
        ]
    }
    told = performance_page.page([grown | {"partial": True}])
    assert "| memory | **fails** | 1.0001 | at most 1 |" in told
    assert "| no number | **fails** | - | at most 1 |" in told
    assert "`stream-loop`, a part of a run: " in told


def test_what_reading_takes_and_the_gates_bounds_are_of_the_files() -> None:
    rows = [
        {"part": "decode", "shape": "m", "live": live, "read_share": share}
        for live, share in ((8192, 0.3), (32_768, 0.541), (65_536, 0.7), (131_072, 0.92))
    ]
    gates = [
        {"part": "gate", "what": "small, float32, across layouts", "off": 0.0, "tolerance": 1e-3},
        {"part": "gate", "what": "m, bfloat16", "off": 0.0, "tolerance": 0.1, "peers_apart": 0.08},
    ]
    told = performance_page.page([document("attention", rows), document("stream-loop", gates)])
    assert "would take 54 % at 32K and 92 % at 128K (m)." in told
    assert "(m: 0.080), where that is more, and 0.1 at most" in " ".join(told.split())


def test_the_page_is_not_written_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(performance_page, "RESULTS", tmp_path)
    monkeypatch.setattr(performance_page, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(performance_page, "FIGURES", tmp_path / "figures")
    with pytest.raises(SystemExit):
        performance_page.main([])
    assert "no results" in capsys.readouterr().err and not list(tmp_path.iterdir())
    file = tmp_path / "attention-nvidia-h200.json"
    file.write_text(json.dumps(document("attention", attention_rows())))
    assert performance_page.main([]) == 0
    assert (tmp_path / "performance.md").read_text().startswith("# Performance")


def test_ratios_are_of_one_run_and_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(fast: float) -> dict[str, Any]:
        kept = stream_row("ours", "omnipick", fast, 0.0)
        return document("stream-loop", [kept, stream_row("ours", "no-slide", 30.0, 0.0)])

    slow = document("stream-loop", [stream_row("ours", "no-slide", 3.0, 0.0)])
    assert "| 3.00 |" in performance_page.page([slow, run(10.0)])
    soak = tmp_path / "soak.json"
    soak.write_text('{"benchmark": "soak"}')
    for wrong in (tmp_path / "none.json", soak):
        with pytest.raises(SystemExit):
            performance_page.main([str(wrong)])
        assert "is no results file of" in capsys.readouterr().err


def test_a_gate_knows_what_is_no_number() -> None:
    gate = pytest.importorskip("benchmarks.stream_loop_gate")
    right, wrong = np.ones(3, np.float32), np.full(3, np.nan, np.float32)
    assert gate._off(right, right) == 0
    assert gate._off(wrong, right) == gate._off(right, wrong) == float("inf")
