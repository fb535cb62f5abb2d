"""Questions: each has one answer, and the story gives the same."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamworld import asking, check, questions, script, spec
from streamworld.outside import SENTENCES, sentence_numbers


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    units=st.integers(1, 90),
    dwell=st.sampled_from([1.0, 1.6, 4.0]),
    split=st.sampled_from(script.SPLITS),
    spoken=st.sampled_from([0.0, 0.5]),
    places=st.lists(st.integers(0, 89), min_size=1, max_size=3),
)
def test_every_answer_is_the_storys_own(
    seed: int, units: int, dwell: float, split: str, spoken: float, places: list[int]
) -> None:
    made = script.write(seed, 4, units, split, spoken=spoken, dwell=dwell)
    asked_at = [-1, *(place % units for place in places)]
    drawn = questions.draw(made, seed, 36, asked_at=asked_at)
    assert check.check(made, drawn) == 4 * 36
    assert (drawn.answer[..., 0] >= 0).all()
    assert (drawn.evidence <= drawn.unit).all()


@pytest.mark.parametrize("kind", sorted(questions.ASK))
def test_every_kind_can_be_asked_of_a_minute(kind: tuple[str, str]) -> None:
    made = script.write(11, 40, 64, "test")
    drawn = questions.draw(made, 1, 4, kinds=[kind] * 4)
    number = questions.ASK[kind]
    # A fifth of the seconds show a garment, a half hold a word.
    assert (drawn.ask == number).mean() > (0.15 if kind[0] in ("now", "until") else 0.6)
    check.check(made, drawn)


def test_a_wrong_answer_is_found() -> None:
    made = script.write(5, 3, 20)
    drawn = questions.draw(made, 1, 8)
    answer = drawn.answer.copy()
    told = drawn.answer_text(1, 3)
    answer[1, 3] = [spec.ANSWER["moon" if told != "moon" else "ring"], -1]
    with pytest.raises(check.WrongAnswer, match="stream 1, question 3"):
        check.check(made, replace(drawn, answer=answer))


def test_a_question_left_open_is_found() -> None:
    story = check.Story(["7", "red star", "7"], [0, 1, 2], ["one", "two", "one"])
    with pytest.raises(check.WrongAnswer, match="one is there 2 times"):
        check.answer(story, "Which word came after one?")
    with pytest.raises(check.WrongAnswer, match="7 is there 2 times"):
        check.answer(story, "What did you see after the 7?")
    assert check.answer(story, "What did you see after the red star?") == "7"


@pytest.mark.parametrize("units", [8, 64, 256])
def test_half_of_the_yes_or_no_questions_are_no(units: int) -> None:
    made = script.write(6, 60, units)
    for kind in (("did", "word"), ("did", "thing"), ("until", "word"), ("until", "thing")):
        drawn = questions.draw(made, 2, 12, kinds=[kind] * 12)
        answers = drawn.answer[drawn.ask == questions.ASK[kind]][:, 0]
        assert 0.4 < (answers == spec.ANSWER["yes"]).mean() < 0.6, kind


def test_lags_reach_from_near_to_far() -> None:
    made = script.write(6, 40, 257)
    for kind in (("before", "thing"), ("when", "thing"), ("after", "word"), ("did", "word")):
        lags = questions.draw(made, 2, 20, kinds=[kind] * 20).lag
        assert lags.max() > 180, kind
        assert np.mean((lags >= 0) & (lags < 16)) > 0.03, kind


def test_evidence_holds_the_answer() -> None:
    made = script.write(8, 20, 50)
    drawn = questions.draw(made, 3, 10, kinds=[("when", "word"), ("before", "sound")] * 5)
    for stream, slot in np.ndindex(*drawn.unit.shape):
        told = drawn.answer_text(stream, slot)
        if told != "none" and drawn.kind(stream, slot) != ("now", "thing"):
            heard = made.sound[stream, drawn.evidence[stream, slot]]
            assert told == spec.sound_word(int(heard))


def test_what_never_was_is_asked_about_too() -> None:
    made = script.write(8, 100, 40)
    for kind in (("when", "digit"), ("after", "word"), ("now", "colour"), ("now", "word")):
        drawn = questions.draw(made, 3, 10, kinds=[kind] * 10)
        answers = drawn.answer[drawn.ask == questions.ASK[kind]][:, 0]
        assert 0.01 < (answers == spec.ANSWER[spec.NEVER]).mean() < 0.25, kind


def test_draws_repeat() -> None:
    made = script.write(8, 6, 30)
    one, two = questions.draw(made, 3, 10), questions.draw(made, 3, 10)
    assert np.array_equal(one.answer, two.answer)
    assert np.array_equal(one.slots, two.slots)
    assert not np.array_equal(one.ask, questions.draw(made, 4, 10).ask)


def test_a_mix_leaves_out_what_it_does_not_name() -> None:
    made = script.write(8, 6, 30)
    drawn = questions.draw(made, 3, 10, mix={("count", "beep"): 1.0})
    assert (drawn.ask == questions.ASK["count", "beep"]).all()


def test_records_look_like_a_benchmarks() -> None:
    made = script.write(8, 2, 70, "test", spoken=1.0)
    drawn = questions.draw(made, 3, 6, asked_at=(-1, 10))
    told = questions.records(made, drawn, 1)
    assert [record["seconds"] for record in told] == [11] * 3 + [70] * 3
    assert {record["time_stamp"] for record in told} == {"00:00:11", "00:01:10"}
    (spoken,) = [record for record in told if record["spoken"]]
    assert spoken["question"] == spec.SPOKEN_FORMS[int(made.spoken[1])][2]
    assert set(spoken) >= {"time_stamp", "question", "answer", "kind", "lag"}


def test_sentences_outside_the_world_belong_to_one_split() -> None:
    owners = defaultdict(list)
    for split in script.SPLITS:
        for number in sentence_numbers(split):
            owners[int(number)].append(split)
    assert sorted(owners) == list(range(len(SENTENCES)))
    assert all(len(owner) == 1 for owner in owners.values())


def test_asks_are_named_once() -> None:
    assert len(questions.ASK) == len(asking.ASKS)
