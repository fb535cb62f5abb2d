"""Rotary embedding of queries and keys, with one position a token or three."""

from __future__ import annotations

import torch

from omni_core.model_config import TextConfig


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``x[..., T, heads, D]`` by the angles ``[..., T, 1, D]``."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def text_angles(
    positions: torch.Tensor, config: TextConfig, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine ``[..., T, 1, head_dim]`` of positions ``[3, ..., T]``.

    Source: multimodal RoPE of Qwen2-VL: sections of the rates go by time, height and width in turn.
    """
    half = config.head_dim // 2
    rates = config.rope_theta ** -(torch.arange(half, device=positions.device) / half)
    angles = positions[..., None].float() * rates
    parts = angles.split(list(config.mrope_section), -1)
    mixed = torch.cat([part[index % 3] for index, part in enumerate(parts)], -1)
    both = torch.cat([mixed, mixed], -1).unsqueeze(-2)
    return both.cos().to(dtype), both.sin().to(dtype)
