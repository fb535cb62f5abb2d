"""The audio tower of the Qwen2.5-Omni thinker."""

from __future__ import annotations

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
        return Qwen2_5OmniAudioEncoder._from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )

    return build_empty(make, audio.layers)


def encode(
    tower: nn.Module, mel: npt.NDArray[np.float32], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Embeddings ``[tokens, hidden]`` of a log-mel ``[mel_bins, frames]``, a token for 4 frames."""
    frames = torch.tensor([mel.shape[1]], device=device)
    features = upload(mel, device, dtype)
    halved = (frames - 1) // 2 + 1
    return tower(features, feature_lens=frames, aftercnn_lens=halved).last_hidden_state
