"""What one layer's attention of a model is to the Metal kernels."""

from __future__ import annotations

from benchmarks.live_cells import Shape
from metal_kernels.attention import Attention

BOUNDS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-4}
"""Relative error of a head's output that a dtype may have."""


def layer_attention(
    shape: Shape,
    count: int,
    pages: int,
    dtype: str,
    rows: int,
    segments: int,
    programs: int,
    *,
    tall: bool,
) -> Attention:
    """A layer's attention, one table and one stream, without a bias."""
    return Attention(
        tables=1,
        streams=1,
        count=count,
        kv_heads=shape.kv_heads,
        group=shape.group,
        head_dim=shape.head_dim,
        pages=pages,
        dtype=dtype,
        rows=rows,
        segments=segments,
        programs=programs,
        biased=False,
        tall=tall,
    )
