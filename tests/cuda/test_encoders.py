"""The towers' calls: as exact as transformers', few operators, no waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_cuda
from omni_core.checkpoints import open_checkpoint
from omni_core.frontend.base import VisionInput
from omni_core.model_config import AudioConfig, VisionConfig
from tests.parity.oracle import audio, distance, torch, vision
from tests.parity.tiny import HALF_WINDOW, MEL_BINS

_dispatch = pytest.importorskip("torch.utils._python_dispatch")
audio_tower = pytest.importorskip("omni_cuda.encoders.audio")
vision_tower = pytest.importorskip("omni_cuda.encoders.vision")
building = pytest.importorskip("omni_cuda.encoders.building")
segments = pytest.importorskip("omni_cuda.encoders.segments")
ops = pytest.importorskip("omni_cuda.ops")
Encoders = pytest.importorskip("omni_cuda.encoders.both").Encoders

# A card sums in another order than the CPU that transformers runs on here.
NEAR = {"cpu": 1e-5, "cuda": 1e-4}
CHUNK = 2 * HALF_WINDOW
# Windows are 4 x 4 patches: one, one that is cut, cut below, cut aside, cut on both, and frames.
GRIDS = [
    (1, 4, 4), (1, 2, 2), (1, 6, 8), (1, 8, 14), (1, 18, 10),
    (2, 4, 4), (2, 2, 4), (2, 8, 8), (3, 6, 4), (3, 10, 14),
]  # fmt: skip
FRAMES = [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 3 * CHUNK, 3 * CHUNK + 7]
VIEWS = {
    "view", "t", "transpose", "slice", "select", "unsqueeze", "permute", "split", "expand",
    "lift_fresh", "_unsafe_view", "detach", "alias",
}  # fmt: skip


def _seen(grid: tuple[int, int, int], seed: int = 0) -> VisionInput:
    draw = np.random.default_rng(seed)
    return VisionInput(draw.standard_normal((np.prod(grid), 1176)).astype(np.float32), grid)


def _heard(frames: int, seed: int = 0, bins: int = MEL_BINS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((bins, frames)).astype(np.float32)


@pytest.fixture(scope="module")
def backend(thinker: Any, device: str) -> Any:
    _, folder, _ = thinker
    return _load(folder, device)


def _load(folder: Path, device: str) -> Any:
    return omni_cuda.load(open_checkpoint(folder), device=device, weights="f32")


def _encode(backend: Any, seen: Sequence[VisionInput], heard: Sequence[np.ndarray]) -> np.ndarray:
    rows: np.ndarray = backend.encode(seen, heard)[0].cpu().numpy()
    return rows


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_pictures_are_seen_as_by_transformers(
    backend: Any, thinker: Any, device: str, grid: tuple[int, int, int]
) -> None:
    given = _seen(grid)
    expected = vision(thinker[2], given.patches, grid)
    # The first is computed at once, the second captured on a card, the third replayed.
    for _ in range(3):
        assert distance(_encode(backend, [given], []), expected) < NEAR[device]


@pytest.mark.parametrize("frames", FRAMES)
def test_sound_is_heard_as_by_transformers(
    backend: Any, thinker: Any, device: str, frames: int
) -> None:
    mel = _heard(frames)
    expected = audio(thinker[2], mel)
    assert len(expected) == (frames + 1) // 2 // 2
    for _ in range(3):
        found = _encode(backend, [], [mel])
        assert found.shape == expected.shape
        assert not len(expected) or distance(found, expected) < NEAR[device]


def test_sizes_may_change_from_one_to_the_next(thinker: Any, device: str) -> None:
    _, folder, model = thinker
    backend = _load(folder, device)
    grids = [(1, 2 * high, 2 * wide) for high in range(2, 5) for wide in range(2, 9)]
    lengths = [5, 50, 130]
    expected = {grid: vision(model, _seen(grid).patches, grid) for grid in grids}
    expected |= {frames: audio(model, _heard(frames)) for frames in lengths}
    # More than are kept, twice round; the last few often enough for graphs to be replayed.
    rounds = [(grid, lengths[at % 3]) for at, grid in enumerate(grids * 2 + grids[-2:] * 3)]
    for grid, frames in rounds:
        found = _encode(backend, [_seen(grid)], [_heard(frames)])
        assert distance(found, np.concatenate([expected[grid], expected[frames]])) < NEAR[device]
    assert len(backend._encoders._kept) == 16


def test_media_of_one_shape_stay_apart(backend: Any, thinker: Any, device: str) -> None:
    seen = [_seen((1, 6, 8), seed) for seed in range(3)]
    heard = [_heard(60, seed) for seed in range(2)]
    expected = [vision(thinker[2], each.patches, each.grid) for each in seen]
    expected += [audio(thinker[2], mel) for mel in heard]
    earlier = backend.encode(seen, heard)
    for _ in range(2):
        assert distance(_encode(backend, seen, heard), np.concatenate(expected)) < NEAR[device]
    # What was given before is not written over.
    assert distance(earlier[0].cpu().numpy(), np.concatenate(expected)) < NEAR[device]


def test_kernels_see_the_same(thinker: Any, load_path: Any, kernel_device: str) -> None:
    pytest.importorskip("triton")
    _, folder, model = thinker
    backend = load_path(folder, kernel_device)
    assert backend._kernels
    given = _seen((1, 10, 6))
    expected = vision(model, given.patches, given.grid)
    for _ in range(3):
        assert distance(_encode(backend, [given], []), expected) < NEAR[kernel_device]


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [6, 6, 2], [1, 7, 7, 3, 1]], ids=str)
def test_attention_stays_inside_segments(lengths: list[int], slices: int) -> None:
    draw = torch.Generator().manual_seed(0)
    size = (3, 2, slices * sum(lengths), 8)
    queries, keys, values = torch.randn(size, generator=draw, dtype=torch.float64)
    split = segments.Segments.of(lengths, slices)
    found = segments.attend_within(queries, keys, values, split, 0.3)
    assert split.bounds().tolist() == np.cumsum([0, *lengths * slices]).tolist()
    start = 0
    for length in lengths * slices:
        part = slice(start, start + length)
        scores = 0.3 * queries[:, part] @ keys[:, part].transpose(1, 2)
        expected = scores.softmax(-1) @ values[:, part]
        torch.testing.assert_close(found[part], expected.transpose(0, 1))
        start += length


class Counting(_dispatch.TorchDispatchMode):
    """Counts operators, without views, and copies from one device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.sent = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        found = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if name not in VIEWS:
            self.operators[name] += 1
        given = {each.device for each in args if isinstance(each, torch.Tensor)}
        if isinstance(found, torch.Tensor) and given - {found.device}:
            self.sent += 1
        return found

    def total(self, name: str = "") -> int:
        return sum(count for each, count in self.operators.items() if name in each)


