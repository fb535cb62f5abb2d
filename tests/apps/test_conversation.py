"""Turns that wait, are answered, and are broken in upon; watches that turn to yes."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from omnilive.conversation import MOST_WAITING, Conversation
from omnilive.speech.turns import Began, Ended
from omnilive.watch import ASKED, Watches


class Session:
    """Answers with a word a token, and runs what a test wants done meanwhile."""

    def __init__(self, answers: dict[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self.interrupted = 0
        self.during: Any = lambda: None
        self._answers = answers or {}

    def ask(self, question: str, **options: Any) -> str:
        self.asked.append(question)
        self.options = options
        self.during()
        return self._answers.get(question, "no")

    def interrupt(self) -> None:
        self.interrupted += 1


class Output:
    def __init__(self) -> None:
        self.shown: list[tuple[float, str]] = []

    def question(self, time: float, text: str, spoken: bool = False) -> None:
        self.shown.append((time, "(spoken)" if spoken else text))

    def event(self, event: dict[str, Any]) -> None:
        self.shown.append((event["t"], event["message"]))

    def note(self, text: str) -> None:
        raise AssertionError(text)

    drawing = note


class Voice:
    def __init__(self) -> None:
        self.said: list[str] = []

    def add(self, text: str) -> None:
        self.said.append(text)

    def finish(self) -> None:
        self.said.append(".")

    def stop(self) -> None:
        self.said.append("hush")


def made(**options: Any) -> tuple[Conversation, Session, Output, list[float]]:
    session, output, cuts = Session(), Output(), list[float]()
    return Conversation(session, output, cut=cuts.append, **options), session, output, cuts


def test_a_turn_closes_the_unit_and_is_answered_after_it() -> None:
    talk, session, output, cuts = made()
    talk.hear(Began(3.0))
    talk.hear(Ended(3.0, 4.1, 4.7))
    assert cuts == [4.7]
    talk.answer(4.0)
    assert not session.asked
    talk.answer(4.7)
    talk.answer(5.7)
    assert session.asked == [""] and output.shown == [(4.7, "(spoken)")]


def test_typed_lines_are_turns_too_and_empty_ones_are_not() -> None:
    talk, session, output, cuts = made()
    talk.type("  what is it?  ", 2.5)
    talk.type("   ", 2.6)
    talk.answer(3.0)
    assert cuts == [2.5]
    assert session.asked == ["what is it?"] and output.shown == [(3.0, "what is it?")]


def test_speech_breaks_in_upon_an_answer_but_not_where_it_may_not() -> None:
    for allowed in (True, False):
        voice = Voice()
        talk, session, _, _ = made(barge_in=allowed, voice=voice)
        talk.hear(Began(0.5))
        assert session.interrupted == 0

        def speak(talk: Conversation = talk) -> None:
            talk.token("It is")
            talk.hear(Began(1.5))

        session.during = speak
        talk.type("what?", 1.0)
        talk.answer(1.0)
        assert session.interrupted == allowed
        assert voice.said == (["It is", "hush", "."] if allowed else ["It is", "."])
        talk.token("outside of an answer")
        assert "outside of an answer" not in voice.said


def test_too_many_turns_push_the_oldest_out_and_stop_ends_it() -> None:
    talk, session, output, _ = made()
    for number in range(MOST_WAITING + 3):
        talk.type(str(number), 1.0)
    session.during = lambda: talk.stop() if len(session.asked) == 2 else None
    talk.answer(1.0)
    assert session.asked == ["3", "4"]
    told = "3 turns were left out: more than 8 waited for an answer"
    assert output.shown == [(1.0, told), (1.0, "3"), (1.0, "4")]


def test_speech_that_begins_before_the_session_has_still_ends_the_answer() -> None:
    talk, session, output, _ = made()
    output.question = lambda *_, **__: talk.hear(Began(0.9))
    session.during = lambda: (talk.token("It"), talk.token(" is"))
    talk.type("what?", 1.0)
    talk.answer(1.0)
    # Once when it began, when the session was not yet to be told, and at each token after that.
    assert session.interrupted == 3
    output.question = lambda *_, **__: None
    talk.type("and now?", 1.0)
    talk.answer(1.0)
    assert session.interrupted == 3


def test_latency_counts_from_when_the_end_was_known() -> None:
    now = [10.0]
    talk, session, _, _ = made(clock=lambda: now[0])
    found: list[float | None] = [talk.latency()]
    talk.type("what?", 1.0)
    now[0] = 10.25
    session.during = lambda: found.append(talk.latency())
    talk.answer(1.0)
    assert found == [None, 250.0] and talk.latency() is None


def test_a_question_that_is_due_is_spoken_and_broken_in_upon_as_a_turn_is() -> None:
    voice = Voice()
    talk, session, output, _ = made(voice=voice)
    found: list[float | None] = []

    def speak() -> None:
        talk.token("It is")
        found.append(talk.latency())
        talk.hear(Began(1.5))

    session.during = speak
    assert talk.ask("what?") == "no"
    assert session.asked == ["what?"] and session.interrupted == 1
    assert voice.said == ["It is", "hush", "."]
    # Nobody's turn has ended, and who put it has shown it.
    assert found == [None] and output.shown == []
    talk.interrupt()
    assert session.interrupted == 2


def test_turns_may_come_from_other_threads() -> None:
    talk, session, _, _ = made()
    threads = [
        threading.Thread(target=talk.type, args=(str(number), 1.0))
        for number in range(MOST_WAITING)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    talk.answer(1.0)
    assert sorted(session.asked) == [str(number) for number in range(MOST_WAITING)]


def test_a_watch_tells_only_when_its_answer_turns_to_yes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, now = Session(), itertools.count(0.0, 0.25)
    monkeypatch.setattr("omnilive.watch.time.perf_counter", lambda: next(now))
    shown: list[dict[str, Any]] = []
    watches = Watches(["Tell me when a dog appears.", "a cat"], session, shown.append)
    prompts = [ASKED.replace("{watch}", text) for text in ("Tell me when a dog appears.", "a cat")]
    for number, answers in enumerate(
        (("no", "Yes"), (" yes.", "yes"), ("yes", "No"), ("n", "YES"))
    ):
        session._answers = dict(zip(prompts, answers, strict=True))
        watches.look(float(number))
    told = [(event["t"], event["watch"], event["text"]) for event in shown]
    assert told == [
        (0.0, "a cat", "Yes"),
        (1.0, "Tell me when a dog appears.", "yes."),
        (3.0, "a cat", "YES"),
    ]
    assert session.options == {"max_tokens": 8, "branch": True, "quiet": True}
    # One reading of the clock before a look and one after.
    assert watches.cost == 250.0 and session.asked[:2] == prompts


def test_watches_stop_between_two_of_them() -> None:
    session = Session()
    watches = Watches(["a", "b", "c"], session, list[dict[str, Any]]().append)
    session.during = watches.stop
    watches.look(1.0)
    watches.look(2.0)
    assert len(session.asked) == 1


def test_a_checkpoint_may_say_how_a_watch_is_put() -> None:
    session = Session({"Say yes when kilo is said.": "yes"})
    shown: list[dict[str, Any]] = []
    Watches(["Say yes when kilo is said."], session, shown.append, "{watch}").look(2.0)
    assert [event["event"] for event in shown] == ["watch"]
