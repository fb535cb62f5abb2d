"""The embedded model's shape, as the ``config.json`` that transformers writes for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FRAME = 112
"""Height and width of a square frame in pixels."""
SQUARE = (FRAME, FRAME)
SIZES = (SQUARE, (84, 112), (84, 140), (112, 84), (140, 84))
"""Height and width of what frames of 1:1, 4:3, 16:9, 3:4 and 9:16 become."""
PIXELS = FRAME * FRAME, FRAME * FRAME + FRAME
"""Fewest and most pixels of a frame.

Some more than a square's, as rounding takes a whole row of tokens from a side that falls short of
it by little: 16:9 is 84 rows of 12,544 pixels just so, and 854x480 or 1366x768 not quite.
"""
MEL_BINS = 128


@dataclass(frozen=True)
class Shape:
    """Sizes of the three parts; head_dim is ``hidden / heads`` in each."""

    layers: int = 6
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 768
    mrope: tuple[int, int, int] = (8, 12, 12)
    vision_depth: int = 5
    vision_hidden: int = 192
    vision_heads: int = 6
    vision_mlp: int = 512
    audio_layers: int = 3
    audio_hidden: int = 192
    audio_heads: int = 6
    audio_mlp: int = 768


SMALL = Shape(2, 64, 4, 2, 96, (2, 3, 3), 2, 32, 2, 48, 1, 32, 2, 48)
"""A shape for tests on a CPU."""


def config(shape: Shape, ids: Mapping[str, int], vocabulary: int) -> dict[str, Any]:
    """``config.json`` of a thinker; ``ids`` are those of the special tokens."""
    return {
        "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
        "audio_config": _audio(shape),
        "audio_end_token_id": ids["<|audio_eos|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_token_index": ids["<|AUDIO|>"],
        "dtype": "float16",
        "image_token_index": ids["<|IMAGE|>"],
        "initializer_range": 0.02,
        "model_type": "qwen2_5_omni_thinker",
        "omnilive": {"trained": True, "watch": "{watch}"},
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
        "text_config": _text(shape, ids, vocabulary),
        "tie_word_embeddings": False,
        "user_token_id": ids["user"],
        "video_token_index": ids["<|VIDEO|>"],
        "vision_config": _vision(shape),
        "vision_end_token_id": ids["<|vision_eos|>"],
        "vision_start_token_id": ids["<|vision_bos|>"],
    }


def preprocessor() -> dict[str, Any]:
    """``preprocessor_config.json``: frames of usual shapes come out at one of ``SIZES``."""
    return {
        "processor_class": "Qwen2_5OmniProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "chunk_length": 300,
        "dither": 0.0,
        "feature_size": MEL_BINS,
        "hop_length": 160,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "max_pixels": PIXELS[1],
        "merge_size": 2,
        "min_pixels": PIXELS[0],
        "n_fft": 400,
        "n_samples": 4800000,
        "nb_max_frames": 30000,
        "padding_side": "right",
        "padding_value": 0.0,
        "patch_size": 14,
        "return_attention_mask": True,
        "sampling_rate": 16000,
        "temporal_patch_size": 2,
        "unit_template": {"name": "1s", "pad_sound": True},
    }


def _audio(shape: Shape) -> dict[str, Any]:
    return {
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "d_model": shape.audio_hidden,
        "dropout": 0.0,
        "encoder_attention_heads": shape.audio_heads,
        "encoder_ffn_dim": shape.audio_mlp,
        "encoder_layers": shape.audio_layers,
        "initializer_range": 0.02,
        "max_source_positions": 1500,
        "model_type": "qwen2_5_omni_audio_encoder",
        "n_window": 50,
        "num_mel_bins": MEL_BINS,
        "output_dim": shape.hidden,
        "scale_embedding": False,
    }


def _vision(shape: Shape) -> dict[str, Any]:
    return {
        "depth": shape.vision_depth,
        "fullatt_block_indexes": [shape.vision_depth - 1],
        "hidden_act": "silu",
        "hidden_size": shape.vision_hidden,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": shape.vision_mlp,
        "model_type": "qwen2_5_omni_vision_encoder",
        "num_heads": shape.vision_heads,
        "out_hidden_size": shape.hidden,
        "patch_size": 14,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        # Each of the frames is one window, whatever its shape.
        "window_size": 2 * FRAME,
    }


def _text(shape: Shape, ids: Mapping[str, int], vocabulary: int) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.mlp,
        "layer_types": ["full_attention"] * shape.layers,
        "max_position_embeddings": 32768,
        "max_window_layers": shape.layers,
        "model_type": "qwen2_5_omni_text",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": ids["<|endoftext|>"],
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_section": list(shape.mrope),
            "rope_theta": 1000000.0,
            "rope_type": "default",
        },
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocabulary,
    }
