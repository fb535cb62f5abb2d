"""What docs/performance.md says of attention over sealed pages."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

from benchmarks.live_cells import SHAPES, K, Shape
from benchmarks.sealed_attention_plots import pages_ms
from omni_core.backend import SUBBLOCK
from omnilive.evaluation.tables import markdown

Row = dict[str, Any]
_INSTRUCTIONS = 669
"""Of a warp for a subblock of 2 bits and a group of 7 heads, by Nsight Compute on an H200:
5,477,888 over 65,536 cells of 4 key heads."""
_A_CYCLE = 1.46
"""Instructions that a multiprocessor began there: registers leave it 8 warps, which wait."""
_CARD = "RTX 4090"
_CARD_BYTES, _CARD_PROCESSORS, _CARD_CLOCK = 1.008e12, 128, 2.52e9
"""Of its technical specifications."""

_TEXT = """One decode step over sealed cells, in microseconds a layer; *16-bit pages* is the kernel
above on the same cells, *dense* the best of PyTorch's kernels on a contiguous copy. *Of reading*
sets the sealed pages' bytes against one long read.

{decode}
`-`: random codes of 3 and 4 bits gave keys so large that copies of them in bfloat16 missed the
reference by more than the 1 % that is allowed, so nothing was timed there.

New tokens over sealed cells, one layer, in milliseconds. *Decoded first* writes a layer's cells out
in float32 with PyTorch's operations, and attends then.

{prefill}
![sealed attention](figures/sealed-attention.png)

Reading sealed pages is bound by instructions, not by bytes: {instructions} of a warp a subblock at
2 bits, {cycle} a cycle and multiprocessor on an H200, where 254 registers a thread leave room for
8 warps. A decode step of {first} at {cells} takes {measured} µs here. On an {card}, which reads a
quarter as fast, bytes rule instead: {bytes_us} µs to read the sealed pages, {instructions_us} µs of
instructions at as many a cycle, and {pages_us} µs to read the same cells in 16 bits. So {least} to
{most} times the speed of 16 bits is to be expected there, by how far reading and computing overlap,
where an H200 gives {ratio}. That is a projection, not a measurement. Prefill over sealed cells
takes {prefill_over} times what it takes over 16-bit pages on an H200: each tile of queries decodes
the cells anew.

"""


def section(documents: Sequence[dict[str, Any]]) -> str:
    """The section on sealed pages, of the first document that has any; empty without one."""
    found = [each for each in documents if each["benchmark"] == "sealed-attention"]
    if not found:
        return ""
    rows = found[0]["rows"]
    ceiling = next((row["gb_per_s"] for row in rows if "gb_per_s" in row), float("nan"))
    decode = [row for row in rows if row["part"] == "decode" and "ours_ms" in row]
    shape, cells = SHAPES[0], 64 * K
    named = next(
        row for row in decode if (row["shape"], row["live"], row["bits"]) == (shape.name, cells, 2)
    )
    longest = max((row for row in rows if row["part"] == "prefill"), key=lambda row: row["live"])
    in_16_bits, instructions = shape.layer_bytes(cells), _instructions(named, shape)
    return "## Sealed pages\n\n" + _TEXT.format(
        decode=_decode(decode, ceiling),
        prefill=_prefill(rows),
        instructions=_INSTRUCTIONS,
        cycle=_A_CYCLE,
        first=shape.name,
        cells="64K",
        card=_CARD,
        measured=f"{named['ours_ms'] * 1e3:.0f}",
        bytes_us=f"{named['bytes'] / _CARD_BYTES * 1e6:.0f}",
        instructions_us=f"{instructions * 1e6:.0f}",
        pages_us=f"{in_16_bits / _CARD_BYTES * 1e6:.0f}",
        least=f"{in_16_bits / (named['bytes'] + instructions * _CARD_BYTES):.0f}",
        most=f"{in_16_bits / max(named['bytes'], instructions * _CARD_BYTES):.0f}",
        ratio=f"{named['ratio']:.1f}",
        prefill_over=f"{1 / longest['ratio']:.1f}",
    )


def _instructions(row: Row, shape: Shape) -> float:
    """Seconds that a row's instructions take on the other card."""
    subblocks = row["live"] / SUBBLOCK * shape.kv_heads
    return float(subblocks * _INSTRUCTIONS / (_CARD_PROCESSORS * _A_CYCLE * _CARD_CLOCK))


def _decode(rows: Sequence[Row], ceiling: float) -> str:
    lines = [["model", "cells", "bits", "µs", "16-bit pages", "over it", "dense", "over it",
              "of reading"]]  # fmt: skip
    for row in rows:
        pages = pages_ms(row)
        dense = row.get("dense_ms", float("nan"))
        lines.append(
            [
                row["shape"],
                f"{row['live']:,}",
                str(row["bits"]),
                f"{row['ours_ms'] * 1e3:.1f}",
                *_beside(pages, row.get("ratio")),
                *_beside(dense, row.get("over_dense")),
                f"{row['bytes'] / row['ours_ms'] / 1e6 / ceiling:.0%}",
            ]
        )
    return markdown(lines)


def _prefill(rows: Sequence[Row]) -> str:
    lines = [["model", "new", "cells", "bits", "ms", "16-bit pages", "decoded first"]]
    for row in rows:
        if row["part"] == "prefill" and "ours_ms" in row:
            pages, decoded = pages_ms(row), row["peers_ms"].get("decoded first", float("nan"))
            lines.append(
                [
                    row["shape"],
                    f"{row['new']:,}",
                    f"{row['live']:,}",
                    str(row["bits"]),
                    f"{row['ours_ms']:.3f}",
                    *("-" if isnan(each) else f"{each:.3f}" for each in (pages, decoded)),
                ]
            )
    return markdown(lines)


def _beside(ms: float, ratio: float | None) -> tuple[str, str]:
    if ratio is None:
        return "-", "-"
    return f"{ms * 1e3:.1f}", f"{ratio:.2f}"
