"""What a thinker's weight files must hold: every tensor that a backend reads, by name and shape.

Names are those of transformers' ``Qwen2_5OmniThinkerForConditionalGeneration``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from omni_core.checkpoints import Checkpoint
from omni_core.errors import CheckpointError
from omni_core.fields import plain
from omni_core.model_config import AudioConfig, TextConfig, ThinkerConfig, VisionConfig
from omni_core.token_ids import check_vocabulary

VISION_PREFIX = "visual."
AUDIO_PREFIX = "audio_tower."
HEAD = "lm_head.weight"
KINDS = ("F32", "F16", "BF16")
"""How weights may be stored, by the names of safetensors."""
FORMATS = ("auto", "f32", "bf16", "8", "4")
"""How weights may be kept in memory: ``auto``, as numbers, or in so many bits."""

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def has_own_head(checkpoint: Checkpoint, config: ThinkerConfig) -> bool:
    """Whether the head is a tensor of its own; where it is stored it is used, tied or not."""
    return config.prefix + HEAD in checkpoint.tensors or not config.text.tied


def check_weights(checkpoint: Checkpoint, config: ThinkerConfig) -> None:
    """Check config, weights and tokenizer against each other; no module is built before.

    Raises:
        CheckpointError: another number of layers than the config's; a tensor that is missing, of
            another shape or not stored as floats; a tokenizer with ids above the vocabulary.
    """
    check_vocabulary(checkpoint.path, config.text.vocab)
    for layers, field, number in (
        ("model.layers.", "text_config: num_hidden_layers", config.text.layers),
        (f"{VISION_PREFIX}blocks.", "vision_config: depth", config.vision.depth),
        (f"{AUDIO_PREFIX}layers.", "audio_config: encoder_layers", config.audio.layers),
    ):
        _check_depth(checkpoint, config.prefix + layers, field, number)
    for name, shape in tensors(config, has_own_head(checkpoint, config)):
        info = checkpoint.require(name, shape)
        if info.dtype not in KINDS:
            raise CheckpointError(
                f"{info.file}: tensor {name} is stored as {info.dtype}, expected one of "
                f"{', '.join(KINDS)}; quantised checkpoints are not supported: use the released "
                "one with --weights 8 or 4"
            )


def tensors(config: ThinkerConfig, own_head: bool) -> Shapes:
    """Stored names and shapes of the whole thinker, of its head only where ``own_head``."""
    parts = [
        ("", _text(config.text)),
        (VISION_PREFIX, _vision(config.vision)),
        (AUDIO_PREFIX, _audio(config.audio)),
    ]
    if own_head:
        parts.append(("", iter([(HEAD, (config.text.vocab, config.text.hidden))])))
    for prefix, part in parts:
        for name, shape in part:
            yield config.prefix + prefix + name, shape


def _check_depth(checkpoint: Checkpoint, layers: str, field: str, number: int) -> None:
    numbered = re.compile(re.escape(layers) + r"(\d{1,9})\.")
    found = [int(match[1]) for name in checkpoint.tensors if (match := numbered.match(name))]
    stored = max(found, default=-1) + 1
    if stored != number:
        raise CheckpointError(
            f"{checkpoint.path}: config.json says {number} layers ({field}), but the weights hold "
            f"{stored} ({plain(layers)}*): config and weights are of different models"
        )


def _text(text: TextConfig) -> Shapes:
    hidden, wide, narrow = text.hidden, text.q_heads * text.head_dim, text.kv_heads * text.head_dim
    yield "model.embed_tokens.weight", (text.vocab, hidden)
    for index in range(text.layers):
        layer = f"model.layers.{index}."
        yield f"{layer}input_layernorm.weight", (hidden,)
        for name, width in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)):
            yield from _linear(f"{layer}self_attn.{name}", hidden, width)
        yield f"{layer}self_attn.o_proj.weight", (hidden, wide)
        yield f"{layer}post_attention_layernorm.weight", (hidden,)
        yield from _gated(f"{layer}mlp.", hidden, text.intermediate, bias=False)
    yield "model.norm.weight", (hidden,)


def _vision(vision: VisionConfig) -> Shapes:
    hidden, patch = vision.hidden, vision.patch
    kernel = (hidden, vision.channels, vision.temporal_patch, patch, patch)
    yield "patch_embed.proj.weight", kernel
    for index in range(vision.depth):
        block = f"blocks.{index}."
        yield f"{block}norm1.weight", (hidden,)
        for name in ("q", "k", "v", "proj"):
            yield from _linear(f"{block}attn.{name}", hidden, hidden)
        yield f"{block}norm2.weight", (hidden,)
        yield from _gated(f"{block}mlp.", hidden, vision.intermediate, bias=True)
    yield "merger.ln_q.weight", (hidden,)
    merged = hidden * vision.merge**2
    yield from _linear("merger.mlp.0", merged, merged)
    yield from _linear("merger.mlp.2", merged, vision.out)


def _audio(audio: AudioConfig) -> Shapes:
    hidden = audio.hidden
    for name, channels in (("conv1", audio.mel_bins), ("conv2", hidden)):
        yield f"{name}.weight", (hidden, channels, 3)
        yield f"{name}.bias", (hidden,)
    for index in range(audio.layers):
        layer = f"layers.{index}."
        yield from _norm(f"{layer}self_attn_layer_norm", hidden)
        for name in ("q_proj", "v_proj", "out_proj"):
            yield from _linear(f"{layer}self_attn.{name}", hidden, hidden)
        yield f"{layer}self_attn.k_proj.weight", (hidden, hidden)
        yield from _norm(f"{layer}final_layer_norm", hidden)
        yield from _linear(f"{layer}fc1", hidden, audio.intermediate)
        yield from _linear(f"{layer}fc2", audio.intermediate, hidden)
    yield from _norm("ln_post", hidden)
    yield from _linear("proj", hidden, audio.out)
    yield "audio_bos_eos_token.weight", (2, audio.out)


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _norm(name: str, width: int) -> Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _gated(prefix: str, width: int, inner: int, bias: bool) -> Shapes:
    for name, inputs, outputs in (
        ("gate_proj", width, inner),
        ("up_proj", width, inner),
        ("down_proj", inner, width),
    ):
        yield f"{prefix}{name}.weight", (outputs, inputs)
        if bias:
            yield f"{prefix}{name}.bias", (outputs,)
