"""The text backbone over streams with branches. Module names are the checkpoint's.

A sequence is a stream of ``T`` tokens, read causally, and after it the tokens of its branches:
questions that each see the stream up to one unit and themselves, but no other branch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from omni_core.model_config import TextConfig
from training.rotary import rotate


@dataclass
class Reading:
    """How a batch of sequences ``[streams, T + B]`` is read.

    Attributes:
        cos, sin: ``[streams, T + B, 1, head_dim]``.
        stream: ``T``.
        mask: additive ``[streams, 1, B, T + B]`` for the branches' tokens.
        norms: collects the excess of query and key norms, a scalar a layer.
        spread: where given, collects the standard deviation of attention logits, a scalar a layer.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    stream: int
    mask: torch.Tensor
    norms: list[torch.Tensor]
    spread: list[torch.Tensor] | None = None


LARGEST_NORM = 30.0
"""Norm of a query or key above which it costs."""


class TextModel(nn.Module):
    """Embedding table, layers and the last norm."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList([_Layer(config) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.hidden, config.rms_eps)

    def forward(
        self, x: torch.Tensor, reading: Reading, early: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normed outputs ``[streams, T + B, hidden]`` of the last layer and after ``early``."""
        middle = x
        for index, layer in enumerate(self.layers):
            x = layer(x, reading)
            if index + 1 == early:
                middle = x
        return self.norm(x), self.norm(middle[:, : reading.stream])

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Of normed outputs, by the embedding table."""
        return functional.linear(x, self.embed_tokens.weight)


class _Attention(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.head_dim, self.group = config.head_dim, config.q_heads // config.kv_heads
        wide, narrow = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, wide)
        self.k_proj = nn.Linear(config.hidden, narrow)
        self.v_proj = nn.Linear(config.hidden, narrow)
        self.o_proj = nn.Linear(wide, config.hidden, bias=False)

    def forward(self, x: torch.Tensor, reading: Reading) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head_dim))
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        reading.norms.append(_excess(q) + _excess(k))
        q, k = rotate(q, reading.cos, reading.sin), rotate(k, reading.cos, reading.sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if reading.spread is not None:
            reading.spread.append(_spread(q, k, reading.stream))
        k, v = k.repeat_interleave(self.group, 1), v.repeat_interleave(self.group, 1)
        end = reading.stream
        attend = functional.scaled_dot_product_attention
        heard = attend(q[:, :, :end], k[:, :, :end], v[:, :, :end], is_causal=True)
        asked = attend(q[:, :, end:], k, v, attn_mask=reading.mask)
        return self.o_proj(torch.cat([heard, asked], 2).transpose(1, 2).flatten(2))


class _Mlp(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden, config.rms_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, config.rms_eps)

    def forward(self, x: torch.Tensor, reading: Reading) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), reading)
        return x + self.mlp(self.post_attention_layernorm(x))


def _excess(heads: torch.Tensor) -> torch.Tensor:
    """Mean squared excess over the largest norm, from every ninth token."""
    norms = heads[:, ::9].float().square().sum(-1).add(1e-6).sqrt()
    return (norms - LARGEST_NORM).clamp(min=0).square().mean()


def _spread(q: torch.Tensor, k: torch.Tensor, stream: int) -> torch.Tensor:
    """Standard deviation of the branches' logits over the stream's keys."""
    asked = q[:, :, stream:][:, :, ::7].float()
    keys = k[:, :, :stream].repeat_interleave(q.shape[1] // k.shape[1], 1).float()
    return (asked @ keys.transpose(2, 3) * q.shape[-1] ** -0.5).std(-1).mean()
