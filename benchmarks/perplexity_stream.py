"""A text through SmolLM2 in chunks, with a cache of which a part is sealed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.codec_rivals import Method
from benchmarks.perplexity_model import SmolLM2
from omni_core.backend import SUBBLOCK
from omni_core.units import Modality

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Setting:
    """What stays in 16 bits.

    Attributes:
        name: for rows.
        sinks: first tokens.
        recent: last tokens before a chunk; with 0, a chunk is sealed before it is read, and a token
            reads itself alone as it is.
    """

    name: str
    sinks: int
    recent: int


SETTINGS = (Setting("all sealed", 0, 0), Setting("128 recent, 4 sinks in 16 bits", 4, 128))


def perplexity(
    model: SmolLM2,
    ids: npt.NDArray[np.int64],
    method: Method | None = None,
    setting: Setting = SETTINGS[0],
) -> float:
    """Perplexity of all tokens but the first, 32 at a time; of a whole cache without a method.

    Args:
        model: which.
        ids: ``int64[n + 1]``, with ``n`` a multiple of 32.
        method: how tokens are sealed.
        setting: which are not.
    """
    caches = [_LayerCache(layer, method, setting) for layer in range(model.shape.layers)]
    found = []
    for start in range(0, ids.size - 1, SUBBLOCK):
        chunk, following = ids[start : start + SUBBLOCK], ids[start + 1 : start + SUBBLOCK + 1]
        found.append(
            model.log_probabilities(
                chunk, start, following, lambda layer, q, k, v: caches[layer].attend(q, k, v)
            )
        )
    return float(np.exp(-np.concatenate(found).mean()))


class _LayerCache:
    """Keys and values of a layer as they are read, and how many of them are sealed."""

    def __init__(self, layer: int, method: Method | None, setting: Setting) -> None:
        self._layer, self._method, self._setting = layer, method, setting
        self._keys: list[Float32] = []
        self._values: list[Float32] = []
        self._sealed = setting.sinks

    def attend(self, queries: Float32, keys: Float32, values: Float32) -> Float32:
        """Attention of a chunk ``[32, heads, D]``, which is taken in."""
        self._keys.append(keys)
        self._values.append(values)
        count = len(keys)
        all_keys, all_values = np.concatenate(self._keys), np.concatenate(self._values)
        old = len(all_keys) - (count if self._setting.recent else 0) - self._setting.recent
        while self._method and self._sealed + SUBBLOCK <= old:
            part = slice(self._sealed, self._sealed + SUBBLOCK)
            coded = self._method(self._layer, all_keys[part], all_values[part], Modality.TEXT)
            all_keys[part], all_values[part] = coded
            self._sealed += SUBBLOCK
        self._keys, self._values = [all_keys], [all_values]
        return _attention(queries, all_keys, all_values, keys, values)


def _attention(
    queries: Float32, keys: Float32, values: Float32, own_keys: Float32, own_values: Float32
) -> Float32:
    """Causal attention of the last tokens, each of which reads itself from ``own``."""
    count, kv_heads, size = own_keys.shape
    q = queries.reshape(count, kv_heads, -1, size).transpose(1, 2, 0, 3) * np.float32(size**-0.5)
    scores = q @ keys.transpose(1, 2, 0)[:, None]
    self_scores = (q * own_keys.swapaxes(0, 1)[:, None]).sum(axis=-1)
    rows = np.arange(count)
    first = len(keys) - count
    scores[..., rows, first + rows] = self_scores
    scores[..., np.arange(len(keys)) > first + rows[:, None]] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    own = weights[..., rows, first + rows].copy()
    weights[..., rows, first + rows] = 0
    mixed = weights @ values.swapaxes(0, 1)[:, None]
    mixed += own[..., None] * own_values.swapaxes(0, 1)[:, None]
    return mixed.transpose(2, 0, 1, 3).reshape(queries.shape)
