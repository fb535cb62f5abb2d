"""How well single spoken words are understood, by who speaks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch

from streamworld import banks, spec, tokens
from training.bank import DeviceBank
from training.batch import Plan, make
from training.model import Model

_DIGITS = 10
_REPEATS = 4


@torch.no_grad()
def measure_voices(model: Model, bank: banks.Bank, seed: int) -> dict[str, dict[str, list[float]]]:
    """Each clip of a word, four times in streams of four units, asked what was said at the end.

    Gives ``[share, count]`` of ``digits`` and all ``words`` for each engine.
    """
    device = model.labels.sounds.device
    clips = np.flatnonzero(_labels(bank) < len(spec.WORDS)).repeat(_REPEATS)
    tally: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    held = DeviceBank.of(bank, device)
    labels = _labels(bank)
    for start in range(0, clips.size, 128):
        chosen = clips[start : start + 128]
        made = make(Plan(4, 128, 1, "test", spoken=0.0, mix={("now", "sound"): 1.0}), seed + start)
        _say(made.units, bank, labels, chosen)
        outcome = model.read(made.to(device), held, learn=False)
        right = outcome.logits.argmax(-1).cpu().numpy()
        for row, clip in enumerate(chosen):
            if made.ends.size - 1 != made.unit[row, 0]:
                raise ValueError("the question does not come at the stream's end")
            place = int(np.flatnonzero(made.final[row])[0])
            hit = int(right[row, place] == tokens.word_id(spec.WORDS[labels[clip]]))
            engine = bank.voices[bank.clip_voice[clip]].split(":")[0]
            for name in ("words", *(("digits",) if labels[clip] < _DIGITS else ())):
                tally[engine][name][0] += hit
                tally[engine][name][1] += 1
    return {
        engine: {name: [hits / count, count] for name, (hits, count) in found.items()}
        for engine, found in tally.items()
    }


def _labels(bank: banks.Bank) -> Any:
    return np.repeat(np.arange(banks.CLIPS), bank.clip_count)


def _say(units: dict[str, Any], bank: banks.Bank, labels: Any, chosen: Any) -> None:
    """Let each stream's last unit be one clip, and the others silent where the bank lacks words."""
    sound, voice = units["sound"].reshape(-1, 4), units["voice"].reshape(-1, 4, 32)
    word = (sound >= spec.FIRST_WORD) & (sound < spec.BEEP)
    lacking = bank.clip_count[np.clip(sound.astype(int) - 1, 0, len(spec.WORDS) - 1)] == 0
    sound[word & lacking] = spec.SILENCE
    rows = np.arange(chosen.size)
    label = labels[chosen]
    sound[rows, -1] = spec.FIRST_WORD + label
    # The die that makes `choice` pick this clip of its word.
    number, count = chosen - bank.clip_start[label], bank.clip_count[label]
    voice[rows, -1, 0] = (((2 * number + 1) << 15) // count).astype(np.uint16)
