"""``omnilive calibrate retention``: how a model attends to old units, and the sinks to keep."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from omni_core import Model, Session
from omni_core.calibration import document
from omni_core.errors import BudgetError
from omni_core.mass_profile import MassProfile
from omnilive.budget import settle
from omnilive.clip import Clip, probe
from omnilive.files import check_target, write
from omnilive.live import DEMO
from omnilive.models import UNTRAINED, prepare
from omnilive.options import CalibrateOptions, UsageError
from omnilive.sinks import model_label
from omnilive.stream import open_clip
from omnilive.terminal import put, say

# Nothing is asked here, so an answer needs no room.
_NO_ANSWER = 1


def run(options: CalibrateOptions) -> None:
    """Measure, and write what was found.

    Raises:
        UsageError: a plot that is no PNG.
        OmniError: what a part says; all clips are too short.
    """
    check_target(options.out, "--out", options.sources)
    if options.plot is not None:
        if options.plot.suffix.lower() != ".png":
            raise UsageError(f"{options.plot}: --plot draws PNG; give a name that ends in .png")
        check_target(options.plot, "--plot", (options.out, *options.sources))
    clips = [probe(source) for source in options.sources or (DEMO,)]
    prepared = prepare(**asdict(options.model))
    room: dict[str, Any] = {
        "budget": options.budget,
        "system": options.system,
        "max_tokens": _NO_ANSWER,
    }
    settle(prepared, prepared.element, **room)
    prepared.check()
    model = prepared.load()
    budget = settle(prepared, model.backend.element, **room)
    say(f"model {model.name} on {model.backend.name} ({model.backend.device}), {budget} cells")
    if not model.trained:
        say(f"warning: {UNTRAINED}")
    profile = MassProfile(options.recent)
    used = [_follow(clip, model, profile, budget, options.system) for clip in clips]
    shares = profile.shares()
    label = model_label(model.name)
    about = {
        "model": label,
        "trained": model.trained,
        "backend": model.backend.name,
        "weights": prepared.weights,
        "recent": options.recent,
        "clips": used,
    }
    found = document(shares, options.cover, about)
    write(options.out, lines(found).encode())
    for name, count in found["sinks"].items():
        longest, mass = len(found["mass"][name]), sum(found["mass"][name])
        put(
            f"{name}: the first {count} of up to {longest} tokens cover {options.cover:.0%} of "
            f"the span's {mass:.1%} of attention on old units\n"
        )
    if options.plot is not None:
        from omnilive.heatmap import draw

        write(options.plot, draw(profile.streams, found["sinks"], label))


def _follow(
    clip: Clip, model: Model, profile: MassProfile, budget: int, system: str | None
) -> dict[str, Any]:
    """Let a clip flow through until its end, or until the budget is full; what was used of it."""
    profile.begin()
    settings = {} if system is None else {"system": system}
    session = Session(
        model,
        budget=budget,
        retention="no-slide",
        max_tokens=_NO_ANSWER,
        watcher=profile,
        **settings,
    )
    units, seconds = 0, 0.0
    try:
        for unit in open_clip(clip.path, model):
            session.append(unit)
            units, seconds = units + 1, unit.stop
    except BudgetError:
        say(
            f"{clip.path}: the budget of {budget} cells is full after {seconds:g} s; the rest is "
            "left out (a larger --budget takes more in)"
        )
    measured = len(profile.streams[-1])
    say(f"{clip.path}: {units} units, {measured} of them with old units to attend to")
    return {"name": clip.path.name, "seconds": round(seconds, 3), "units": units}


def lines(found: dict[str, Any]) -> str:
    """JSON with a line an entry, so that a long curve takes one."""
    entries = (
        f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in found.items()
    )
    return "{\n" + ",\n".join(entries) + "\n}\n"
