from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

import omni_mlx  # noqa: E402
from omni_core.checkpoints import open_checkpoint  # noqa: E402
from omni_core.errors import PlanError  # noqa: E402
from omni_core.frontend.base import VisionInput  # noqa: E402


@pytest.fixture(scope="module")
def backend(tiny):
    return omni_mlx.load(open_checkpoint(tiny[1]), device="cpu")


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def part(model, name: str):
    return getattr(model, name, None) or getattr(model.model, name)


@pytest.mark.parametrize(
    "grid",
    [(1, 4, 4), (1, 2, 2), (2, 4, 6), (1, 6, 10), (3, 10, 14), (1, 2, 18), (2, 8, 8), (1, 26, 4)],
)
def test_vision_tower_equals_transformers(tiny, backend, grid):
    rng = np.random.default_rng(grid[2])
    patches = rng.normal(size=(np.prod(grid), 3 * 2 * 14 * 14)).astype(np.float32)
    with torch.no_grad():
        wanted = part(tiny[0], "visual")(torch.from_numpy(patches), torch.tensor([grid]))
    found = np.array(backend.encode([VisionInput(patches, grid)], []))
    assert found.shape == (1, np.prod(grid) // 4, 64)
    assert relative(found[0], wanted.pooler_output.numpy()) < 1e-5


@pytest.mark.parametrize("frames", [3, 4, 7, 49, 50, 51, 52, 99, 100, 101, 103, 150, 237])
def test_audio_tower_equals_transformers(tiny, backend, frames):
    mel = np.random.default_rng(frames).normal(size=(32, frames)).astype(np.float32)
    with torch.no_grad():
        wanted = part(tiny[0], "audio_tower")(
            torch.from_numpy(mel), feature_lens=torch.tensor([frames])
        ).last_hidden_state.numpy()
    found = np.array(backend.encode([], [mel]))
    assert found.shape == (1, ((frames - 1) // 2 + 1 - 2) // 2 + 1, 64)
    assert relative(found[0], wanted) < 1e-5


def test_sound_too_short_for_a_token_gives_none(backend):
    assert backend.encode([], [np.zeros((32, 2), np.float32)]).shape == (1, 0, 64)


def test_vision_rows_come_before_audio_rows(backend):
    rng = np.random.default_rng(0)
    picture = VisionInput(rng.normal(size=(16, 1176)).astype(np.float32), (1, 4, 4))
    mel = rng.normal(size=(32, 50)).astype(np.float32)
    both = np.array(backend.encode([picture], [mel]))
    assert np.array_equal(both[:, :4], np.array(backend.encode([picture], [])))
    assert np.array_equal(both[:, 4:], np.array(backend.encode([], [mel])))


def test_misshapen_media_is_refused(backend):
    with pytest.raises(PlanError, match=r"grid \[1, 4, 4\]: expected \[16, 1176\]"):
        backend.encode([VisionInput(np.zeros((8, 1176), np.float32), (1, 4, 4))], [])
    with pytest.raises(PlanError, match="log-mel"):
        backend.encode([], [np.zeros((128, 100), np.float32)])
