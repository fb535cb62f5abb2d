"""Sealed pages in PyTorch: what is read of any bytes, and attention that takes them bit by bit."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.session import Session
from omni_core.units import Modality
from tests.cuda.step_pairs import spare_products
from tests.parity.conftest import Tiny, Twin
from tests.parity.sealed import Followed
from tests.parity.test_saving import _follow, _model
from tests.sealed_pages import Pages

torch = pytest.importorskip("torch")
pools = pytest.importorskip("omni_cuda.pools")
sealing = pytest.importorskip("omni_cuda.sealing")


@pytest.mark.parametrize("name", ["fitted", "omnikvquant"])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("head_dim", [16, 48, 128])
def test_pages_are_read_as_they_are_defined(
    device: str, name: str, bits: int, head_dim: int
) -> None:
    pages, place = Pages.of(name, bits, head_dim), torch.device(device)
    sealer = sealing.Sealer(pages.layout, [pages.tables], place)
    given, alive = (torch.from_numpy(part).to(place) for part in (pages.stored, pages.live))
    keys = sealer.keys(given, 0)
    values = sealer.values(given, alive.reshape(-1))
    undone = sealer.undone(values, 0, int(Modality.AUDIO))
    pages.check(*(part.cpu().numpy() for part in (keys, values, undone)))


def test_a_step_bit_by_bit(device: str, thinker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_PAGES", 1)
    monkeypatch.setattr(pools, "_SCORES", 6 * 300)
    tiny, twin = Tiny(*thinker), Twin("cuda", device)
    followed = Followed(twin.load(tiny.folder), twin, tiny)
    model, _ = _model(followed, tiny.folder)
    session = Session(model, budget=230, system="hello", frame=60, kv_bits=3, seal="all")
    _follow(session, 0, 14)
    assert followed.sealed > 100 and followed.compared > 5


def test_sealed_steps_beside_kernels(kernel_device: str, thinker: Any, load_path: Any) -> None:
    tiny = Tiny(*thinker)
    backend = load_path(tiny.folder, kernel_device)
    spare_products(backend)
    followed = Followed(backend, Twin("cuda", kernel_device), tiny)
    model, _ = _model(followed, tiny.folder)
    session = Session(model, budget=180, system="hello", max_tokens=2, kv_bits=4, seal="all")
    _follow(session, 0, 11)
    assert followed.sealed > 20 and followed.compared > 1
    assert backend._steps is None
    # An arena without sealed pages has kernels again.
    Session(model, budget=180, system="hello", max_tokens=2)
    assert backend._steps is not None
