"""Qwen2.5-Omni: ChatML around units of vision and audio tokens at streaming TMRoPE positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.errors import MediaError
from omni_core.frontend.base import (
    SAMPLE_RATE,
    Bracket,
    Cursor,
    Tokenizer,
    UnitMedia,
    UnitTokens,
    VisionInput,
)
from omni_core.frontend.images import ImageSpec, frame_patches
from omni_core.frontend.log_mel import audio_tokens, log_mel, mel_frames
from omni_core.frontend.preprocessing import check_sound, image_spec, preprocessor_fields
from omni_core.frontend.qwen2_5_omni_config import (
    check_fit,
    choose_template,
    mark_ids,
    stop_ids,
    time_scale,
)
from omni_core.frontend.templates import UnitTemplate
from omni_core.frontend.tmrope import line_positions, video_positions
from omni_core.model_config import thinker_config
from omni_core.units import EMBEDDED, Int32, Modality, Role, TokenBlock

_GAP = 0.01
"""Seconds between two units that are still one run."""


@dataclass(frozen=True)
class QwenOmniFrontend:
    """The :class:`~omni_core.frontend.base.Frontend` of Qwen2.5-Omni's thinker.

    In a template with delimiters around the whole turn, the turn's first unit that brings anything
    settles which senses it carries. A sense that vanishes leaves its units without it, its time
    goes on, and it may come back. A sense that appears later closes the bracket and opens another
    with the senses of that unit; so does any unit that follows a part unit or, where units were
    dropped, a gap: positions of one bracket are seconds.

    Attributes:
        template: how a unit is laid out.
        fps: frames a second.
        spec: how frames are prepared.
        mel_bins: of the log-mel spectrogram.
        steps: positions a second.
        marks: ids of vision_bos, vision_eos, audio_bos and audio_eos.
        stop_tokens: ids that end an answer.
        tokenizer: text to ids and back.
    """

    template: UnitTemplate
    fps: float
    spec: ImageSpec
    mel_bins: int
    steps: float
    marks: tuple[int, int, int, int]
    stop_tokens: frozenset[int]
    tokenizer: Tokenizer

    @classmethod
    def from_checkpoint(
        cls,
        config: dict[str, Any],
        preprocessor: Mapping[str, Any],
        tokenizer: Tokenizer,
        template: UnitTemplate | str | None = None,
        fps: float | None = None,
    ) -> QwenOmniFrontend:
        """Read a checkpoint's ``config.json`` and ``preprocessor_config.json``.

        The template is the one given, else the checkpoint's ``unit_template``, else "2s".

        Raises:
            CheckpointError: a field is missing or wrong, or the template does not fit the model or
                the frame rate.
        """
        thinker = thinker_config(config)
        fields = preprocessor_fields(preprocessor)
        check_sound(fields, thinker.audio)
        chosen = choose_template(template, fields)
        steps, chunk = time_scale(thinker)
        made = cls(
            chosen,
            chosen.fps if fps is None else fps,
            image_spec(fields, thinker.vision),
            thinker.audio.mel_bins,
            steps,
            mark_ids(thinker, tokenizer),
            stop_ids(thinker, tokenizer),
            tokenizer,
        )
        check_fit(chosen, made.fps, made.spec.temporal, steps, chunk)
        return made

    @property
    def seconds(self) -> float:
        """Length of a full unit in seconds."""
        return self.template.seconds

    @property
    def frames_per_unit(self) -> int:
        """Frames of a full unit."""
        return math.ceil(self.seconds * self.fps - 1e-6)

    @property
    def largest_unit(self) -> int:
        """Most tokens of one unit: pictures of the worst shape, full sound, and four delimiters."""
        seen = -(-self.frames_per_unit // self.spec.temporal) * self.spec.most_tokens
        return seen + audio_tokens(mel_frames(round(self.seconds * SAMPLE_RATE))) + 4

    def open(self, system: str) -> tuple[TokenBlock, Cursor]:
        """The prefix: system prompt and the opening of the first turn."""
        text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
        return self._say(text, Role.PREFIX, 0)

    def unit(self, media: UnitMedia, cursor: Cursor) -> tuple[UnitTokens, Cursor]:
        """One unit of the stream; a unit without any media gives no tokens.

        Sound shorter than 321 samples is padded with zeros to one token's worth.

        Raises:
            MediaError: more frames or sound than a unit holds, or a frame that is none.
        """
        vision, mel = self._see(media), self._hear(media)
        blocks: list[TokenBlock] = []
        bracket, position = cursor.bracket, cursor.position
        if vision is not None or mel is not None:
            if bracket is not None and not _carries(bracket, media.start, vision, mel):
                block, position = self._close(bracket)
                blocks.append(block)
                bracket = None
            if bracket is None:
                block, bracket = self._open(
                    position, media.start, vision is not None, mel is not None
                )
                blocks.append(block)
            content, bracket = self._content(bracket, vision, mel)
            blocks += content
        if bracket is not None and self.template.delimiters == "unit":
            block, position = self._close(bracket)
            blocks.append(block)
            bracket = None
        if bracket is not None:
            bracket = self._pass(bracket, media, vision, mel)
            position = bracket.last + 1
        tokens = UnitTokens(
            TokenBlock.join(blocks),
            () if vision is None else (vision,),
            () if mel is None else (mel,),
        )
        return tokens, Cursor(position, bracket)

    def question(self, text: str, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """A question and the markup up to the answer's first token; closes an open bracket."""
        blocks, position = [], cursor.position
        if cursor.bracket is not None:
            block, position = self._close(cursor.bracket)
            blocks.append(block)
        text = f"{text}<|im_end|>\n<|im_start|>assistant\n"
        block, after = self._say(text, Role.PROMPT, position)
        return TokenBlock.join([*blocks, block]), after

    def answer(self, token: int, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """One drawn token, to be fed back."""
        block = TokenBlock.text([token], cursor.position, Role.GENERATED)
        return block, Cursor(cursor.position + 1)

    def resume(self, cursor: Cursor) -> tuple[TokenBlock, Cursor]:
        """The markup that ends an answer and opens the next turn."""
        return self._say("<|im_end|>\n<|im_start|>user\n", Role.PROMPT, cursor.position)

    def text(self, ids: list[int]) -> str:
        """Text of an answer's tokens."""
        return self.tokenizer.decode(ids)

    def _say(self, text: str, role: Role, position: int) -> tuple[TokenBlock, Cursor]:
        block = TokenBlock.text(self.tokenizer.encode(text), position, role)
        return block, Cursor(position + len(block))

    def _see(self, media: UnitMedia) -> VisionInput | None:
        if len(media.frames) > self.frames_per_unit:
            raise MediaError(
                f"the unit at {media.start:.3f} s has {len(media.frames)} frames, expected at most "
                f"{self.frames_per_unit} ({self.seconds:g} s at {self.fps:g} a second): sample the "
                "picture at the frontend's fps"
            )
        return frame_patches(media.frames, self.spec) if media.frames else None

    def _hear(self, media: UnitMedia) -> npt.NDArray[np.float32] | None:
        if media.audio is None or not media.audio.size:
            return None
        full = round(self.seconds * SAMPLE_RATE)
        if media.audio.size > full:
            raise MediaError(
                f"the unit at {media.start:.3f} s has {media.audio.size} samples of sound, "
                f"expected at most {self.seconds:g} s at {SAMPLE_RATE} a second: cut it into units"
            )
        rest = full - media.audio.size if self.template.pad_sound else 0
        return log_mel(np.pad(media.audio, (0, rest)), self.mel_bins)

    def _mark(self, position: int, marks: list[tuple[int, Modality]]) -> TokenBlock:
        """Delimiters, which all share one position."""
        count = len(marks)
        per_unit = self.template.delimiters == "unit"
        return TokenBlock(
            np.asarray([mark for mark, _ in marks], np.int32),
            np.full(count, -1, np.int32),
            np.full((3, count), position, np.int32),
            np.full(count, Modality.TEXT, np.int8),
            np.asarray([sense for _, sense in marks], np.int8),
            np.full(count, Role.DELIMITER if per_unit else Role.BRACKET, np.int8),
            np.zeros(count, np.int32),
        )

    def _open(
        self, position: int, start: float, vision: bool, audio: bool
    ) -> tuple[TokenBlock, Bracket]:
        marks = [(self.marks[0], Modality.VISION)] * vision
        marks += [(self.marks[2], Modality.AUDIO)] * audio
        return self._mark(position, marks), Bracket(position + 1, vision, audio, stop=start)

    def _close(self, bracket: Bracket) -> tuple[TokenBlock, int]:
        marks = [(self.marks[3], Modality.AUDIO)] * bracket.audio
        marks += [(self.marks[1], Modality.VISION)] * bracket.vision
        block = self._mark(bracket.last + 1, marks)
        return replace(block, offset=np.ones_like(block.offset)), bracket.last + 2

    def _content(
        self, bracket: Bracket, vision: VisionInput | None, mel: npt.NDArray[np.float32] | None
    ) -> tuple[list[TokenBlock], Bracket]:
        blocks, seen = [], 0
        runs: dict[Modality, tuple[Int32, int]] = {}
        if vision is not None:
            per_grid = self.spec.temporal / self.fps
            places = video_positions(
                bracket.base, bracket.frames, vision.grid, self.spec.merge, per_grid, self.steps
            )
            runs[Modality.VISION] = places, 0
            seen = places.shape[1]
        if mel is not None:
            count = audio_tokens(mel.shape[1])
            runs[Modality.AUDIO] = line_positions(bracket.base + bracket.heard, count), seen
        for sense in self.template.order:
            if sense in runs:
                places, row = runs[sense]
                blocks.append(_embedded(places, row, sense))
                # Of picture and sound together, what follows goes by the last run alone, even where
                # a wide picture reaches further: so did the model learn it.
                both = bracket.vision and bracket.audio
                reach = int(places.max())
                bracket = replace(bracket, last=reach if both else max(bracket.last, reach))
        return blocks, bracket

    def _pass(
        self,
        bracket: Bracket,
        media: UnitMedia,
        vision: VisionInput | None,
        mel: npt.NDArray[np.float32] | None,
    ) -> Bracket:
        """The bracket once the unit's time has gone by."""
        if media.stop - media.start < self.seconds - 0.5 / SAMPLE_RATE:
            frames = 0 if vision is None else vision.grid[0]
            heard = 0 if mel is None else audio_tokens(mel.shape[1])
            short = True
        else:
            frames = -(-self.frames_per_unit // self.spec.temporal)
            heard = audio_tokens(mel_frames(round(self.seconds * SAMPLE_RATE)))
            short = False
        return replace(
            bracket,
            frames=bracket.frames + frames,
            heard=bracket.heard + heard,
            short=short,
            stop=media.stop,
        )


def _carries(
    bracket: Bracket,
    start: float,
    vision: VisionInput | None,
    mel: npt.NDArray[np.float32] | None,
) -> bool:
    """Whether an open bracket takes a unit that starts at ``start`` seconds."""
    seen, heard = bracket.vision or vision is None, bracket.audio or mel is None
    gap = abs(start - bracket.stop) > _GAP
    return seen and heard and not bracket.short and not gap


def _embedded(places: Int32, row: int, sense: Modality) -> TokenBlock:
    count = places.shape[1]
    return TokenBlock(
        np.full(count, EMBEDDED, np.int32),
        np.arange(row, row + count, dtype=np.int32),
        places,
        np.full(count, sense, np.int8),
        np.full(count, sense, np.int8),
        np.full(count, Role.CONTENT, np.int8),
        np.arange(count, dtype=np.int32),
    )
