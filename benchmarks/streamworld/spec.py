"""What the stream world holds: things to see, sounds to hear, and the codes of both.

A *thing* is what is on screen in one unit, a *sound* what is heard in it; each is one small number.
"""

from __future__ import annotations

SAMPLE_RATE = 16_000
"""Samples of sound a second, and so a unit."""
FRAME = 112
"""Height and width of a frame in pixels."""

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart", "ring", "moon")
CLOTHES = (
    "top",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)
"""Fashion-MNIST's classes in its own order."""
DIGITS = tuple("0123456789")

WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("alpha", "bravo", "delta", "echo", "foxtrot", "hotel", "juliet", "kilo"),
    *("oscar", "romeo", "tango", "victor", "silver", "amber", "indigo", "golden"),
)
"""Spoken words: none is the name of anything that can be seen."""

NOTHING = 0
FIRST_SHAPE = 1
FIRST_DIGIT = FIRST_SHAPE + len(COLOURS) * len(SHAPES)
FIRST_CLOTHING = FIRST_DIGIT + len(DIGITS)
THINGS = FIRST_CLOTHING + len(CLOTHES)
"""How many things there are; 0 is an empty screen, a shape is ``1 + 8 * colour + shape``."""

SILENCE = 0
FIRST_WORD = 1
BEEP = FIRST_WORD + len(WORDS)
MUSIC = BEEP + 1
NOISE = MUSIC + 1
SPOKEN = NOISE + 1
"""A spoken question, which fills the stream's last units."""
SOUNDS = SPOKEN + 1

NEVER = "none"
"""The answer where what a question takes for granted is not so."""
OUTSIDE = "outside"
"""The answer's code for what lies outside this world; it stands for ``OUTSIDE_LINE``."""
OUTSIDE_LINE = "I only know shapes, digits, clothes, words and beeps."

ANSWERS: tuple[str, ...] = (
    *DIGITS,
    *COLOURS,
    *SHAPES,
    *CLOTHES,
    *WORDS,
    *("silence", "beep", "music", "noise", "nothing", "yes", "no", NEVER, OUTSIDE),
)
"""Answer words; an answer's code is its index here."""
ANSWER = {word: code for code, word in enumerate(ANSWERS)}
MOST_COUNTED = 8
"""No question counts further."""

AGO = (*range(1, 33), 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""How many seconds ago a question may name."""

ORDINALS = ("first", "second", "third", "fourth", "fifth")

# Each is spoken within two seconds; the answer follows without any typed text.
SPOKEN_FORMS = (
    ("now", "digit", "what digit is it"),
    ("now", "colour", "what colour is it"),
    ("now", "shape", "what shape is it"),
    ("now", "thing", "what is on the screen"),
    ("before", "word", "what was the last word"),
    ("first", "word", "what was the first word"),
    ("first", "digit", "what was the first digit"),
    ("count", "beep", "how many beeps"),
)
"""Spoken questions: kind, topic, sentence."""


def shape(colour: int, form: int) -> int:
    """The thing that is shape ``form`` in ``colour``."""
    return FIRST_SHAPE + len(SHAPES) * colour + form


def thing_words(thing: int) -> tuple[str, ...]:
    """A thing's name: two words for a shape ("red", "square"), else one."""
    if thing == NOTHING:
        return ("nothing",)
    if thing < FIRST_DIGIT:
        colour, form = divmod(thing - FIRST_SHAPE, len(SHAPES))
        return COLOURS[colour], SHAPES[form]
    if thing < FIRST_CLOTHING:
        return (DIGITS[thing - FIRST_DIGIT],)
    return (CLOTHES[thing - FIRST_CLOTHING],)


def sound_word(sound: int) -> str:
    """A sound's name; a spoken word's is the word itself."""
    if sound == SILENCE:
        return "silence"
    if sound < BEEP:
        return WORDS[sound - FIRST_WORD]
    return ("beep", "music", "noise", "question")[sound - BEEP]
