"""Sealed pages in MLX: what is read of any bytes, and attention that takes them bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from omni_core.session import Session
from omni_core.units import Modality
from tests.parity.conftest import Tiny, Twin
from tests.sealed_pages import Pages

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
pools = pytest.importorskip("omni_mlx.pools")
sealing = pytest.importorskip("omni_mlx.sealing")


@pytest.mark.parametrize("name", ["fitted", "omnikvquant"])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("head_dim", [16, 48, 128])
def test_pages_are_read_as_they_are_defined(
    device: str, name: str, bits: int, head_dim: int
) -> None:
    pages = Pages.of(name, bits, head_dim)
    with mx.stream(mx.cpu if device == "cpu" else mx.gpu):
        sealer, given = sealing.Sealer(pages.layout, [pages.tables]), mx.array(pages.stored)
        keys = sealer.keys(given, 0)
        values = sealer.values(given, mx.array(pages.live.reshape(-1)))
        undone = sealer.undone(values, 0, int(Modality.AUDIO))
        mx.eval(keys, values, undone)
    pages.check(*(np.array(part) for part in (keys, values, undone)))


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
