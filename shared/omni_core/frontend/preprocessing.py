"""What ``preprocessor_config.json`` says of frames and sound, checked against the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.errors import CheckpointError
from omni_core.frontend.base import SAMPLE_RATE
from omni_core.frontend.images import CLIP_MEAN, CLIP_STD, ImageSpec
from omni_core.frontend.log_mel import HOP, N_FFT
from omni_core.model_config import AudioConfig, VisionConfig


def image_spec(preprocessor: Mapping[str, Any], vision: VisionConfig) -> ImageSpec:
    """How frames are prepared.

    A frame's pixels are limited to Qwen2.5-Omni's 128 to 768 * 28 * 28 for video, or to
    ``video_processor.size`` (the layout of ``processor_config.json``), else to ``size`` or
    ``min_pixels`` and ``max_pixels`` (that of ``preprocessor_config.json``). In the released
    folders the latter are the still picture's, 12,845,056 pixels, which video is never given: a
    maximum above the default leaves both defaults as they are.

    Raises:
        CheckpointError: a value that contradicts the vision tower, or limits that cannot be.
    """
    video = preprocessor.get("video_processor")
    section = video if isinstance(video, Mapping) else preprocessor
    for field, expected in (
        ("patch_size", vision.patch),
        ("merge_size", vision.merge),
        ("temporal_patch_size", vision.temporal_patch),
    ):
        _expect(section, field, expected)
    least, most = ImageSpec.min_pixels, ImageSpec.max_pixels
    low, high = _limits(section, least, most)
    if section is video or high <= most:
        least, most = low, high
    if not 0 < least <= most:
        raise CheckpointError(
            f"preprocessor_config.json: a frame's pixels are limited to {least} .. {most}, "
            "expected min_pixels above 0 and at most max_pixels"
        )
    return ImageSpec(
        vision.patch,
        vision.merge,
        vision.temporal_patch,
        least,
        most,
        _channels(section, "image_mean", CLIP_MEAN),
        _channels(section, "image_std", CLIP_STD),
    )


def check_sound(preprocessor: Mapping[str, Any], audio: AudioConfig) -> None:
    """Refuse a feature extractor other than the one that :mod:`log_mel` is.

    Raises:
        CheckpointError: it states another rate, window, hop or number of mel bins.
    """
    extractor = preprocessor.get("feature_extractor")
    section = extractor if isinstance(extractor, Mapping) else preprocessor
    for field, expected in (
        ("feature_size", audio.mel_bins),
        ("sampling_rate", SAMPLE_RATE),
        ("n_fft", N_FFT),
        ("hop_length", HOP),
    ):
        _expect(section, field, expected)


def _limits(section: Mapping[str, Any], least: int, most: int) -> tuple[int, int]:
    size = section.get("size") or {}
    low = section.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or least
    high = section.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or most
    return int(low), int(high)


def _channels(
    section: Mapping[str, Any], field: str, default: tuple[float, ...]
) -> tuple[float, ...]:
    values = section.get(field, default)
    if not isinstance(values, list | tuple) or len(values) != 3:
        raise CheckpointError(
            f"preprocessor_config.json: `{field}` is {values!r}, expected three numbers"
        )
    return tuple(float(value) for value in values)


def _expect(section: Mapping[str, Any], field: str, expected: int) -> None:
    found = section.get(field, expected)
    if found != expected:
        raise CheckpointError(
            f"preprocessor_config.json: `{field}` is {found!r}, expected {expected} for these "
            "weights: use the file that was released with them"
        )
