"""Sentences about what lies outside the stream world."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

_SUBJECTS = (
    *("france", "music", "history", "my cat", "the weather", "a recipe", "paris", "love"),
    *("the moon landing", "python", "a dog", "my phone", "tomorrow", "the president", "money"),
    *("football", "a car", "the sea", "physics", "my mother", "breakfast", "a poem", "berlin"),
)
ABOUT = (
    "What is the capital of {}?",
    "Tell me about {}.",
    "Who made {}?",
    "Do you like {}?",
    "How old is {}?",
    "Why is {} important?",
    "Where is {}?",
    "Write a story about {}.",
    "Can you explain {}?",
    "How much is {}?",
    "When was {} born?",
    "What do you think of {}?",
)
"""Ways to ask about any of the subjects."""
_PLAIN = (
    *(
        "Hello.",
        "Who are you?",
        "What is your name?",
        "How are you?",
        "Thank you.",
        "Good morning.",
    ),
    *("What time is it?", "Sing me a song.", "What is two plus two?", "Are you a person?", "Help."),
    *("What should I do today?", "Where am I?", "Who is speaking?", "Is it raining?", "Stop."),
    *("Is the person happy?", "How many people are in the room?", "What is the man doing?"),
    *("Translate this to German.", "Read the text.", "What does it smell like?", "Open the door."),
    *("What brand is the car?", "Describe the room.", "Is anybody there?", "asdf qwer", "Why?"),
)

SENTENCES: tuple[str, ...] = (
    *_PLAIN,
    *(form.format(subject) for form, subject in product(ABOUT, _SUBJECTS)),
)
"""All of them; each belongs to one split."""


@cache
def sentence_numbers(split: str) -> npt.NDArray[np.int64]:
    """Indices into ``SENTENCES`` of a split: three fifths train, a fifth each of the others."""
    fifth = np.arange(len(SENTENCES)) * 7 % 5
    return np.flatnonzero({"train": fifth < 3, "validation": fifth == 3, "test": fifth == 4}[split])
