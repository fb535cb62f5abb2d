from __future__ import annotations

import pytest

from omni_core.errors import CheckpointError
from omni_core.frontend.templates import ONE_SECOND, TWO_SECONDS, template_from
from omni_core.units import Modality


def test_a_name_alone_is_the_known_template():
    assert template_from({"name": "1s"}) == ONE_SECOND
    assert template_from({"name": "2s"}) == TWO_SECONDS


def test_fields_replace_those_of_the_known_template():
    changed = template_from({"name": "1s", "fps": 2, "order": ["audio", "vision"]})
    assert changed.fps == 2 and changed.seconds == 1.0 and changed.delimiters == "unit"
    assert changed.order == (Modality.AUDIO, Modality.VISION)


def test_a_new_template_states_every_field():
    entry = {
        "name": "half",
        "seconds": 0.5,
        "fps": 2,
        "delimiters": "unit",
        "order": ["vision", "audio"],
        "repeat_frames": True,
    }
    assert template_from(entry).seconds == 0.5 and not template_from(entry).pad_sound
    del entry["fps"]
    with pytest.raises(CheckpointError, match="lacks fps"):
        template_from(entry)


def test_unknown_keys_are_named():
    with pytest.raises(CheckpointError, match="unknown keys framerate, secs; known are name"):
        template_from({"name": "1s", "secs": 1, "framerate": 2})


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({}, "`name` is None"),
        ({"name": 1}, "`name` is 1"),
        ({"name": "1s", "seconds": 0}, "`seconds` is 0"),
        ({"name": "1s", "seconds": "1"}, "`seconds` is '1'"),
        ({"name": "1s", "fps": float("nan")}, "`fps` is nan"),
        ({"name": "1s", "seconds": float("inf")}, "`seconds` is inf"),
        ({"name": "1s", "seconds": 10**400}, "`seconds` is 1000"),
        ({"name": "1s", "order": [["vision"], "audio"]}, "`order` is"),
        ({"name": "1s", "delimiters": ["turn"]}, "`delimiters` is"),
        ({"name": "1s", "fps": True}, "`fps` is True"),
        ({"name": "1s", "delimiters": "none"}, "`delimiters` is 'none'"),
        ({"name": "1s", "order": ["vision"]}, "`order` is"),
        ({"name": "1s", "order": ["vision", "smell"]}, "`order` is"),
        ({"name": "1s", "order": "vision"}, "`order` is 'vision'"),
        ({"name": "1s", "repeat_frames": 1}, "`repeat_frames` is 1"),
        ({"name": "2s", "repeat_frames": True}, "false where delimiters are 'turn'"),
        ({"name": "1s", "pad_sound": "yes"}, "`pad_sound` is 'yes'"),
        ({"name": "2s", "pad_sound": True}, "`pad_sound` is True, expected false where"),
    ],
)
def test_values_that_cannot_be_are_refused(entry, named):
    with pytest.raises(CheckpointError, match=named):
        template_from(entry)
