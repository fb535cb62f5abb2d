"""Scripts: repeatable, and made so that questions have answers."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from streamworld import script, spec


def same(one: script.Script, other: script.Script) -> bool:
    names = [field.name for field in fields(script.Script)][1:]
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in names)


def test_the_same_arguments_give_the_same_scripts() -> None:
    assert same(script.write(3, 5, 20, spoken=0.5), script.write(3, 5, 20, spoken=0.5))


@pytest.mark.parametrize("other", [(4, "train"), (3, "validation"), (3, "test")])
def test_seeds_and_splits_differ(other: tuple[int, str]) -> None:
    seed, split = other
    one, two = script.write(3, 4, 20), script.write(seed, 4, 20, split)
    assert not np.array_equal(one.thing, two.thing)
    assert not np.array_equal(one.voice, two.voice)


@pytest.mark.parametrize(("units", "dwell"), [(1, 1.0), (2, 1.6), (65, 1.6), (40, 5.0)])
def test_a_scene_shows_one_thing_and_looks_one_way(units: int, dwell: float) -> None:
    made = script.write(1, 30, units, dwell=dwell)
    new = np.diff(made.scene, axis=1)
    assert set(np.unique(new)) <= {0, 1}
    assert (made.scene[:, 0] == 0).all()
    stays = new == 0
    assert (made.thing[:, 1:][stays] == made.thing[:, :-1][stays]).all()
    assert (made.look[:, 1:][stays] == made.look[:, :-1][stays]).all()
    assert (made.thing[:, 1:][~stays] != made.thing[:, :-1][~stays]).all()
    assert (made.age[:, 1:] == np.where(stays, made.age[:, :-1] + 1, 0)).all()


def test_long_streams_have_words_never_said_and_words_said_once() -> None:
    made = script.write(2, 20, 256)
    words = np.arange(spec.FIRST_WORD, spec.BEEP)
    times = (made.sound[:, :, None] == words).sum(axis=1)
    assert ((times == 0).sum(axis=1) >= 6).all()
    assert ((times == 1).sum(axis=1) >= 4).all()
    assert made.thing.max() < spec.THINGS
    assert ((made.sound == spec.BEEP).sum(axis=1) <= spec.MOST_COUNTED).all()


def test_a_spoken_question_fills_the_last_two_units() -> None:
    made = script.write(2, 160, 9, spoken=1.0)
    assert (made.spoken >= 0).all()
    assert (made.sound[:, -2:] == spec.SPOKEN).all()
    assert (made.sound[:, :-2] != spec.SPOKEN).all()
    assert made.part[:, -2:].tolist() == [[0, 1]] * 160
    assert (made.form[:, -1] == made.spoken).all()
    assert (made.voice[:, -1] == made.voice[:, -2]).all()
    assert len(set(made.spoken.tolist())) == len(spec.SPOKEN_FORMS)


def test_a_spoken_question_may_lie_anywhere_in_three_units() -> None:
    made = script.write(2, 160, 9, spoken=1.0, long=0.5)
    three = made.part[:, -1] == script.LONG + 2
    assert 50 < three.sum() < 110
    assert (made.part[three, -3:] == script.LONG + np.arange(3)).all()
    assert (made.part[~three, -3:] == [0, 0, 1]).all()
    assert (made.sound[three, -3:] == spec.SPOKEN).all()
    assert (made.sound[~three, -3] != spec.SPOKEN).all()
    assert (made.voice[three, -3:] == made.voice[three, -1:]).all()
    short = script.write(2, 160, 3, spoken=1.0, long=1.0)
    assert short.part.max() == 1
    plain, same = script.write(2, 9, 9, spoken=1.0), script.write(2, 9, 9, spoken=1.0, long=0.0)
    assert np.array_equal(plain.voice, same.voice)


def test_streams_too_short_for_a_spoken_question_have_none() -> None:
    assert (script.write(2, 9, 2, spoken=1.0).spoken == -1).all()


def test_flat_units_go_stream_after_stream() -> None:
    made = script.write(7, 3, 5)
    units = made.flat()
    assert len(units) == 15
    assert (units.thing[5:10] == made.thing[1]).all()
    assert (made.take([1]).flat().voice == units[5:10].voice).all()


def test_names_are_all_different() -> None:
    assert len(set(spec.ANSWERS)) == len(spec.ANSWERS)
    assert len({spec.thing_words(thing) for thing in range(spec.THINGS)}) == spec.THINGS
