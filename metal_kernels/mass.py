"""The launch that finds what each live cell got of the attention, from the log-sum-exps.

What a cell gets of a key head is one number that one threadgroup writes, the same every time. Sums
over heads and streams are the caller's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metal_kernels.attention import INPUTS, Attention, attend
from metal_kernels.cutting import LINES
from metal_kernels.launch import CONSTANT_BELOW, SIMDGROUP, Array, Kernel, Launch, grid_of, spread
from omni_core.backend import PAGE, SUBBLOCK
from omni_core.paging.listing import Listing
from omni_core.units import Int32

MASS = Kernel(
    "mass",
    (*(name for name in INPUTS if name != "values"), "sums", "listed_rows"),
    ("given",),
    ("T", "D", "SIMDS"),
    frozenset({"numbers", "scale", "listed_rows"}),
)


def mass(of: Attention) -> Launch:
    """The launch behind :func:`metal_kernels.attention.attend` and its merge.

    Its inputs are those of attention but for the values, and ``sums float32[max(n, 8)]``, the
    ``[streams, T, q_heads]`` that it gave, where -inf makes a query give nothing, and ``listed_rows
    int32[1]``, the rows. It gives ``given float32[streams, kv_heads, rows, PAGE]``, summed over
    queries and the heads of a group, written only where :func:`live_places` says.
    """
    lines = of.count * of.group
    simdgroups = min(8, spread(lines, LINES))
    threads = (simdgroups * SIMDGROUP, 1, 1)
    parts = spread(lines, simdgroups * LINES)
    read = dict(zip(INPUTS, attend(of).inputs, strict=True))
    more = {
        "sums": Array((max(CONSTANT_BELOW, of.lines),), "float32"),
        "listed_rows": Array((1,), "int32"),
    }
    return Launch(
        MASS,
        (of.dtype, of.head_dim, simdgroups),
        grid_of((parts, of.kv_heads * of.streams, of.programs), threads),
        threads,
        tuple({**read, **more}[name] for name in MASS.inputs),
        (Array((of.streams, of.kv_heads, of.rows, PAGE), "float32"),),
    )


class LivePlaces(NamedTuple):
    """Where live cells stand.

    Attributes:
        place: ``int32[n]`` in a head's ``[rows, PAGE]``.
        cell: ``int32[n]``, ``page * PAGE + slot``.
    """

    place: Int32
    cell: Int32


def live_places(listing: Listing) -> LivePlaces:
    """Of all live cells that a listing names."""
    used = np.concatenate([np.arange(first, end) for first, _, end, _ in listing.segments.tolist()])
    words = listing.rows.view(np.uint32).reshape(-1, 4)[used.astype(np.int64)]
    bits = np.arange(SUBBLOCK, dtype=np.uint32)
    alive = (words[:, 2:, None] >> bits & 1).astype(np.bool_)
    place = used[:, None, None] * PAGE + np.arange(2)[:, None] * SUBBLOCK + bits
    cell = words[:, :2, None] * SUBBLOCK + bits
    return LivePlaces(place[alive].astype(np.int32), cell[alive].astype(np.int32))
