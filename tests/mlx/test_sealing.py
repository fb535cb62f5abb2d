"""Sealed pages in MLX: what is read of any bytes, and attention that takes them bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from omni_core.backend import PAGE, ArenaLayout
from omni_core.quantization import LayerTables, codec, decode_values, seal, store
from omni_core.quantization.hadamard import hadamard
from omni_core.session import Session
from omni_core.units import Modality
from tests.parity.conftest import Tiny, Twin

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
pools = pytest.importorskip("omni_mlx.pools")
sealing = pytest.importorskip("omni_mlx.sealing")

KV_HEADS = 2


@pytest.mark.parametrize("name", ["fitted", "omnikvquant"])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("head_dim", [16, 48, 128])
def test_pages_are_read_as_they_are_defined(
    device: str, name: str, bits: int, head_dim: int
) -> None:
    layout = ArenaLayout(2, 1, 1, KV_HEADS, head_dim, 1, 3, bits, name)
    plain, chosen = LayerTables.uncalibrated(0, KV_HEADS, head_dim), codec(name, bits)
    draw = np.random.default_rng(bits)
    tables = replace(plain, key_means=draw.normal(size=(KV_HEADS, head_dim)).astype(np.float32))
    # Bytes of nothing: not a number, and dead.
    stored = np.full((1, 3, KV_HEADS, layout.sealed.bytes), 255, np.uint8)
    live = np.zeros((3, 2, 32), np.bool_)
    coded = {}
    for page, half, count in ((0, 0, 32), (0, 1, 7), (1, 0, 1), (2, 1, 32)):
        pair = draw.normal(size=(2, count, KV_HEADS, head_dim))
        coded[page, half] = seal(*pair, Modality.AUDIO, chosen, tables)
        store(coded[page, half], layout.sealed, stored[0, page], half)
        live[page, half, :count] = True
    with mx.stream(mx.cpu if device == "cpu" else mx.gpu):
        sealer, given = sealing.Sealer(layout, [tables]), mx.array(stored)
        keys = sealer.keys(given, 0)
        values = sealer.values(given, mx.array(live.reshape(-1)))
        undone = sealer.undone(values, 0, int(Modality.AUDIO))
        mx.eval(keys, values, undone)
    assert keys.shape == values.shape == (1, KV_HEADS, 3 * PAGE, head_dim)
    shape = (KV_HEADS, 3, 2, 32, head_dim)
    keys, values, undone = (np.array(part).reshape(shape) for part in (keys, values, undone))
    means = (tables.key_means @ hadamard(head_dim))[:, None]
    for (page, half), found in coded.items():
        wanted = found.key_scales.astype(np.float32)[..., None] * found.keys.decode(
            chosen.key_levels
        )
        np.testing.assert_allclose(keys[:, page, half], wanted + means, rtol=1e-6, atol=1e-6)
        scales = found.value_scales.astype(np.float32)[..., None]
        alive_here = live[page, half][:, None]
        levels = np.where(alive_here, scales * chosen.value_levels[found.value_codes], 0)
        np.testing.assert_array_equal(values[:, page, half], levels)
        whole = decode_values(found, Modality.AUDIO, chosen, tables)
        np.testing.assert_allclose(
            undone[:, page, half], np.where(alive_here, whole, 0), rtol=1e-4, atol=1e-5
        )
    assert not values[:, ~live].any()


def test_a_step_bit_by_bit(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = pytest.importorskip("tests.parity.tiny")
    shape = shapes.SHAPES["6-2-32"]
    thinker = shapes.make(shape)
    monkeypatch.setattr(pools, "_PAGES", 1)
    monkeypatch.setattr(pools, "SCORES", 6 * 300)
    tiny, twin = Tiny(shape, shapes.save(thinker, tmp_path), thinker), Twin("mlx", device)
    # These compare with PyTorch's model.
    from tests.parity.sealed import Followed
    from tests.parity.test_saving import _follow, _model

    followed = Followed(twin.load(tiny.folder), twin, tiny)
    model, _ = _model(followed, tiny.folder)
    session = Session(model, budget=230, system="hello", frame=60, kv_bits=3, seal="all")
    _follow(session, 0, 14)
    assert followed.sealed > 100 and followed.compared > 5
