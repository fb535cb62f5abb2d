"""The vision tower of the Qwen2.5-Omni thinker."""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniVisionEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniVisionEncoder

from omni_core.frontend.base import VisionInput
from omni_core.model_config import VisionConfig
from omni_cuda.devices import upload
from omni_cuda.encoders.building import build_empty


def build(vision: VisionConfig) -> nn.Module:
    """The tower of a checkpoint, without weights."""

    def make(depth: int) -> nn.Module:
        config = Qwen2_5OmniVisionEncoderConfig(
            depth=depth,
            hidden_size=vision.hidden,
            intermediate_size=vision.intermediate,
            num_heads=vision.heads,
            in_channels=vision.channels,
            patch_size=vision.patch,
            spatial_merge_size=vision.merge,
            temporal_patch_size=vision.temporal_patch,
            window_size=vision.window,
            out_hidden_size=vision.out,
            fullatt_block_indexes=list(vision.full_blocks),
            rope_parameters={"rope_type": "axial", "rope_theta": vision.rope_theta},
        )
        return Qwen2_5OmniVisionEncoder._from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )

    return build_empty(make, vision.depth)


def encode(
    tower: nn.Module, given: VisionInput, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Embeddings ``[t * (h / merge) * (w / merge), hidden]`` of one grid of patches."""
    patches = upload(given.patches, device, dtype)
    return tower(patches, grid_thw=torch.tensor([given.grid], device=device)).pooler_output
