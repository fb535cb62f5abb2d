"""The codecs' part of the page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import codec_page
from benchmarks.codec_losses import FEEDBACK, MODAL, PAPER, SHARED
from benchmarks.harness import Claim, Report
from benchmarks.perplexity_stream import SETTINGS


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for model, codecs in (
        ("embedded", ("fitted", PAPER, FEEDBACK, SHARED, MODAL)),
        ("SmolLM2-135M", ("fitted", PAPER, FEEDBACK, MODAL)),
    ):
        for codec in codecs:
            for bits in (2, 3):
                for layer in (0, 1):
                    found.append(
                        {
                            "part": "codec",
                            "model": model,
                            "tokens": "consecutive",
                            "codec": codec,
                            "bits": bits,
                            "key_bits": bits + 0.5,
                            "value_bits": bits + 0.25,
                            "layer": layer,
                            "score_error": 0.2 + layer,
                            "value_error": {"text": 0.3} | ({"audio": 0.5} if layer else {}),
                            "output_error": 0.1 * bits,
                        }
                    )
    biased = {"part": "a channel at +600", "model": "embedded", "codec": "fitted", "layer": 1}
    return [*found, {**biased, "bias": 3.0, "bias_apart": 2.0, "score_error": 1.0}]


def write(folder: Path, quick: bool = False) -> None:
    claims = [Claim("this holds", 0.5, 1), Claim("this does not", 2, 1)]
    Report("codec-error", rows(), claims, quick).write(folder)
    runs: list[dict[str, Any]] = [{"part": "whole", "tokens": 64, "perplexity": 20.0}]
    for setting in SETTINGS:
        runs += [
            {
                "part": "sealed",
                "setting": setting.name,
                "codec": codec,
                "bits": 2,
                "perplexity": 21.0,
                "ratio": 1.05,
            }
            for codec in ("fitted", "omnikvquant")
        ]
    Report("perplexity", runs, [Claim("a third", 1, 1)], quick).write(folder)


def test_the_part_says_what_was_measured(tmp_path: Path) -> None:
    write(tmp_path)
    text = codec_page.section(tmp_path)
    lines = text.splitlines()
    assert f"| embedded | {MODAL} | consecutive | 2.50 | 2.25 | 0.700 | 0.350 | 0.200 |" in lines
    assert "| fitted, by modality | consecutive | 0.300 | 0.500 |" in lines
    assert "| embedded | fitted | 3.00 | 2.00 | 1.00 |" in lines
    assert "| fitted | all sealed | 2 | 21.00 | 1.050 |" in lines
    assert "| this does not | **fails** | 2.000 | at most 1 |" in lines
    assert "a whole cache gives 20.00" in text and "{" not in text


def test_without_a_full_run_there_is_no_part(tmp_path: Path) -> None:
    assert codec_page.section(tmp_path) == ""
    write(tmp_path, quick=True)
    assert codec_page.section(tmp_path) == ""
    assert not codec_page.draw(tmp_path, tmp_path)


def test_figures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    write(tmp_path)
    assert codec_page.draw(tmp_path, tmp_path)
    for name in (codec_page.ERRORS, codec_page.PERPLEXITY):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
