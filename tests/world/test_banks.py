"""Banks on disk, and the sound they keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamworld import banks
from streamworld.mu_law import EXPANDED, compress


def test_every_label_has_its_own_rows(bank: banks.Bank) -> None:
    assert bank.clip_count.tolist() == [2] * banks.CLIPS
    assert bank.clip_start.tolist() == list(range(0, 2 * banks.CLIPS, 2))
    ends = bank.clip_offset + bank.clip_length
    assert ends[-1] == bank.sound.size
    assert (ends[:-1] == bank.clip_offset[1:]).all()


def test_one_engine_alone(bank: banks.Bank, bank_folder: Path) -> None:
    one = banks.load(bank_folder, "test", engines={"two"})
    assert one.clip_count.tolist() == [1] * banks.CLIPS
    assert set(one.clip_voice.tolist()) == {1}
    assert one.clip_offset.tolist() == bank.clip_offset[1::2].tolist()


def test_an_unknown_engine_is_named(bank_folder: Path) -> None:
    with pytest.raises(ValueError, match="no engine three; it has one, two"):
        banks.load(bank_folder, "test", engines={"three"})


def test_a_bank_that_was_not_built_says_how(bank_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make_banks"):
        banks.load(bank_folder, "validation")


def test_people_speak_over_the_pictures_of_the_test(bank_folder: Path) -> None:
    said = {"clip_label": np.uint8([3]), "clip_length": np.int32([4]), "voices": ["human:a"]}
    np.savez(
        bank_folder / "human.npz", sound=np.uint8([1, 2, 3, 4]), clip_voice=np.uint16([0]), **said
    )
    people = banks.load(bank_folder, "human")
    assert people.voices == ("human:a",)
    assert people.clip_count.sum() == 1
    assert people.glyphs.shape[0] == 2 * banks.GLYPHS


def test_rows_out_of_order_are_refused(tmp_path: Path, bank_folder: Path) -> None:
    with np.load(bank_folder / "test.npz") as file:
        data = dict(file)
    data["glyph_label"] = data["glyph_label"][::-1]
    np.savez(tmp_path / "test.npz", **data)
    with pytest.raises(ValueError, match="not in order"):
        banks.load(tmp_path, "test")


def test_mu_law_is_near_and_keeps_silence() -> None:
    samples = np.linspace(-1, 1, 4001)
    back = EXPANDED[compress(samples)]
    assert np.abs(back - samples).max() < 0.025
    assert EXPANDED[compress(np.zeros(3))].tolist() == [0, 0, 0]
    small = np.linspace(-0.01, 0.01, 101)
    assert np.abs(EXPANDED[compress(small)] - small).max() < 4e-4


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("glyphs", lambda a: a[:-1]),
        ("glyphs", lambda a: a.astype(np.float32)),
        ("glyph_label", lambda a: np.zeros_like(a)),
        ("glyph_label", lambda a: a + np.uint8(200)),
        ("clothes", lambda a: a[:, :-1]),
        ("photos", lambda a: a[:0]),
        ("photos", lambda a: a[:, :100, :100]),
        ("sound", lambda a: a[:-1]),
        ("clip_length", lambda a: -a),
        ("clip_voice", lambda a: a + np.uint16(9)),
        ("clip_label", lambda a: a.astype(str)),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    name: str, change: Callable[[Any], Any], tmp_path: Path, bank_folder: Path
) -> None:
    with np.load(bank_folder / "test.npz") as stored:
        parts = dict(stored)
    np.savez(tmp_path / "test.npz", **(parts | {name: change(parts[name])}))
    with pytest.raises(ValueError, match="build it again"):
        banks.load(tmp_path, "test")
