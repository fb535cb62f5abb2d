"""Attention inside the segments of one packed sequence: windows of a picture, chunks of sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True)
class Segments:
    """How a packed sequence falls into segments.

    Attributes:
        count: how many.
        gather: ``int32[count * longest]``, the sequence with each segment padded to the longest, or
            None where all are of one length.
        mask: ``bool[count, 1, 1, longest]``, False on padding; None likewise.
        scatter: ``int32[sequence]``, each element's place among the padded ones; None likewise.
    """

    count: int
    gather: mx.array | None = None
    mask: mx.array | None = None
    scatter: mx.array | None = None


def split(lengths: Sequence[int]) -> Segments:
    """Segments of these lengths, one after the other."""
    sizes = np.asarray(lengths, np.int32)
    longest = int(sizes.max())
    if (sizes == longest).all():
        return Segments(sizes.size)
    offset = np.arange(longest, dtype=np.int32)
    inside = offset < sizes[:, None]
    starts = np.cumsum(sizes) - sizes
    gather = np.where(inside, starts[:, None] + offset, 0).astype(np.int32)
    scatter = np.flatnonzero(inside).astype(np.int32)
    return Segments(
        sizes.size,
        mx.array(gather.reshape(-1)),
        mx.array(inside[:, None, None, :]),
        mx.array(scatter),
    )


def attend_within(
    queries: mx.array, keys: mx.array, values: mx.array, segments: Segments
) -> mx.array:
    """Bidirectional attention inside each segment: ``[sequence, heads, head_dim]`` to the same."""
    _, heads, head_dim = queries.shape

    def batched(x: mx.array) -> mx.array:
        x = x if segments.gather is None else x[segments.gather]
        return x.reshape(segments.count, -1, heads, head_dim).swapaxes(1, 2)

    out = mx.fast.scaled_dot_product_attention(
        batched(queries),
        batched(keys),
        batched(values),
        scale=head_dim**-0.5,
        mask=segments.mask,
    )
    out = out.swapaxes(1, 2).reshape(-1, heads, head_dim)
    return out if segments.scatter is None else out[segments.scatter]
