"""The Qwen2.5-Omni thinker's shapes from config.json; a missing field is an error, no default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omni_core.errors import CheckpointError

_MODEL_TYPES = ("qwen2_5_omni", "qwen2_5_omni_thinker")


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
    """All three parts, and the raw thinker config for what else is asked of it.

    Attributes:
        raw: the thinker's own JSON object.
        prefix: what stands before each tensor's name in the files: ``thinker.`` or nothing.
    """

    text: TextConfig
    vision: VisionConfig
    audio: AudioConfig
    raw: dict[str, Any]
    prefix: str


def thinker_config(config: dict[str, Any]) -> ThinkerConfig:
    """Read a released ``config.json`` (thinker, talker and token2wav) or a thinker's own.

    Raises:
        CheckpointError: another model family, a field that is missing, or a shape that cannot be.
    """
    kind = config.get("model_type")
    if kind not in _MODEL_TYPES:
        raise CheckpointError(
            f"config.json: model_type is {kind!r}; supported are {', '.join(_MODEL_TYPES)}"
        )
    whole = kind == "qwen2_5_omni"
    raw = _field(config, "thinker_config", "config.json") if whole else config
    return ThinkerConfig(
        _text(_field(raw, "text_config", "config.json"), raw),
        _vision(_field(raw, "vision_config", "config.json")),
        _audio(_field(raw, "audio_config", "config.json")),
        raw,
        "thinker." if whole else "",
    )


def _field(section: dict[str, Any], name: str, where: str) -> Any:
    if section.get(name) is None:
        raise CheckpointError(
            f"{where}: `{name}` is missing; it has no safe default: use the config.json that was "
            "released with the weights"
        )
    return section[name]


def _text(text: dict[str, Any], thinker: dict[str, Any]) -> TextConfig:
    where = "config.json: text_config"
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    theta = _field({**text, **rope}, "rope_theta", where)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise CheckpointError(f"{where}: rope_type {kind!r} is not supported, expected 'default'")
    if text.get("use_sliding_window"):
        raise CheckpointError(f"{where}: use_sliding_window is true, which is not supported")
    heads, hidden = (
        int(_field(text, "num_attention_heads", where)),
        int(_field(text, "hidden_size", where)),
    )
    head_dim = int(text.get("head_dim") or hidden // heads)
    sections = tuple(int(n) for n in _field(rope, "mrope_section", where))
    if len(sections) != 3 or sum(sections) * 2 != head_dim:
        raise CheckpointError(
            f"{where}: mrope_section {list(sections)} must be three numbers that add up to half of "
            f"head_dim {head_dim}"
        )
    kv_heads = int(_field(text, "num_key_value_heads", where))
    if heads % kv_heads:
        raise CheckpointError(
            f"{where}: {heads} query heads do not divide over {kv_heads} key heads"
        )
    return TextConfig(
        vocab=int(_field(text, "vocab_size", where)),
        hidden=hidden,
        intermediate=int(_field(text, "intermediate_size", where)),
        layers=int(_field(text, "num_hidden_layers", where)),
        q_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_eps=float(_field(text, "rms_norm_eps", where)),
        rope_theta=float(theta),
        mrope_section=sections,
        max_positions=int(_field(text, "max_position_embeddings", where)),
        tied=bool(text.get("tie_word_embeddings") or thinker.get("tie_word_embeddings")),
    )


def _vision(vision: dict[str, Any]) -> VisionConfig:
    where = "config.json: vision_config"
    rope = vision.get("rope_parameters") or {}
    return VisionConfig(
        depth=int(_field(vision, "depth", where)),
        hidden=int(_field(vision, "hidden_size", where)),
        intermediate=int(_field(vision, "intermediate_size", where)),
        heads=int(_field(vision, "num_heads", where)),
        channels=int(vision.get("in_channels", vision.get("in_chans", 3))),
        patch=int(_field(vision, "patch_size", where)),
        temporal_patch=int(_field(vision, "temporal_patch_size", where)),
        merge=int(_field(vision, "spatial_merge_size", where)),
        window=int(_field(vision, "window_size", where)),
        full_blocks=tuple(int(n) for n in _field(vision, "fullatt_block_indexes", where)),
        out=int(_field(vision, "out_hidden_size", where)),
        # The released config does not state it; the tower has always used this one.
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
    )


def _audio(audio: dict[str, Any]) -> AudioConfig:
    where = "config.json: audio_config"
    return AudioConfig(
        layers=int(_field(audio, "encoder_layers", where)),
        hidden=int(_field(audio, "d_model", where)),
        heads=int(_field(audio, "encoder_attention_heads", where)),
        intermediate=int(_field(audio, "encoder_ffn_dim", where)),
        mel_bins=int(_field(audio, "num_mel_bins", where)),
        max_positions=int(_field(audio, "max_source_positions", where)),
        half_window=int(_field(audio, "n_window", where)),
        out=int(_field(audio, "output_dim", where)),
    )
