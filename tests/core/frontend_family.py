"""A tiny Qwen2.5-Omni config and a tokenizer of characters, for tests of its frontend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.frontend.base import SAMPLE_RATE, UnitMedia
from omni_core.frontend.framing import UnitFramer

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
]
IDS = {token: 500 + i for i, token in enumerate(SPECIAL)}

PREPROCESSOR: dict[str, Any] = {"feature_size": 32, "min_pixels": 3136, "max_pixels": 12544}


class Characters:
    """Each character is a token; special tokens are whole."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            token = next((token for token in SPECIAL if text.startswith(token)), text[0])
            ids.append(IDS.get(token, ord(token[0]) % 500))
            text = text[len(token) :]
        return ids

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(i) for i in ids if i < 500)


def config() -> dict[str, Any]:
    """A thinker's ``config.json``."""
    return {
        "model_type": "qwen2_5_omni_thinker",
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
        "image_token_index": IDS["<|IMAGE|>"],
        "video_token_index": IDS["<|VIDEO|>"],
        "audio_token_index": IDS["<|AUDIO|>"],
        "audio_start_token_id": IDS["<|audio_bos|>"],
        "audio_end_token_id": IDS["<|audio_eos|>"],
        "vision_start_token_id": IDS["<|vision_bos|>"],
        "vision_end_token_id": IDS["<|vision_eos|>"],
        "text_config": {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2, 3, 3],
            },
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 64,
        },
        "audio_config": {
            "encoder_layers": 2,
            "d_model": 32,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 32,
            "max_source_positions": 1500,
            "n_window": 50,
            "output_dim": 64,
        },
    }


def frame(value: int, height: int = 40, width: int = 60) -> npt.NDArray[np.uint8]:
    """A frame of one grey level."""
    return np.full((height, width, 3), value % 256, np.uint8)


def noise(seconds: float, seed: int = 0) -> npt.NDArray[np.float32]:
    """Sound of ``seconds``."""
    count = round(seconds * SAMPLE_RATE)
    sound = np.random.default_rng(seed).standard_normal(count) * 0.1
    return sound.astype(np.float32)


def units_of(
    seconds: float,
    fps: float,
    *,
    picture: float = 0.0,
    sound: float = 0.0,
    rate: float = 10.0,
    cuts: Sequence[float] = (),
    size: tuple[int, int] = (40, 60),
) -> list[UnitMedia]:
    """Units of a clip whose picture runs at ``rate`` and is as long as said, and so its sound."""
    framer = UnitFramer(
        seconds, fps, picture=picture > 0, sound=sound > 0, waiting=1000, waiting_sound=1000
    )
    for cut in cuts:
        framer.cut(cut)
    samples = noise(sound)
    frames = round(picture * rate + 0.499)
    step = 0
    while step * 0.1 < max(picture, sound):
        if chunk := samples[step * 1600 : (step + 1) * 1600].size:
            framer.push_sound(step * 0.1, samples[step * 1600 : step * 1600 + chunk])
        for i in range(frames):
            if step * 0.1 <= i / rate < (step + 1) * 0.1:
                framer.push_frame(i / rate, frame(i, *size))
        if (step + 1) * 0.1 >= picture > 0:
            framer.end_picture(picture)
        if (step + 1) * 0.1 >= sound:
            framer.end_sound()
        step += 1
    framer.close()
    units = []
    while (unit := framer.pop(0)) is not None:
        units.append(unit)
    assert framer.dropped_frames == 0 and framer.dropped_samples == 0
    return units
