"""``omnilive replay``: a recording's plans on this machine, compared with what was recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core import Model
from omni_core.backend import ArenaLayout
from omni_core.errors import RecordingError
from omni_core.ledger import Ledger
from omni_core.model_config import TextConfig
from omni_core.paging.table import PageTables
from omni_core.recording import START, Recording
from omni_core.replay import ReplayReport, first_difference, replay
from omni_core.saving import open_saved
from omni_core.stream_state import restore_arena
from omnilive.models import prepare
from omnilive.options import WEIGHTS
from omnilive.pace import Pace
from omnilive.terminal import put, say

# Relative to a row's largest logit. float32 backends differ by the order of their sums; in bfloat16
# each rounding is 2^-9, and layers add theirs up.
_TOLERANCE = {4: 1e-3, 2: 0.15}
# Backends round weights to 8 and 4 bits each in their own way: about twice what was seen at most.
_ROUNDED = {"8": 0.02, "4": 0.4}
# A number half way between two codes may be sealed as either: more than twice what was seen, and
# less than half of what another number of bits does.
_CODED = 0.05
_EXACT = {4: "f32", 2: "bf16"}
_KINDS = {str: "a text", int: "a whole number", dict: "an object"}


def run(
    folder: Path,
    *,
    model: str | None,
    backend: str,
    device: str,
    weights: str | None,
    jsonl: bool,
    in_time: bool = False,
) -> bool:
    """Replay a recording and report; whether the logits agree within tolerance.

    ``model`` and ``weights`` None take those of the recording. With ``in_time`` each unit waits
    until it would have been captured.

    Raises:
        OmniError: no readable recording, or no such model or backend.
    """
    recording = Recording(folder)
    recorded = _read(recording)
    # "auto" means another format on another machine: what it was there is what is asked for here.
    as_recorded = _EXACT[recorded.element] if recorded.weights == "auto" else recorded.weights
    asked = weights or as_recorded
    prepared = prepare(model or recorded.model, backend, device, asked)
    _check_arena(recording, recorded.arena, prepared.config.text, prepared.name)
    prepared.check(sealed=recorded.arena.sealed_pages > 0)
    loaded = prepared.load()
    loaded.backend.allocate(recorded.arena)
    _restore(recording, recorded.arena, loaded)
    if in_time:
        pace = Pace(recording, jsonl)
        report = replay(recording, loaded.backend, loaded.frontend, pace.wait)
        pace.show_rest()
    else:
        report = replay(recording, loaded.backend, loaded.frontend)
    element = min(loaded.backend.element, recorded.element)
    tolerance = _TOLERANCE[element]
    if recorded.arena.sealed_pages and loaded.backend.name != recorded.backend:
        tolerance = max(tolerance, _CODED)
    if (asked, loaded.backend.name) != (as_recorded, recorded.backend):
        tolerance = max(tolerance, *(_ROUNDED.get(each, 0.0) for each in (asked, as_recorded)))
    same = report.compared > 0 and report.worst <= tolerance
    _show(report, recorded.backend, loaded.backend.name, loaded.backend.device, tolerance, jsonl)
    if not report.compared:
        say(f"{folder}: holds no logits to compare; record a run that takes in a unit at least")
    elif not same:
        say(
            f"{folder}: the logits differ by {report.worst:.2g} of the largest, {tolerance:g} is "
            "expected at most: another model, other weights, or a fault in a backend"
        )
    return same


def compare(folder: Path, other: Path, *, jsonl: bool) -> bool:
    """Report whether two recordings hold the same plans, integer for integer.

    Raises:
        RecordingError: one of them is not readable.
    """
    one, two = Recording(folder), Recording(other)
    difference = first_difference(one, two)
    names = [str(recording.meta.get("backend")) for recording in (one, two)]
    if jsonl:
        event = {"event": "compare", "backends": names, "difference": difference}
        put(json.dumps(event) + "\n")
    elif difference is None:
        count = sum(1 for _ in one.plans())
        put(f"the plans are equal: {count} on {names[0]}, {count} on {names[1]}\n")
    if difference is not None:
        say(f"{folder} and {other}: {difference}")
    return difference is None


def _merged(report: ReplayReport) -> dict[str, int]:
    """Embeddings before and after, where a recording merged some."""
    return {"rows": report.rows, "merged": report.merged} if report.rows else {}


def _show(
    report: ReplayReport,
    recorded: str,
    backend: str,
    device: str,
    tolerance: float,
    jsonl: bool,
) -> None:
    event: dict[str, Any] = {
        "event": "replay",
        "recorded": recorded,
        "backend": backend,
        "device": device,
        "steps": report.steps,
        "moves": report.moves,
        **_merged(report),
        "compared": report.compared,
        "agreed": report.agreed,
        "worst": report.worst,
        "tolerance": tolerance,
    }
    if jsonl:
        put(json.dumps(event) + "\n")
        return
    put(
        f"{report.steps} steps and {report.moves} moves, recorded on {recorded}, "
        f"replayed on {backend} ({device})\n"
        f"{_told_merged(report)}"
        f"{report.agreed} of {report.compared} likeliest tokens agree; logits differ by at most "
        f"{report.worst:.2g} of the largest (tolerance {tolerance:g})\n"
    )


def _told_merged(report: ReplayReport) -> str:
    return f"{report.merged} of {report.rows} embeddings entered\n" if report.rows else ""


@dataclass(frozen=True)
class _Recorded:
    """What ``session.json`` must say before a recording's plans can be carried out."""

    model: str
    weights: str
    backend: str
    element: int
    arena: ArenaLayout


