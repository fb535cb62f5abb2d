"""Masked attention in float64: the oracle of every attention path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.units import Int64

Float64 = npt.NDArray[np.float64]


def masked_attention(
    queries: npt.NDArray[np.floating],
    keys: npt.NDArray[np.floating],
    values: npt.NDArray[np.floating],
    query_order: Int64,
    key_order: Int64,
    bias: npt.NDArray[np.floating],
    scale: float,
) -> Float64:
    """Attention of ``T`` queries over ``n`` cells, each query seeing cells of ``order <= its own``.

    Args:
        queries: ``[T, q_heads, head_dim]``, rotated.
        keys, values: ``[n, kv_heads, head_dim]``, keys rotated; query head ``h`` reads key head
            ``h // (q_heads // kv_heads)``.
        query_order: ``int64[T]``.
        key_order: ``int64[n]``.
        bias: ``[n]``, added to the scaled scores.
        scale: factor on the dot products.

    Returns:
        ``float64[T, q_heads, head_dim]``; exactly 0 for a query that sees no cell.
    """
    shares = attention_shares([(queries, keys)], query_order, key_order, bias, scale)
    return weighted_values(shares, values)


def attention_shares(
    runs: list[tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]],
    query_order: Int64,
    key_order: Int64,
    bias: npt.NDArray[np.floating],
    scale: float,
) -> Float64:
    """What each query gives each cell: ``float64[q_heads, T, n]``, rows of 1, or of 0 if blind.

    Args:
        runs: for each stretch of cells, in order, the queries as rotated for it ``[T, q_heads,
            head_dim]`` and its keys ``[cells, kv_heads, head_dim]``.
        query_order, key_order, bias, scale: as :func:`masked_attention`, over all stretches.
    """
    scores = np.concatenate([_scores(queries, keys) for queries, keys in runs], axis=-1)
    scores = scores * scale + bias
    seen: npt.NDArray[np.bool_] = np.greater_equal.outer(query_order, key_order)
    scores = np.where(seen, scores, -np.inf)
    peak = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.where(seen, np.exp(scores - np.where(np.isfinite(peak), peak, 0.0)), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    shares: Float64 = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return shares


def weighted_values(shares: Float64, values: npt.NDArray[np.floating]) -> Float64:
    """``shares[q_heads, T, n]`` of ``values[n, kv_heads, head_dim]``, a head each."""
    group = shares.shape[0] // values.shape[1]
    v = np.repeat(values.astype(np.float64), group, axis=1)
    # Dead cells may hold anything, NaN included: a zero share must not multiply it.
    used = np.any(shares > 0, axis=(0, 1))
    v = np.where(np.reshape(used, (-1, 1, 1)), v, 0.0)
    out: Float64 = np.einsum("htn,nhd->thd", shares, v)
    return out


def _scores(queries: npt.NDArray[np.floating], keys: npt.NDArray[np.floating]) -> Float64:
    group = queries.shape[1] // keys.shape[1]
    k = np.repeat(keys.astype(np.float64), group, axis=1)
    scores: Float64 = np.einsum("thd,nhd->htn", queries.astype(np.float64), k)
    return scores
