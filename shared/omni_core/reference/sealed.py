"""Attention over sealed cells in float64, by the arithmetic that kernels use.

A subblock's offsets and spans go into the rotated query once, so that a cell costs one dot with
levels. Values are added in the rotated space of their modality, and each modality's rotation is
undone once, on the sum. What comes out is plain attention on the decoded keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.quantization import Codec, LayerTables, SealedSubblock, decode_keys, decode_values
from omni_core.quantization.hadamard import hadamard
from omni_core.units import Int64, Modality

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SealedCells:
    """A sealed subblock as a page table lists it.

    Attributes:
        sealed: keys and values.
        modality: of its values.
        live: ``bool[32]``, its occupancy.
        order: ``int64[32]``.
        bias: ``float64[32]``, added to the scaled scores.
    """

    sealed: SealedSubblock
    modality: Modality
    live: npt.NDArray[np.bool_]
    order: Int64
    bias: Float64

    def decoded(self, codec: Codec, tables: LayerTables) -> tuple[Float64, Float64, Int64, Float64]:
        """Keys and values ``float64[n, kv_heads, D]``, order and bias ``[n]`` of the live cells.

        They are what :func:`~omni_core.reference.attention.masked_attention` takes, alone or beside
        cells of 16 bits.
        """
        keys = decode_keys(self.sealed, codec, tables)
        values = decode_values(self.sealed, self.modality, codec, tables)
        k, v = (part.swapaxes(0, 1)[self.live].astype(np.float64) for part in (keys, values))
        return k, v, self.order[self.live], self.bias[self.live]


def sealed_attention(
    queries: npt.NDArray[np.floating],
    cells: Sequence[SealedCells],
    query_order: Int64,
    scale: float,
    codec: Codec,
    tables: LayerTables,
) -> Float64:
    """Attention of ``T`` queries over subblocks, each query seeing cells of ``order <= its own``.

    Args:
        queries: ``[T, q_heads, D]``, rotated by position; query head ``h`` reads key head ``h //
            (q_heads // kv_heads)``.
        cells: what is listed.
        query_order: ``int64[T]``.
        scale: factor on the dot products.
        codec, tables: of the layer.

    Returns:
        ``float64[T, q_heads, D]``; exactly 0 for a query that sees no cell.
    """
    kv_heads, size = tables.key_means.shape
    # [kv_heads, T, group, D]
    q = queries.astype(np.float64).reshape(len(queries), kv_heads, -1, size).swapaxes(0, 1)
    turned = q @ hadamard(size).astype(np.float64)
    at_mean = np.einsum("htgd,hd->htg", q, tables.key_means)[..., None]
    peak = np.full((*q.shape[:3], 1), -np.inf)
    total = np.zeros_like(peak)
    sums = {modality: np.zeros_like(q) for modality in Modality}
    for listed in cells:
        offset, span = (part.astype(np.float64) for part in listed.sealed.keys.ranges())
        levels = codec.key_levels.astype(np.float64)[listed.sealed.keys.codes]
        ground = np.einsum("htgd,hd->htg", turned, offset)[..., None]
        dots = np.einsum("htgd,hcd->htgc", turned * span[:, None, None], levels)
        norms = listed.sealed.key_scales.astype(np.float64)[:, None, None]
        scores = (at_mean + norms * (ground + dots)) * scale + listed.bias
        seen = listed.live & np.greater_equal.outer(query_order, listed.order)
        scores = np.where(seen[None, :, None], scores, -np.inf)
        higher = np.maximum(peak, scores.max(axis=-1, keepdims=True))
        ground_level = np.where(np.isfinite(higher), higher, 0.0)
        weights, kept = np.exp(scores - ground_level), np.exp(peak - ground_level)
        total = total * kept + weights.sum(axis=-1, keepdims=True)
        # A cell that is not live may hold anything: its share of 0 must not multiply it.
        scales = np.where(listed.live, listed.sealed.value_scales.astype(np.float64), 0.0)
        centroids = codec.value_levels.astype(np.float64)[listed.sealed.value_codes]
        sums = {modality: part * kept for modality, part in sums.items()}
        sums[listed.modality] += np.einsum("htgc,hc,hcd->htgd", weights, scales, centroids)
        peak = higher
    undone = sum(
        np.einsum("htgd,hde->htge", part, tables.rotations[:, modality].astype(np.float64))
        for modality, part in sums.items()
    )
    out: Float64 = np.divide(undone, total, out=np.zeros_like(q), where=total > 0)
    found: Float64 = out.swapaxes(0, 1).reshape(queries.shape)
    return found
