"""Rendering on the training device against the stream world's definition."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from streamworld import render, script, spec
from training.picture import frames
from training.shape import SIZES
from training.sound import sounds


@pytest.fixture(scope="module")
def units() -> script.Units:
    written = script.write(5, 3, 16, "train", spoken=1.0, long=0.7)
    things = (0, 1, 20, 70, 76, 84)
    written.thing[:, : len(things)] = things
    written.sound[:, :6] = (0, 3, spec.BEEP, spec.MUSIC, spec.NOISE, spec.BEEP - 1)
    return written.flat()


@pytest.fixture(scope="module")
def on_device(units: script.Units) -> dict[str, torch.Tensor]:
    return {
        field.name: torch.from_numpy(getattr(units, field.name).astype(np.int32))
        for field in fields(units)
    }


@pytest.mark.parametrize("size", SIZES)
def test_frames_differ_by_at_most_one_grey_level(
    units: script.Units, on_device: Any, world: Any, bank: Any, size: tuple[int, int]
) -> None:
    expected = render.frames(units, world, size=size).astype(int)
    found = frames(on_device, bank, size=size).numpy().astype(int)
    assert found.shape == (len(units), *size, 3)
    assert np.abs(found - expected).max() <= 1
    assert (found != expected).mean() < 1e-3


def test_sounds_are_the_worlds(units: script.Units, on_device: Any, world: Any, bank: Any) -> None:
    assert {spec.SILENCE, spec.BEEP, spec.MUSIC, spec.NOISE, spec.SPOKEN} <= set(units.sound)
    expected = render.sounds(units, world)
    assert np.abs(sounds(on_device, bank).numpy() - expected).max() < 1e-3
