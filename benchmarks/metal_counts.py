"""What launches read, write, compute and hold, counted from the launches themselves."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.live_cells import Shape
from benchmarks.metal_shapes import layer_attention
from metal_kernels import attention, pages, seal, sealed, signature
from metal_kernels.cutting import Gpu, programs
from metal_kernels.launch import Launch, TemplateValue
from metal_kernels.loader import load
from metal_kernels.mass import mass
from omni_core.backend import PAGE, SUBBLOCK
from omni_core.quantization import SealedLayout
from omni_core.units import Modality

_ARRAY = re.compile(r"^threadgroup\s+(\w+)\s+\w+\s*\[(.+)\];$", re.MULTILINE)
_ELSE = 20
"""Numbers of 32 bits for addresses, sizes and loops, which no text counts."""
_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Counted:
    """A launch and what it takes.

    Attributes:
        what: in words.
        launch: itself.
        read, written: bytes, each number once.
        flops: of the products, multiplications and additions.
    """

    what: str
    launch: Launch
    read: int
    written: int
    flops: int = 0


def launches(shape: Shape, new: int, live: int, gpu: Gpu, dtype: str) -> list[Counted]:
    """A layer's launches for a step of ``new`` tokens over ``live`` cells and themselves.

    Args:
        shape: of the model.
        new: tokens; of a single one, no order is read.
        live: cells before them.
        gpu: which says in how many programs the rows are shared.
        dtype: of the arena.
    """
    cells, size = live + new, _SIZES[dtype]
    rows = -(-cells // PAGE)
    shares = programs(new, shape.group, shape.kv_heads, gpu)
    of = layer_attention(shape, new, 2 * rows, dtype, rows, max(2, shares), shares, tall=gpu.tall)
    queries, caches = of.lines * of.head_dim * size, shape.layer_bytes(cells) * size // 2
    store = pages.store(
        1, new, shape.q_heads, shape.kv_heads, of.head_dim, tables=1, pages=of.pages, dtype=dtype
    )
    fresh = shape.layer_bytes(new) * size // 2
    attend = attention.attend(of)
    found = sum(output.size * _SIZES[output.dtype] for output in attend.outputs)
    listed = rows * 16 + (0 if new == 1 else cells * 8)
    flops = shape.flops(live, new)
    counted = [
        Counted(f"{new:,} new", store, queries + fresh, queries + fresh),
        Counted(f"{new:,} new on {live:,}", attend, queries + caches + listed, found, flops),
    ]
    if shares > 1:
        what = f"{new:,} new, {shares} programs"
        counted.append(Counted(what, attention.merge(of), found, queries + of.lines * 4))
    given = 4 * shape.kv_heads * rows * PAGE
    asked = mass(of)
    what = f"{new:,} new on {live:,}"
    counted.append(Counted(what, asked, queries + caches // 2 + listed, given, flops // 2))
    return counted


def coded(shape: Shape, new: int, live: int, gpu: Gpu, dtype: str, bits: int = 2) -> list[Counted]:
    """A layer's launches over ``live`` sealed cells beside ``new`` tokens in 16 bits.

    Args:
        shape, new, gpu, dtype: as in :func:`launches`.
        live: sealed cells, all of one modality.
        bits: of their codes; uniform levels.
    """
    rows = -(-live // PAGE)
    shares = programs(new, shape.group, shape.kv_heads, gpu)
    near = max(4, -(-new // PAGE))
    plain = layer_attention(shape, new, near, dtype, near, max(2, shares), shares, tall=gpu.tall)
    layout = SealedLayout(shape.head_dim, bits)
    of = sealed.SealedAttention(plain, layout, near, rows, rows, shares, False, False)
    attend, merge = sealed.attend_sealed(of), sealed.merge_sealed(of)
    queries = plain.lines * plain.head_dim * _SIZES[dtype]
    found = sum(output.size * _SIZES[output.dtype] for output in attend.outputs)
    others = sum(output.size * _SIZES[output.dtype] for output in attention.attend(plain).outputs)
    stored = rows * shape.kv_heads * layout.bytes
    turned = merge.inputs[merge.kernel.inputs.index("rotations")].size * 4 // len(Modality)
    # What is seen of 16-bit cells is not.
    flops = shape.flops(live, new) - shape.flops(0, new)
    undone = 2 * plain.lines * plain.head_dim**2
    what = f"{new:,} new on {live:,}, {bits} bits"
    return [
        Counted(what, attend, queries + stored + rows * 16, found, flops),
        Counted(what, merge, found + others + turned, queries + plain.lines * 4, undone),
    ]


def sealing(shape: Shape, subblocks: int, dtype: str, bits: int = 2) -> Counted:
    """A layer's launch that seals so many subblocks."""
    layout, halves = SealedLayout(shape.head_dim, bits), -(-subblocks // 2)
    of = seal.Sealing(layout, 1, shape.kv_heads, halves, halves, True, dtype)
    launch = seal.store_sealed(of)
    pages = halves * shape.kv_heads * layout.bytes
    tables = 2 * shape.kv_heads * shape.head_dim**2 * 4
    given = shape.layer_bytes(subblocks * SUBBLOCK) * _SIZES[dtype] // 2
    kept = launch.outputs[launch.kernel.outputs.index("kept")].size * 4
    # Values rotated, and errors of keys fed on.
    flops = 3 * subblocks * SUBBLOCK * shape.kv_heads * shape.head_dim**2
    what = f"{subblocks * SUBBLOCK:,} cells, {bits} bits"
    return Counted(what, launch, given + pages + tables + kept, pages + kept, flops)


def moved(shape: Shape, cells: int, dtype: str) -> Counted:
    """A layer's launch that copies so many cells."""
    launch = pages.move(cells, 1, shape.kv_heads, shape.head_dim, pages=cells, dtype=dtype)
    size = shape.layer_bytes(cells) * _SIZES[dtype] // 2
    return Counted(f"{cells:,} cells", launch, size, size)


def registers(launch: Launch) -> int:
    """Registers of 16 bits a thread, an estimate: what the text keeps in a lane's arrays, and 20.

    The compiler may do with fewer, or take more to load ahead.
    """
    values = dict(zip(launch.kernel.template, launch.template, strict=True))
    if launch.kernel.name in ("sealed_decode", "sealed_prefill"):
        return 2 * (_coded_registers(launch, values) + _ELSE)
    size, head_dim = _SIZES[str(values.get("T", "float32"))], int(values["D"])
    simdgroups, groups = int(values.get("SIMDS", 1)), int(values.get("GROUPS", 1))
    # Of a matrix a lane holds two numbers; a head's columns stand in whole blocks of 32, or of 16.
    blocks, steps = -(-head_dim // 32), -(-head_dim // 16) * 2
    queries, scores = steps * size // 2, 2 * 2
    # Queries, what is mixed of them, peaks and totals of two lines, and their orders.
    running = queries + steps * 2 + 4 + 4
    # Of sixteen bytes each, that a thread has asked for.
    brought = 4 * -(-steps // simdgroups)
    held = {
        # Two cells, keys or values, beside what is in blocks.
        "decode": 4 * blocks * (size // 2 + 2 + size) + 4 + 2 * scores,
        # Four matrices of cells, by which all groups of lines are multiplied, and the next cells.
        "prefill": groups * (running + scores) + 4 * size // 2 + 2 * brought,
        "mass": max(brought, queries + scores + 6 + 4 * size // 2 + SUBBLOCK // 8 * 2 // size),
        # Peak, total and four columns of each that is merged.
        "merge": 6 * max(5, simdgroups),
        # Columns of a line, of which a lane has one in 32, and where each array begins.
        "sealed_merge": -(-head_dim // 32) + 12,
    }.get(launch.kernel.name, 8)
    return 2 * (held + _ELSE)


def _coded_registers(launch: Launch, values: Mapping[str, TemplateValue]) -> int:
    """Numbers of 32 bits of a lane that reads codes."""
    head_dim, bits = int(values["D"]), int(values["BITS"])
    whole, low = values["T"] == "float32", 2 if bits == 3 else bits
    places = 16 // low
    turns = -(-head_dim // places // 2 // 4), -(-head_dim // places // 8)
    steps, blocks = turns[0] * places, turns[1] * places
    # Queries, what is mixed, numbers of two lines; scores of a subblock, and weights.
    running = steps * (1 + whole) + 2 * blocks + 10 + 8 + 4 * (1 + whole)
    planes, about = 1 + (bits == 3), 2 + 13
    if launch.kernel.name == "sealed_decode":
        # What is read of a subblock, and of the next.
        return running + 2 * (4 * sum(turns) * planes + about)
    words = head_dim * low // 32 * SUBBLOCK
    brought = 2 * -(-words // launch.threadgroup[0]) * planes + 2
    return int(values["GROUPS"]) * running + brought + about


@cache
def threadgroup_memory(launch: Launch) -> int:
    """Bytes, as the body declares them: a C++ compiler is asked what they come to.

    Raises:
        RuntimeError: the machine has none, or it does not take the text.
    """
    text = load(launch.kernel.name)
    arrays = _ARRAY.findall(text.body)
    if not arrays:
        return 0
    total = " + ".join(f"sizeof({kind}) * ({count})" for kind, count in arrays)
    named = zip(launch.kernel.template, launch.template, strict=True)
    values = "\n".join(_declared(name, value) for name, value in named)
    return _asked(f"{text.header}\n{values}\n", total)


def _declared(name: str, value: TemplateValue) -> str:
    spelled = signature.template_value(value)
    if isinstance(value, str):
        return f"using {name} = {spelled};"
    return f"constexpr int {name} = {spelled};"


def _asked(text: str, expression: str) -> int:
    """The value of a constant expression behind a kernel's text."""
    from tests.metal.runner import FLAGS, HERE, compiler

    found = compiler()
    if found is None:
        raise RuntimeError("no C++ compiler to ask: install g++ 12")
    # The answer is an array's length in the names that the compiler leaves.
    program = f'#include "dialect.h"\n{text}extern const char answer[{expression}] = {{}};\n'
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "sizes.cpp"), Path(folder, "sizes.s")
        source.write_text(program, encoding="utf-8")
        words: Sequence[str] = [found, *FLAGS, "-I", str(HERE), "-S", str(source), "-o", str(made)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the text does not compile: {done.stderr[:400]}")
        size = re.search(r"\.size\s+answer,\s*(\d+)", made.read_text(encoding="utf-8"))
    if size is None:
        raise RuntimeError("the compiler does not say how large an array is")
    return int(size.group(1))
