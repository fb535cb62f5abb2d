from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omni_core.errors import MediaError
from omni_core.frontend.images import (
    CLIP_MEAN,
    CLIP_STD,
    ImageSpec,
    frame_patches,
    resize,
    smart_resize,
)

FIXTURE = Path(__file__).parent / "fixtures" / "video_patches.npz"
SIZES = [(37, 53, 28, 56), (61, 45, 200, 31), (5, 3, 28, 28), (90, 131, 84, 56), (41, 41, 97, 41)]


def picture(height: int, width: int, kind: str) -> np.ndarray:
    random = np.random.default_rng(height + width)
    if kind == "saturated":
        return (random.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
    if kind == "noise":
        return random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    y, x, c = np.mgrid[:height, :width, :3]
    return (127 + 60 * np.sin(x / 7 + c) + 60 * np.cos(y / 9 - c)).astype(np.uint8)


@pytest.mark.parametrize("kind", ["saturated", "noise", "smooth"])
@pytest.mark.parametrize(("height", "width", "tall", "wide"), SIZES)
def test_resizing_is_pillows_two_passes_to_the_bit(height, width, tall, wide, kind):
    image = pytest.importorskip("PIL.Image")
    frame = picture(height, width, kind)
    across = image.fromarray(frame).resize((wide, height), image.BICUBIC)
    expected = np.asarray(across.resize((wide, tall), image.BICUBIC))
    np.testing.assert_array_equal(resize(frame, tall, wide), expected)


@pytest.mark.parametrize(("height", "width", "tall", "wide"), [*SIZES, (641, 359, 1008, 560)])
def test_resizing_is_within_one_grey_level_of_pillows_one_call(height, width, tall, wide):
    image = pytest.importorskip("PIL.Image")
    frame = picture(height, width, "smooth")
    expected = np.asarray(image.fromarray(frame).resize((wide, tall), image.BICUBIC), np.int16)
    assert np.abs(resize(frame, tall, wide).astype(np.int16) - expected).max() <= 1


def test_target_size_is_that_of_transformers():
    reference = pytest.importorskip(
        "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    ).smart_resize
    random = np.random.default_rng(0)
    for height, width in random.integers(1, 2000, (300, 2)).tolist():
        if max(height, width) > 200 * min(height, width):
            continue
        for limits in ((100352, 602112), (3136, 12544)):
            assert smart_resize(height, width, 28, *limits) == reference(height, width, 28, *limits)


@pytest.mark.parametrize(("height", "width"), [(28, 56), (84, 112), (40, 60), (300, 211)])
def test_one_frame_has_the_patches_of_transformers_image_processor(height, width):
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    limits = {"shortest_edge": 28 * 56, "longest_edge": 28 * 28 * 16}
    spec = ImageSpec(min_pixels=limits["shortest_edge"], max_pixels=limits["longest_edge"])
    frame = picture(height, width, "smooth")
    expected = module.Qwen2VLImageProcessorPil(size=limits)(frame, return_tensors="np")
    ours = frame_patches([frame], spec)
    assert list(ours.grid) == expected["image_grid_thw"][0].tolist()
    # One grey level of the narrowest channel, where the frame was resized at all.
    level = 1e-4 if height % 28 == 0 else 1.01 / 255 / min(CLIP_STD)
    assert np.abs(ours.patches - expected["pixel_values"]).max() <= level


@pytest.mark.parametrize(
    "name", ["one_up", "two_mixed", "three_down", "five_plain", "two_saturated"]
)
def test_clips_have_the_patches_of_transformers_video_processor(name):
    fixture = np.load(FIXTURE)
    low, high = fixture["limits"].tolist()
    ours = frame_patches(list(fixture[f"{name}_video"]), ImageSpec(min_pixels=low, max_pixels=high))
    assert list(ours.grid) == fixture[f"{name}_grid"].tolist()
    mean, std = np.repeat(CLIP_MEAN, 2 * 14 * 14), np.repeat(CLIP_STD, 2 * 14 * 14)
    expected = fixture[f"{name}_levels"].astype(np.float64)
    if name == "five_plain":
        assert np.abs(ours.patches - (expected / 255 - mean) / std).max() <= 1e-4
    # torchvision rounds its weights to 16 bits: one pixel in a hundred is one level off.
    off = np.abs(np.rint((ours.patches * std + mean) * 255) - expected)
    assert off.max() <= (0 if name == "five_plain" else 1)
    assert (off > 0).mean() < 0.01


@given(
    st.integers(1, 40),
    st.floats(1, 200),
    st.booleans(),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.sampled_from([(14, 2), (16, 2), (14, 1), (8, 4)]),
)
@example(28, 200.0, False, 12544, 3136, (14, 2))
@example(5, 200.0, True, 12544, 12544, (14, 2))
@example(50, 1.0, True, 12544, 12544, (14, 2))
@example(49, 1.3, True, 12544, 12544, (14, 2))
def test_no_frame_gives_more_tokens_than_most(short, aspect, tall, one, other, patch):
    spec = ImageSpec(*patch, min_pixels=min(one, other), max_pixels=max(one, other))
    long = min(round(short * aspect), 200 * short)
    high, wide = spec.size(*((long, short) if tall else (short, long)))
    assert high * wide <= spec.most_tokens * (spec.patch * spec.merge) ** 2


def test_the_most_tokens_are_reached():
    spec = ImageSpec(min_pixels=3136, max_pixels=12544)
    assert spec.size(28, 5600) == (28, 56 * 28)
    assert spec.most_tokens == 56
    assert ImageSpec().most_tokens == 768
    square = ImageSpec(min_pixels=12544, max_pixels=12544)
    assert square.size(5, 1000) == (28, 57 * 28) and square.most_tokens == 57


def test_frames_of_one_unit_take_the_first_ones_size():
    spec = ImageSpec(min_pixels=3136, max_pixels=12544)
    mixed = frame_patches([picture(64, 36, "noise"), picture(72, 128, "noise")], spec)
    alone = frame_patches([picture(64, 36, "noise")], spec)
    assert mixed.grid == alone.grid
    assert mixed.patches.shape == alone.patches.shape
    assert np.abs(mixed.patches - alone.patches).max() > 0.5


def test_a_720p_frame_fits_the_video_limit():
    vision = frame_patches([picture(720, 1280, "noise")], ImageSpec())
    assert vision.grid == (1, 40, 72)


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((28, 28), np.uint8),
        np.zeros((28, 28, 4), np.uint8),
        np.zeros((28, 28, 3), np.float32),
        np.zeros((0, 28, 3), np.uint8),
        np.zeros((1, 201, 3), np.uint8),
    ],
)
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(MediaError, match="expected"):
        frame_patches([frame], ImageSpec())


def test_no_frame_is_refused():
    with pytest.raises(MediaError, match="without frames"):
        frame_patches([], ImageSpec())
