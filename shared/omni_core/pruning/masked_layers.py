"""Attention of layers that keep different cells, in float64: the oracle of page tables by layer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.reference.attention import Float64, masked_attention
from omni_core.retention.base import Bool
from omni_core.units import Int64


def masked_layers(
    queries: npt.NDArray[np.floating],
    keys: npt.NDArray[np.floating],
    values: npt.NDArray[np.floating],
    query_order: Int64,
    key_order: Int64,
    bias: npt.NDArray[np.floating],
    kept: Bool,
    scale: float,
) -> Float64:
    """Each layer's attention over the cells that it keeps, as if it had never had the others.

    Args:
        queries: ``[layers, T, q_heads, head_dim]``, rotated.
        keys, values: ``[layers, n, kv_heads, head_dim]``, keys rotated; what a layer does not keep
            may hold anything.
        query_order: ``int64[T]``; queries see cells of ``order <= their own``.
        key_order: ``int64[n]``.
        bias: ``[n]``, added to the scaled scores.
        kept: ``bool[layers, n]``.
        scale: factor on the dot products.

    Returns:
        ``float64[layers, T, q_heads, head_dim]``; exactly 0 for a query that sees no cell.
    """
    rows = zip(queries, keys, values, kept, strict=True)
    return np.stack(
        [
            masked_attention(q, k[own], v[own], query_order, key_order[own], bias[own], scale)
            for q, k, v, own in rows
        ]
    )
