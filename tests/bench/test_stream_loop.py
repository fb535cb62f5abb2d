"""The stream loop's benchmark: its driver on tiny shapes, its gate, its claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from benchmarks import (  # noqa: E402
    harness,
    stream_loop,
    stream_loop_models,
    stream_loop_steps,
)
from benchmarks.stream_loop_cases import Case, run_loop, run_peer  # noqa: E402
from benchmarks.stream_loop_claims import claims, find, saved, share_of_loop  # noqa: E402
from benchmarks.stream_loop_clock import Clock  # noqa: E402
from benchmarks.stream_loop_gate import TOLERANCE, against_peer  # noqa: E402
from benchmarks.stream_loop_layouts import LAYOUTS, READINGS, run_layout, walked_span  # noqa: E402
from benchmarks.stream_loop_models import (  # noqa: E402
    SHAPES,
    ModelShape,
    backend_of,
    checkpoint_weights,
    random_backbone,
    step_bytes,
)
from benchmarks.stream_loop_peer import peer_of  # noqa: E402
from benchmarks.stream_loop_plots import draw  # noqa: E402
from benchmarks.stream_loop_runs import Machine, gates, model  # noqa: E402
from benchmarks.stream_loop_size import LONG, NAMES, QUICK, Findings, Size  # noqa: E402
from benchmarks.stream_loop_steps import decode_step, memory_over_units  # noqa: E402
from benchmarks.stream_loop_stream import (  # noqa: E402
    PARTS,
    SPOKEN,
    LoopStream,
    Series,
    embedded_rows,
    unit_block,
)
from benchmarks.traces import PREFIX  # noqa: E402
from omni_core.backend import PAGE  # noqa: E402
from omni_core.paging.listing import list_subblocks  # noqa: E402
from omni_core.paging.mirror import ListedPages, pack_occupancy  # noqa: E402
from omni_core.retention import POLICIES  # noqa: E402
from omni_core.units import EMBEDDED, Role  # noqa: E402
from tests.bench.stream_rows import layout_row, stream_row  # noqa: E402

CPU, WIDE = torch.device("cpu"), torch.float32
KERNELS = torch.device("cuda") if torch.cuda.is_available() else CPU
TEXT = replace(
    SHAPES[0].text,
    vocab=97,
    hidden=64,
    intermediate=96,
    layers=2,
    q_heads=4,
    kv_heads=2,
    head_dim=16,
    mrope_section=(2, 3, 3),
)
TINY = ModelShape("tiny", TEXT, False)


def nothing() -> None:
    pass


@pytest.fixture(scope="module")
def parts() -> Any:
    """A tiny backbone, its backend, and transformers' model of the same weights."""
    backbone = random_backbone(TEXT, CPU, WIDE)
    peer = peer_of(TEXT, checkpoint_weights(backbone, TEXT), CPU)
    return SimpleNamespace(
        backbone=backbone, backend=backend_of(TEXT, backbone, CPU, WIDE), peer=peer
    )


def test_the_peer_shares_the_weights(parts: Any) -> None:
    theirs = {p.untyped_storage().data_ptr() for p in parts.peer.parameters()}
    assert theirs == {p.untyped_storage().data_ptr() for p in parts.backbone.parameters()}


def case(every: int = 2, target: int = 900, live: int = 512) -> Case:
    return Case(TINY, 79, every, target, live)


@pytest.mark.parametrize("tokens", [20, 79, 700, 2300])
def test_a_unit_has_its_tokens_and_a_row_for_each_embedded_one(tokens: int) -> None:
    block = unit_block(tokens, 100)
    assert len(block) == tokens and np.count_nonzero(block.role == Role.DELIMITER) == 4
    rows = block.rows[block.tokens == EMBEDDED]
    assert sorted(rows.tolist()) == list(range(embedded_rows(block)))
    assert (block.positions == 100 + np.arange(tokens)).all()


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "h2o"])
def test_streams_stay_in_their_budget_and_their_parts_add_up(policy: str, parts: Any) -> None:
    (row,) = run_loop(parts.backend, case(), policy, nothing)
    assert row["most_cells"] <= case().budget(policy)
    assert (row["cells"] < 512) == (policy != "no-slide")
    assert set(row["seconds"]) == set(PARTS) and all(row["seconds"][p] > 0 for p in ("prefill",))
    assert sum(row["seconds"].values()) == pytest.approx(row["session_s"], abs=1e-5)
    assert row["session_s"] > row["listening_s"] > 0
    speaking = row["units"] // 2 + row["units"] % 2
    assert PREFIX + 79 * row["units"] + SPOKEN * speaking >= 900 > PREFIX + 79 * (row["units"] - 1)
    assert row["at"] == [2048] and len(row["listen_ms"]) == len(row["speak_ms"]) == 1
    assert json.loads(json.dumps(row)) == row


