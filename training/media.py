"""Frames to patches and sound to log-mel for whole batches, as ``omni_core.frontend`` does it."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch.nn import functional

from omni_core.frontend.images import ImageSpec
from omni_core.frontend.log_mel import HOP, N_FFT, mel_filters
from training.bank import constant

_FLOOR = 1e-10
_RANGE = 8.0


def patches(frames: torch.Tensor, spec: ImageSpec, dtype: torch.dtype) -> torch.Tensor:
    """Patches of frames that have the model's size already, one frame each.

    Shapes: ``[N, H, W, 3]`` in grey levels ``-> [N, patches, 3 * patch * patch]``, by token.
    """
    scale = constant(tuple(1 / (255 * s) for s in spec.std), frames.device)
    shift = constant(tuple(m / s for m, s in zip(spec.mean, spec.std, strict=True)), frames.device)
    levels = (frames.float() * scale - shift).to(dtype)
    cut = levels.unflatten(2, (-1, spec.merge, spec.patch))
    cut = cut.unflatten(1, (-1, spec.merge, spec.patch))
    # [N, rows, merge, patch, columns, merge, patch, channels]
    return cut.permute(0, 1, 4, 2, 5, 7, 3, 6).flatten(5).flatten(1, 4)


def log_mel(samples: torch.Tensor, mel_bins: int) -> torch.Tensor:
    """Log-mel spectrograms of clips of one length, which is a multiple of 160 samples.

    Shapes: ``float32[N, samples] -> float32[N, mel_bins, samples / 160]``.
    """
    frames, half = samples.shape[1] // HOP, N_FFT // 2
    heard = math.ceil((samples.shape[1] + half) / HOP)
    front = samples[:, 1 : half + 1].flip(1)
    after = (heard - 1) * HOP + N_FFT - half - samples.shape[1]
    signal = functional.pad(torch.cat([front, samples], 1), (0, after))
    window = torch.hann_window(N_FFT, device=samples.device)
    spectra = torch.stft(signal, N_FFT, HOP, window=window, center=False, return_complex=True)
    power = torch.view_as_real(spectra).square().sum(-1)
    filters = _filters(mel_bins, samples.device)
    levels = (filters @ power).clamp(min=_FLOOR).log10()
    loudest = levels.amax((1, 2), keepdim=True)
    return (torch.maximum(levels[:, :, :frames], loudest - _RANGE) + 4) / 4


@lru_cache(maxsize=4)
def _filters(mel_bins: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(mel_filters(mel_bins)).float().to(device)
