"""The vision tower for a batch of frames of one size. Module names are the checkpoint's.

A frame is one window of the tower, so every block attends to the whole of it.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.nn import functional

from omni_core.model_config import VisionConfig
from training.rotary import rotate

EPS = 1e-6


class VisionTower(nn.Module):
    """Frames as patches to embeddings; gives ``[frames, tokens, out]``."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = _PatchEmbed(config)
        self.blocks = nn.ModuleList([_Block(config) for _ in range(config.depth)])
        self.merger = _Merger(config)

    def forward(self, patches: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """``[frames, patches, 3 * patch * patch]`` of still frames, in the order of tokens.

        ``size`` is their height and width in pixels.
        """
        return self.look(patches, *self.angles(size, patches))

    def angles(
        self, size: tuple[int, int], like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of frames of ``size``, of the dtype and on the device of ``like``."""
        cos, sin = _angles(self.config, size, like.device)
        return cos.to(like.dtype), sin.to(like.dtype)

    def look(self, patches: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """:meth:`forward` with the angles given."""
        x = self.patch_embed(patches)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.merger(x)


class _PatchEmbed(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        size = (config.temporal_patch, config.patch, config.patch)
        self.proj = nn.Conv3d(config.channels, config.hidden, size, size, bias=False)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        # All frames of a temporal patch are the same frame.
        return functional.linear(patches, self.proj.weight.sum(2).flatten(1))


class _Attention(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q = nn.Linear(config.hidden, config.hidden)
        self.k = nn.Linear(config.hidden, config.hidden)
        self.v = nn.Linear(config.hidden, config.hidden)
        self.proj = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        return self.proj(out.transpose(1, 2).flatten(2))


class _Mlp(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate)
        self.up_proj = nn.Linear(config.hidden, config.intermediate)
        self.down_proj = nn.Linear(config.intermediate, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Block(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden, EPS)
        self.attn = _Attention(config)
        self.norm2 = nn.RMSNorm(config.hidden, EPS)
        self.mlp = _Mlp(config)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class _Merger(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        wide = config.hidden * config.merge**2
        self.ln_q = nn.RMSNorm(config.hidden, EPS)
        self.mlp = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, config.out))
        self.patches = config.merge**2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.ln_q(x).unflatten(1, (-1, self.patches)).flatten(2))


@cache
def _angles(
    config: VisionConfig, size: tuple[int, int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine ``[patches, 1, head_dim]``: half of the angles by row, half by column.

    Made once and kept: a copy to the device would end the capture of a graph.
    """
    merge, half = config.merge, config.hidden // config.heads // 2
    lines = (torch.arange(side // config.patch) for side in size)
    grid = torch.stack(torch.meshgrid(*lines, indexing="ij"))
    blocks = grid.unflatten(1, (-1, merge)).unflatten(3, (-1, merge))
    places = blocks.permute(0, 1, 3, 2, 4).flatten(1)
    rates = config.rope_theta ** -(torch.arange(0, half, 2) / half)
    angles = torch.cat([places[0, :, None] * rates, places[1, :, None] * rates], 1).repeat(1, 2)
    return angles.cos()[:, None].to(device), angles.sin()[:, None].to(device)