def test_a_stream_is_sealed_and_told_apart(parts: Any) -> None:
    (row,) = run_loop(parts.backend, case(), "omnipick", nothing, 2)
    assert row["policy"] == "omnipick, 2 bits" and parts.backend.arena.sealed.shape[2] > 0
    assert row["seconds"]["move"] > 0
    (claim,) = [claim for claim in claims([row], False) if "sealing" in claim.name]
    assert claim.value == pytest.approx(100 * row["seconds"]["move"] / row["session_s"], abs=0.01)
    assert claim.bound == 2.0 and not any("retain" in each.name for each in claims([row], False))


def test_the_peer_runs_the_same_stream(parts: Any) -> None:
    (theirs,) = run_peer(parts.peer, case(), CPU, nothing)
    (ours,) = run_loop(parts.backend, case(), "no-slide", nothing)
    for name in ("units", "at", "unit", "spoken", "every", "target"):
        assert theirs[name] == ours[name]
    assert theirs["cells"] == ours["cells"]
    assert theirs["seconds"]["retain"] == theirs["seconds"]["step"] == 0.0


def test_what_a_stream_rehearses_leaves_no_trace(parts: Any) -> None:
    stream = LoopStream(parts.backend, TEXT, "omnipick", "page", 512, 79, Clock())
    before = (len(stream.cache.ledger), stream.cache.ledger.next_order, stream.position)
    stream.rehearse(79, torch.zeros(1, embedded_rows(unit_block(79, 0)), TEXT.hidden))
    assert (len(stream.cache.ledger), stream.cache.ledger.next_order, stream.position) == before


def test_a_clock_counts_each_span_without_what_lies_inside() -> None:
    clock = Clock()
    with clock.span("step"):
        with clock.span("forward", unit=3, tokens=7) as span:
            span.add(tokens=1)
        inside = clock.last
    clock.speaking = True
    with clock.span("forward"):
        pass
    spent = clock.take()
    assert set(spent) == {"step", "prefill", "decode"} and spent["prefill"] == inside
    assert clock.take() == {}


def test_the_device_is_waited_for_at_both_ends_of_its_spans() -> None:
    waits: list[str] = []
    clock = Clock(lambda: waits.append("w"))
    for name, expected in (("step", 0), ("retain", 0), ("forward", 2), ("move", 4)):
        with clock.span(name):
            pass
        assert len(waits) == expected


def test_latencies_are_medians_by_stretch_of_stream() -> None:
    series = Series()
    for at, ms in ((48, 1.0), (1000, 3.0), (2047, 8.0), (2048, 5.0), (4100, 7.0)):
        series.add(at, {"prefill": ms}, {"decode": 2 * ms} if at > 2047 else {})
    row = series.row(4096)
    assert row["units"] == 4 and row["at"] == [2048, 4096]
    assert row["listen_ms"] == [3.0, 5.0] and row["speak_ms"] == [None, 10.0]
    assert row["last_listen_ms"] == 4.0 and row["slowest_ms"] == 8.0
    assert row["session_s"] == pytest.approx(0.027) and row["listening_s"] == pytest.approx(0.017)


