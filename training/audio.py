"""The audio tower for a batch of one-window clips. Module names are the checkpoint's.

A second of sound is 100 mel frames, one window of the tower: 50 after the convolutions, 25 tokens.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from omni_core.model_config import AudioConfig


class AudioTower(nn.Module):
    """Log-mel ``[clips, mel_bins, frames]`` to ``[clips, frames / 4, out]``."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.mel_bins, config.hidden, 3, padding=1)
        self.conv2 = nn.Conv1d(config.hidden, config.hidden, 3, 2, padding=1)
        # Released checkpoints hold it, and nothing reads it.
        self.audio_bos_eos_token = nn.Embedding(2, config.out)
        self.layers = nn.ModuleList([_Layer(config) for _ in range(config.layers)])
        self.ln_post = nn.LayerNorm(config.hidden)
        self.proj = nn.Linear(config.hidden, config.out)
        table = _sinusoids(config.half_window, config.hidden)
        self.register_buffer("positions", table, persistent=False)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """Embeddings of clips that are one window each."""
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(mel)))).transpose(1, 2)
        x = x + self.positions[: x.shape[1]].to(x.dtype)
        for layer in self.layers:
            x = layer(x)
        x = x.unflatten(1, (-1, 2)).mean(2)
        return self.proj(self.ln_post(x))


class _Attention(nn.Module):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.k_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.hidden)
        self.q_proj = nn.Linear(config.hidden, config.hidden)
        self.out_proj = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden)
        self.fc1 = nn.Linear(config.hidden, config.intermediate)
        self.fc2 = nn.Linear(config.intermediate, config.hidden)
        self.final_layer_norm = nn.LayerNorm(config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(functional.gelu(self.fc1(self.final_layer_norm(x))))


def _sinusoids(count: int, channels: int) -> torch.Tensor:
    """Whisper's position table ``[count, channels]``."""
    half = channels // 2
    rates = torch.exp(-math.log(10_000) / (half - 1) * torch.arange(half))
    angles = torch.arange(count)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)
