"""What ``preprocessor_config.json`` says of frames and sound, checked against the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.errors import CheckpointError
from omni_core.fields import Fields
from omni_core.frontend.base import SAMPLE_RATE
from omni_core.frontend.images import CLIP_MEAN, CLIP_STD, ImageSpec
from omni_core.frontend.log_mel import HOP, N_FFT
from omni_core.model_config import AudioConfig, VisionConfig

FILE = "preprocessor_config.json"
_BICUBIC = 3
"""Pillow's number of it."""


def preprocessor_fields(preprocessor: Mapping[str, Any]) -> Fields:
    """The file's object.

    Raises:
        CheckpointError: there is none: template, pixel limits and levels would be guesses.
    """
    if not preprocessor:
        raise CheckpointError(
            f"{FILE}: missing or empty; it says how frames and sound are prepared: use the file "
            "that was released with the weights"
        )
    return Fields(FILE, preprocessor)


def image_spec(preprocessor: Fields, vision: VisionConfig) -> ImageSpec:
    """How frames are prepared.

    A frame's pixels are limited to Qwen2.5-Omni's 128 to 768 * 28 * 28 for video, or to
    ``video_processor.size`` (the layout of ``processor_config.json``), else to ``size`` or
    ``min_pixels`` and ``max_pixels`` (that of ``preprocessor_config.json``). In the released
    folders the latter are the still picture's, 12,845,056 pixels, which video is never given: a
    maximum above the default leaves both defaults as they are.

    Raises:
        CheckpointError: a value that contradicts the vision tower or is not what :mod:`images`
            does, or limits that cannot be.
    """
    video = preprocessor.section("video_processor", optional=True)
    section = video if video.values else preprocessor
    for field, expected in (
        ("patch_size", vision.patch),
        ("merge_size", vision.merge),
        ("temporal_patch_size", vision.temporal_patch),
        ("do_resize", True),
        ("do_rescale", True),
        ("do_normalize", True),
        ("resample", _BICUBIC),
    ):
        section.only(field, expected)
    least, most = ImageSpec.min_pixels, ImageSpec.max_pixels
    low, high = _limits(section, least, most)
    if section is video or high <= most:
        least, most = low, high
    if least > most:
        raise CheckpointError(
            f"{section.where}: a frame's pixels are limited to {least} .. {most}, expected "
            "min_pixels of at most max_pixels"
        )
    return ImageSpec(
        vision.patch,
        vision.merge,
        vision.temporal_patch,
        least,
        most,
        section.numbers("image_mean", CLIP_MEAN),
        section.numbers("image_std", CLIP_STD, positive=True),
    )


def check_sound(preprocessor: Fields, audio: AudioConfig) -> None:
    """Refuse a feature extractor other than the one that :mod:`log_mel` is.

    Raises:
        CheckpointError: it states another rate, window, hop or number of mel bins.
    """
    extractor = preprocessor.section("feature_extractor", optional=True)
    section = extractor if extractor.values else preprocessor
    for field, expected in (
        ("feature_size", audio.mel_bins),
        ("sampling_rate", SAMPLE_RATE),
        ("n_fft", N_FFT),
        ("hop_length", HOP),
    ):
        section.only(field, expected)


def _limits(section: Fields, least: int, most: int) -> tuple[int, int]:
    size = section.section("size", optional=True)
    low = size.whole("shortest_edge", size.whole("min_pixels", least))
    high = size.whole("longest_edge", size.whole("max_pixels", most))
    return section.whole("min_pixels", low), section.whole("max_pixels", high)