def test_the_gate_is_passed_by_the_backend_and_by_no_broken_one(parts: Any) -> None:
    assert [row["off"] <= row["tolerance"] for row in gates(TEXT, CPU, WIDE)] == [True, True]
    broken = backend_of(TEXT, random_backbone(TEXT, CPU, WIDE), CPU, WIDE)
    with torch.no_grad():
        broken.backbone.model.layers[1].self_attn.o_proj.weight.mul_(1.5)
    off = against_peer(broken, parts.peer, TEXT, CPU)
    assert off > TOLERANCE[WIDE]
    assert not claims([{"part": "gate", "what": "x", "off": off, "tolerance": 1e-3}], True)[1].holds


def test_a_backend_that_moves_wrongly_fails_the_gate(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omni_cuda.backend import TorchBackend

    move = TorchBackend.move

    def shifted(backend: TorchBackend, plan: Any) -> None:
        move(backend, replace(plan, source=np.roll(plan.source, 1)))

    monkeypatch.setattr(TorchBackend, "move", shifted)
    offs = {row["what"]: row["off"] for row in gates(TEXT, CPU, WIDE)}
    assert offs["small, float32, against transformers"] <= TOLERANCE[WIDE]
    assert offs["small, float32, across layouts"] > TOLERANCE[WIDE]


def test_a_decode_step_is_set_beside_its_floor(parts: Any) -> None:
    row = decode_step(parts.backend, TINY, 512, 20, 1e9, nothing)
    assert 480 <= row["cells"] <= 512
    assert row["cache_bytes"] == row["cells"] * 2 * 2 * 2 * 16 * 4
    assert row["weight_bytes"] == step_bytes(parts.backbone)
    table = parts.backbone.model.embed_tokens.weight.nbytes
    whole = sum(p.nbytes for p in parts.backbone.parameters())
    assert row["weight_bytes"] == whole - table
    assert row["floor_ms"] == pytest.approx((row["weight_bytes"] + row["cache_bytes"]) / 1e6, 1e-2)
    assert row["ms"] > 0 and row["ratio"] == pytest.approx(row["ms"] / row["floor_ms"], rel=1e-2)


def test_memory_that_grows_fails_its_claim(parts: Any) -> None:
    held = iter(range(100, 200))
    grown = memory_over_units(parts.backend, TINY, 20, lambda: next(held), 60, 512)
    level = memory_over_units(parts.backend, TINY, 20, lambda: 7, 60, 512)
    assert grown["tokens"] == level["tokens"] > 20 * 20
    assert [claim.holds for claim in claims([grown, level], False)] == [True, False, True]


def pages(alive: np.ndarray, checked: list[bool], first: int = 3) -> ListedPages:
    """Pages side by side, each newer than the one before."""
    count = len(alive)
    order = np.arange(count * PAGE, dtype=np.int64).reshape(count, PAGE)
    used = np.flatnonzero(alive.any(axis=1))
    seen = np.asarray(checked)[used]
    return ListedPages(
        (used + first).astype(np.int32),
        pack_occupancy(alive[used]),
        np.zeros(used.size, np.int32),
        seen,
        order[used][seen],
    )


def live_words(listing: Any) -> dict[int, int]:
    """Occupancy by subblock, of those with anything alive."""
    parts = listing.rows.view(np.uint32).reshape(-1, 2, 2)
    found = zip(parts[:, 0].reshape(-1).tolist(), parts[:, 1].reshape(-1).tolist(), strict=True)
    return {sub: word for sub, word in found if word}


@pytest.mark.parametrize("programs", [1, 3])
def test_a_walked_span_goes_through_dead_tiles_and_reads_the_same_cells(programs: int) -> None:
    draw = np.random.default_rng(programs)
    alive = draw.random((12, PAGE)) < 0.4
    alive[2:5] = False
    alive[7, :32] = False
    live = pages(alive, [False] * 9 + [True] * 3)
    short, long = list_subblocks(live, programs), walked_span(live, programs, 12)
    assert live_words(short) == live_words(long)
    tiles = [int((each.segments[:, 2] - each.segments[:, 0]).sum()) for each in (short, long)]
    assert tiles[1] == 12 > tiles[0]


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_attention_is_timed_on_each_layout(layout: str) -> None:
    text = replace(TEXT, layers=1, q_heads=2, kv_heads=1)
    shape = ModelShape("tiny", text, False)
    row = run_layout(shape, "omnipick", layout, 79, 216, 300, KERNELS, WIDE)
    readings = ["listed"] if layout.startswith("page") else [*READINGS]
    wanted = {f"{way} {phase}" for way in readings for phase in ("prefill", "decode")}
    assert set(row["ms"]) == set(row["tiles"]) == wanted
    assert all(value > 0 for value in row["ms"].values())
    assert row["cells"] <= 216
    assert (row["moved_cells"] > 0) == (row["move_ms"] > 0)
    if layout == "native":
        assert row["moved_cells"] == 0
        assert row["tiles"]["walked decode"] >= row["tiles"]["listed decode"]


def test_a_model_goes_through_all_its_parts(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stream_loop_models.vision_config(64), stream_loop_models.audio_config(64)
    vision = replace(whole[0], depth=2, hidden=32, intermediate=48, heads=2, full_blocks=(1,))
    audio = replace(whole[1], layers=2, hidden=32, heads=2, intermediate=48)
    for module in (stream_loop_models, stream_loop_steps):
        monkeypatch.setattr(module, "vision_config", lambda hidden: vision)
        monkeypatch.setattr(module, "audio_config", lambda hidden: audio)
    size = Size(("tiny",), (79,), 400, ("no-slide", "omnipick"), varied="tiny", memory=12)
    found = Findings()
    text = replace(TEXT, max_positions=32768)
    machine = Machine(CPU, WIDE, 1e9, nothing, lambda: 5)
    found.take("tiny", lambda: model(ModelShape("tiny", text, True), size, found, machine))
    assert found.failed == []
    kinds = [row["part"] for row in found.rows]
    assert kinds == ["gate", *["stream"] * 4, "decode step", "memory", "encode"]
    assert find(found.rows, part="encode")[0]["rows"] == 64 + 25
    report = harness.Report("stream-loop", found.rows, claims(found.rows, True), True)
    assert json.loads(report.write(tmp_path).read_text())["rows"][0]["part"] == "gate"


def test_moves_are_counted_against_the_page_layout() -> None:
    native = layout_row("native", 100.0, 50.0, 0.0)
    page = layout_row("page", 90.0, 30.0, 12.0)
    assert saved(page, native) == pytest.approx(0.12)
    assert [claim.holds for claim in claims([native, page], True)] == [True, True]
    assert [claim.holds for claim in claims([native, page], False)] == [True, False]
    page["ms"]["listed prefill"] = 70.0
    assert [claim.holds for claim in claims([native, page], False)] == [True, True]
    page["move_ms"] = 60.0
    assert [claim.holds for claim in claims([native, page], True)] == [True, False]


def test_claims_follow_from_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        stream_row("ours", "omnipick", 20.0, 50.0),
        stream_row("ours", "no-slide", 60.0, 60.0),
        stream_row("transformers", "no-slide", 90.0, 250.0),
    ]
    found = {claim.name: claim for claim in claims(rows, False)[1:]}
    values = [round(claim.value, 3) for claim in found.values()]
    assert values == [3.0, 4.5, 4.857, 1.333, 1.333, 1.333, 10.0]
    assert [claim.holds for claim in found.values()] == [True, True, False, True, True, True, False]
    assert share_of_loop(rows[0], ["plan"]) == pytest.approx(0.05)
    assert find(rows, path="ours", policy="no-slide") == [rows[1]]
    stream_loop.show(rows)
    assert "10.00" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    draw([*rows, {"part": "encode", "model": NAMES[0], "unit": 700, "ms": 3.0}], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "stream-loop-latency.png",
        "stream-loop-split.png",
    }


def test_a_pause_is_a_claim_that_fails() -> None:
    row = stream_row("ours", "fifo", 20.0, 50.0)
    for slowest, holds in ((150.0, True), (150.1, False)):
        (claim,) = claims([row | {"slowest_ms": slowest}], False)[1:]
        assert claim.holds is holds and claim.bound == 10
        about = "Qwen2.5-Omni-7B, units of 700, 32K, ours fifo"
        assert claim.name == f"{about}: slowest unit over the median"


def test_memory_may_grow_by_a_thousandth() -> None:
    row = {"part": "memory", "model": "m", "units": 500}
    growths = {1.000146: True, 1.001: True, 1.0011: False}
    for growth, holds in growths.items():
        assert claims([row | {"growth": growth}], False)[1].holds is holds


def test_one_failure_does_not_lose_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    found = Findings()

    def fails() -> Any:
        raise RuntimeError("the third kernel is missing")

    found.take("one", lambda: {"part": "a"})
    found.take("two", fails)
    found.take("three", lambda: [{"part": "b"}, {"part": "c"}])
    assert [row["part"] for row in found.rows] == ["a", "failed", "b", "c"]
    assert found.failed == ["two: RuntimeError: the third kernel is missing"]
    assert not claims(found.rows, True)[0].holds and claims([], True)[0].holds
    assert "three" in capsys.readouterr().err


def test_what_does_not_fit_the_time_is_left_out_and_said() -> None:
    found = Findings(limit=0.0)
    found.take("late", lambda: {"part": "a"})
    assert found.failed == ["late: left out, the time of 0 s is up"]
    assert found.rows == [{"part": "failed", "failed": harness.TIME_UP, "why": found.failed[0]}]


def test_a_failure_is_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(size: Size, found: Findings) -> Any:
        assert size.names == ("MiniCPM-o-4.5",) and size.target == QUICK.target
        found.rows.append(stream_row("ours", "omnipick", 1.0, 1.0))
        raise RuntimeError("no")

    monkeypatch.setattr("benchmarks.stream_loop_runs.measure", half)
    monkeypatch.setattr(stream_loop, "lacking", lambda *_: None)
    arguments = ["--quick", "--model", "MiniCPM-o-4.5", "--out", str(tmp_path)]
    assert stream_loop.main(arguments) == harness.FAILS
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["rows"][0]["policy"] == "omnipick"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were run, in turn, on a card that is not there; the third is interrupted."""
    names: list[str] = []

    def measure(size: Size, found: Findings) -> Any:
        names.extend(size.names)
        found.rows.append({"part": "device", "name": "NVIDIA H200"})
        if len(names) == 3:
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr("benchmarks.stream_loop_runs.measure", measure)
    monkeypatch.setattr(stream_loop, "lacking", lambda *_: None)
    return names


@pytest.mark.parametrize(
    ("words", "models"),
    [
        ([], NAMES),
        (["--model", NAMES[2], "--model", NAMES[0]], (NAMES[0], NAMES[2])),
        (["--long", "--model", NAMES[1]], (NAMES[1],)),
        (["--quick"], (NAMES[1],)),
    ],
)
def test_each_model_has_a_file_of_its_own(
    words: list[str], models: tuple[str, ...], ran: list[str], tmp_path: Path
) -> None:
    stream_loop.main([*words, "--out", str(tmp_path)])
    assert ran == list(models)
    first = "stream-loop-long" if "--long" in words else "stream-loop"
    slugs = [name.lower().replace(".", "-") for name in models]
    wanted = {f"{first}-{slug}-nvidia-h200.json" for slug in slugs}
    assert {path.name for path in tmp_path.iterdir()} == wanted


def test_an_interrupted_run_keeps_the_models_before_and_no_records_place(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "BESIDE", tmp_path / "beside")
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    record = results / "stream-loop-minicpm-o-4-5-nvidia-h200.json"
    record.write_text("the record")
    assert stream_loop.main([]) == harness.FAILS
    assert record.read_text() == "the record" and len(list(results.iterdir())) == 3
    part = json.loads((tmp_path / "beside" / record.name).read_text())
    assert part["partial"] and part["rows"][-1]["failed"] == harness.INTERRUPTED
    out = capsys.readouterr().out
    assert f"wrote {tmp_path / 'beside' / record.name}" in out and "no record's place" in out


def test_without_a_card_it_says_so_in_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert stream_loop.main(["--quick"]) == harness.LACKS
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "NVIDIA" in said.err


def test_sizes_name_known_models_and_cells_that_hold_a_unit() -> None:
    for size in (Size(), QUICK, LONG):
        assert set(size.names) <= set(NAMES) == {shape.name for shape in SHAPES}
        for unit, budget in size.layouts:
            assert budget * 7 // 8 >= PREFIX + unit
