"""The sentences that questions are asked in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from streamworld import spec
from streamworld.outside import SENTENCES

# Gaps: {word} and {thing} (its name), {a} (with "a" or "an"), {nth}, {n}, {form} (shapes).
FORMS: dict[str, tuple[str, ...]] = {
    "now digit": (
        "What digit is on the screen?",
        "Which digit do you see now?",
        "What number is it?",
    ),
    "now colour": (
        "What colour is the shape on the screen?",
        "Which colour is the shape?",
        "What colour does the shape have now?",
    ),
    "now shape": (
        "What shape is on the screen?",
        "Which shape do you see now?",
        "What shape is it?",
    ),
    "now clothing": (
        "What clothing is on the screen?",
        "Which piece of clothing do you see now?",
        "What clothing is it?",
    ),
    "now thing": (
        "What is on the screen?",
        "What do you see now?",
        "What is it?",
    ),
    "now sound": (
        "What do you hear now?",
        "What is the sound now?",
        "What can you hear?",
    ),
    "now word": (
        "Which word do you hear now?",
        "What word is being said now?",
    ),
    "before thing": (
        "What was on the screen {n} seconds ago?",
        "What did you see {n} seconds ago?",
    ),
    "before sound": (
        "What did you hear {n} seconds ago?",
        "What was the sound {n} seconds ago?",
    ),
    "before scene": (
        "What was on the screen before this?",
        "What did you see before this?",
    ),
    "before digit": (
        "Which digit came before the last digit?",
        "What was the digit before the last digit?",
    ),
    "before word": (
        "What was the last word?",
        "Which word did you hear last?",
    ),
    "before word2": (
        "Which word came before the last word?",
        "What was the word before the last word?",
    ),
    "first word": ("What was the first word?", "Which word did you hear first?"),
    "first digit": ("What was the first digit?", "Which digit did you see first?"),
    "first colour": (
        "What colour was the first shape?",
        "Which colour did the first shape have?",
    ),
    "first shape": ("What was the first shape?", "Which shape did you see first?"),
    "first clothing": (
        "What was the first piece of clothing?",
        "Which piece of clothing did you see first?",
    ),
    "nth word": ("What was the {nth} word?", "Which word did you hear {nth}?"),
    "nth digit": ("What was the {nth} digit?", "Which digit did you see {nth}?"),
    "nth shape": ("What was the {nth} shape?", "Which shape did you see {nth}?"),
    "when thing": (
        "What was on the screen when you heard {word}?",
        "What did you see when {word} was said?",
    ),
    "when digit": (
        "Which digit was on the screen when you heard {word}?",
        "What digit did you see when {word} was said?",
    ),
    "when colour": (
        "What colour was the shape when you heard {word}?",
        "Which colour did the shape have when {word} was said?",
    ),
    "when shape": (
        "Which shape was on the screen when you heard {word}?",
        "What shape did you see when {word} was said?",
    ),
    "when clothing": (
        "Which piece of clothing was on the screen when you heard {word}?",
        "What clothing did you see when {word} was said?",
    ),
    "when word": (
        "Which word was said while the {thing} was on the screen?",
        "What word did you hear while you saw the {thing}?",
    ),
    "after word": ("Which word came after {word}?", "What word did you hear after {word}?"),
    "after thing": (
        "What came on the screen after the {thing}?",
        "What did you see after the {thing}?",
    ),
    "did word": ("Did you hear {word}?", "Was {word} said?", "Have you heard {word}?"),
    "did thing": ("Did you see {a}?", "Was {a} on the screen?", "Have you seen {a}?"),
    "count beep": (
        "How many beeps did you hear?",
        "How many beeps were there?",
        "Count the beeps.",
    ),
    "count word": ("How many times did you hear {word}?", "How many times was {word} said?"),
    "count shape": ("How many {form} did you see?", "How many {form} were on the screen?"),
    "until word": ("Tell me when you hear {word}.", "Say yes when {word} is said."),
    "until thing": ("Tell me when you see {a}.", "Say yes when {a} is on the screen."),
    "until beep": ("Tell me when there were {n} beeps.", "Say yes when you heard {n} beeps."),
    "outside": ("{outside}",),
}
"""Ways to ask, by the name an ask gives them."""


class _Ask(Protocol):
    @property
    def sentences(self) -> str: ...


def filled(ask: _Ask, form: int, slots: Sequence[int] | Any) -> str:
    """Sentence ``form`` of an ask with its gap filled: a word, a thing or a number."""
    sentence = FORMS[ask.sentences][form]
    value = int(slots[0])
    for gap, name in _GAPS.items():
        if gap in sentence:
            text = sentence.replace(gap, name(value))
            # One is not several.
            for many, one in ((" 1 seconds", " 1 second"), (" 1 beeps", " 1 beep")):
                text = text.replace(many, one)
            return text
    return sentence


def _thing(thing: int) -> str:
    return " ".join(spec.thing_words(thing))


def _with_article(thing: int) -> str:
    name = _thing(thing)
    if name == "trousers":
        return name
    return f"{'an' if name[0] in 'aeiou8' else 'a'} {name}"


def _plural(form: int) -> str:
    return f"{spec.SHAPES[form]}{'es' if spec.SHAPES[form].endswith('s') else 's'}"


_GAPS = {
    "{word}": lambda value: spec.WORDS[value],
    "{thing}": _thing,
    "{a}": _with_article,
    "{nth}": lambda value: spec.ORDINALS[value],
    "{n}": str,
    "{form}": _plural,
    "{outside}": lambda value: SENTENCES[value],
}
