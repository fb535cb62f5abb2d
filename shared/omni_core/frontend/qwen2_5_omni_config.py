"""What the Qwen2.5-Omni frontend takes from a checkpoint, and whether a unit template fits it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omni_core.errors import CheckpointError
from omni_core.frontend.base import SAMPLE_RATE, Tokenizer
from omni_core.frontend.log_mel import audio_tokens, mel_frames
from omni_core.frontend.templates import TEMPLATES, TWO_SECONDS, UnitTemplate, template_from
from omni_core.model_config import ThinkerConfig

_MARKS = {
    "vision_start_token_id": "<|vision_bos|>",
    "vision_end_token_id": "<|vision_eos|>",
    "audio_start_token_id": "<|audio_bos|>",
    "audio_end_token_id": "<|audio_eos|>",
}


def check_fit(
    template: UnitTemplate, fps: float, temporal: int, steps: float, chunk: float
) -> None:
    """Refuse a template that the model's chunks, positions or temporal patches cannot follow.

    ``temporal`` is frames a patch, ``steps`` positions a second, ``chunk`` seconds.

    Raises:
        CheckpointError: it does not fit; the message names what would.
    """
    name, seconds = template.name, template.seconds
    if not (math.isfinite(fps) and fps > 0):
        raise CheckpointError(f"fps is {fps}, expected a number above 0")
    per_turn = template.delimiters == "turn"
    if seconds > chunk or (per_turn and seconds != chunk):
        raise CheckpointError(
            f"unit template {name!r} has {seconds:g} s a unit, but the model's chunks are "
            f"{chunk:g} s: expected {'just' if per_turn else 'at most'} that"
        )
    frames = seconds * fps
    if not template.repeat_frames and (
        abs(frames - round(frames)) > 1e-6 or round(frames) % temporal
    ):
        raise CheckpointError(
            f"{fps:g} frames a second give {frames:g} frames in each {seconds:g} s unit of "
            f"template {name!r}, expected a multiple of {temporal}, the frames in one patch: use "
            f"{temporal / seconds:g} frames a second or a multiple of it"
        )
    tokens = audio_tokens(mel_frames(round(seconds * SAMPLE_RATE)))
    if per_turn and tokens != int(seconds * steps):
        raise CheckpointError(
            f"config.json: position_id_per_seconds is {steps:g}, which gives a unit "
            f"{seconds * steps:g} positions for its {tokens} audio tokens: expected "
            f"{tokens / seconds:g} with template {name!r}"
        )


def choose_template(
    chosen: UnitTemplate | str | None, preprocessor: Mapping[str, Any]
) -> UnitTemplate:
    """The template chosen, else the checkpoint's ``unit_template``, else the 2-second one."""
    if isinstance(chosen, UnitTemplate):
        return chosen
    if chosen is not None:
        if chosen not in TEMPLATES:
            known = ", ".join(TEMPLATES)
            raise CheckpointError(f"no unit template is called {chosen!r}, expected one of {known}")
        return TEMPLATES[chosen]
    entry = preprocessor.get("unit_template")
    return TWO_SECONDS if entry is None else template_from(entry)


def required(thinker: ThinkerConfig, field: str) -> Any:
    """A field of the thinker's config that has no safe default."""
    value = thinker.raw.get(field)
    if value is None:
        raise CheckpointError(
            f"config.json: `{field}` is missing; use the config.json released with the weights"
        )
    return value


def mark_ids(thinker: ThinkerConfig, tokenizer: Tokenizer) -> tuple[int, int, int, int]:
    """Ids of vision_bos, vision_eos, audio_bos and audio_eos.

    Transformers may leave some out of the config that it writes; those come from the tokenizer.
    """
    ids = []
    for field, token in _MARKS.items():
        found = thinker.raw.get(field)
        spelled = tokenizer.encode(token) if found is None else [int(found)]
        if len(spelled) != 1:
            raise CheckpointError(
                f"config.json: `{field}` is missing and the tokenizer has no {token}: use the "
                "files released with the weights"
            )
        ids.append(spelled[0])
    return ids[0], ids[1], ids[2], ids[3]


def stop_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that end an answer."""
    end = tokenizer.encode("<|im_end|>")
    if len(end) != 1:
        raise CheckpointError(
            "the tokenizer has no <|im_end|>, which ends every turn: use the tokenizer released "
            "with the weights"
        )
    text_end = tokenizer.encode("<|endoftext|>")
    return frozenset(end + (text_end if len(text_end) == 1 else []))
