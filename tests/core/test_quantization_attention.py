"""The oracle of sealed attention against plain attention on the decoded cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from omni_core.quantization import CODECS, Codec, LayerTables, codec, seal
from omni_core.reference.attention import masked_attention
from omni_core.reference.sealed import SealedCells, sealed_attention
from omni_core.units import Modality


def tables(kv_heads: int, size: int, draw: np.random.Generator) -> LayerTables:
    """A rotation of its own for each head and modality, and means."""
    shape = (kv_heads, len(Modality), size, size)
    rotations = np.linalg.qr(draw.standard_normal(shape))[0].astype(np.float32)
    means = draw.standard_normal((kv_heads, size)).astype(np.float32)
    return replace(
        LayerTables.uncalibrated(0, kv_heads, size), rotations=rotations, key_means=means
    )


def subblocks(
    count: int, kv_heads: int, size: int, chosen: Codec, about: LayerTables
) -> list[SealedCells]:
    found = []
    for index in range(count):
        draw = np.random.default_rng(index)
        keys, values = (draw.standard_normal((32, kv_heads, size)) for _ in range(2))
        kind = Modality(index % 3)
        sealed = seal(keys, values, kind, chosen, about)
        live = draw.random(32) < 0.7
        dead = ~live
        # Dead cells may hold anything.
        for scales in (sealed.key_scales, sealed.value_scales):
            scales[:, dead] = np.nan
        order = 40 * index + np.sort(draw.choice(40, 32, replace=False))
        found.append(SealedCells(sealed, kind, live, order, draw.standard_normal(32)))
    return found


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    ("bits", "size", "kv_heads", "group"),
    [(2, 64, 2, 1), (2, 96, 1, 7), (3, 80, 3, 3), (4, 128, 2, 4)],
)
def test_the_arithmetic_is_plain_attention(
    name: str, bits: int, size: int, kv_heads: int, group: int
) -> None:
    draw = np.random.default_rng(5)
    chosen, about = codec(name, bits), tables(kv_heads, size, draw)
    cells = subblocks(5, kv_heads, size, chosen, about)
    queries = draw.standard_normal((4, kv_heads * group, size))
    # The first query sees nothing, the second a part, the last all.
    query_order = np.array([-1, 70, 130, 1000])
    found = sealed_attention(queries, cells, query_order, size**-0.5, chosen, about)
    parts = [part.decoded(chosen, about) for part in cells]
    keys, values, order, bias = (np.concatenate(part) for part in zip(*parts, strict=True))
    wanted = masked_attention(queries, keys, values, query_order, order, bias, size**-0.5)
    assert not found[0].any()
    assert np.linalg.norm(wanted[1:]) > 1
    assert np.allclose(found, wanted, atol=2e-6)


def test_no_subblock_gives_0() -> None:
    about = LayerTables.uncalibrated(0, 2, 64)
    found = sealed_attention(np.ones((3, 4, 64)), [], np.arange(3), 1.0, codec(), about)
    assert found.shape == (3, 4, 64) and not found.any()


def test_large_scores_do_not_overflow() -> None:
    about = LayerTables.uncalibrated(0, 1, 64)
    chosen = codec()
    keys = 200 * np.random.default_rng(0).standard_normal((32, 1, 64))
    sealed = seal(keys, keys, Modality.TEXT, chosen, about)
    cells = [SealedCells(sealed, Modality.TEXT, np.ones(32, bool), np.arange(32), np.zeros(32))]
    found = sealed_attention(keys[:2], cells, np.array([40, 40]), 1.0, chosen, about)
    assert np.isfinite(found).all() and np.linalg.norm(found) > 1
