"""Streams as files that any player opens."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from streamworld import clips, questions, render, script, spec
from streamworld.__main__ import main
from streamworld.banks import Bank

av = pytest.importorskip("av")


def test_a_clip_holds_what_was_rendered(bank: Bank, tmp_path: Path) -> None:
    made = script.write(3, 2, 4, "test")
    asked = questions.draw(made, 1, 5)
    path = tmp_path / "stream.mp4"
    clips.write(path, made, 1, bank, questions=asked)
    with av.open(str(path)) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    with av.open(str(path)) as file:
        heard = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    units = made.take([1]).flat()
    assert len(frames) == 20
    assert frames[0].shape == (336, 336, 3)
    # The middle frame of each second is the middle of the unit.
    want = render.frames(units, bank, 0.5).astype(float)
    seen = np.stack(frames[2::5]).reshape(4, 112, 3, 112, 3, 3).mean(axis=(2, 4))
    assert np.abs(seen - want).mean() < 12
    wave = render.sounds(units, bank).reshape(-1)
    assert abs(heard.size - wave.size) <= 2048
    level = wave.reshape(4, -1).std(axis=1)
    assert np.allclose(heard[: wave.size].reshape(4, -1).std(axis=1), level, rtol=0.3, atol=0.004)
    told = json.loads(path.with_suffix(".json").read_text())
    assert told["seconds"] == 4
    assert told["says"] == [spec.sound_word(int(sound)) for sound in made.sound[1]]
    assert [q["answer"] for q in told["questions"]] == [asked.answer_text(1, q) for q in range(5)]


def test_the_command_line_writes_clips(
    bank_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"x --seed 4 --units 2 --streams 2 --banks {bank_folder} --out {tmp_path}".split()
    monkeypatch.setattr(sys, "argv", words)
    main()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["test-4-0.json", "test-4-0.mp4", "test-4-1.json", "test-4-1.mp4"]
