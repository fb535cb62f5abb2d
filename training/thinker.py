"""The whole model: both towers and the backbone, and its weights under the checkpoint's names."""

from __future__ import annotations

import math

import torch
from torch import nn

from omni_core.model_config import ThinkerConfig
from training.audio import AudioTower
from training.text import TextModel
from training.vision import VisionTower

HEAD = "lm_head.weight"
_RESIDUAL = tuple(
    f"{part}.weight" for part in ("o_proj", "out_proj", "attn.proj", "down_proj", "fc2")
)


class Thinker(nn.Module):
    """Qwen2.5-Omni's thinker with a tied head."""

    def __init__(self, config: ThinkerConfig) -> None:
        super().__init__()
        self.config = config
        self.visual = VisionTower(config.vision)
        self.audio_tower = AudioTower(config.audio)
        self.model = TextModel(config.text)

    def released(self) -> dict[str, torch.Tensor]:
        """Tensors by their released names; the head is a copy of the embedding table."""
        tensors = {name: value.detach() for name, value in self.state_dict().items()}
        return tensors | {HEAD: tensors["model.embed_tokens.weight"].clone()}


def fill(thinker: Thinker, seed: int) -> None:
    """Draw the first weights: layers keep their input's scale, what they add is small."""
    draw = torch.Generator().manual_seed(seed)
    layers = len(thinker.model.layers)
    with torch.no_grad():
        for name, weight in thinker.named_parameters():
            if weight.dim() < 2:
                weight.fill_(float("norm" in name or "ln_" in name) * name.endswith("weight"))
                continue
            scale = 1 / math.sqrt(weight[0].numel())
            if "embed_tokens" in name:
                scale = 1 / math.sqrt(weight.shape[1])
            elif name.endswith(_RESIDUAL):
                scale /= math.sqrt(2 * layers)
            weight.copy_(torch.randn(weight.shape, generator=draw) * scale)