LAYERS = 4


def _towers(device: str) -> Any:
    """Towers as released, but for their width and depth."""
    seeing = VisionConfig(
        depth=LAYERS, hidden=32, intermediate=48, heads=2, channels=3, patch=14, temporal_patch=2,
        merge=2, window=112, full_blocks=(1, 3), out=16, rope_theta=1e4,
    )  # fmt: skip
    hearing = AudioConfig(
        layers=LAYERS, hidden=32, heads=2, intermediate=48, mel_bins=128, max_positions=1500,
        half_window=100, out=16,
    )  # fmt: skip
    towers = vision_tower.build(seeing), audio_tower.build(hearing)
    for tower in towers:
        for parameter in list(tower.named_parameters()):
            name, _, attribute = parameter[0].rpartition(".")
            zeros = torch.zeros(parameter[1].shape, device=device)
            setattr(tower.get_submodule(name), attribute, torch.nn.Parameter(zeros, False))
        building.place_tables(tower, torch.device(device))
    return Encoders(*towers, torch.device(device), torch.float32, ops.SPELLED_OUT)


@torch.no_grad()
def _counted(encoders: Any, seen: list[VisionInput], heard: list[np.ndarray]) -> Counting:
    """Of a call whose shape has been seen."""
    encoders(seen, heard)
    with Counting() as counting:
        encoders(seen, heard)
    return counting


MEDIA = [((1, 16, 16), 100), ((1, 52, 52), 1050), ((2, 20, 36), 7)]


@pytest.mark.parametrize(("grid", "frames"), MEDIA)
def test_nothing_waits_for_the_device(grid: tuple[int, int, int], frames: int) -> None:
    # Tensors without data: whatever asks for a value fails.
    encoders = _towers("meta")
    counted = _counted(encoders, [_seen(grid)], [_heard(frames, bins=128)])
    # The media, and nothing that goes with their shape.
    assert counted.sent == 2
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones(2, device="meta").tolist()


def test_operators_do_not_multiply_with_windows() -> None:
    encoders = _towers("cpu")
    few, many, cut, most = (
        _counted(encoders, [_seen((1, *size))], [])
        for size in [(16, 16), (96, 96), (52, 52), (26, 46)]
    )
    assert few.operators == many.operators
    assert few.total("attention") == LAYERS
    # Whole windows, those that an edge halves, and the corner's; two layers have none.
    assert cut.total("attention") == 2 * 3 + 2
    assert cut.total() == few.total() + 2 * 2 + 2
    # Those cut on the right are not as long as those cut below.
    assert most.total("attention") == 2 * 4 + 2
    assert most.total() == few.total() + 2 * 3 + 2
    assert few.total() < 45 * LAYERS + 20


def test_operators_do_not_multiply_with_chunks() -> None:
    encoders = _towers("cpu")
    one, ten, rest = (_counted(encoders, [], [_heard(n, bins=128)]) for n in (200, 2000, 2050))
    # What the convolutions gave is laid out anew where it has several chunks.
    assert ten.operators - one.operators == Counter(clone=1)
    assert one.total("attention") == ten.total("attention") == LAYERS
    assert rest.total("attention") == 2 * LAYERS
    assert one.total() < 13 * LAYERS + 20
