"""The file of layer sensitivity: what is written is read, and anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import OmniError
from omni_core.layer_budgets import GradientNorms, document, read_sensitivity


def content() -> dict[str, Any]:
    norms = GradientNorms()
    norms.add([3.0, 1 / 3, 0.0], [4.0, 0.0, 0.0])
    return document(norms, {"model": "mine", "identity": "abc", "clips": []})


def read(file: Path, value: Any, layers: int = 3, own: str = "abc") -> np.ndarray:
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return read_sensitivity(file, layers, "mine", own)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = content()
    assert found["samples"] == 1 and found["spread"] == [0, 0, 0]
    assert found["keys"] == [3, 0.333333, 0] and found["values"] == [4, 0, 0]
    sensitivity = read(tmp_path / "layers.json", found)
    assert sensitivity.dtype == np.float64
    assert sensitivity.tolist() == [5, 0.333333, 0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "omnilive retention calibration"}, "is no calibration of layers"),
        ({"version": 2}, "has version 2, and version 1 is read here"),
        ({"sensitivity": [1, 2]}, "2 entries, expected .* for each of the 3 layers of mine"),
        ({"sensitivity": [1, 2, -3]}, "3 entries, expected a number of 0 or above"),
        ({"sensitivity": [1, 2, True]}, "3 entries, expected a number of 0 or above"),
        ({"sensitivity": [1, 2, float("nan")]}, "3 entries, expected a number of 0 or above"),
        ({"sensitivity": "1 2 3"}, "expected a number of 0 or above"),
        ({"sensitivity": None}, "expected a number of 0 or above"),
        ({"about": {"model": "other", "identity": "def"}}, "measured on the model other, and mine"),
        ({"about": 3}, "measured on the model None"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(OmniError, match=says) as told:
        read(tmp_path / "layers.json", content() | change)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "is no JSON"), ("[" * 10**5, "is no JSON"), ("[1]", "is no calibration of layers")],
)
def test_what_is_no_object_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(OmniError, match=says):
        read(tmp_path / "layers.json", text)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(OmniError, match="cannot be read"):
            read_sensitivity(file, 3, "mine", "abc")
