"""``omnilive replay``: a recording's plans on this machine, compared with what was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_core.backend import ArenaLayout
from omni_core.errors import RecordingError
from omni_core.recording import Recording
from omni_core.replay import ReplayReport, first_difference, replay
from omnilive.models import load
from omnilive.output import say

# Relative to a row's largest logit. float32 backends differ by the order of their sums; in bfloat16
# each rounding is 2^-9, and layers add theirs up.
_TOLERANCE = {4: 1e-3, 2: 5e-2}


def run(
    folder: Path,
    *,
    model: str | None,
    backend: str,
    device: str,
    weights: str | None,
    jsonl: bool,
) -> bool:
    """Replay a recording and report; whether the logits agree within tolerance.

    ``model`` and ``weights`` None take those of the recording.

    Raises:
        OmniError: no readable recording, or no such model or backend.
    """
    recording = Recording(folder)
    name, form = _recorded(recording, "model"), _recorded(recording, "weights")
    layout = _layout(recording)
    loaded = load(model or name, backend, device, weights or form)
    loaded.backend.allocate(layout)
    report = replay(recording, loaded.backend, loaded.frontend)
    element = min(loaded.backend.element, int(_recorded(recording, "element")))
    tolerance = _TOLERANCE[element]
    same = report.worst <= tolerance
    _show(report, recording, loaded.backend.name, loaded.backend.device, tolerance, jsonl)
    if not same:
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
        fields = {"event": "compare", "backends": names, "difference": difference}
        print(json.dumps(fields), flush=True)
    elif difference is None:
        count = sum(1 for _ in one.plans())
        print(f"the plans are equal: {count} on {names[0]}, {count} on {names[1]}", flush=True)
    if difference is not None:
        say(f"{folder} and {other}: {difference}")
    return difference is None


def _show(
    report: ReplayReport,
    recording: Recording,
    backend: str,
    device: str,
    tolerance: float,
    jsonl: bool,
) -> None:
    fields: dict[str, Any] = {
        "event": "replay",
        "recorded": recording.meta["backend"],
        "backend": backend,
        "device": device,
        "steps": report.steps,
        "moves": report.moves,
        "compared": report.compared,
        "agreed": report.agreed,
        "worst": report.worst,
        "tolerance": tolerance,
    }
    if jsonl:
        print(json.dumps(fields), flush=True)
        return
    print(
        f"{report.steps} steps and {report.moves} moves, recorded on {fields['recorded']}, "
        f"replayed on {backend} ({device})\n"
        f"{report.agreed} of {report.compared} likeliest tokens agree; logits differ by at most "
        f"{report.worst:.2g} of the largest (tolerance {tolerance:g})",
        flush=True,
    )


def _recorded(recording: Recording, key: str) -> Any:
    if key not in recording.meta:
        raise RecordingError(f"{recording.folder}/session.json: lacks `{key}`; record it again")
    return recording.meta[key]


def _layout(recording: Recording) -> ArenaLayout:
    try:
        return ArenaLayout(**_recorded(recording, "layout"))
    except TypeError as error:
        raise RecordingError(
            f"{recording.folder}/session.json: `layout` is damaged ({error}); record it again"
        ) from None
