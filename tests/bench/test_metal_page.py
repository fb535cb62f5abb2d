"""The page about the Metal kernels: counted from launches, measured where there are results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, metal_page
from benchmarks.live_cells import SHAPES, K
from benchmarks.metal_chips import CHIPS, MOST_MEMORY, occupancy
from benchmarks.metal_counts import launches, moved, registers, threadgroup_memory
from benchmarks.metal_fault import FAULTS, Fault, said
from metal_kernels.cutting import Gpu
from tests.metal.runner import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler, or not on Linux")


def document(device: str) -> dict[str, Any]:
    about = {"shape": SHAPES[0].name, "dtype": "bfloat16", "layers": 28}
    rows = [
        {"part": "read bandwidth", "gb_per_s": 4321.0, "way": "sum of float32"},
        {"part": "decode", "new": 1, "live": 8 * K, "ours_ms": 1.234, "dense_ms": 2.468, **about}
        | {"ratio": 2.0, "ours_host_ms": 0.777, "dense_host_ms": 0.5}
        | {"ours_gpu_ms": 0.111, "dense_gpu_ms": 0.333, "gpu_ratio": 3.0},
        {"part": "decode", "new": 1, "live": 3 * K, **about, "wrong": "ours: error 1"},
        {"part": "decode", "new": 1, "live": 64 * K, "shape": "S", "skipped": "none is there"},
        {"part": "store", "new": 700, "ours_ms": 0.5, "gb_moved_per_s": 987.0, **about},
    ]
    return {
        "benchmark": "metal",
        "device": device,
        "quick": False,
        "machine": {"processor": "x", "cores": 16, "system": "Linux x86_64"},
        "versions": {"mlx": "0.32.4"},
        "commit": "0123",
        "rows": rows,
        "claims": [harness.Claim("a claim", 2.0, 1.0, least=True).row()],
    }


def test_without_results_nothing_is_said_to_have_run_on_a_gpu() -> None:
    told = metal_page.page([], "broken")
    assert told.count(metal_page.NOT_YET) == 2 and told.count("Not measured yet.") == 3
    assert "No results file is there." in told and "broken" in told
    assert "{" not in told.replace("{\n", "")
    longest = max(len(line) for line in told.splitlines() if "|" not in line)
    assert longest <= 100
    for shape in SHAPES:
        for kernel in ("store", "decode", "merge", "prefill", "mass", "move"):
            assert f"| {shape.name} | {kernel} |" in told
    for chip in CHIPS:
        assert f"| {chip.name} | {chip.bandwidth:g} |" in told


def test_results_are_told_by_where_they_ran() -> None:
    told = metal_page.page([document("NVIDIA H200 (CUDA)")], "")
    assert "map it to CUDA | NVIDIA H200 (CUDA) |" in told
    assert told.count(metal_page.NOT_YET) == 1 and f"not by us; {metal_page.NOT_YET}" in told
    assert "| 28 | 0.111 | 0.333 | 3.00 | 1.234 | 0.777 | 2.468 | 0.500 | 2.00 |" in told
    assert "| 28 | - | - | - | - | - | - | - | - |" in told and "none is there" not in told
    assert "4,321" in told and "| 987 |" in told and "| at least 1 | holds |" in told
    both = metal_page.page([document("NVIDIA H200 (CUDA)"), document("Apple M2 Pro (Metal)")], "")
    assert metal_page.NOT_YET not in both and "kernel` | Apple M2 Pro (Metal) |" in both


def test_the_page_is_written_with_what_the_runner_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metal_page, "PAGE", tmp_path / "metal.md")
    monkeypatch.setattr(metal_page, "RESULTS", tmp_path)
    monkeypatch.setattr(metal_page, "FAULTS", FAULTS[:1])
    assert metal_page.main([]) == 0
    told = (tmp_path / "metal.md").read_text()
    assert "```diff\n-threadgroup_barrier" in told and "KernelFault: decode_" in told


SAID = ("order of lanes", "waits in", "wrote beyond", "off the oracle")


def test_without_a_compiler_a_line_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metal_page, "compiler", lambda: None)
    assert metal_page.main([]) == harness.LACKS
    assert capsys.readouterr().err.startswith("needs a C++ compiler")


@pytest.mark.parametrize(("fault", "says"), list(zip(FAULTS, SAID, strict=True)), ids=SAID)
def test_the_runner_says_what_is_wrong(fault: Fault, says: str) -> None:
    assert says in said(fault)


def test_a_fault_that_is_none_says_so_and_lost_text_is_an_error() -> None:
    told = said(replace(FAULTS[0], new=FAULTS[0].old))
    assert re.search(r"off the oracle by \d\.?\d*e-07 ", told)
    with pytest.raises(ValueError, match="0 times"):
        said(replace(FAULTS[0], old="nowhere"))


def test_threadgroup_memory_is_what_bodies_declare() -> None:
    by = {}
    for new in (1, 700):
        for counted in launches(SHAPES[0], new, 3 * K, Gpu(10), "bfloat16"):
            by[counted.launch.kernel.name] = counted.launch
    by["move"] = moved(SHAPES[0], 64, "bfloat16").launch
    found = {name: threadgroup_memory(launch) for name, launch in by.items()}
    # Of eight lines, what four simdgroups found in 64 columns; keys and values of a subblock, a
    # bias and an age a cell; six numbers of each of eight lanes.
    assert found["decode"] == 4 * 8 * (4 * (2 + 65) + 1)
    assert found["prefill"] == 2 * 32 * (128 + 8) * 2 + 32 * 4 + 32 * 8
    assert found["merge"] == 4 * 6 * 8
    assert found["move"] == found["store"] == 0
    assert max(found.values()) < MOST_MEMORY
    assert registers(by["decode"]) > registers(by["merge"])


def test_what_a_core_holds() -> None:
    assert occupancy(104, 0, 256).threads == 1024
    assert occupancy(208, 0, 128).threads == 512
    assert occupancy(104, 0, 256).bound == "threads" and occupancy(208, 0, 128).bound == "registers"
    held = occupancy(60, 20 * 1024, 128)
    assert (held.groups, held.threads, held.bound) == (3, 384, "memory")


def test_a_step_reads_its_cells_once() -> None:
    shape = SHAPES[2]
    decode = next(c for c in launches(shape, 1, 8 * K, Gpu(10), "float16")
                  if c.launch.kernel.name == "decode")  # fmt: skip
    assert 1 < decode.read / shape.layer_bytes(8 * K) < 1.01
    assert decode.flops == shape.flops(8 * K, 1)
    wide = next(c for c in launches(shape, 1, 8 * K, Gpu(10), "float32")
                if c.launch.kernel.name == "decode")  # fmt: skip
    assert 1.99 < wide.read / decode.read < 2.01
    assert moved(shape, 64, "float16").read == shape.layer_bytes(64)
