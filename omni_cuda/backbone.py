"""The text backbone: Qwen2 with multimodal RoPE. Module names are the checkpoint's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from omni_core.model_config import TextConfig
from omni_cuda.arena import Arena
from omni_cuda.attention import GroupView, attend
from omni_cuda.rotary import rotate


class RMSNorm(nn.Module):
    """Root mean square normalisation, taken in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis of ``x``."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention that keeps its keys, rotated, and its values in the arena."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        wide, narrow = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, wide)
        self.k_proj = nn.Linear(config.hidden, narrow)
        self.v_proj = nn.Linear(config.hidden, narrow)
        self.o_proj = nn.Linear(wide, config.hidden, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        arena: Arena,
        layer: int,
        view: GroupView,
    ) -> torch.Tensor:
        """Attention output of new tokens ``x[streams, T, hidden]``; writes them to their cells."""
        queries = self._heads(self.q_proj(x))
        keys = rotate(self._heads(self.k_proj(x)), *tables)
        values = self._heads(self.v_proj(x))
        arena.write(layer, view.write, keys.transpose(0, 1), values.transpose(0, 1))
        stored = arena.gather(layer, view.read)
        return self.o_proj(attend(queries, *stored, view, self.head_dim**-0.5).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., hidden]`` to ``[..., hidden]``."""
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.mlp = Mlp(config)

    def forward(
        self,
        x: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        arena: Arena,
        layer: int,
        view: GroupView,
    ) -> torch.Tensor:
        """New tokens ``x[streams, T, hidden]`` through layer ``layer`` of its group."""
        x = x + self.self_attn(self.input_layernorm(x), tables, arena, layer, view)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Token embeddings, layers and the last norm."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.rms_eps)


class Backbone(nn.Module):
    """The decoder and the head that turns its rows into logits."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        arena: Arena,
        views: Sequence[GroupView],
        rows: torch.Tensor,
    ) -> torch.Tensor:
        """Logits ``float32[streams, k, vocab]`` of ``rows`` of ``x[streams, T, hidden]``.

        ``tables`` are the keys' cosines and sines ``[T, 1, head_dim / 2]``; layer ``l`` works on
        ``views[l // layers_per_group]``.
        """
        depth = len(self.model.layers) // len(views)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, tables, arena, index % depth, views[index // depth])
        return self.lm_head(self.model.norm(x[:, rows])).float()
