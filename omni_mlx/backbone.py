"""The text backbone: Qwen2 with multimodal rotary embedding (Qwen2.5-Omni's thinker)."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from omni_core.model_config import TextConfig

Attend = Callable[[mx.array, mx.array, mx.array], mx.array]
"""Rotates and stores new keys, stores values, then attends: takes queries, keys and values, none of
them rotated, and all are ``[streams, heads, T, head_dim]``."""


class SelfAttention(nn.Module):
    """Projections around attention; where keys and values are kept is the caller's."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        wide, narrow = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        self._head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden, wide, bias=True)
        self.k_proj = nn.Linear(config.hidden, narrow, bias=True)
        self.v_proj = nn.Linear(config.hidden, narrow, bias=True)
        self.o_proj = nn.Linear(wide, config.hidden, bias=False)

    def __call__(self, x: mx.array, attend: Attend) -> mx.array:
        """``[streams, T, hidden]`` to the same."""
        streams, count, _ = x.shape

        def heads(y: mx.array) -> mx.array:
            return y.reshape(streams, count, -1, self._head_dim).swapaxes(1, 2)

        out = attend(heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x)))
        return self.o_proj(out.swapaxes(1, 2).reshape(streams, count, -1))


class GatedMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.up_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        """``[..., hidden]`` to the same."""
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden, config.rms_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, config.rms_eps)
        self.mlp = GatedMLP(config.hidden, config.intermediate, bias=False)

    def __call__(self, x: mx.array, attend: Attend) -> mx.array:
        """``[streams, T, hidden]`` to the same."""
        x = x + self.self_attn(self.input_layernorm(x), attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and final norm, under the names that checkpoints use."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = [Block(config) for _ in range(config.layers)]
        self.norm = nn.RMSNorm(config.hidden, config.rms_eps)


class Backbone(nn.Module):
    """The decoder and its head; ``own_head`` is False where the embedding serves as head too."""

    def __init__(self, config: TextConfig, own_head: bool) -> None:
        super().__init__()
        self.model = Decoder(config)
        if own_head:
            self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)

    def embed(self, tokens: mx.array) -> mx.array:
        """Embeddings ``[..., hidden]`` of token ids."""
        return self.model.embed_tokens(tokens)

    def logits(self, x: mx.array) -> mx.array:
        """``float32[..., vocab]`` of the last layer's output."""
        x = self.model.norm(x)
        head = self.lm_head if "lm_head" in self else self.model.embed_tokens.as_linear
        return head(x).astype(mx.float32)
