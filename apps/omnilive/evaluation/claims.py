"""What a checkpoint claims about itself, and what the benchmark claims about policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.checkpoints import read_json
from omni_core.errors import CheckpointError
from omni_core.fields import is_number, shown
from omnilive.evaluation.marks import highest
from omnilive.evaluation.rows import Row, count_of
from omnilive.evaluation.settings import UNBOUND
from streamworld.asking import ASKS

FILE = "claims.json"
"""In a checkpoint's folder: the floors that it claims."""
_FIELDS = {"units", "kind", "topic", "floor"}
_ASKED = {(ask.kind, ask.topic) for ask in ASKS}
_ENOUGH = 10
"""Questions below which a difference says nothing."""
_FALLS = 50.0
"""Points that FIFO must lose on *first* at an eighth of the stream, or the world is too easy."""


@dataclass(frozen=True)
class Claim:
    """A figure and the bound that it is to keep, both in percent or points.

    Attributes:
        name: what is claimed, in words.
        value: what was measured, None where nothing in the run tells.
        comparison: how the value must stand to the bound: ``>=`` or ``<``.
        bound: what it is held against.
    """

    name: str
    value: float | None
    comparison: str
    bound: float

    @property
    def holds(self) -> bool | None:
        """Whether the value keeps the bound; None where there is no value."""
        if self.value is None:
            return None
        return self.value >= self.bound if self.comparison == ">=" else self.value < self.bound

    def row(self) -> dict[str, Any]:
        """For JSON."""
        words = {">=": "at least", "<": "below"}[self.comparison]
        return {
            "name": self.name,
            "value": self.value,
            "bound": self.bound,
            "is": words,
            "holds": self.holds,
        }


@dataclass(frozen=True)
class Floor:
    """The least share of right answers that a model claims with everything kept in 16 bits.

    Attributes:
        units: of the streams.
        kind, topic: of the questions; None for all.
        floor: the share, 0 to 1.
    """

    units: int
    kind: str | None
    topic: str | None
    floor: float

    def check(self, rows: Sequence[Row]) -> Claim:
        """Hold it against a run: it fails where even the interval's upper end lies below."""
        what = " ".join(filter(None, (self.kind, self.topic))) or "all questions"
        name = f"{what}, {self.units} units, all kept"
        for row in rows:
            plain = row["kv_bits"] == 16 and "aggregation" not in row
            whole = row["policy"] == UNBOUND and plain
            if whole and row["units"] == self.units:
                right, count = count_of(row, self.kind, self.topic)
                if count:
                    name += f": {right} of {count} right, the share is at most"
                    value = 100 * highest(right, count)
                    return Claim(name, round(value, 2), ">=", 100 * self.floor)
        return Claim(name, None, ">=", 100 * self.floor)


def read_floors(folder: Path) -> list[Floor]:
    """The floors that a checkpoint's folder claims; none where it has no such file.

    Raises:
        CheckpointError: the file is not what it should be.
    """
    path = folder / FILE
    if not path.exists() and not path.is_symlink():
        return []
    entries = read_json(path).get("streamworld")
    if not isinstance(entries, list):
        raise CheckpointError(
            f"{path}: `streamworld` is {shown(entries)}, expected a list of claims"
        )
    return [_floor(path, entry) for entry in entries]


def of_policies(rows: Sequence[Row]) -> list[Claim]:
    """What must be so for the benchmark to tell policies apart, as far as the rows show it."""
    claims = []
    whole = next((row for row in rows if row["policy"] == UNBOUND), None)
    eighth = next((r for r in rows if r["policy"] == "fifo" and r["share"] == "1/8"), None)
    if whole and eighth and count_of(whole, "first")[1]:
        asked = count_of(whole, "first")[1]
        kept, left = (_percent(row, "first") for row in (whole, eighth))
        name = f"fifo at 1/8 loses on {asked} first questions, in points"
        lost = round(kept - left, 2) if asked >= _ENOUGH else None
        claims.append(Claim(name, lost, ">=", _FALLS))
    simple = [
        row for row in rows if row["policy"] not in (UNBOUND, "omnipick") and row["share"] == "1/16"
    ]
    if simple:
        best = max(simple, key=lambda row: float(row["accuracy"]))
        name = f"the best simple policy at 1/16 ({best['policy']}) is not perfect: at most"
        claims.append(Claim(name, round(100 * best["high"], 2), "<", 100.0))
    return claims


def _percent(row: Row, kind: str) -> float:
    right, count = count_of(row, kind)
    return 100 * right / count


def _floor(path: Path, entry: Any) -> Floor:
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise CheckpointError(
            f"{path}: {shown(entry)} is no claim; expected the fields {', '.join(sorted(_FIELDS))}"
        )
    units, kind, topic, floor = (entry[name] for name in ("units", "kind", "topic", "floor"))
    if not isinstance(units, int) or isinstance(units, bool) or units < 1:
        raise CheckpointError(f"{path}: `units` is {shown(units)}, expected a number of units")
    if not is_number(floor) or not 0 < floor <= 1:
        raise CheckpointError(f"{path}: `floor` is {shown(floor)}, expected a share above 0, to 1")
    known = (kind is None and topic is None) or any(
        kind == asked[0] and topic in (None, asked[1]) for asked in _ASKED
    )
    if not known:
        raise CheckpointError(
            f"{path}: nobody asks kind {shown(kind)}, topic {shown(topic)}; known kinds are "
            f"{', '.join(sorted({asked[0] for asked in _ASKED}))}, null for all"
        )
    return Floor(units, kind, topic, float(floor))
