"""``omnilive live``: a clip's units into a session, questions at their time."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omni_core import Model, Recorder, Session
from omni_core.errors import MediaError, RecordingError
from omnilive.arena import settle
from omnilive.clip import Clip, probe
from omnilive.interrupts import gently
from omnilive.models import Prepared, prepare
from omnilive.options import Ask, LiveOptions, UsageError
from omnilive.output import Event, Output, open_output
from omnilive.player import Player
from omnilive.stream import framer_for

DEMO = Path(__file__).parent / "assets" / "demo.mp4"
_UNTRAINED = "the model is untrained: its weights are random, and so are its answers"
# Containers round their length; a question this little beyond the true end is put at the end.
_ROUNDING = 0.1


def run(options: LiveOptions) -> None:
    """Follow a clip to its end.

    What can be refused is refused before weights are loaded.

    Raises:
        UsageError: a question past the clip's end.
        OmniError: what a part says.
    """
    output = open_output(options.jsonl)
    clip = probe(options.source or DEMO)
    _check_asks(options, clip)
    if options.record is not None:
        _check_folder(options.record)
    prepared = prepare(**asdict(options.model))
    settle(prepared, options, prepared.element)
    _introduce(output, clip, options)
    model = prepared.load()
    budget = settle(prepared, options, model.backend.element)
    output.note(
        f"model {model.name} on {model.backend.name} ({model.backend.device}), "
        f"budget {budget} cells, retention {options.retention}"
    )
    if not model.trained:
        output.event({"event": "warning", "t": 0.0, "message": _UNTRAINED})
    _follow(options, output, clip, prepared, model, budget)


def _follow(
    options: LiveOptions,
    output: Output,
    clip: Clip,
    prepared: Prepared,
    model: Model,
    budget: int,
) -> None:
    framer = framer_for(clip, model, block=options.fast)
    for ask in options.asks:
        framer.cut(ask.time)

    def warn(message: str) -> None:
        output.event({"event": "warning", "t": round(player.end, 3), "message": message})

    def show(event: Event) -> None:
        if event["event"] == "unit":
            dropped = {"frames": framer.dropped_frames, "samples": framer.dropped_samples}
            event |= {"dropped": dropped, "lag_ms": player.lag(event["t"])}
        output.event(event)

    player = Player(
        clip,
        framer,
        paced=not options.fast,
        loop=options.loop,
        duration=options.duration,
        warn=warn,
    )
    with _open_session(options, prepared, model, budget, show) as session:
        asks = list(options.asks)

        def stop() -> None:
            asks.clear()
            session.interrupt()
            player.stop()

        with gently(stop):
            _put(asks, 0.0, session, output)
            for unit in player.units():
                session.append(unit)
                _put(asks, unit.stop, session, output)
            _put_last(asks, player.end, session, output, clip)


def _put(
    asks: list[Ask], now: float, session: Session, output: Output, slack: float = 1e-4
) -> None:
    """Ask what is due."""
    while asks and asks[0].time <= now + slack:
        ask = asks.pop(0)
        output.question(now, ask.question)
        session.ask(ask.question)


def _put_last(asks: list[Ask], end: float, session: Session, output: Output, clip: Clip) -> None:
    """Ask what a rounded length put just past the end; fail for what lies further off."""
    if asks and asks[0].time <= end + _ROUNDING:
        message = f"the stream ended at {end:.2f} s; the question at {asks[0].time:g} s comes there"
        output.event({"event": "warning", "t": round(end, 3), "message": message})
        _put(asks, end, session, output, _ROUNDING)
    if asks:
        raise MediaError(
            f"{clip.path}: the stream ended at {end:.2f} s, before the question at "
            f"{asks[0].time:g} s; ask earlier, or repeat the clip with --loop or --duration"
        )


def _check_asks(options: LiveOptions, clip: Clip) -> None:
    """Refuse a question that cannot be reached, where the clip's length is known."""
    length = options.duration
    if length is None and clip.duration is not None:
        length = clip.duration * options.loop
    for ask in options.asks:
        if length is not None and ask.time > length:
            raise UsageError(
                f"the question at {ask.time:g} s lies past the end of {clip.path} at {length:g} s; "
                "ask earlier, or repeat the clip with --loop or --duration"
            )


def _check_folder(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecordingError(f"{folder}: exists and is not empty; give a new folder for --record")


def _open_session(
    options: LiveOptions,
    prepared: Prepared,
    model: Model,
    budget: int,
    show: Callable[[Event], None],
) -> Session:
    """A session, and its recording if one is wanted; a failed start leaves no folder behind."""
    settings: dict[str, Any] = {
        "budget": budget,
        "retention": options.retention,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
    }
    if options.system is not None:
        settings["system"] = options.system
    if options.record is None:
        return Session(model, on_event=show, **settings)
    existed = options.record.exists()
    about = {
        "model": prepared.location,
        "weights": prepared.weights,
        "versions": _versions(),
    }
    recorder = Recorder(options.record, about)
    try:
        return Session(model, on_event=show, recorder=recorder, **settings)
    except BaseException:
        recorder.close()
        shutil.rmtree(options.record)
        if existed:
            options.record.mkdir()
        raise


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("omnilive", "numpy", "av", "mlx", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _introduce(output: Output, clip: Clip, options: LiveOptions) -> None:
    if options.source is None:
        output.note("no --source: playing the demo clip that ships with omnilive")
    length = "" if clip.duration is None else f"{clip.duration:.2f} s, "
    kinds = " and ".join(kind for kind in (clip.picture, clip.sound) if kind)
    output.note(f"{clip.path}: {length}{kinds}")
