"""Whisper's log-mel spectrogram of a clip, at a cost that follows the clip's length.

Equal to transformers' ``WhisperFeatureExtractor`` with ``padding="max_length"`` and a
``padding_side`` of ``right`` once its frames are cut by the attention mask. The zeros that it
appends matter in two places only: the last frames reach into them, and frames past the clip's end
that still hear it count for the loudest value.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from omni_core.frontend.base import SAMPLE_RATE

N_FFT = 400
"""Samples of one analysis window."""
HOP = 160
"""Samples from one frame to the next."""
MIN_SAMPLES = 2 * HOP + 1
"""The shortest clip that gives an audio token: three mel frames."""

_FLOOR = 1e-10
_RANGE = 8.0
"""Decades of power below the clip's loudest value that are kept."""


def mel_frames(samples: int) -> int:
    """Frames of a clip of ``samples`` samples: one for each hop that has begun."""
    return -(-max(samples, MIN_SAMPLES) // HOP)


def audio_tokens(frames: int) -> int:
    """Tokens that Qwen2.5-Omni's audio tower makes of ``frames`` mel frames."""
    return max(0, ((frames - 1) // 2 + 1 - 2) // 2 + 1)


def log_mel(samples: npt.NDArray[np.float32], mel_bins: int) -> npt.NDArray[np.float32]:
    """Log-mel spectrogram of mono sound at 16 kHz.

    Samples that are no finite numbers count as silence, 0: one of them would else spoil the whole
    clip, and with it what stays in the cache. A clip shorter than ``MIN_SAMPLES`` (321) is padded
    with zeros to it, so it gives one token. Holds for clips up to 300 s less half a window, the
    extractor's own length.

    Shapes: ``float32[samples] -> float32[mel_bins, ceil(samples / 160)]``.
    Source: transformers, ``feature_extraction_whisper.py``.
    """
    length = max(samples.size, MIN_SAMPLES)
    half = N_FFT // 2
    frames = -(-(length + half) // HOP)
    signal = np.zeros((frames - 1) * HOP + N_FFT)
    signal[half : half + samples.size] = np.where(np.isfinite(samples), samples, 0)
    signal[:half] = signal[2 * half : half : -1]
    windows = np.lib.stride_tricks.sliding_window_view(signal, N_FFT)[::HOP]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)
    power = np.abs(np.fft.rfft(windows * window, axis=1)) ** 2
    levels = np.log10(np.maximum(mel_filters(mel_bins) @ power.T, _FLOOR))
    levels = np.maximum(levels[:, : mel_frames(length)], levels.max() - _RANGE)
    scaled: npt.NDArray[np.float64] = (levels + 4.0) / 4.0
    return scaled.astype(np.float32)


@lru_cache(maxsize=4)
def mel_filters(mel_bins: int) -> npt.NDArray[np.float64]:
    """Slaney's triangular filters, each of unit area: ``float64[mel_bins, N_FFT // 2 + 1]``."""
    edges = _hertz(np.linspace(0.0, _mel(SAMPLE_RATE / 2), mel_bins + 2))
    bins = np.linspace(0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    widths = np.diff(edges)
    slopes = edges[:, None] - bins
    rising = -slopes[:-2] / widths[:-1, None]
    falling = slopes[2:] / widths[1:, None]
    area = 2.0 / (edges[2:] - edges[:-2])
    filters: npt.NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling)) * area[:, None]
    return filters


# Slaney's scale: linear to 1000 Hz, 15 mel there, then 27 mel for each factor of 6.4.
_BREAK_HERTZ, _BREAK_MEL, _STEP = 1000.0, 15.0, np.log(6.4) / 27.0


def _mel(hertz: float) -> float:
    if hertz < _BREAK_HERTZ:
        return hertz * _BREAK_MEL / _BREAK_HERTZ
    return float(_BREAK_MEL + np.log(hertz / _BREAK_HERTZ) / _STEP)


def _hertz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    linear = mel * _BREAK_HERTZ / _BREAK_MEL
    bent = _BREAK_HERTZ * np.exp(_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, linear, bent)
