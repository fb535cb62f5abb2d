"""What can be asked about streams: for each kind and topic, which streams, and the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamworld.ask_links import after_thing, after_word, when_heard, when_word
from streamworld.ask_moments import (
    before_digit,
    before_scene,
    before_sound,
    before_thing,
    before_word,
    now_sound,
    now_thing,
    now_word,
    ordered,
)
from streamworld.ask_whether import (
    count_beeps,
    count_shape,
    count_word,
    did_thing,
    did_word,
    outside,
    until_beep,
    until_thing,
    until_word,
)
from streamworld.seen import Asked, Seen


@dataclass(frozen=True)
class Ask:
    """One way of asking: its kind and topic, its share of the mix, and how it is put."""

    kind: str
    topic: str
    weight: float
    sentences: str
    put: Callable[[Seen, np.random.Generator], Asked]


ASKS: tuple[Ask, ...] = (
    *(Ask("now", t, 1.0, f"now {t}", now_thing(t)) for t in ("digit", "colour", "shape")),
    *(Ask("now", t, w, f"now {t}", now_thing(t)) for t, w in (("clothing", 1.5), ("thing", 1.0))),
    Ask("now", "sound", 1.0, "now sound", now_sound),
    Ask("now", "word", 1.0, "now word", now_word),
    Ask("before", "thing", 1.5, "before thing", before_thing),
    Ask("before", "sound", 1.5, "before sound", before_sound),
    Ask("before", "scene", 0.7, "before scene", before_scene),
    Ask("before", "digit", 0.7, "before digit", before_digit),
    Ask("before", "word", 0.7, "before word", before_word(1)),
    Ask("before", "word2", 0.7, "before word2", before_word(2)),
    *(
        Ask("first", t, 0.5, f"first {t}", ordered(t, True))
        for t in ("word", "digit", "colour", "shape", "clothing")
    ),
    *(Ask("nth", t, 0.6, f"nth {t}", ordered(t, False)) for t in ("word", "digit", "shape")),
    *(Ask("when", t, 1.0, f"when {t}", when_heard(t)) for t in ("thing", "digit", "colour")),
    *(Ask("when", t, 1.0, f"when {t}", when_heard(t)) for t in ("shape", "clothing")),
    Ask("when", "word", 2.0, "when word", when_word),
    Ask("after", "word", 2.0, "after word", after_word),
    Ask("after", "thing", 1.5, "after thing", after_thing),
    Ask("did", "word", 1.5, "did word", did_word),
    Ask("did", "thing", 1.5, "did thing", did_thing),
    Ask("count", "beep", 1.5, "count beep", count_beeps),
    Ask("count", "word", 0.8, "count word", count_word),
    Ask("count", "shape", 0.8, "count shape", count_shape),
    Ask("until", "word", 0.7, "until word", until_word),
    Ask("until", "thing", 0.7, "until thing", until_thing),
    Ask("until", "beep", 0.6, "until beep", until_beep),
    Ask("outside", "outside", 0.4, "outside", outside),
)
"""All that can be asked."""
