from __future__ import annotations

import gc

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

import omni_mlx  # noqa: E402
from omni_core.backend import PAGE, ArenaLayout, MovePlan  # noqa: E402
from omni_core.checkpoints import open_checkpoint  # noqa: E402


@pytest.fixture
def backend(untrained, device):
    return omni_mlx.load(open_checkpoint(untrained), device=device)


def test_the_arena_is_changed_in_place(backend, planner):
    layout = ArenaLayout(256, 2, 2, 2, 32)
    backend.allocate(layout)
    one_array = layout.bytes(backend.element) // 4
    plans = planner(layout)
    backend.forward(plans.step([1, 2], [0, 1]))
    before = backend.memory().measured
    mx.reset_peak_memory()
    backend.forward(plans.step([3, 4, 5], [2, 3, 4]))
    cells = plans.cells[0][0]
    backend.move(MovePlan(cells, cells[::-1].copy(), plans.delta()))
    assert backend.memory().peak - before < one_array // 2
    assert backend.memory().accounted > layout.bytes(backend.element)


def test_memory_levels_off_over_units_of_differing_lengths(backend, device, planner):
    # What other tests of this process have left is not to go in the middle.
    gc.collect()
    layout = ArenaLayout(24, 1, 4, 2, 32)
    backend.allocate(layout)
    plans = planner(layout, frames=3)
    rng = np.random.default_rng(0)
    held, kept = [], []
    # On NVIDIA cards cuDNN plans anew for each length, which is slow.
    for unit in range(600 if device == "cpu" else 60):
        count = int(rng.integers(1, 60))
        mel = np.zeros((128, int(rng.integers(3, 130))), np.float32)
        rows = np.full(count, -1)
        embeddings = backend.encode([], [mel])
        rows[: min(count, embeddings.shape[1])] = np.arange(min(count, embeddings.shape[1]))
        tokens = rng.integers(0, 800, count)
        frame = unit // 12
        shifts = [((frame + 1) % 3, 900), ((frame + 2) % 3, 400), (frame % 3, 0)]
        plan = plans.step(tokens, np.arange(count), rows, mass=unit % 3 == 0, shifts=shifts)
        backend.forward(plan, embeddings)
        kept.append(plans.cells.pop())
        del embeddings
        while sum(cells.shape[1] for cells in kept) > 6 * PAGE:
            backend.move(plans.drop(kept.pop(0)))
        held.append(backend.memory())
    measured = [report.measured for report in held[20:]]
    assert max(measured) - min(measured) < (1024 if device == "cpu" else 2**20)
    assert max(report.measured + report.cached for report in held) < 2 * 16 * 2**20
