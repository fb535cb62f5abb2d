"""The untrained checkpoint's vocabulary and its JSON files, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = Path(__file__).resolve().parent / "words.txt"

# Words without a leading space that the chat template needs.
ROLES = ("system", "user", "assistant")
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>",
    "<|vision_bos|>", "<|vision_eos|>", "<|vision_pad|>", "<|IMAGE|>", "<|VIDEO|>",
)  # fmt: skip

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 128, 4, 4, 2, 256
VISION_HIDDEN, VISION_DEPTH, VISION_MLP = 64, 2, 128
AUDIO_HIDDEN, AUDIO_LAYERS, AUDIO_MLP, MELS = 64, 2, 256, 128
PATCH, TEMPORAL, MERGE = 14, 2, 2

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary, as in GPT-2."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def vocabulary() -> list[str]:
    """Tokens by id: the 256 bytes, whole words, then the special tokens."""
    space = byte_symbols()[ord(" ")]
    words = [space + word for word in WORDS.read_text(encoding="utf-8").split()]
    return [*byte_symbols(), *ROLES, *words, *SPECIALS]


def tokenizer(tokens: list[str]) -> dict[str, Any]:
    """``tokenizer.json``: byte-level BPE without merges; a word is one token or else its bytes."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": tokens.index(token), "content": token, **special, "special": True}
            for token in SPECIALS
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """``tokenizer_config.json``, with the special tokens that transformers asks for by role."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "image_token": "<|IMAGE|>",
        "audio_token": "<|AUDIO|>",
        "video_token": "<|VIDEO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
        "model_max_length": 32768,
        "chat_template": CHAT_TEMPLATE,
    }


def preprocessor() -> dict[str, Any]:
    """``preprocessor_config.json``: the fields of a released folder, and the unit template."""
    return {
        "processor_class": "Qwen2_5OmniProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "chunk_length": 300,
        "dither": 0.0,
        "feature_size": MELS,
        "hop_length": 160,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "max_pixels": 112 * 112,
        "merge_size": MERGE,
        "min_pixels": 56 * 56,
        "n_fft": 400,
        "n_samples": 4800000,
        "nb_max_frames": 30000,
        "padding_side": "right",
        "padding_value": 0.0,
        "patch_size": PATCH,
        "return_attention_mask": True,
        "sampling_rate": 16000,
        "temporal_patch_size": TEMPORAL,
        "unit_template": {"name": "1s"},
    }


def config(tokens: list[str]) -> dict[str, Any]:
    """``config.json``, in the form that transformers saves a thinker in."""
    ids = {token: index for index, token in enumerate(tokens)}
    audio = {
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "d_model": AUDIO_HIDDEN,
        "dropout": 0.0,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": AUDIO_MLP,
        "encoder_layers": AUDIO_LAYERS,
        "initializer_range": 0.02,
        "max_source_positions": 1500,
        "model_type": "qwen2_5_omni_audio_encoder",
        "n_window": 50,
        "num_mel_bins": MELS,
        "output_dim": HIDDEN,
        "scale_embedding": False,
    }
    vision = {
        "depth": VISION_DEPTH,
        "fullatt_block_indexes": [1],
        "hidden_act": "silu",
        "hidden_size": VISION_HIDDEN,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": VISION_MLP,
        "model_type": "qwen2_5_omni_vision_encoder",
        "num_heads": 4,
        "out_hidden_size": HIDDEN,
        "patch_size": PATCH,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        "spatial_merge_size": MERGE,
        "temporal_patch_size": TEMPORAL,
        "window_size": 56,
    }
    text = {
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": MLP,
        "layer_types": ["full_attention"] * LAYERS,
        "max_position_embeddings": 32768,
        "max_window_layers": LAYERS,
        "model_type": "qwen2_5_omni_text",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": ids["<|endoftext|>"],
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_section": [4, 6, 6],
            "rope_theta": 1000000.0,
            "rope_type": "default",
        },
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": len(tokens),
    }
    return {
        "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
        "audio_config": audio,
        "audio_end_token_id": ids["<|audio_eos|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_token_index": ids["<|AUDIO|>"],
        "dtype": "float16",
        "image_token_index": ids["<|IMAGE|>"],
        "initializer_range": 0.02,
        "model_type": "qwen2_5_omni_thinker",
        "omnilive": {"trained": False},
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
        "text_config": text,
        "tie_word_embeddings": False,
        "transformers_version": "5.24.0",
        "user_token_id": ids["user"],
        "video_token_index": ids["<|VIDEO|>"],
        "vision_config": vision,
        "vision_end_token_id": ids["<|vision_eos|>"],
        "vision_start_token_id": ids["<|vision_bos|>"],
    }
