"""Answers found again the slow way, from a question's sentence and the story of each second.

It shares no code with the drawing of questions, so that the two can be compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamworld import spec
from streamworld.questions import Questions
from streamworld.script import Script
from streamworld.sentences import FORMS


class WrongAnswer(ValueError):
    """A question whose answer is not the one and only."""


@dataclass(frozen=True)
class Story:
    """What one stream held, in words: a name a second, and the number of the scene."""

    shows: list[str]
    scenes: list[int]
    says: list[str]

    @property
    def shown(self) -> list[str]:
        """One name a scene."""
        return [
            name
            for place, name in enumerate(self.shows)
            if place == 0 or self.scenes[place] != self.scenes[place - 1]
        ]

    @property
    def words(self) -> list[str]:
        """The words said, in order."""
        return [sound for sound in self.says if sound in spec.WORDS]


def check(script: Script, questions: Questions) -> int:
    """Compare every answer with the story's; how many were compared.

    Raises:
        WrongAnswer: the first that differs, or that the story leaves open.
    """
    streams, slots = questions.unit.shape
    for stream in range(streams):
        for slot in range(slots):
            story = _story(script, stream, int(questions.unit[stream, slot]) + 1)
            text = questions.text(stream, slot)
            if not text:
                kind, topic, _ = spec.SPOKEN_FORMS[int(script.spoken[stream])]
                text = FORMS[f"{kind} {topic}"][0]
            told, right = questions.answer_text(stream, slot), answer(story, text)
            if told != right:
                raise WrongAnswer(
                    f"stream {stream}, question {slot}, {text!r}: answered {told!r}, but the story "
                    f"says {right!r}"
                )
    return streams * slots


def answer(story: Story, text: str) -> str:
    """The answer to a sentence.

    Raises:
        WrongAnswer: the story leaves it open, or the sentence fits no form.
    """
    for name, forms in FORMS.items():
        for form in forms:
            if form.startswith("{"):
                continue
            pattern = re.sub(r"\\{\w+\\}", "(.+)", re.escape(form)).replace("seconds", "seconds?")
            found = re.fullmatch(pattern.replace("beeps", "beeps?"), text)
            if found:
                kind, topic = name.split()
                gap = found.group(1) if found.groups() else ""
                return _RULES[kind](story, topic, gap)
    return spec.OUTSIDE_LINE


def _story(script: Script, stream: int, units: int) -> Story:
    shows = [" ".join(spec.thing_words(int(thing))) for thing in script.thing[stream, :units]]
    says = [spec.sound_word(int(sound)) for sound in script.sound[stream, :units]]
    return Story(shows, [int(scene) for scene in script.scene[stream, :units]], says)


def _side(name: str, topic: str) -> str:
    """The side of a thing that a topic asks for."""
    parts = name.split()
    if topic == "thing":
        return name
    if topic in ("colour", "shape"):
        return parts[0 if topic == "colour" else 1] if len(parts) == 2 else spec.NEVER
    kinds = {"digit": spec.DIGITS, "clothing": spec.CLOTHES}
    return name if name in kinds[topic] else spec.NEVER


def _one(places: list[int], what: str) -> int:
    if len(places) != 1:
        raise WrongAnswer(f"{what} is there {len(places)} times, so that the answer is open")
    return places[0]


def _places(names: list[str], name: str) -> list[int]:
    return [place for place, other in enumerate(names) if other == name]


def _now(story: Story, topic: str, gap: str) -> str:
    if topic == "sound":
        return story.says[-1]
    if topic == "word":
        return story.says[-1] if story.says[-1] in spec.WORDS else spec.NEVER
    return _side(story.shows[-1], topic)


def _before(story: Story, topic: str, gap: str) -> str:
    if topic == "thing":
        return story.shows[-1 - int(gap)]
    if topic == "sound":
        return story.says[-1 - int(gap)]
    if topic == "scene":
        return story.shown[-2]
    if topic == "digit":
        return [name for name in story.shown if name in spec.DIGITS][-2]
    return story.words[-2 if topic == "word2" else -1]


def _events(story: Story, topic: str) -> list[str]:
    if topic == "word":
        return story.words
    sides = [_side(name, topic) for name in story.shown]
    return [side for side in sides if side != spec.NEVER]


def _first(story: Story, topic: str, gap: str) -> str:
    return _events(story, topic)[0]


def _nth(story: Story, topic: str, gap: str) -> str:
    return _events(story, topic)[spec.ORDINALS.index(gap)]


def _when(story: Story, topic: str, gap: str) -> str:
    if topic != "word":
        if gap not in story.says:
            return spec.NEVER
        return _side(story.shows[_one(_places(story.says, gap), gap)], topic)
    number = _one(_places(story.shown, gap), gap)
    numbers = sorted(set(story.scenes))
    here = [place for place, scene in enumerate(story.scenes) if scene == numbers[number]]
    said = [story.says[place] for place in here if story.says[place] in spec.WORDS]
    if len(said) > 1:
        raise WrongAnswer(f"{len(said)} words were said while the {gap} was there")
    return said[0] if said else spec.NEVER


def _after(story: Story, topic: str, gap: str) -> str:
    names = story.words if topic == "word" else story.shown
    if topic == "word" and gap not in names:
        return spec.NEVER
    return names[_one(_places(names, gap), gap) + 1]


def _did(story: Story, topic: str, gap: str) -> str:
    if topic == "word":
        return "yes" if gap in story.says else "no"
    return "yes" if _bare(gap) in story.shows else "no"


def _count(story: Story, topic: str, gap: str) -> str:
    if topic == "beep":
        return str(story.says.count("beep"))
    if topic == "word":
        return str(story.says.count(gap))
    form = gap.removesuffix("s") if gap.removesuffix("s") in spec.SHAPES else gap[:-2]
    return str([_side(name, "shape") for name in story.shown].count(form))


def _until(story: Story, topic: str, gap: str) -> str:
    if topic == "beep":
        return "yes" if story.says.count("beep") >= int(gap) else "no"
    now = story.says[-1] if topic == "word" else story.shows[-1]
    return "yes" if now == (gap if topic == "word" else _bare(gap)) else "no"


def _bare(gap: str) -> str:
    return gap.removeprefix("an ").removeprefix("a ")


_RULES = {
    "now": _now,
    "before": _before,
    "first": _first,
    "nth": _nth,
    "when": _when,
    "after": _after,
    "did": _did,
    "count": _count,
    "until": _until,
}
