"""Steps over sealed cells through the shipped text, beside the same in MLX's operations.

On a GPU the kernels run where they belong; without one their text runs on the CPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.backend import PAGE, MovePlan, Seals, TableDelta
from omni_core.errors import BackendError
from omni_core.units import Modality

mx = pytest.importorskip("mlx.core")
pytest.importorskip("torch")
pytest.importorskip("transformers")

import omni_mlx  # noqa: E402
from metal_kernels import run  # noqa: E402
from metal_kernels.cutting import Gpu  # noqa: E402
from omni_core.checkpoints import open_checkpoint  # noqa: E402
from omni_mlx.devices import gpu  # noqa: E402
from omni_mlx.paged import Kernels, PagedAttention  # noqa: E402
from omni_mlx.pools import PoolsAttention  # noqa: E402
from omni_mlx.sealing import Sealer  # noqa: E402
from tests.metal.on_mlx import run_as_text  # noqa: E402
from tests.parity import tiny  # noqa: E402
from tests.parity.oracle import distance  # noqa: E402
from tests.parity.planner import Planner  # noqa: E402

GPU = mx.is_available(mx.gpu)
SHAPE = tiny.Shape(40, 6, 2, 16, (2, 3, 3), layers=2)
PAGES = 3
"""Of 16 bits."""


class Pair:
    """A backend with kernels, and one without on the CPU; the first's cells are what both seal."""

    def __init__(self, folder: Path, bits: int, codec: str, streams: int) -> None:
        def load(device: str) -> Any:
            checkpoint = open_checkpoint(folder)
            return omni_mlx.load(checkpoint, device=device, weights="f32", streams=streams)

        self.kernels, self.plain = load("gpu" if GPU else "cpu"), load("cpu")
        self.planner, self.streams = Planner(PAGES), streams
        layout = replace(
            self.planner.layout(SHAPE, streams), sealed_pages=2, bits=bits, codec=codec
        )
        for backend in (self.kernels, self.plain):
            backend.allocate(layout)
        self.launched: list[str] = []
        self.occupancy = np.zeros((2, 2), np.uint32)
        self.known: dict[int, Modality] = {}
        self.draw = np.random.default_rng(bits)

        def launch(of: Any, inputs: Any) -> list[Any]:
            self.launched.append(of.kernel.name)
            made: list[Any] = run.run(of, inputs) if GPU else run_as_text(of, inputs)
            return made

        text, cut = self.kernels._config.text, gpu() if GPU else Gpu(2, 3)
        self.kernels._sealer = Sealer(layout, self.kernels._tables(), launch)
        self.kernels._kernels = Kernels(text, layout, cut, launch, self.kernels._sealer)

    def step(self, count: int, frame: int, shifts: dict[int, int], mass: bool = False) -> None:
        """So many new tokens, some merged of several."""
        at = self.planner.order
        plan = self.planner.step(
            self.draw.integers(0, tiny.VOCAB, (self.streams, count)).astype(np.int32),
            np.full(count, -1, np.int32),
            np.broadcast_to(np.arange(at, at + count, dtype=np.int32), (3, count)).copy(),
            counts=self.draw.integers(1, 5, count).astype(np.int32),
            frame=frame,
            shifts=shifts,
            mass=mass,
        )
        plan = replace(plan, delta=self._with_sealed(plan.delta))
        found, expected = self.kernels.forward(plan), self.plain.forward(plan)
        assert distance(found.logits, expected.logits) < 1e-4
        for got, wanted in zip(found.mass or (), expected.mass or (), strict=True):
            assert np.abs(got - wanted).max() < 1e-4 * wanted.max()

    def seal(self, count: int, half: int, modality: Modality) -> None:
        """The oldest tokens of 16 bits go to a half of the sealed page that is of their frame."""
        plan = self.sealing(count, half, modality)
        cells = plan.seals.cells[0]
        for layer in range(SHAPE.layers):
            self.plain.write(layer, cells, *self.kernels.read(layer, cells))
        for backend in (self.kernels, self.plain):
            backend.move(plan)
        pages = plan.seals.target // 2
        for layer in range(SHAPE.layers):
            stored = (each.read_sealed(layer, pages) for each in (self.kernels, self.plain))
            np.testing.assert_array_equal(*stored)
        self.known[int(pages[0]) - PAGES] = modality

    def sealing(self, count: int, half: int, modality: Modality) -> MovePlan:
        """The plan of that; tokens are taken to be sealed."""
        ranks = sorted(self.planner.where[0])[:count]
        cells = np.array([self.planner.where[0][rank] for rank in ranks], np.int32)
        frame = int(self.planner.frame[cells[0] // PAGE])
        self.planner.evict(ranks)
        self.occupancy[frame, half] = (1 << count) - 1
        delta = self._with_sealed(self.planner._delta(), {frame: modality})
        source = np.full((1, 32), -1, np.int32)
        source[0, :count] = cells
        target = np.array([2 * (PAGES + frame) + half], np.int32)
        none = np.zeros(0, np.int32)
        return MovePlan(none, none, delta, Seals(source, target))

    def _with_sealed(
        self, delta: TableDelta, more: dict[int, Modality] | None = None
    ) -> TableDelta:
        kinds = {**self.known, **(more or {})}
        pages = np.array(sorted(kinds), np.int32)
        return TableDelta(
            np.concatenate([delta.pages, pages + PAGES]),
            np.concatenate([delta.group, np.zeros_like(pages)]),
            np.concatenate([delta.occupancy, self.occupancy[pages]]),
            np.concatenate([delta.modality, [np.int8(kinds[page]) for page in sorted(kinds)]]),
            np.concatenate([delta.frame, pages]),
        )


@pytest.mark.parametrize(
    ("bits", "codec", "streams"), [(2, "fitted", 1), (3, "omnikvquant", 2)], ids=str
)
def test_sealed_cells_are_read_as_by_operations(
    tmp_path: Path, bits: int, codec: str, streams: int
) -> None:
    pair = Pair(tiny.save(tiny.make(SHAPE), tmp_path), bits, codec, streams)
    pair.step(40, 0, {})
    assert "sealed_decode" not in pair.launched
    pair.seal(32, 0, Modality.VISION)
    assert ("sealed_store" in pair.launched) == (codec == "fitted")
    pair.step(1, 0, {})
    pair.step(36, 1, {0: 50})
    pair.seal(9, 1, Modality.VISION)
    pair.seal(32, 0, Modality.AUDIO)
    # Cells die in sealed pages too.
    pair.occupancy[0, 0] &= np.uint32(0xF0F01234)
    pair.launched.clear()
    pair.step(1, 1, {0: 60})
    pair.step(17, 1, {0: 60})
    every = ["store", "decode", "sealed_decode", "sealed_merge"]
    assert pair.launched[:4] == every and set(pair.launched) == {*every, "prefill"}
    pair.launched.clear()
    pair.step(2, 1, {0: 70}, mass=True)
    assert not pair.launched
    pair.occupancy[:] = 0
    pair.step(1, 1, {0: 70})
    assert pair.launched


def test_what_cannot_be_sealed_is_told_and_changes_nothing(tmp_path: Path) -> None:
    pair = Pair(tiny.save(tiny.make(SHAPE), tmp_path), 2, "fitted", 1)
    pair.step(40, 0, {})
    cells, page = np.arange(5, 9, dtype=np.int32), np.array([PAGES], np.int32)
    keys, values = pair.kernels.read(1, cells)
    plan = pair.sealing(32, 0, Modality.TEXT)
    for broken, said in ((np.nan, "hold a number that is not finite"), (1e9, "has a norm of")):
        pair.kernels.write(1, cells, keys, np.where(np.arange(16) == 3, np.float32(broken), values))
        with pytest.raises(BackendError, match=f"layer 1: .*{said}"):
            pair.kernels.move(plan)
        assert pair.launched[-1] == "sealed_store"
        assert not any(pair.kernels.read_sealed(layer, page).any() for layer in range(2))


def test_a_step_picks_kernels_where_it_can(tmp_path: Path) -> None:
    pair = Pair(tiny.save(tiny.make(SHAPE), tmp_path), 2, "fitted", 1)
    ids, none = np.zeros((1, 1), np.int32), np.full(1, -1, np.int32)
    plan = pair.planner.step(ids, none, np.zeros((3, 1), np.int32))
    pair.kernels._mirror.check(plan)
    assert isinstance(pair.kernels._attention(plan), PagedAttention)
    for backend in (pair.kernels, pair.plain):
        assert isinstance(backend._attention(replace(plan, mass=True)), PoolsAttention)
