"""The Metal benchmark on a CPU: the kernels' text as C++, tiny shapes, a clock of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import harness, metal
from benchmarks.harness import FAILS, HOLDS, LACKS
from benchmarks.metal_claims import Row, claims, note_floors
from metal_kernels.cutting import Gpu
from metal_kernels.launch import Launch
from omni_core.reference.attention import masked_attention
from tests.metal.runner import compiler

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

import omni_mlx  # noqa: E402
from benchmarks.live_cells import K, Shape, scattered  # noqa: E402
from benchmarks.metal_cases import build, expected  # noqa: E402
from benchmarks.metal_clock import Pace, Taken, timed  # noqa: E402
from benchmarks.metal_runs import Machine, Runs, Size  # noqa: E402
from omni_core.checkpoints import open_checkpoint  # noqa: E402
from omni_core.model_config import thinker_config  # noqa: E402
from omni_mlx.paged import Kernels  # noqa: E402
from tests.metal.on_mlx import run_as_text  # noqa: E402

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler, or not on Linux")
SHAPE = Shape("small", 3, 6, 2, 64)


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def tiny(**more: Any) -> Size:
    ticks = count()
    pace = Pace(rounds=1, sweep=1 << 10, clock=lambda: float(next(ticks)))
    about: dict[str, Any] = {
        "shapes": (SHAPE,),
        "dtypes": ("float16", "bfloat16"),
        "decode": (100,),
        "prefill": ((12, 70),),
        "holes": (128,),
        "stored": (1, 9),
        "moved": (70,),
        "read": 1 << 16,
        "units": 3,
        "longest": 24,
        "budget": 240,
        "pace": pace,
    }
    return Size(**about | more)


def machine(untrained: Path, run: Any = run_as_text, capacity: int = 8 << 30) -> Machine:
    def open_model() -> tuple[Any, Any]:
        checkpoint = open_checkpoint(untrained)
        backend: Any = omni_mlx.load(checkpoint, device="cpu")
        text = thinker_config(checkpoint.config).text
        allocate = backend.allocate

        def with_kernels(layout: Any) -> None:
            allocate(layout)
            backend._kernels = Kernels(text, layout, Gpu(2), run)

        backend.allocate = with_kernels
        return backend, text

    return Machine(run, Gpu(2), capacity, open_model)


@needs_compiler
def test_the_whole_way_on_tiny_shapes(
    untrained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    monkeypatch.setattr(metal, "_lacking", lambda: None)
    monkeypatch.setattr(metal, "_machine", lambda: (machine(untrained), "A GPU (Metal)"))
    monkeypatch.setattr(Size, "small", staticmethod(tiny))
    ended = metal.main(["--quick", "--out", str(tmp_path), "--seed", "3"])
    written = json.loads((tmp_path / "metal-a-gpu-metal.json").read_text())
    found = written["rows"]
    rows = {tuple(row.get(k) for k in ("part", "dtype", "new")): row for row in found}
    assert not [row for row in found if {"failed", "wrong", "skipped"} & set(row)]
    assert [row["part"] for row in found] == [
        *("read bandwidth", "decode", "prefill", "decode", "prefill"),
        *("holes", "store", "store", "move", "memory"),
    ]
    for dtype, bound in (("float16", 2e-3), ("bfloat16", 1e-2)):
        for part, new in (("decode", 1), ("prefill", 12)):
            row = rows[part, dtype, new]
            assert 0 < row["ours_error"] < bound and 0 < row["dense_error"] < bound
            # By this clock every look at it takes a second.
            assert row["ours_ms"] == row["dense_ms"] == 2000 and row["ratio"] == 1
            assert row["ours_host_ms"] == row["dense_host_ms"] == 1000
            assert row["ours_gpu_ms"] == row["dense_gpu_ms"] == 1000 and row["gpu_ratio"] == 1
            assert row["layers"] == 3 and row["floor_ms"] > 0
    decode, prefill = rows["decode", "float16", 1], rows["prefill", "float16", 12]
    assert decode["bytes"] == 3 * 100 * 2 * 2 * 64 * 2
    assert prefill["flops"] == 3 * 4 * 6 * 64 * (12 * 70 + 78)
    assert decode["programs"] > 1
    assert rows["holes", "float16", 1]["over_full"] == 1
    assert rows["store", "float16", 9]["bytes"] == 3 * 2 * 9 * 64 * 2 * (6 + 4)
    memory = rows["memory", None, None]
    assert memory["units"] == 3 and memory["early_bytes"] > memory["accounted_bytes"] > 0
    holds = {claim["name"]: claim["holds"] for claim in written["claims"]}
    assert list(holds) == [
        "cases that failed",
        "float16: largest error of a head",
        "bfloat16: largest error of a head",
        "3 units of varied lengths: memory in use, last over first fifth",
        "3 units of varied lengths: memory kept for reuse, most over its limit",
    ]
    # Three units are too few for memory to be level.
    assert ended == (HOLDS if all(holds.values()) else FAILS) and all(list(holds.values())[:3])
    assert list(holds.values())[-1] and memory["kept_bytes"] > 0
    assert (written["device"], written["quick"], written["seed"]) == ("A GPU (Metal)", True, 3)
    assert (tmp_path / "metal-a-gpu-metal.png").stat().st_size > 0
    out = capsys.readouterr().out
    assert "prefill" in out and "GB/s" in out


def test_an_interrupted_run_leaves_the_record_alone(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(runs: Runs, size: Size) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(metal, "_lacking", lambda: None)
    monkeypatch.setattr(metal, "_machine", lambda: (machine(untrained), "A GPU (Metal)"))
    monkeypatch.setattr(Runs, "all", interrupted)
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "BESIDE", tmp_path / "beside")
    assert metal.main([]) == FAILS
    (file,) = (tmp_path / "beside").glob("*.json")
    assert json.loads(file.read_text())["partial"] and not (tmp_path / "benchmarks").exists()
    assert not (tmp_path / "docs").exists()


@needs_compiler
@pytest.mark.parametrize("name", ["decode", "store", "move"])
def test_what_is_wrong_has_no_time(untrained: Path, name: str) -> None:
    def wrong(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
        if launch.kernel.name == name and name != "decode":
            return [mx.zeros(output.shape, mx.int32) for output in launch.outputs]
        made = run_as_text(launch, inputs)
        return [made[0] * 1.1, *made[1:]] if launch.kernel.name == name else made

    runs = Runs(3, machine(untrained, wrong))
    runs.memory = lambda size: {"growth": 1.0, "last_bytes": 0, "kept_bytes": 0}  # type: ignore[method-assign]
    metal.measure(runs, tiny(dtypes=("float16",), prefill=(), stored=(9,)))
    part = {row["part"]: row for row in runs.rows}
    assert "ours_ms" not in part[name] and "wrong" in part[name]
    assert {other for other, row in part.items() if "wrong" in row} <= {name, "holes"}
    assert not all(claim.holds for claim in claims(runs.rows))


def test_what_has_no_room_is_left_out(untrained: Path) -> None:
    runs = Runs(3, machine(untrained, capacity=1 << 30))
    runs.memory = lambda size: {"growth": 1.0, "last_bytes": 0, "kept_bytes": 0}  # type: ignore[method-assign]
    metal.measure(runs, tiny())
    by = {row["part"]: row for row in runs.rows}
    assert "GB are there" in by["decode"]["skipped"] and "GB" in by["prefill"]["skipped"]
    assert "gb_per_s" in by["read bandwidth"]
    assert [claim.name for claim in claims([by["decode"]])] == ["cases that failed"]


@needs_compiler
def test_a_case_that_fails_does_not_lose_the_others(untrained: Path) -> None:
    def breaks(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
        if launch.kernel.name == "decode":
            raise RuntimeError("No kernel.\nMore.")
        return run_as_text(launch, inputs)

    runs = Runs(3, machine(untrained, breaks))
    runs.memory = lambda size: {"growth": 1.0, "last_bytes": 0, "kept_bytes": 0}  # type: ignore[method-assign]
    metal.measure(runs, tiny(dtypes=("float16",), stored=(9,)))
    failed = {row["part"]: row.get("failed") for row in runs.rows}
    assert failed["decode"] == failed["holes"] == "RuntimeError: No kernel."
    assert not any(failed[part] for part in ("prefill", "store", "move"))


def test_the_reference_is_the_oracle() -> None:
    draw = np.random.default_rng(2)
    for new, cells in ((1, 33), (7, 40), (40, 40)):
        queries = draw.standard_normal((new, 6, 16))
        keys, values = draw.standard_normal((2, cells, 2, 16))
        order, bias = np.arange(cells), np.zeros(cells)
        oracle = masked_attention(queries, keys, values, order[cells - new :], order, bias, 0.3)
        q = mx.array(queries.astype(np.float32))
        k, v = (mx.array(x.astype(np.float32)).swapaxes(0, 1)[None] for x in (keys, values))
        np.testing.assert_allclose(np.array(expected(q, k, v, 0.3)), oracle, atol=1e-5)


def test_dead_cells_are_nan_and_copies_are_in_order() -> None:
    live = scattered(np.random.default_rng(1), 70, 6, 5)
    assert live.cells == 75 and live.pages.size == 3
    assert live.query_order.tolist() == list(range(70, 75))
    case = build(SHAPE, live, 2, Gpu(4), "float32")
    keys = np.array(case.keys[1])
    assert np.isnan(keys).all(axis=(2, 4)).sum() == (6 * 64 - 75) * 2 - (6 * 64 - 75)
    assert not np.isnan(np.array(case.contiguous(1)[0])).any()
    where = [(page, slot) for page, row in zip(live.pages, live.alive, strict=True)
             for slot in np.flatnonzero(row)]  # fmt: skip
    lined = np.stack([keys[0, page, :, slot] for page, slot in where], axis=1)
    np.testing.assert_array_equal(np.array(case.contiguous(1)[0])[0], lined)
    assert case.error(1, case.queries, case.queries) > 0.5
    spoilt = mx.where(mx.arange(64) == 3, mx.nan, case.queries)
    assert case.error(1, case.queries, spoilt) == float("inf")


def test_the_gpu_has_no_time_where_the_host_outlasts_the_reads() -> None:
    def found(slow: float) -> Taken:
        now = 0.0

        def clock() -> float:
            nonlocal now
            now += 1.0
            return now

        def graph() -> list[mx.array]:
            return [mx.zeros(4) + 1]

        def hand(outputs: list[mx.array]) -> None:
            nonlocal now
            now += slow if len(outputs) == 1 and outputs[0].size == 4 else 0.0
            plain(outputs)

        plain, pace = mx.async_eval, Pace(rounds=3, sweep=1 << 10, clock=clock)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mx, "async_eval", hand)
            return timed({"one": graph}, pace)["one"]

    assert found(0.0) == Taken(2000, 1000, 1000)
    assert found(9.0) == Taken(11000, 10000, None)


def timed_row(live: int, ratio: float, dtype: str = "bfloat16") -> Row:
    return {
        **{"part": "decode", "shape": "Qwen2.5-Omni-7B", "dtype": dtype, "new": 1, "live": live},
        **{"layers": 28, "ours_error": 1e-3, "ours_ms": 2.0, "dense_ms": 2.0 * ratio},
        **{"ratio": ratio, "bytes": 10**9, "flops": 10**10},
    }


def test_claims_follow_the_rows_and_a_failed_case_holds_nothing() -> None:
    rows: list[Row] = [
        {"part": "read bandwidth", "gb_per_s": 1000.0, "way": "w"},
        timed_row(3 * K, 0.5),
        timed_row(8 * K, 1.0),
        timed_row(16 * K, 0.5) | {"ours_gpu_ms": 0.5, "gpu_ratio": 1.5},
        timed_row(32 * K, 0.99),
        timed_row(64 * K, 1.2, "float16") | {"ours_error": float("inf")},
        {
            "part": "decode",
            "shape": "S",
            "dtype": "float16",
            "new": 1,
            "live": 8 * K,
            "failed": "x",
        },
        {"part": "memory", "units": 500, "growth": 1.001, "kept_over_limit": 1.01},
    ]
    note_floors(rows)
    assert rows[1]["floor_ms"] == 1.0 and rows[1]["read_share"] == 0.5
    assert rows[1]["ours_tflop_per_s"] == 5.0
    assert rows[3]["read_share"] == 2.0 and rows[3]["ours_tflop_per_s"] == 20.0
    about, after = "Qwen2.5-Omni-7B, bfloat16, decode at", "MLX's time over ours"
    assert {claim.name: claim.holds for claim in claims(rows)} == {
        "cases that failed": False,
        "float16: largest error of a head": False,
        "bfloat16: largest error of a head": True,
        f"{about} 8,192: {after}": True,
        f"{about} 16,384: MLX's GPU time over ours": True,
        f"{about} 32,768: {after}": False,
        f"Qwen2.5-Omni-7B, float16, decode at 65,536: {after}": True,
        f"S, float16, decode at 8,192: {after}": False,
        "500 units of varied lengths: memory in use, last over first fifth": True,
        "500 units of varied lengths: memory kept for reuse, most over its limit": False,
    }


@pytest.mark.skipif(mx.is_available(mx.gpu), reason="MLX has a GPU here")
def test_without_a_gpu_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLX_ENABLE_TF32", "0")
    assert metal.main(["--quick", "--out", str(tmp_path)]) == LACKS
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("needs a GPU for MLX")
    assert list(tmp_path.iterdir()) == []
