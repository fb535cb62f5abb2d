"""Small random thinkers of odd shapes, saved as transformers does it and as they are released."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
_files = pytest.importorskip("safetensors.torch")
load_file, save_file = _files.load_file, _files.save_file

VOCAB = 211
MEL_BINS = 32
HALF_WINDOW = 50
ROPE_THETA = 1e6


@dataclass(frozen=True)
class Shape:
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    sections: tuple[int, int, int]
    tied: bool = False
    layers: int = 4


SHAPES = {
    "4-2-16": Shape(64, 4, 2, 16, (2, 3, 3)),
    "6-2-32": Shape(96, 6, 2, 32, (4, 6, 6)),
    "3-3-16": Shape(40, 3, 3, 16, (2, 3, 3), tied=True),
    "8-2-16": Shape(48, 8, 2, 16, (2, 3, 3)),
}


def make(shape: Shape, seed: int = 0) -> Any:
    """A thinker with no weight left at a special value: biases and norms are drawn too."""
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config={
            "num_mel_bins": MEL_BINS, "encoder_layers": 2, "encoder_attention_heads": 2,
            "encoder_ffn_dim": 56, "d_model": 32, "n_window": HALF_WINDOW,
            "output_dim": shape.hidden, "max_source_positions": 100,
        },
        vision_config={
            "depth": 3, "hidden_size": 48, "intermediate_size": 72, "num_heads": 3,
            "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 56,
            "fullatt_block_indexes": [1], "out_hidden_size": shape.hidden,
        },
        text_config={
            "vocab_size": VOCAB, "hidden_size": shape.hidden, "intermediate_size": 120,
            "num_hidden_layers": shape.layers, "num_attention_heads": shape.q_heads,
            "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
            "tie_word_embeddings": shape.tied,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": ROPE_THETA,
                "mrope_section": list(shape.sections),
            },
        },
        tie_word_embeddings=shape.tied,
    )  # fmt: skip
    config._attn_implementation = "eager"
    thinker = transformers.Qwen2_5OmniThinkerForConditionalGeneration
    model = thinker(config).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=draw)
        if weight.dim() > 1:
            scale = weight[0].numel() ** -0.5
            weight.copy_(noise * (1.0 if "embed_tokens" in name else scale))
        else:
            weight.copy_(noise * 0.2 + ("norm" in name or "ln_" in name) * name.endswith("weight"))
    return model


def save(model: Any, folder: Path) -> Path:
    """As transformers saves a thinker: one file, no prefix."""
    model.save_pretrained(folder)
    return folder


def save_released(thinker: Path, folder: Path) -> Path:
    """As released: prefixed, in shards with an index, beside speech output that must not be read.

    One talker tensor shares a shard with the thinker; the shard of the others does not exist.
    """
    folder.mkdir()
    tensors = {f"thinker.{name}": t for name, t in load_file(thinker / "model.safetensors").items()}
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(3):
        file = f"model-0000{shard + 1}-of-00004.safetensors"
        part = {name: tensors[name] for name in names[shard::3]}
        if shard == 1:
            part["talker.model.norm.weight"] = torch.full((7,), torch.nan)
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    weight_map["talker.codec_head.weight"] = "model-00004-of-00004.safetensors"
    weight_map["token2wav.code2wav.bias"] = "model-00004-of-00004.safetensors"
    write(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    config = json.loads((thinker / "config.json").read_text())
    whole = {"model_type": "qwen2_5_omni", "thinker_config": config, "talker_config": {}}
    write(folder / "config.json", whole)
    return folder


def write(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data))
