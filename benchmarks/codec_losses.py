"""What a codec loses on a captured stream: scores, values and outputs of attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import codec_calibrated as calibrated
from benchmarks.codec_capture import Captured, attention
from benchmarks.codec_rivals import Method, Ours, rivals
from omni_core.quantization import CODECS, LayerTables, codec
from omni_core.units import Modality

Float32 = npt.NDArray[np.float32]
FEEDBACK = "fitted, feedback"
PAPER = "omnikvquant, calibrated"
"""With rotations by modality as the paper has them."""
SHARED = "fitted, feedback, one rotation"
MODAL = "fitted, feedback, a rotation a modality"
SHIFT = 600.0
"""What is added to a channel of all keys, as the biases of some models do."""
EVERY = 4
"""Queries that are measured: one in so many."""


@dataclass(frozen=True)
class Losses:
    """Of one layer.

    Attributes:
        score: root mean square error of scaled scores, a query's mean error left out, which softmax
            does not see.
        values: by modality, ``|error| / |value|``.
        output: ``|error| / |output|`` of attention with keys and values sealed.
    """

    score: float
    values: dict[str, float]
    output: float


def losses(
    stream: Captured, layer: int, method: Method, survivors: bool, wanted: Float32
) -> Losses:
    """What a method loses on the tokens that it seals; ``wanted`` is attention without it."""
    keys, values = stream.keys[layer], stream.values[layer]
    read_keys, read_values = keys.copy(), values.copy()
    sealed = np.zeros(len(keys), np.bool_)
    errors = {}
    for kind in Modality:
        groups = stream.groups(kind, survivors)
        for group in groups:
            read_keys[group], read_values[group] = method(layer, keys[group], values[group], kind)
        if groups.size:
            tokens = groups.reshape(-1)
            sealed[tokens] = True
            errors[kind.name.lower()] = _relative(read_values[tokens], values[tokens])
    queries = stream.queries[layer]
    gap = scores(queries[::EVERY], read_keys[sealed] - keys[sealed])
    seen = np.flatnonzero(sealed) <= np.arange(len(keys))[::EVERY, None]
    count = np.maximum(seen.sum(axis=-1), 1)
    gap = np.where(seen, gap, 0)
    mean = gap.sum(axis=-1) / count
    variance = np.square(gap).sum(axis=-1) / count - np.square(mean)
    # A query that sees one sealed token or none says nothing.
    score = float(np.sqrt(variance[:, seen.sum(axis=-1) > 1].mean()))
    found = attention(queries, read_keys, read_values)
    return Losses(score, errors, _relative(found, wanted))


def rows_of(
    stream: Captured, methods: Sequence[Method], layers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """A row a layer, method and choice of tokens."""
    for layer in layers:
        wanted = attention(stream.queries[layer], stream.keys[layer], stream.values[layer])
        for survivors, method in product((False, True), methods):
            key_bits, value_bits = method.stored_bits(stream.keys.shape[-1])
            lost = losses(stream, layer, method, survivors, wanted)
            yield {
                "part": "codec",
                "model": stream.model,
                "tokens": "survivors" if survivors else "consecutive",
                "codec": method.name,
                "bits": method.bits,
                "key_bits": round(key_bits, 3),
                "value_bits": round(value_bits, 3),
                "layer": layer,
                "score_error": round(lost.score, 5),
                "value_error": {name: round(error, 5) for name, error in lost.values.items()},
                "output_error": round(lost.output, 5),
            }


def tables_of(
    plain: list[LayerTables], others: Sequence[Captured], modalities: bool
) -> dict[str, list[LayerTables]]:
    """Calibrated tables by method; a text has one modality, whose rotation is that of all."""
    fed = calibrated.with_feedback(plain, others)
    found = {PAPER: calibrated.with_principal(plain, others), FEEDBACK: fed}
    if modalities:
        found[SHARED] = calibrated.with_rotations(fed, others, shared=True)
    return found | {MODAL: calibrated.with_rotations(fed, others)}


def methods_of(
    plain: list[LayerTables], tables: dict[str, list[LayerTables]], bits: int
) -> list[Method]:
    """Both codecs, uncalibrated and calibrated, and the rivals."""
    found: list[Method] = [Ours(codec(name, bits), plain, name) for name in CODECS]
    for name, own in tables.items():
        found.append(Ours(codec("omnikvquant" if name == PAPER else "fitted", bits), own, name))
    return found + rivals(bits)


def biased(stream: Captured, layer: int) -> Iterator[dict[str, Any]]:
    """Rows of keys with one channel far from 0: how far scores are off, with and without means.

    ``bias`` is the root mean square of a query's mean error on a subblock, ``bias_apart`` how it
    differs between subblocks, ``score_error`` how it differs between a subblock's cells.

    The channel turns most slowly under rotary embedding, so that the bias stays in it.
    """
    channel = stream.keys.shape[-1] // 2 - 1
    keys = stream.keys.copy()
    keys[..., channel] += SHIFT
    shifted = replace(stream, keys=keys)
    plain = calibrated.plain(shifted)
    for name in CODECS:
        for about, tables in (("", plain), (", means", calibrated.with_means(plain, shifted))):
            method = Ours(codec(name), tables, name + about)
            gaps, spread = [], []
            for group in shifted.groups(Modality.AUDIO, False):
                read, _ = method(
                    layer, keys[layer, group], stream.values[layer, group], Modality.AUDIO
                )
                gap = scores(stream.queries[layer, ::EVERY], read - keys[layer, group])
                gaps.append(gap.mean(axis=-1))
                spread.append(gap.std(axis=-1))
            own = np.stack(gaps)
            yield {
                "part": "a channel at +600",
                "model": stream.model,
                "codec": method.name,
                "layer": layer,
                "bias": round(float(np.sqrt(np.square(own).mean())), 4),
                "bias_apart": round(float(own.std(axis=0).mean()), 4),
                "score_error": round(float(np.mean(spread)), 4),
            }


def scores(queries: Float32, keys: Float32) -> Float32:
    """Scaled scores ``float32[q_heads, T, n]``."""
    kv_heads, size = keys.shape[1:]
    q = queries.reshape(len(queries), kv_heads, -1, size).transpose(1, 2, 0, 3)
    found = (q @ keys.transpose(1, 2, 0)[:, None]) * np.float32(size**-0.5)
    return found.reshape(-1, len(queries), len(keys))


def _relative(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
