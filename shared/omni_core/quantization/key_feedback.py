"""Error feedback: what one channel of a key was rounded by, later channels make up for.

Queries do not fill their space, so that the errors of a key's channels can cancel in the scores.
With ``C`` the second moment of a head's rotated queries, a key's error ``e`` costs ``e C e`` on
average, which is a sum over channels of ``(e[d] + sum of e[j] * feedback[j, d] over j < d) ** 2``,
weighted. Channels are coded in order, each nearest to its own number plus what earlier channels ask
for. Nothing changes for who reads: the same bytes, the same decoding.

Source: LDLQ, Chee et al., "QuIP: 2-Bit Quantization of Large Language Models With Guarantees".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Feedback = Float32
"""``float32[kv_heads, D, D]``, above the diagonal; row ``j``, column ``d`` is what channel ``d``
takes up of the error of ``j``."""

RIDGE = 0.1
"""Of the mean of a moment's diagonal, added to it: queries of other streams lie elsewhere too."""


def feedback(moments: Float64) -> Feedback:
    """Feedback from the second moments ``float64[kv_heads, D, D]`` of queries.

    Moments are of queries as keys are stored: rotated by position, then by Hadamard, over all query
    heads that read the key head.
    """
    size = moments.shape[-1]
    level = np.trace(moments, axis1=-2, axis2=-1)[:, None, None] / size
    # A head whose queries are all 0 has nothing to weigh.
    level = np.where(level > 0, level, 1)
    ridged = moments + RIDGE * level * np.eye(size)
    # Cholesky factors from the last channel backwards, each column by its diagonal.
    factor = np.linalg.cholesky(ridged[:, ::-1, ::-1])
    factor = factor / np.diagonal(factor, axis1=-2, axis2=-1)[:, None, :]
    found: Feedback = np.triu(factor[:, ::-1, ::-1], 1).astype(np.float32)
    return found
