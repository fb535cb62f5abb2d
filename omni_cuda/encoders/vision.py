"""The vision tower of the Qwen2.5-Omni thinker."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniVisionEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniVisionEncoder

from omni_core.frontend.base import VisionInput
from omni_cuda.devices import upload
from omni_cuda.encoders.building import build_empty

PREFIX = "visual."


def build(section: dict[str, Any]) -> nn.Module:
    """The tower that the ``vision_config`` of a checkpoint describes, without weights."""

    def make(depth: int) -> nn.Module:
        config = Qwen2_5OmniVisionEncoderConfig.from_dict(section)
        config.depth = depth
        return Qwen2_5OmniVisionEncoder._from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )

    return build_empty(make, int(section["depth"]))


def encode(
    tower: nn.Module, given: VisionInput, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Embeddings ``[t * (h / merge) * (w / merge), hidden]`` of one grid of patches."""
    patches = upload(given.patches, device, dtype)
    return tower(patches, grid_thw=torch.tensor([given.grid], device=device)).pooler_output
