"""What the Qwen2.5-Omni frontend takes from a checkpoint, and whether a unit template fits it."""

from __future__ import annotations

import math

from omni_core.errors import CheckpointError
from omni_core.fields import Fields
from omni_core.frontend.base import SAMPLE_RATE, Tokenizer
from omni_core.frontend.log_mel import MIN_SAMPLES, audio_tokens, mel_frames
from omni_core.frontend.templates import TEMPLATES, TWO_SECONDS, UnitTemplate, template_from
from omni_core.model_config import ThinkerConfig

_MOST_STEPS = 1000.0
"""Positions a second: a day of them still fits 32 bits."""
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
    if round(seconds * SAMPLE_RATE) < MIN_SAMPLES:
        raise CheckpointError(
            f"unit template {name!r} has {seconds:g} s a unit, expected at least "
            f"{MIN_SAMPLES / SAMPLE_RATE:g} s, the sound of one token"
        )
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


def choose_template(chosen: UnitTemplate | str | None, preprocessor: Fields) -> UnitTemplate:
    """The template chosen, else the checkpoint's ``unit_template``, else the 2-second one."""
    if isinstance(chosen, UnitTemplate):
        return chosen
    if chosen is not None:
        if chosen not in TEMPLATES:
            known = ", ".join(TEMPLATES)
            raise CheckpointError(f"no unit template is called {chosen!r}, expected one of {known}")
        return TEMPLATES[chosen]
    if not preprocessor.has("unit_template"):
        return TWO_SECONDS
    return template_from(preprocessor.section("unit_template").values)


def time_scale(thinker: ThinkerConfig) -> tuple[float, float]:
    """Positions a second, and seconds of the model's chunks.

    Raises:
        CheckpointError: missing, or no such numbers.
    """
    return (
        thinker.fields.number("position_id_per_seconds", most=_MOST_STEPS),
        thinker.fields.number("seconds_per_chunk"),
    )


def mark_ids(thinker: ThinkerConfig, tokenizer: Tokenizer) -> tuple[int, int, int, int]:
    """Ids of vision_bos, vision_eos, audio_bos and audio_eos.

    Transformers may leave some out of the config that it writes; those come from the tokenizer.

    Raises:
        CheckpointError: in neither, or outside of the vocabulary.
    """
    ids = []
    for field, token in _MARKS.items():
        if thinker.fields.has(field):
            ids.append(thinker.fields.whole(field, least=0, most=thinker.text.vocab - 1))
            continue
        spelled = _inside(thinker, token, tokenizer.encode(token))
        if len(spelled) != 1:
            raise CheckpointError(
                f"config.json: `{field}` is missing and the tokenizer has no {token}: use the "
                "files released with the weights"
            )
        ids += spelled
    return ids[0], ids[1], ids[2], ids[3]


def stop_ids(thinker: ThinkerConfig, tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that end an answer.

    Raises:
        CheckpointError: the tokenizer lacks the one that ends a turn, or has it outside of the
            vocabulary.
    """
    end = _inside(thinker, "<|im_end|>", tokenizer.encode("<|im_end|>"))
    if len(end) != 1:
        raise CheckpointError(
            "the tokenizer has no <|im_end|>, which ends every turn: use the tokenizer released "
            "with the weights"
        )
    text_end = _inside(thinker, "<|endoftext|>", tokenizer.encode("<|endoftext|>"))
    return frozenset(end + (text_end if len(text_end) == 1 else []))


def _inside(thinker: ThinkerConfig, token: str, ids: list[int]) -> list[int]:
    vocab = thinker.text.vocab
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise CheckpointError(
            f"the tokenizer spells {token} as {ids}, but the weights have a vocabulary of {vocab}: "
            "tokenizer and weights are of different models"
        )
    return ids
