"""The text backbone: Qwen2 with multimodal RoPE.

Module names are the checkpoint's, but projections of one input are one layer: see :data:`PACKED`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from omni_core.model_config import TextConfig
from omni_cuda.arena import Arena
from omni_cuda.ops import Ops

PACKED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Linear layers of a :class:`Layer`, and those of the checkpoint whose rows they hold in order."""

Attend = Callable[[torch.Tensor, Arena, int], torch.Tensor]
"""Attention of a step in a layer group: takes the fused projections ``[streams, T, (q_heads + 2 *
kv_heads) * head_dim]`` of new tokens, the arena and the layer within its group; stores keys and
values and gives ``[streams, T, q_heads * head_dim]``."""


class RMSNorm(nn.Module):
    """Weights of a normalisation; see :class:`omni_cuda.ops.Ops`."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps


class Attention(nn.Module):
    """Grouped-query attention that keeps its keys, rotated, and its values in the arena."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        wide, narrow = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        self.qkv_proj = nn.Linear(config.hidden, wide + 2 * narrow)
        self.o_proj = nn.Linear(wide, config.hidden, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        attend: Attend,
        arena: Arena,
        layer: int,
        ops: Ops,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention output of new tokens ``x[streams, T, hidden]``; writes them to their cells.

        Of ``rows`` of ``T`` alone, if given.
        """
        mixed = attend(ops.linear(self.qkv_proj, x), arena, layer)
        return ops.linear(self.o_proj, mixed if rows is None else mixed[:, rows])


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden, 2 * config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """``[..., hidden]`` to ``[..., hidden]``."""
        return ops.linear(self.down_proj, ops.gated(self.gate_up_proj, x))


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.mlp = Mlp(config)


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
        attends: Sequence[Attend],
        arena: Arena,
        rows: torch.Tensor,
        ops: Ops,
    ) -> torch.Tensor:
        """Logits ``float32[streams, k, vocab]`` of ``rows`` of ``x[streams, T, hidden]``.

        ``x`` is used up. Layer ``l`` attends as ``attends[l // layers_per_group]`` does.
        """
        layers = self.model.layers
        depth, last = len(layers) // len(attends), len(layers) - 1
        norm = layers[0].input_layernorm
        normed = ops.rms_norm(x, norm.weight, norm.eps)
        for index, layer in enumerate(layers):
            attend = attends[index // depth]
            # Once the last keys and values are stored, nobody reads the other rows.
            wanted = rows if index == last else None
            update = layer.self_attn(normed, attend, arena, index % depth, ops, wanted)
            if index == last:
                x = x[:, rows]
            norm = layer.post_attention_layernorm
            update = layer.mlp(ops.add_rms_norm(update, x, norm.weight, norm.eps), ops)
            norm = self.model.norm if index == last else layers[index + 1].input_layernorm
            normed = ops.add_rms_norm(update, x, norm.weight, norm.eps)
        return ops.linear(self.lm_head, normed).float()
