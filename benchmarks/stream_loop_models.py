"""Models with random weights, made on the device: three text backbones, and encoders to time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from benchmarks.traces import text_config
from omni_core.model_config import AudioConfig, TextConfig, ThinkerConfig, VisionConfig
from omni_cuda.backbone import PACKED, Backbone
from omni_cuda.backend import TorchBackend
from omni_cuda.encoders import audio as audio_tower
from omni_cuda.encoders import building
from omni_cuda.encoders import vision as vision_tower

SPREAD = 0.02
"""Standard deviation of the weights: activations stay in range through all layers."""


@dataclass(frozen=True)
class ModelShape:
    """A text backbone's shape under the name of the model that has it.

    Attributes:
        encoders: whether its encoders are those of Qwen2.5-Omni, which the backend has.
    """

    name: str
    text: TextConfig
    encoders: bool


def _text(
    vocab: int, hidden: int, intermediate: int, layers: int, heads: int, kv: int
) -> TextConfig:
    shape = text_config(layers, heads, kv, hidden)
    return replace(shape, vocab=vocab, intermediate=intermediate)


QWEN_3B = ModelShape("Qwen2.5-Omni-3B", _text(151936, 2048, 11008, 36, 16, 2), True)
QWEN_7B = ModelShape("Qwen2.5-Omni-7B", _text(152064, 3584, 18944, 28, 28, 4), True)
MINICPM_45 = ModelShape("MiniCPM-o-4.5", _text(151936, 4096, 12288, 36, 32, 8), False)
"""Its Qwen3-8B is run as a Qwen2 of the same shape: with biases, without norms of query and key."""
SHAPES = (QWEN_7B, QWEN_3B, MINICPM_45)
GATE = _text(1000, 2048, 1024, 2, 16, 2)
"""Small enough for float32; its heads are those of the 3B, whose kernels need not be made twice."""


def random_backbone(text: TextConfig, device: torch.device, dtype: torch.dtype) -> Backbone:
    """A backbone with weights from a normal distribution; norms are ones."""
    with torch.device("meta"):
        backbone = Backbone(text).to(dtype)
    backbone.to_empty(device=device)
    _fill(backbone, device)
    return backbone.eval().requires_grad_(False)


def backend_of(
    text: TextConfig,
    backbone: Backbone,
    device: torch.device,
    dtype: torch.dtype,
    towers: tuple[nn.Module, nn.Module] | None = None,
) -> TorchBackend:
    """The backend that runs a backbone; without ``towers`` it encodes nothing."""
    # Of the configuration the backend reads the text's part alone.
    config = ThinkerConfig(text, None, None, None, "", False)  # type: ignore[arg-type]
    vision, audio = towers or (nn.Module(), nn.Module())
    return TorchBackend(config, backbone, vision, audio, device, dtype, 1)


def random_towers(
    hidden: int, device: torch.device, dtype: torch.dtype
) -> tuple[nn.Module, nn.Module]:
    """Vision and audio encoder at the shapes of Qwen2.5-Omni, for embeddings of ``hidden``."""
    towers = vision_tower.build(vision_config(hidden)), audio_tower.build(audio_config(hidden))
    for tower in towers:
        tables = {name: table.clone() for name, table in tower.named_buffers()}
        tower.to(dtype).to_empty(device=device)
        for name, table in tables.items():
            owner, _, attribute = name.rpartition(".")
            setattr(tower.get_submodule(owner), attribute, table)
        building.place_tables(tower, device)
        _fill(tower, device)
    return towers


def vision_config(hidden: int) -> VisionConfig:
    """Qwen2.5-Omni's vision encoder."""
    return VisionConfig(
        depth=32,
        hidden=1280,
        intermediate=3420,
        heads=16,
        channels=3,
        patch=14,
        temporal_patch=2,
        merge=2,
        window=112,
        full_blocks=(7, 15, 23, 31),
        out=hidden,
        rope_theta=1e4,
    )


def audio_config(hidden: int) -> AudioConfig:
    """Qwen2.5-Omni's audio encoder."""
    return AudioConfig(
        layers=32,
        hidden=1280,
        heads=20,
        intermediate=5120,
        mel_bins=128,
        max_positions=1500,
        half_window=100,
        out=hidden,
    )


def checkpoint_weights(backbone: Backbone, text: TextConfig) -> dict[str, torch.Tensor]:
    """A backbone's weights by the names of a checkpoint, as views: nothing is copied."""
    query, key = text.q_heads * text.head_dim, text.kv_heads * text.head_dim
    rows = {
        "self_attn.qkv_proj": [query, key, key],
        "mlp.gate_up_proj": [text.intermediate, text.intermediate],
    }
    found: dict[str, torch.Tensor] = {}
    for name, weight in backbone.state_dict().items():
        part, _, kind = name.rpartition(".")
        for packed, parts in PACKED.items():
            if part.endswith(packed):
                before = part.removesuffix(packed)
                names = [f"{before}{each}.{kind}" for each in parts]
                found |= dict(zip(names, weight.split(rows[packed]), strict=True))
                break
        else:
            found[name] = weight
    return found


def step_bytes(backbone: Backbone) -> int:
    """Bytes of weights that a decode step reads: all but the table of token embeddings."""
    table = backbone.model.embed_tokens.weight.data_ptr()
    sizes = {p.data_ptr(): p.nbytes for p in backbone.parameters()}
    tied = backbone.lm_head.weight.data_ptr() == table
    return sum(sizes.values()) - (0 if tied else sizes[table])


@torch.no_grad()
def _fill(module: nn.Module, device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(0)
    for name, weight in module.named_parameters():
        if "norm" in name and name.endswith("weight"):
            weight.fill_(1)
        else:
            weight.normal_(0, SPREAD, generator=generator)
