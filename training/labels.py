"""The tokens that name what a unit shows and says."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from streamworld import spec, tokens


@dataclass(frozen=True)
class Labels:
    """Tokens by thing and by sound.

    Attributes:
        things: ``int64[THINGS, 2]``; the same token twice where a name is one word.
        sounds: ``int64[SOUNDS]``.
    """

    things: torch.Tensor
    sounds: torch.Tensor


def labels(device: torch.device) -> Labels:
    """The labels of the stream world."""
    things = []
    for thing in range(spec.THINGS):
        words = [tokens.word_id(word) for word in spec.thing_words(thing)]
        things.append([words[0], words[-1]])
    sounds = [tokens.word_id(spec.sound_word(sound)) for sound in range(spec.SPOKEN)]
    # Somebody who asks a question opens a turn.
    sounds.append(tokens.special("<|im_start|>"))
    return Labels(torch.tensor(things, device=device), torch.tensor(sounds, device=device))
