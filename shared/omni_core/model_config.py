"""The Qwen2.5-Omni thinker's shapes from config.json; a missing field is an error, no default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omni_core.errors import CheckpointError
from omni_core.fields import Fields, shown

_MODEL_TYPES = ("qwen2_5_omni", "qwen2_5_omni_thinker")
_CHANNELS = 3
_VISION_THETA = 10_000.0
_MOST_FRAMES = 2**16
"""Positions of the audio tower for which a table is still worth making; Whisper has 1500."""


@dataclass(frozen=True)
class TextConfig:
    """The text backbone: Qwen2 with multimodal RoPE."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    mrope_section: tuple[int, ...]
    max_positions: int
    tied: bool


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower: window attention in all but a few blocks."""

    depth: int
    hidden: int
    intermediate: int
    heads: int
    channels: int
    patch: int
    temporal_patch: int
    merge: int
    window: int
    full_blocks: tuple[int, ...]
    out: int
    rope_theta: float


@dataclass(frozen=True)
class AudioConfig:
    """The audio tower: Whisper's encoder over windows of ``2 * half_window`` mel frames."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    mel_bins: int
    max_positions: int
    half_window: int
    out: int


@dataclass(frozen=True)
class ThinkerConfig:
    """All three parts, and the JSON object around them for what else is asked of it.

    Attributes:
        fields: the thinker's own JSON object.
        prefix: what stands before each tensor's name in the files: ``thinker.`` or nothing.
        trained: false where the checkpoint says that its weights are random.
    """

    text: TextConfig
    vision: VisionConfig
    audio: AudioConfig
    fields: Fields
    prefix: str
    trained: bool


def thinker_config(config: dict[str, Any]) -> ThinkerConfig:
    """Read a released ``config.json`` (thinker, talker and token2wav) or a thinker's own.

    Raises:
        CheckpointError: another model family, or a field that is missing, cannot be, or asks for
            what the backends do not compute.
    """
    whole = Fields("config.json", config)
    kind = config.get("model_type")
    if kind not in _MODEL_TYPES:
        raise CheckpointError(
            f"config.json: model_type is {shown(kind)}; supported are {', '.join(_MODEL_TYPES)}"
        )
    released = kind == _MODEL_TYPES[0]
    fields = whole.section("thinker_config") if released else whole
    text = _text(fields.section("text_config"), fields.flag("tie_word_embeddings", False))
    vision = _vision(fields.section("vision_config"))
    audio = _audio(fields.section("audio_config"))
    for name, width in (
        ("vision_config: out_hidden_size", vision.out),
        ("audio_config: output_dim", audio.out),
    ):
        if width != text.hidden:
            raise CheckpointError(
                f"{fields.where}: {name} is {width}, expected the text's hidden_size {text.hidden}"
            )
    trained = whole.section("omnilive", optional=True).flag("trained", True)
    return ThinkerConfig(text, vision, audio, fields, "thinker." if released else "", trained)


