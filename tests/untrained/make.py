"""Write a Qwen2.5-Omni thinker with random weights: small and quick, for tests of the plumbing.

Usage: ``python tests/untrained/make.py FOLDER``

The same bytes come out on every machine: weights are uniform numbers made from a bit generator's
raw output, whose stream NumPy guarantees, and all text is written here, not by a library.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from checkpoint_files import (
    AUDIO_HIDDEN,
    AUDIO_LAYERS,
    AUDIO_MLP,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MELS,
    MERGE,
    MLP,
    PATCH,
    TEMPORAL,
    VISION_DEPTH,
    VISION_HIDDEN,
    VISION_MLP,
    config,
    preprocessor,
    tokenizer,
    tokenizer_config,
    vocabulary,
)

SEED = 20_251

CARD = """\
---
license: apache-2.0
tags: [untrained]
---

# An untrained Qwen2.5-Omni thinker

untrained: random weights, for plumbing only. Its answers are words drawn by chance. It has the
tensor names, config fields and files of a released Qwen2.5-Omni thinker, in small, so that every
part of omnilive can run without a download. `tests/untrained/make.py` writes this folder.

- text: 4 layers, hidden 128, 4 query and 2 key/value heads, head_dim 32, mrope sections 4, 6, 6
- vision: 2 blocks, hidden 64, frames of 56x56 to 112x112 pixels, 14x14 patches merged 2x2
- audio: 2 layers, hidden 64, 128 mel bins, 25 tokens a second
- units of one second, weights in float16
"""


def linear(name: str, out: int, fan_in: int, bias: bool, gain: float = 1.0) -> Iterator[Any]:
    """A linear layer's ``(name, shape, mean, deviation)``; outputs keep the input's scale."""
    yield f"{name}.weight", (out, fan_in), 0.0, gain / math.sqrt(fan_in)
    if bias:
        yield f"{name}.bias", (out,), 0.0, 0.02


def norm(name: str, size: int, bias: bool = False) -> Iterator[Any]:
    """A norm's tensors."""
    yield f"{name}.weight", (size,), 1.0, 0.02
    if bias:
        yield f"{name}.bias", (size,), 0.0, 0.02


def text_tensors(vocab: int) -> Iterator[Any]:
    """The text backbone. Sharp queries let an answer depend on the stream, not on the last word."""
    yield "model.embed_tokens.weight", (vocab, HIDDEN), 0.0, 1.0
    kv = HIDDEN // HEADS * KV_HEADS
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        yield from norm(f"{layer}.input_layernorm", HIDDEN)
        yield from linear(f"{layer}.self_attn.q_proj", HIDDEN, HIDDEN, True, 2.0)
        yield from linear(f"{layer}.self_attn.k_proj", kv, HIDDEN, True, 2.0)
        yield from linear(f"{layer}.self_attn.v_proj", kv, HIDDEN, True, 1.5)
        yield from linear(f"{layer}.self_attn.o_proj", HIDDEN, HIDDEN, False, 1.5)
        yield from norm(f"{layer}.post_attention_layernorm", HIDDEN)
        yield from linear(f"{layer}.mlp.gate_proj", MLP, HIDDEN, False)
        yield from linear(f"{layer}.mlp.up_proj", MLP, HIDDEN, False)
        yield from linear(f"{layer}.mlp.down_proj", HIDDEN, MLP, False)
    yield from norm("model.norm", HIDDEN)
    yield from linear("lm_head", vocab, HIDDEN, False, 2.0)


