"""The arena: what is written is read, copies read before they write, too much is refused."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.backend import ArenaLayout
from omni_core.errors import BudgetError

torch = pytest.importorskip("torch")
arenas = pytest.importorskip("omni_cuda.arena")
devices = pytest.importorskip("omni_cuda.devices")

LAYOUT = ArenaLayout(pages=3, groups=2, layers_per_group=2, kv_heads=3, head_dim=8, streams=2)


def _cells(numbers: list[int], device: str):
    return arenas.Cells.of(np.array(numbers, np.int32), torch.device(device))


def _filled(device: str):
    arena = arenas.Arena(LAYOUT, torch.device(device), torch.float32)
    keys = torch.randn(2, 192, 2, 3, 8, device=device)
    for layer in range(2):
        arena.write(layer, _cells(list(range(192)), device), keys[layer], -keys[layer])
    return arena, keys


def test_cells_lie_where_the_layout_says(device: str) -> None:
    arena, keys = _filled(device)
    assert arena.keys.shape == (2, 2, 3, 3, 64, 8)
    assert arena.bytes == LAYOUT.bytes(4) == arena.keys.nbytes + arena.values.nbytes
    assert torch.equal(arena.keys[1, 0, 2, :, 5], keys[1, 2 * 64 + 5, 0])
    assert torch.equal(arena.values[0, 1, 1, :, 63], -keys[0, 127, 1])


def test_gather_keeps_the_order_asked_for(device: str) -> None:
    arena, keys = _filled(device)
    numbers = [191, 0, 64, 63, 130]
    found, values = arena.gather(1, _cells(numbers, device))
    assert torch.equal(found, keys[1][numbers])
    assert torch.equal(values, -keys[1][numbers])


def test_copies_read_before_they_write(device: str) -> None:
    arena, keys = _filled(device)
    arena.copy(_cells([0, 1, 2, 100], device), _cells([1, 2, 0, 5], device))
    for layer in range(2):
        found, values = arena.gather(layer, _cells([1, 2, 0, 5, 100], device))
        assert torch.equal(found, keys[layer][[0, 1, 2, 100, 100]])
        assert torch.equal(values, -found)


def test_an_arena_beyond_the_machine_is_refused_before_it_is_tried(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("allocated")

    monkeypatch.setattr(torch, "empty", never)
    pages = 2 * devices.free_bytes(torch.device(device)) // LAYOUT.bytes(4) * LAYOUT.pages
    layout = ArenaLayout(pages, 2, 2, 3, 8, 2)
    with pytest.raises(BudgetError, match=r"GB free; lower --budget"):
        arenas.Arena(layout, torch.device(device), torch.float32)