def _text(text: Fields, tied: bool) -> TextConfig:
    text.only("hidden_act", "silu")
    text.only("use_sliding_window", False)
    layers = text.whole("num_hidden_layers")
    kinds = text.values.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise text.wrong("layer_types", kinds, "'full_attention' for every layer")
    rope = _rope(text, ("default", "mrope"))
    heads, hidden = text.whole("num_attention_heads"), text.whole("hidden_size")
    head_dim = text.whole("head_dim", hidden // heads or 1)
    if not text.has("head_dim"):
        _divides(text, "hidden_size", hidden, "num_attention_heads", heads)
    sections = rope.wholes("mrope_section")
    if len(sections) != 3 or sum(sections) * 2 != head_dim:
        half = f"three numbers that add up to half of head_dim {head_dim}"
        raise rope.wrong("mrope_section", list(sections), half)
    kv_heads = text.whole("num_key_value_heads")
    if heads % kv_heads:
        raise CheckpointError(
            f"{text.where}: {heads} query heads do not divide over {kv_heads} key heads"
        )
    return TextConfig(
        vocab=text.whole("vocab_size"),
        hidden=hidden,
        intermediate=text.whole("intermediate_size"),
        layers=layers,
        q_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_eps=text.number("rms_norm_eps", most=1.0),
        rope_theta=rope.number("rope_theta", least=1.0),
        mrope_section=sections,
        max_positions=text.whole("max_position_embeddings"),
        tied=text.flag("tie_word_embeddings", False) or tied,
    )


def _vision(vision: Fields) -> VisionConfig:
    vision.only("hidden_act", "silu")
    # Frames have three, and no checkpoint of the family has others.
    for spelling in ("in_channels", "in_chans"):
        vision.only(spelling, _CHANNELS)
    depth, hidden, heads = (vision.whole(n) for n in ("depth", "hidden_size", "num_heads"))
    _divides(vision, "hidden_size", hidden, "num_heads", heads)
    if hidden // heads % 4:
        raise CheckpointError(
            f"{vision.where}: {heads} heads of {hidden // heads} numbers, expected a multiple of "
            "4: half turns with a patch's row, half with its column"
        )
    # The released config does not state it; the tower has always used this one.
    _rope(vision, ("default", "axial")).only("rope_theta", _VISION_THETA)
    patch, merge = vision.whole("patch_size"), vision.whole("spatial_merge_size")
    return VisionConfig(
        depth=depth,
        hidden=hidden,
        intermediate=vision.whole("intermediate_size"),
        heads=heads,
        channels=_CHANNELS,
        patch=patch,
        temporal_patch=vision.whole("temporal_patch_size"),
        merge=merge,
        window=vision.whole("window_size", least=patch * merge),
        full_blocks=vision.wholes("fullatt_block_indexes", least=0, most=depth - 1),
        out=vision.whole("out_hidden_size"),
        rope_theta=_VISION_THETA,
    )


def _audio(audio: Fields) -> AudioConfig:
    audio.only("activation_function", "gelu")
    audio.only("scale_embedding", False)
    hidden, heads = audio.whole("d_model", least=4), audio.whole("encoder_attention_heads")
    _divides(audio, "d_model", hidden, "encoder_attention_heads", heads)
    if hidden % 2:
        raise CheckpointError(f"{audio.where}: `d_model` is {hidden}, expected an even number")
    half_window = audio.whole("n_window", most=_MOST_FRAMES)
    return AudioConfig(
        layers=audio.whole("encoder_layers"),
        hidden=hidden,
        heads=heads,
        intermediate=audio.whole("encoder_ffn_dim"),
        mel_bins=audio.whole("num_mel_bins"),
        max_positions=audio.whole("max_source_positions", least=half_window, most=_MOST_FRAMES),
        half_window=half_window,
        out=audio.whole("output_dim"),
    )


def _rope(section: Fields, kinds: tuple[str, ...]) -> Fields:
    """The rotary embedding's fields, under either name, with a theta that stands beside them."""
    rope = section.section("rope_parameters", optional=True)
    if not rope.values:
        rope = section.section("rope_scaling", optional=True)
    for spelling in ("rope_type", "type"):
        if rope.has(spelling) and rope.values[spelling] not in kinds:
            raise CheckpointError(
                f"{rope.where}: {spelling} {shown(rope.values[spelling])} is not supported, "
                f"expected {kinds[0]!r}"
            )
    if section.has("rope_theta") and rope.has("rope_theta"):
        rope.only("rope_theta", section.values["rope_theta"])
    if not rope.has("rope_theta"):
        rope = Fields(rope.where, {**rope.values, "rope_theta": section.values.get("rope_theta")})
    return rope


def _divides(section: Fields, whole: str, number: int, parts: str, count: int) -> None:
    if number % count:
        raise CheckpointError(
            f"{section.where}: {whole} {number} does not divide over {parts} {count}"
        )