def _read(recording: Recording) -> _Recorded:
    """The fields of ``session.json``, all of them checked.

    Raises:
        RecordingError: one is missing or makes no sense.
    """
    element = _field(recording, "element", int)
    weights = _field(recording, "weights", str)
    if element not in _TOLERANCE:
        raise _damaged(recording, f"`element` is {element}, expected 2 or 4")
    if weights not in WEIGHTS:
        raise _damaged(recording, f"`weights` is {weights!r}, expected one of {', '.join(WEIGHTS)}")
    told = _field(recording, "arena", dict)
    try:
        arena = ArenaLayout.restored(told)
    except ValueError as error:
        raise _damaged(recording, f"`arena` is {told}, {error}") from None
    model, backend = _field(recording, "model", str), _field(recording, "backend", str)
    return _Recorded(model, weights, backend, element, arena)


def _field(recording: Recording, key: str, kind: type) -> Any:
    if key not in recording.meta:
        raise _damaged(recording, f"lacks `{key}`")
    value = recording.meta[key]
    if type(value) is not kind:
        raise _damaged(recording, f"`{key}` is {value!r}, expected {_KINDS[kind]}")
    return value


def _damaged(recording: Recording, what: str) -> RecordingError:
    return RecordingError(f"{recording.folder}/session.json: {what}; record it again")


def _restore(recording: Recording, arena: ArenaLayout, model: Model) -> None:
    """Begin with the saved session that a recording begins with, if it does."""
    start = recording.folder / START
    if not start.exists():
        return
    saved = open_saved(start)
    if saved.model.element != model.backend.element:
        raise RecordingError(
            f"{start}: saved with {saved.model.element} bytes a number, and {model.backend.name} "
            f"computes with {model.backend.element} here: give --weights {saved.model.weights}"
        )
    ledger, tables = Ledger(arena.groups), PageTables(arena)
    with saved.reading():
        restore_arena(model.backend, ledger, tables, saved.state["cache"], saved.stored)


def _check_arena(recording: Recording, arena: ArenaLayout, text: TextConfig, model: str) -> None:
    """Refuse a model of another shape than the recorded one, before its weights are loaded."""
    found = (arena.groups * arena.layers_per_group, arena.kv_heads, arena.head_dim, arena.streams)
    expected = (text.layers, text.kv_heads, text.head_dim, 1)
    if found != expected:
        raise RecordingError(
            f"{recording.folder}: recorded with (layers, key heads, head_dim, streams) {found}, "
            f"but {model} has {expected}; give --model the recorded one"
        )
