"""What each cell of a layer gives to its attention output: probability times value norm.

Dropping cells and renormalising the rest moves the output by at most what the dropped ones gave, so
the cells to keep are those with the largest products (Video-MemComp, section 3.2 and appendix D.2).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.reference.attention import attention_shares

Float = npt.NDArray[np.float64]


def proxy_shares(
    query: npt.NDArray[np.floating],
    keys: npt.NDArray[np.floating],
    bias: npt.NDArray[np.floating],
    scale: float,
) -> Float:
    """What a proxy query, which sees every cell, gives each: ``float64[q_heads, 1, n]``.

    Args:
        query: ``[q_heads, head_dim]``, rotated.
        keys: ``[n, kv_heads, head_dim]``, rotated.
        bias: ``[n]``, added to the scaled scores: the log of a merged cell's count.
        scale: factor on the dot products.
    """
    order = np.zeros(len(keys), np.int64)
    return attention_shares([(query[None], keys)], np.zeros(1, np.int64), order, bias, scale)


def contribution(shares: npt.NDArray[np.floating], norms: npt.NDArray[np.floating]) -> Float:
    """Each cell's score, ``float64[n]``: share times value norm, over heads and queries.

    Args:
        shares: ``[q_heads, T, n]``, as :func:`proxy_shares` or the attention itself gives them.
        norms: ``[n, kv_heads]``, value norms; query head ``h`` reads those of ``h // (q_heads //
            kv_heads)``.
    """
    group = shares.shape[0] // norms.shape[1]
    wide = np.repeat(norms.astype(np.float64), group, axis=1)
    found: Float = np.einsum("htn,nh->n", shares.astype(np.float64), wide)
    return found