def vision_tensors() -> Iterator[Any]:
    """The vision tower."""
    patch = 3 * TEMPORAL * PATCH * PATCH
    # The pixels of a patch are alike, so a sum of them grows faster than the root of their number.
    yield (
        "visual.patch_embed.proj.weight",
        (VISION_HIDDEN, 3, TEMPORAL, PATCH, PATCH),
        0.0,
        0.5 / math.sqrt(patch),
    )
    for index in range(VISION_DEPTH):
        block = f"visual.blocks.{index}"
        yield from norm(f"{block}.norm1", VISION_HIDDEN)
        for part in ("q", "k", "v", "proj"):
            yield from linear(f"{block}.attn.{part}", VISION_HIDDEN, VISION_HIDDEN, True)
        yield from norm(f"{block}.norm2", VISION_HIDDEN)
        yield from linear(f"{block}.mlp.gate_proj", VISION_MLP, VISION_HIDDEN, True)
        yield from linear(f"{block}.mlp.up_proj", VISION_MLP, VISION_HIDDEN, True)
        yield from linear(f"{block}.mlp.down_proj", VISION_HIDDEN, VISION_MLP, True)
    merged = VISION_HIDDEN * MERGE * MERGE
    yield from norm("visual.merger.ln_q", VISION_HIDDEN)
    yield from linear("visual.merger.mlp.0", merged, merged, True)
    yield from linear("visual.merger.mlp.2", HIDDEN, merged, True, 1.5)


def audio_tensors() -> Iterator[Any]:
    """The audio tower."""
    for name, channels in (("conv1", MELS), ("conv2", AUDIO_HIDDEN)):
        yield (
            f"audio_tower.{name}.weight",
            (AUDIO_HIDDEN, channels, 3),
            0.0,
            1.5 / math.sqrt(3 * channels),
        )
        yield f"audio_tower.{name}.bias", (AUDIO_HIDDEN,), 0.0, 0.02
    for index in range(AUDIO_LAYERS):
        layer = f"audio_tower.layers.{index}"
        yield from norm(f"{layer}.self_attn_layer_norm", AUDIO_HIDDEN, True)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            bias = part != "k_proj"
            yield from linear(f"{layer}.self_attn.{part}", AUDIO_HIDDEN, AUDIO_HIDDEN, bias)
        yield from norm(f"{layer}.final_layer_norm", AUDIO_HIDDEN, True)
        yield from linear(f"{layer}.fc1", AUDIO_MLP, AUDIO_HIDDEN, True)
        yield from linear(f"{layer}.fc2", AUDIO_HIDDEN, AUDIO_MLP, True)
    yield from norm("audio_tower.ln_post", AUDIO_HIDDEN, True)
    yield from linear("audio_tower.proj", HIDDEN, AUDIO_HIDDEN, True)
    yield "audio_tower.audio_bos_eos_token.weight", (2, HIDDEN), 0.0, 1.0


def uniform(
    bits: np.random.PCG64, shape: tuple[int, ...], mean: float, deviation: float
) -> npt.NDArray[np.float16]:
    """Uniform numbers of a given mean and standard deviation."""
    raw = np.asarray(bits.random_raw(int(np.prod(shape)))) >> np.uint64(11)
    unit = raw.astype(np.float64) * 2.0**-52 - 1.0
    return (mean + deviation * math.sqrt(3) * unit).astype(np.float16).reshape(shape)


def safetensors(tensors: dict[str, npt.NDArray[np.float16]]) -> bytes:
    """A safetensors file: header length, JSON header padded to 8 bytes, then the numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": "F16", "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    numbers = (array.astype("<f2").tobytes() for array in tensors.values())
    return struct.pack("<Q", len(text)) + text + b"".join(numbers)


def write(folder: Path) -> None:
    """Write the whole checkpoint folder."""
    tokens = vocabulary()
    eos = [tokens.index("<|im_end|>"), tokens.index("<|endoftext|>")]
    documents = {
        "config.json": config(tokens),
        "generation_config.json": {"eos_token_id": eos, "pad_token_id": eos[1]},
        "preprocessor_config.json": preprocessor(),
        "tokenizer.json": tokenizer(tokens),
        "tokenizer_config.json": tokenizer_config(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_bytes(text.encode())
    (folder / "README.md").write_bytes(CARD.encode())
    bits = np.random.PCG64(SEED)
    specs = [*text_tensors(len(tokens)), *vision_tensors(), *audio_tensors()]
    tensors = {name: uniform(bits, *spec) for name, *spec in sorted(specs)}
    # Small rows for single bytes: an answer drawn by chance then reads as words, not as noise.
    tensors["lm_head.weight"][:256] *= np.float16(0.25)
    (folder / "model.safetensors").write_bytes(safetensors(tensors))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write an untrained checkpoint.")
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
