"""The vision tower of Qwen2.5-Omni: window attention in all but a few blocks, then merging."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from omni_core.errors import PlanError
from omni_core.frontend.base import VisionInput
from omni_core.model_config import VisionConfig
from omni_mlx.backbone import GatedMLP
from omni_mlx.encoders.geometry import geometry
from omni_mlx.encoders.segments import Segments, attend_within, split
from omni_mlx.rotary import rotate

_EPS = 1e-6


class VisionAttention(nn.Module):
    """Attention inside segments, with axial rotary embedding."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self._heads = config.heads
        self.q = nn.Linear(config.hidden, config.hidden)
        self.k = nn.Linear(config.hidden, config.hidden)
        self.v = nn.Linear(config.hidden, config.hidden)
        self.proj = nn.Linear(config.hidden, config.hidden)

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array, segments: Segments) -> mx.array:
        """``[patches, hidden]`` to the same."""

        def heads(y: mx.array) -> mx.array:
            return y.reshape(x.shape[0], self._heads, -1)

        def rotated(y: mx.array) -> mx.array:
            return rotate(heads(y).swapaxes(0, 1), cos, sin).swapaxes(0, 1)

        out = attend_within(rotated(self.q(x)), rotated(self.k(x)), heads(self.v(x)), segments)
        return self.proj(out.reshape(x.shape))


class VisionBlock(nn.Module):
    """One block."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden, _EPS)
        self.attn = VisionAttention(config)
        self.norm2 = nn.RMSNorm(config.hidden, _EPS)
        self.mlp = GatedMLP(config.hidden, config.intermediate, bias=True)

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array, segments: Segments) -> mx.array:
        """``[patches, hidden]`` to the same."""
        x = x + self.attn(self.norm1(x), cos, sin, segments)
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    """The convolution over patches, which do not overlap: a matrix product."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.channels * config.temporal_patch * config.patch**2
        self.proj = nn.Linear(width, config.hidden, bias=False)

    def __call__(self, patches: mx.array) -> mx.array:
        """``[patches, channels * temporal_patch * patch * patch]`` to ``[patches, hidden]``."""
        return self.proj(patches)


class PatchMerger(nn.Module):
    """``merge ** 2`` patches become one token of the text backbone's width."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self._width = config.hidden * config.merge**2
        self.ln_q = nn.RMSNorm(config.hidden, _EPS)
        self.mlp = [
            nn.Linear(self._width, self._width),
            nn.GELU(),
            nn.Linear(self._width, config.out),
        ]

    def __call__(self, x: mx.array) -> mx.array:
        """``[patches, hidden]`` to ``[merged, out]``."""
        x = self.ln_q(x).reshape(-1, self._width)
        for layer in self.mlp:
            x = layer(x)
        return x


class VisionTower(nn.Module):
    """Patches to embeddings, one grid at a time.

    Attributes:
        relaid: parameters that checkpoints keep in another shape.
    """

    relaid = ("patch_embed.proj.weight",)

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self._config = config
        self.patch_embed = PatchEmbed(config)
        self.blocks = [VisionBlock(config) for _ in range(config.depth)]
        self.merger = PatchMerger(config)

    def __call__(self, vision: VisionInput) -> mx.array:
        """Embeddings ``[t * h * w / merge ** 2, out]``, in the order of the grid.

        Raises:
            PlanError: patches and grid do not fit each other or the tower.
        """
        config = self._config
        self._check(vision)
        plan = geometry(vision.grid, config)
        windows, slices = split(plan.windows), split(plan.slices)
        cos, sin, order = mx.array(plan.cos), mx.array(plan.sin), mx.array(plan.order)
        weight = self.patch_embed.proj.weight
        x = self.patch_embed(mx.array(vision.patches).astype(weight.dtype))
        x = x.reshape(order.size, -1, config.hidden)[order].reshape(-1, config.hidden)
        for index, block in enumerate(self.blocks):
            x = block(x, cos, sin, slices if index in config.full_blocks else windows)
        return self.merger(x)[mx.argsort(order)]

    def _check(self, vision: VisionInput) -> None:
        config, (t, h, w) = self._config, vision.grid
        width = config.channels * config.temporal_patch * config.patch**2
        if h % config.merge or w % config.merge or vision.patches.shape != (t * h * w, width):
            raise PlanError(
                f"vision patches {list(vision.patches.shape)} on grid {list(vision.grid)}: "
                f"expected [{t * h * w}, {width}] and sides that are multiples of {config.merge}"
            )
