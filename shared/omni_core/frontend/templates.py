"""How a checkpoint lays one unit of the stream out as tokens, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

from omni_core.errors import CheckpointError
from omni_core.fields import is_number, plain, shown
from omni_core.units import Modality

_SENSES = {"vision": Modality.VISION, "audio": Modality.AUDIO}


@dataclass(frozen=True)
class UnitTemplate:
    """One unit's layout.

    Attributes:
        name: what it is called.
        seconds: length of a full unit.
        fps: frames a second, unless the user asks for another rate.
        delimiters: ``turn``: one pair around all units of a turn, which ends with the next
            question; ``unit``: a pair around each unit, which is a clip of its own.
        order: the senses in the order their tokens come.
        repeat_frames: whether a full unit may leave a temporal patch unfilled, to be filled with
            its last frame. A unit in which the picture or the stream ends may always.
        pad_sound: whether the sound of a unit that was closed early is filled up with silence: for
            a model that knows full units alone.
    """

    name: str
    seconds: float
    fps: float
    delimiters: Literal["turn", "unit"]
    order: tuple[Modality, ...]
    repeat_frames: bool
    pad_sound: bool = False

    def __post_init__(self) -> None:
        """Refuse what no stream can follow."""
        for field in ("seconds", "fps"):
            value = getattr(self, field)
            if not is_number(value) or not value > 0:
                raise _wrong(self.name, field, value, "a finite number above 0")
        if self.delimiters not in ("turn", "unit"):
            raise _wrong(self.name, "delimiters", self.delimiters, "'turn' or 'unit'")
        if sorted(self.order) != sorted(_SENSES.values()):
            raise _wrong(self.name, "order", self.order, "'vision' and 'audio', each once")
        for field in ("repeat_frames", "pad_sound"):
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise _wrong(self.name, field, value, "true or false")
            if value and self.delimiters == "turn":
                # Inside one clip, frames and sound that were not there would let its time run
                # faster than the clock.
                raise _wrong(self.name, field, True, "false where delimiters are 'turn'")


TWO_SECONDS = UnitTemplate("2s", 2.0, 2.0, "turn", (Modality.VISION, Modality.AUDIO), False)
"""Qwen2.5-Omni's chunks: positions are those of the whole clip given in one shot."""
ONE_SECOND = UnitTemplate("1s", 1.0, 1.0, "unit", (Modality.VISION, Modality.AUDIO), True)
"""A clip each second: positions are those of a sequence of one-second clips."""

TEMPLATES = {template.name: template for template in (TWO_SECONDS, ONE_SECOND)}


def template_from(entry: Mapping[str, Any]) -> UnitTemplate:
    """A template from a checkpoint's ``unit_template`` entry.

    ``name`` may be that of a known template, whose fields the entry's others then replace; a new
    name needs all fields.

    Raises:
        CheckpointError: an unknown or missing field, or a value that cannot be.
    """
    known = [field.name for field in fields(UnitTemplate)]
    unknown = sorted(set(entry) - set(known))
    if unknown:
        raise CheckpointError(
            f"unit_template: unknown keys {', '.join(map(plain, unknown))}; "
            f"known are {', '.join(known)}"
        )
    name = entry.get("name")
    if not isinstance(name, str):
        raise CheckpointError(
            f"unit_template: `name` is {shown(name)}, expected {', '.join(TEMPLATES)} or a new name"
        )
    values: dict[str, Any] = asdict(TEMPLATES[name]) if name in TEMPLATES else {}
    values.update(entry)
    stated = [field.name for field in fields(UnitTemplate) if field.default is MISSING]
    missing = [field for field in stated if field not in values]
    if missing:
        raise CheckpointError(
            f"unit_template {shown(name)} is not one of {', '.join(TEMPLATES)} and lacks "
            f"{', '.join(missing)}: state every field of a new template"
        )
    if "order" in entry:
        values["order"] = _order(name, entry["order"])
    return UnitTemplate(**values)


def _order(name: str, order: Any) -> tuple[Modality, ...]:
    if not isinstance(order, list | tuple) or any(
        not isinstance(sense, str) or sense not in _SENSES for sense in order
    ):
        raise _wrong(name, "order", order, "'vision' and 'audio', each once")
    return tuple(_SENSES[sense] for sense in order)


def _wrong(name: str, field: str, value: object, expected: str) -> CheckpointError:
    return CheckpointError(
        f"unit_template {shown(name)}: `{field}` is {shown(value)}, expected {expected}: "
        "mend the checkpoint's preprocessor_config.json"
    )
