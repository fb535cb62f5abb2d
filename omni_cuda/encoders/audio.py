"""The audio tower of the Qwen2.5-Omni thinker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder

from omni_core.model_config import AudioConfig
from omni_cuda.devices import upload
from omni_cuda.encoders.building import build_empty
from omni_cuda.encoders.segments import Segments, attend_inside_segments, described


def build(audio: AudioConfig) -> nn.Module:
    """The tower of a checkpoint, without weights."""

    def make(depth: int) -> nn.Module:
        config = Qwen2_5OmniAudioEncoderConfig(
            encoder_layers=depth,
            d_model=audio.hidden,
            encoder_attention_heads=audio.heads,
            encoder_ffn_dim=audio.intermediate,
            num_mel_bins=audio.mel_bins,
            max_source_positions=audio.max_positions,
            n_window=audio.half_window,
            output_dim=audio.out,
        )
        tower = Qwen2_5OmniAudioEncoder._from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
        return attend_inside_segments(tower)

    return build_empty(make, audio.layers)


def chunks(tower: nn.Module, mel: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A log-mel ``[mel_bins, frames]`` in the tower's chunks ``[chunks, mel_bins, longest]``.

    The last chunk is filled up with zeros.
    """
    lengths = _lengths(tower, mel.shape[1])
    padded = np.zeros((mel.shape[0], len(lengths) * lengths[0]), mel.dtype)
    padded[:, : mel.shape[1]] = mel
    return padded.reshape(mel.shape[0], len(lengths), lengths[0]).swapaxes(0, 1)


def prepare(
    tower: nn.Module, frames: int, device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The tower for so many frames, with what follows from their number alone on the device.

    It takes their :func:`chunks` and returns embeddings ``[tokens, hidden]``, a token for 4 frames.
    Nothing that it launches waits for the device.
    """
    lengths = np.array(_lengths(tower, frames))
    halved = (lengths - 1) // 2 + 1
    segments = Segments.of(halved.tolist())
    count = int(halved.sum())
    given: dict[str, Any] = {
        "feature_lens": torch.tensor([frames]),
        "aftercnn_lens": torch.tensor([count]),
        "chunk_lengths": upload(lengths, device),
        # Padding comes last.
        "valid_indices": upload(np.arange(count), device),
        "pool_indices": upload(2 * np.arange(count // 2), device),
        "cu_seqlens": segments.bounds(),
        "max_seqlen": segments.longest,
        **described(segments),
    }
    return lambda heard: tower(heard, padded_feature=heard, **given).last_hidden_state


def _lengths(tower: nn.Module, frames: int) -> list[int]:
    """Frames in each chunk, of which only the last may be shorter."""
    chunk = 2 * tower.n_window
    whole, rest = divmod(frames, chunk)
    return [chunk] * whole + [rest] * (rest > 0)
