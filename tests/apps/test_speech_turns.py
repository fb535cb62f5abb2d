"""Turns: what begins ends, in order, whatever the probabilities and the clock do."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnilive.speech.listener import TAIL, Listener
from omnilive.speech.turns import Began, Ended, Event, Turns
from omnilive.speech.vad import STEP, Samples

Steps = list[tuple[float, float]]
NO_PADDING = {"padding": 0.0}


def steps(*spans: tuple[float, float], start: float = 0.0) -> Steps:
    """Steps on end: each span is so many seconds of one probability."""
    row = [probability for seconds, probability in spans for _ in range(round(seconds / STEP))]
    return [(start + number * STEP, probability) for number, probability in enumerate(row)]


def near(seconds: float) -> object:
    return pytest.approx(seconds, abs=1.5 * STEP)


def test_a_turn_between_silence() -> None:
    events = Turns(**NO_PADDING).feed(steps((1, 0.0), (2, 0.9), (1, 0.0)))
    assert events == [Began(near(1.0)), Ended(near(1.0), near(3.0), near(3.6))]


def test_begins_as_soon_as_it_has_lasted() -> None:
    turns = Turns()
    assert turns.feed(steps((0.22, 0.9))) == []
    assert not turns.open
    assert turns.feed([(0.224, 0.9)]) == [Began(0.0)]
    assert turns.open


def test_a_click_is_no_turn() -> None:
    assert Turns().feed(steps((1, 0.0), (0.2, 0.99), (3, 0.0))) == []


def test_clicks_do_not_add_up() -> None:
    clicks = [(0.1, 0.99), (0.4, 0.0)] * 5
    assert Turns().feed(steps(*clicks)) == []


def test_a_short_break_is_no_end() -> None:
    events = Turns().feed(steps((1, 0.9), (0.5, 0.0), (1, 0.9), (1, 0.0)))
    assert [type(event) for event in events] == [Began, Ended]
    assert events[1].stop == near(2.6)


def test_between_the_thresholds_all_stays_as_it_was() -> None:
    assert Turns().feed(steps((3, 0.45))) == []
    events = Turns(**NO_PADDING).feed(steps((1, 0.9), (1, 0.4), (1, 0.0)))
    assert events[1] == Ended(0.0, near(2.0), near(2.6))
    # What was broken off is taken up again by a step over the upper one alone.
    events = Turns(**NO_PADDING).feed(steps((1, 0.9), (0.1, 0.0), (1, 0.4)))
    assert events[1] == Ended(0.0, near(1.0), near(1.6))


def test_the_longest_turn_is_ended_and_the_next_begins() -> None:
    events = Turns(longest=2.0).feed(steps((5, 0.9), (1, 0.0)))
    assert [type(event) for event in events] == [Began, Ended] * 3
    assert [event.stop for event in events[1::2]] == [near(2.02), near(4.03), near(5.08)]
    assert events[2].time == events[1].stop


def test_padding_keeps_off_what_was_before() -> None:
    events = Turns(padding=0.5).feed(steps((1, 0.9), (0.7, 0.0), (1, 0.9), (1, 0.0), start=7.0))
    assert [event.start for event in events[1::2]] == [7.0, near(8.5)]
    assert events[2].time >= events[1].stop


def test_close_ends_what_has_begun() -> None:
    turns = Turns()
    assert turns.close(3.0) == []
    began = turns.feed(steps((1, 0.9)))
    assert turns.close(1.2) == [Ended(began[0].time, near(1.1), 1.2)]
    assert turns.close(1.3) == []
    # Also by a clock that has gone back.
    turns.feed(steps((1, 0.9), start=2.0))
    (ended,) = turns.close(0.5)
    assert ended.decided == near(3.0)


def test_deaf_until_a_second() -> None:
    turns = Turns()
    assert turns.deaf(2.0) == []
    events = turns.feed(steps((3, 0.9), (1, 0.0)))
    assert events == [Began(near(2.0)), Ended(near(2.0), near(3.1), near(3.6))]
    assert events[0].time >= 2.0


def test_deaf_until_told_otherwise() -> None:
    turns = Turns()
    turns.feed(steps((1, 0.9)))
    assert turns.deaf(math.inf) == [Ended(0.0, near(1.0), near(1.0))]
    assert turns.feed(steps((4, 0.9), start=1.0)) == []
    assert turns.deaf(5.0) == []
    assert turns.feed(steps((1, 0.9), start=5.0)) == [Began(5.0)]


def test_deafness_lasts_as_long_when_the_clock_goes_back() -> None:
    turns = Turns()
    turns.feed(steps((1, 0.0), start=100.0))
    turns.deaf(102.0)
    events = turns.feed(steps((3, 0.9), start=10.0))
    assert events == [Began(near(11.0))]


@pytest.mark.parametrize("leap", [-40.0, -1.0, 3.0, 500.0])
def test_a_clock_that_leaps_ends_the_turn(leap: float) -> None:
    turns = Turns()
    turns.feed(steps((1, 0.9), start=50.0))
    events = turns.feed(steps((1, 0.9), (1, 0.0), start=51.0 + leap))
    assert [type(event) for event in events] == [Ended, Began, Ended]
    assert events[0].stop <= events[0].decided == near(51.0 + max(0.0, leap))
    assert events[1].time == near(51.0 + leap)


def test_a_small_hole_goes_unnoticed() -> None:
    turns = Turns()
    turns.feed(steps((1, 0.9)))
    assert turns.feed(steps((1, 0.9), start=1.4)) == []
    assert turns.feed(steps((1, 0.9), start=2.3)) == []
    assert turns.close(9.0) == [Ended(0.0, near(3.4), 9.0)]


def test_no_number_is_no_speech() -> None:
    assert Turns().feed(steps((3, math.nan))) == []


def in_order(events: list[Event]) -> None:
    """Begun and ended in turn, ascending, and none over another."""
    for event, kind in zip(events, itertools.cycle([Began, Ended]), strict=False):
        assert type(event) is kind
    stop = decided = -math.inf
    for began, ended in itertools.pairwise(events):
        if isinstance(ended, Ended):
            assert began.time == ended.start
            assert stop <= ended.start < ended.stop <= ended.decided
            assert ended.decided >= decided
            stop, decided = ended.stop, ended.decided


SPANS = st.lists(st.tuples(st.floats(0.03, 1.5), st.floats(0, 1) | st.sampled_from([0.0, 0.9])))


@given(spans=SPANS, pause=st.floats(0.1, 1.0), longest=st.floats(1.0, 4.0), ending=st.booleans())
def test_events_are_in_order(
    spans: list[tuple[float, float]], pause: float, longest: float, ending: bool
) -> None:
    row = steps(*spans)
    turns = Turns(pause=pause, longest=longest)
    events = turns.feed(row)
    events += turns.close(len(row) * STEP)
    assert len(events) % 2 == 0
    in_order(events)
    for ended in events[1::2]:
        assert ended.stop - ended.start <= longest + 2 * 0.1 + STEP
    if spans and spans[0][1] >= 0.5 and spans[0][0] >= 0.3:
        assert events


ACTS = st.one_of(
    st.tuples(st.just("hear"), st.floats(0.03, 1.5), st.sampled_from([0.0, 0.4, 0.9])),
    st.tuples(st.just("skip"), st.floats(-5, 5), st.none()),
    st.tuples(st.just("deaf"), st.floats(-1, 2) | st.just(math.inf), st.none()),
    st.tuples(st.just("close"), st.floats(-1, 1), st.none()),
)


@given(acts=st.lists(ACTS, max_size=40), back=st.booleans())
def test_whatever_happens_each_turn_ends_once(
    acts: list[tuple[str, float, float | None]], back: bool
) -> None:
    turns, now, events = Turns(), 0.0, []
    for act, seconds, probability in acts:
        if act == "hear":
            row = steps((seconds, probability or 0.0), start=now)
            events += turns.feed(row)
            now += len(row) * STEP
        elif act == "skip":
            now += seconds if back else abs(seconds)
        elif act == "deaf":
            events += turns.deaf(now + seconds)
        else:
            events += turns.close(now + seconds)
    events += turns.close(now)
    assert len(events) % 2 == 0
    for began, ended in zip(events[::2], events[1::2], strict=True):
        assert isinstance(began, Began) and isinstance(ended, Ended)
        assert began.time == ended.start < ended.stop <= ended.decided
    if not back:
        stops = [-math.inf, *(ended.stop for ended in events[1::2])]
        assert all(stop <= began.time for stop, began in zip(stops, events[::2], strict=False))


class Scripted:
    """A detector that finds speech in all that is loud."""

    def feed(self, samples: Samples, time: float) -> Steps:
        return [(time, float(abs(samples).max()))]


def test_a_listener_is_deaf_while_an_answer_is_spoken() -> None:
    events: list[Event] = []
    answering = False
    listener = Listener(Scripted(), Turns(**NO_PADDING), events.append, lambda: answering)
    loud = np.full(512, 0.9, np.float32)
    times = [number * STEP for number in range(100)]
    for time in times:
        answering = 1.0 <= time < 2.0
        listener(time, loud)
    listener.close(3.3)
    assert events == [
        Began(0.0),
        Ended(0.0, near(1.0), near(1.0)),
        Began(near(2.0 + TAIL)),
        Ended(near(2.0 + TAIL), near(3.2), 3.3),
    ]
    assert events[2].time >= 2.0 + TAIL
