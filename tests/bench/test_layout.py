"""The layout benchmark: its traces, its measurements, its verdict, and recordings as traces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import harness, layout
from benchmarks.harness import Claim, Report
from benchmarks.layout_runs import RandomEviction, Stream, ledger_bytes, policies, run
from benchmarks.traces import PREFIX, QWEN_7B, SHAPES, RecordedTrace, Shape, Trace
from omni_core.backend import PAGE
from omni_core.errors import RecordingError
from omni_core.frontend.base import Cursor, UnitMedia
from omni_core.paging import NativeLayout, PageLayout
from omni_core.recording import Recorder
from omni_core.retention import OmniPick
from omni_core.units import Modality, Role

SMALL = Shape("MiniCPM-o-4.5", QWEN_7B, (20, 40), 10)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_unit_has_the_tokens_of_its_shape(shape: Shape) -> None:
    trace = Trace(shape, 3)
    unit, cursor = trace.unit(UnitMedia(0.0, shape.seconds), Cursor(PREFIX))
    senses = np.bincount(unit.block.modality, minlength=3)
    assert senses[Modality.VISION] in shape.vision and senses[Modality.AUDIO] == shape.audio
    assert len(unit.block) <= trace.largest_unit
    assert (np.diff(unit.block.positions[0]) >= 0).all()
    following, _ = trace.unit(UnitMedia(shape.seconds, 2 * shape.seconds), cursor)
    assert following.block.positions.min() > unit.block.positions.max()
    brackets = np.isin(following.block.role, [Role.BRACKET])
    assert not brackets.any()


@pytest.mark.parametrize("name", [*policies()])
def test_every_policy_runs_and_stays_in_its_budget(name: str) -> None:
    found = run(Trace(SMALL, 40), policies()[name], PageLayout(), 640)
    assert found.cells.max() <= 640
    assert (found.pages * PAGE >= found.cells).all() and (found.span >= found.pages).all()
    assert bool(found.ended) == (name == "no-slide")
    row = found.row("test")
    assert row["waste_cells"] == row["pages"] * PAGE - row["cells"]
    assert json.loads(json.dumps(row)) == row


def test_the_same_stream_runs_alike() -> None:
    one, two = (run(Trace(SMALL, 40), RandomEviction(), PageLayout(), 640) for _ in range(2))
    assert one.evictions == two.evictions > 3
    assert one.moved.tolist() == two.moved.tolist() and one.span.tolist() == two.span.tolist()


def test_trimming_leaves_no_free_page_between_used_ones() -> None:
    trimmed = run(Trace(SMALL, 60), OmniPick(), layout.TRIMMED, 640)
    assert trimmed.evictions > 3 and trimmed.moved[-1] > 0
    assert trimmed.span.tolist() == trimmed.pages.tolist()
    native = run(Trace(SMALL, 60), OmniPick(), NativeLayout(), 640, frame=None)
    assert native.moved[-1] == 0 and native.cells.tolist() == trimmed.cells.tolist()


def test_the_ledger_does_not_grow_with_the_stream() -> None:
    stream = Stream(Trace(SMALL, 300), OmniPick(), PageLayout(), 640)
    for _ in range(50):
        stream.advance()
    size = ledger_bytes(stream.session)
    for _ in range(250):
        stream.advance()
    assert ledger_bytes(stream.session) == size


def test_a_recording_is_played_as_it_came(tmp_path: Path) -> None:
    stream = Stream(Trace(SMALL, 12, every=3), OmniPick(), PageLayout(), 640, chunk=16)
    stream.session._recorder = recorder = Recorder(tmp_path / "take")
    arena = stream.session._tables.arena
    recorder.begin(
        {
            "budget": 640,
            "arena": {
                name: getattr(arena, name)
                for name in ("pages", "groups", "layers_per_group", "kv_heads", "head_dim")
            },
        }
    )
    original = stream.finish()
    recorder.close()
    played = RecordedTrace(tmp_path / "take")
    assert played.units == 12 and played.budget == 640
    assert [played.question_after(i) is None for i in range(12)] == [
        stream.trace.question_after(i) is None for i in range(12)
    ]
    again = run(played, OmniPick(), PageLayout(), 640)
    assert again.bytes_a_cell == original.bytes_a_cell
    # The recorder came after the prefix.
    assert (np.diff(again.tokens)[:1] == np.diff(original.tokens)[:1]).all()
    with pytest.raises(RecordingError):
        RecordedTrace(tmp_path)


def test_a_claim_that_fails_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Claim("most", 1.0, 1.0).holds and not Claim("most", float("nan"), 1.0).holds
    assert Claim("least", 1.0, 1.0, least=True).holds
    claims = [Claim("pages", 1.2, 1.1), Claim("span", 0.3, 0.267, least=True)]
    report = Report("layout", [{"part": "sweep"}], claims)
    path = report.write(tmp_path)
    document = json.loads(path.read_text())
    assert path.name == f"layout-{harness.machine_name()}.json"
    assert [claim["holds"] for claim in document["claims"]] == [False, True]
    assert document["versions"]["numpy"] == np.__version__
    assert report.finish() == harness.FAILS
    assert "FAILS" in capsys.readouterr().out
    assert Report("layout", [], claims[1:]).finish() == harness.HOLDS


def test_small_bounds_hold(tmp_path: Path) -> None:
    found = layout.Findings()
    size = layout.Size((SHAPES[0],), (SHAPES[0],), 120, 40, 60, (2048,), 90, 60, 20)
    layout.any_token(size, found)
    layout.span_at_checkpoint(size, found)
    layout.sweep(size, found, [])
    claims = {claim.name: claim for claim in found.claims}
    assert claims and all(claim.holds for claim in claims.values() if "best" not in claim.name)
    assert {row["policy"] for row in found.rows} >= set(policies())


def test_plots_are_drawn_or_their_absence_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    layout.draw_extents(layout.extents()[:1], tmp_path / "extent.png")
    assert (tmp_path / "extent.png").read_bytes().startswith(b"\x89PNG")
    assert "drew" in capsys.readouterr().out


def test_without_matplotlib_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    layout.draw_bars([], tmp_path / "bars.png")
    assert "pip install" in capsys.readouterr().out and not (tmp_path / "bars.png").exists()
