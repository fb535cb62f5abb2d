"""The audio tower of the Qwen2.5-Omni thinker."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder

from omni_cuda.devices import upload
from omni_cuda.encoders.building import build_empty

PREFIX = "audio_tower."


def build(section: dict[str, Any]) -> nn.Module:
    """The tower that the ``audio_config`` of a checkpoint describes, without weights."""

    def make(depth: int) -> nn.Module:
        config = Qwen2_5OmniAudioEncoderConfig.from_dict(section)
        # Set last: an alias of it in the section would win over the section's own entry.
        config.encoder_layers = depth
        return Qwen2_5OmniAudioEncoder._from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )

    return build_empty(make, int(section["encoder_layers"]))


def encode(
    tower: nn.Module, mel: npt.NDArray[np.float32], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Embeddings ``[tokens, hidden]`` of a log-mel ``[mel_bins, frames]``, a token for 4 frames."""
    frames = torch.tensor([mel.shape[1]], device=device)
    features = upload(mel, device, dtype)
    halved = (frames - 1) // 2 + 1
    return tower(features, feature_lens=frames, aftercnn_lens=halved).last_hidden_state
