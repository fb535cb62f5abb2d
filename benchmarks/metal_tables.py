"""The tables of docs/metal.md: what launches take, what chips would, and what GPUs did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.live_cells import SHAPES, K, Shape
from benchmarks.metal_chips import CHIPS, occupancy
from benchmarks.metal_counts import (
    Counted,
    coded,
    launches,
    moved,
    registers,
    sealing,
    threadgroup_memory,
)
from metal_kernels.cutting import Gpu

Table = list[list[str]]
Document = dict[str, Any]
DTYPE = "bfloat16"
GPU = Gpu(10)
"""A plain chip's."""
STEPS = ((1, 3 * K), (1, 32 * K), (79, 3 * K), (700, 3 * K), (2300, 3 * K))
"""New tokens, and the live cells before them."""
_LIVE = (3 * K, 8 * K, 32 * K)
_PREFILL = (700, 3 * K)
_GPU_TIMES = ("ours_gpu_ms", "dense_gpu_ms")
_TIMES = ("ours_ms", "ours_host_ms", "dense_ms", "dense_host_ms")


def resources(shapes: Sequence[Shape] = SHAPES) -> Table:
    """A line a variant: what a threadgroup takes of a core."""
    head = ["variant", "threads", "threadgroup memory", "registers", "held by a core", "bound by"]
    found: dict[str, list[str]] = {}
    for shape in shapes:
        for new, live in STEPS:
            listed = launches(shape, new, live, GPU, DTYPE) + coded(shape, new, live, GPU, DTYPE)
            for counted in [*listed, moved(shape, 64, DTYPE), sealing(shape, 2, DTYPE)]:
                launch = counted.launch
                if launch.variant in found:
                    continue
                threads, memory = launch.threadgroup[0], threadgroup_memory(launch)
                many = registers(launch)
                held = occupancy(many, memory, threads)
                found[launch.variant] = [
                    f"`{launch.variant}`",
                    f"{threads}",
                    f"{memory:,}",
                    f"{many}",
                    f"{held.groups} = {held.threads} threads",
                    held.bound,
                ]
    return [head, *(found[name] for name in sorted(found))]


def work(shapes: Sequence[Shape] = SHAPES) -> Table:
    """A line a launch of a layer: what it reads, writes and computes."""
    head = ["shape", "kernel", "of", "MB read", "MB written", "GFLOP", "threadgroups"]
    lines = []
    for shape in shapes:
        told: dict[tuple[str, str], Counted] = {}
        for new, live in STEPS:
            for counted in [
                *launches(shape, new, live, GPU, DTYPE),
                *coded(shape, new, live, GPU, DTYPE),
            ]:
                told.setdefault((counted.launch.kernel.name, counted.what), counted)
        told["move", ""] = moved(shape, 64, DTYPE)
        told["sealed_store", ""] = sealing(shape, 2, DTYPE)
        for (name, _), counted in told.items():
            many = " x ".join(str(n) for n in counted.launch.threadgroups)
            lines.append(
                [
                    shape.name,
                    name,
                    counted.what,
                    _short(counted.read / 1e6),
                    _short(counted.written / 1e6),
                    _short(counted.flops / 1e9) if counted.flops else "",
                    many,
                ]
            )
    return [head, *lines]


def expected_decode(shapes: Sequence[Shape] = SHAPES) -> Table:
    """Milliseconds that the attention of a decode step takes at least, by chip."""
    asked = [(shape, live) for shape in shapes for live in _LIVE]
    head = ["chip", "GB/s", *(f"{_brief(shape)}, {live // K}K" for shape, live in asked)]
    return [
        head,
        *(
            [
                chip.name,
                f"{chip.bandwidth:g}",
                *(
                    f"{_read_ms(shape, live, Gpu(chip.cores), chip.bandwidth):.2f}"
                    for shape, live in asked
                ),
            ]
            for chip in CHIPS
        ),
    ]


def expected_prefill(shapes: Sequence[Shape] = SHAPES) -> Table:
    """Milliseconds that attention of a unit takes at least by its arithmetic, by chip."""
    new, live = _PREFILL
    head = ["chip", "TFLOP/s", *(_brief(shape) for shape in shapes)]
    lines = [
        [
            chip.name,
            f"{chip.teraflops:g}",
            *(
                f"{shape.layers * shape.flops(live, new) / chip.teraflops / 1e9:.0f}"
                for shape in shapes
            ),
        ]
        for chip in CHIPS
        if chip.teraflops is not None
    ]
    return [head, *lines]


def attention(documents: Sequence[Document]) -> Table:
    """Decode, prefill and holes as measured."""
    head = [
        "GPU",
        "",
        "shape",
        "dtype",
        "new",
        "live",
        "layers",
        *("GPU's ms", "MLX's", "ratio"),
        *("wall", "host", "MLX's", "host", "ratio"),
    ]
    lines = [
        [
            document.get("device", "unknown"),
            row["part"],
            row["shape"],
            row["dtype"],
            f"{row['new']:,}",
            f"{row['live']:,}",
            f"{row['layers']}",
            *(f"{row[key]:.3f}" if key in row else "-" for key in _GPU_TIMES),
            f"{row['gpu_ratio']:.2f}" if "gpu_ratio" in row else "-",
            *(f"{row[key]:.3f}" if key in row else "-" for key in _TIMES),
            f"{row['ratio']:.2f}" if "ratio" in row else "-",
        ]
        for document in documents
        for row in document["rows"]
        if row["part"] in ("decode", "prefill", "holes") and "layers" in row
    ]
    return [head, *lines]


def writes(documents: Sequence[Document]) -> Table:
    """Stores, moves and the plain read as measured."""
    head = ["GPU", "", "shape", "tokens or cells", "layers", "ms", "GB/s"]
    lines = []
    for document in documents:
        gpu = document.get("device", "unknown")
        for row in document["rows"]:
            if "gb_per_s" in row:
                lines.append([gpu, row["way"], "", "", "", "", f"{row['gb_per_s']:,.0f}"])
            elif "gb_moved_per_s" in row:
                count = f"{row.get('new', row.get('cells')):,}"
                ms, speed = f"{row['ours_ms']:.3f}", f"{row['gb_moved_per_s']:,.0f}"
                lines.append([gpu, row["part"], row["shape"], count, f"{row['layers']}", ms, speed])
    return [head, *lines]


def claimed(documents: Sequence[Document]) -> Table:
    """What was claimed, and what became of it."""
    head = ["GPU", "claim", "measured", "bound", ""]
    return [
        head,
        *(
            [
                document.get("device", "unknown"),
                claim["name"],
                "-" if claim["value"] is None else f"{claim['value']:g}",
                f"{claim['is']} {claim['bound']:g}",
                "holds" if claim["holds"] else "**fails**",
            ]
            for document in documents
            for claim in document["claims"]
        ),
    ]


def _read_ms(shape: Shape, live: int, gpu: Gpu, bandwidth: float) -> float:
    """Of all layers: the caches, and what programs find written and read again."""
    listed = launches(shape, 1, live - 1, gpu, DTYPE)
    some = [one for one in listed if one.launch.kernel.name in ("decode", "merge")]
    return shape.layers * sum(one.read + one.written for one in some) / bandwidth / 1e6


def _brief(shape: Shape) -> str:
    return shape.name.replace("Qwen2.5-Omni-", "").replace("MiniCPM-o-", "MiniCPM-o ")


def _short(value: float) -> str:
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"
