"""``omnilive live``: a clip's units into a session, questions at their time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omni_core import Model, Recorder, Session
from omni_core.aggregation import Aggregation
from omni_core.paging import layout
from omni_core.quantization.tables_file import has_tables
from omni_core.retention import OmniPick, Policy
from omni_core.saving import SavedSession
from omni_core.sealing import RECENT, Sealing
from omni_core.tracing import Tracer
from omnilive import aggregating, layering
from omnilive.assistant import Begin, Devices, Look, choose_devices, deaf, follow_devices
from omnilive.budget import settle
from omnilive.capture.soundservers import NONE, Absence
from omnilive.clip import Clip, probe
from omnilive.explanation import drawn_pages, explained
from omnilive.files import check_target
from omnilive.hangups import noticed
from omnilive.interrupts import gently
from omnilive.keeping import Kept, recorded, traced
from omnilive.models import UNTRAINED, folder, prepare
from omnilive.options import LiveOptions
from omnilive.output import Event, Output, open_output
from omnilive.player import Player
from omnilive.questions import Questions, check_asks
from omnilive.resuming import check_save, continued, saved_at_end
from omnilive.sealing import chosen, told, unmeasured
from omnilive.sinks import choose_policy, model_label, own_omnipick
from omnilive.speech.programs import find_program
from omnilive.stream import framer_for
from omnilive.watch import Watches

DEMO = Path(__file__).parent / "assets" / "demo.mp4"
"""The clip that ships with omnilive."""


def run(options: LiveOptions) -> int:
    """Follow devices, or a clip to its end; the exit code.

    What can be refused is refused before weights are loaded.

    Raises:
        UsageError: a question past the clip's end.
        OmniError: what a part says.
    """
    with noticed():
        return _run(options)


def _run(options: LiveOptions) -> int:
    output = open_output(options.jsonl)
    options, saved = continued(options)
    source: Clip | Devices | None = choose_devices(options)
    if source is None:
        source = probe(options.source or DEMO)
    clip = source if isinstance(source, Clip) else None
    check_asks(options, clip, saved.time if saved else 0.0)
    read = (options.source, options.sinks, options.asked_from, options.layer_budgets)
    if options.explain is not None:
        check_target(options.explain, "--explain", read)
    if options.trace is not None:
        check_target(options.trace, "--trace", (*read, options.explain))
    check_save(options)
    sealing = chosen(options.kv_bits, options.seal, [options.retention])
    aggregation = aggregating.chosen(options.aggregate, options.theta_inter, options.theta_intra)
    layering.check(options.layer_budgets, options.layer_blend, [options.retention])
    if options.speak and isinstance(source, Devices):
        # There is a voice, or it is told what to install.
        find_program()
    rule, measured = _policy(options, saved)
    with recorded(options, rule) as recorder:
        if recorder is not None:
            output = Kept(output, recorder)
        how = {"sealing": sealing, "aggregation": aggregation}
        return _load_and_follow(options, output, source, rule, measured, recorder, saved, **how)


def _policy(options: LiveOptions, saved: SavedSession | None) -> tuple[Policy, str | None]:
    """The policy, and the model that its counts were measured on, if a file says so."""
    if saved is not None:
        return saved.settings.retention, None
    return choose_policy(options.retention, options.sinks, folder(options.model.model))


def _load_and_follow(
    options: LiveOptions,
    output: Output,
    source: Clip | Devices,
    rule: Policy,
    measured: str | None,
    recorder: Recorder | None,
    saved: SavedSession | None,
    *,
    sealing: Sealing | None,
    aggregation: Aggregation | None,
) -> int:
    start = saved.time if saved else 0.0
    prepared = prepare(**asdict(options.model))
    if saved is not None:
        saved.check(prepared.described(prepared.element))
    if saved is not None:
        layers, groups = saved.settings.layers, saved.settings.groups
    else:
        layers = layering.chosen(options.layer_budgets, options.layer_blend, prepared)
        groups = 1 if layers is None else prepared.config.text.layers
    room: dict[str, Any] = {
        "budget": options.budget,
        "system": options.system,
        "max_tokens": options.max_tokens,
        "sealing": sealing,
        "groups": groups,
    }
    settle(prepared, prepared.element, **room)
    prepared.check(sealed=sealing is not None)
    if saved is None and options.sinks is None and options.retention == OmniPick.name:
        # Of a model from the hub this is known only now.
        rule = own_omnipick(prepared.checkpoint.path)
        if recorder is not None:
            recorder.describe(policy=asdict(rule))
    _introduce(output, source, options)
    model = prepared.load()
    budget = settle(prepared, model.backend.element, **room)
    output.note(
        f"model {model.name} on {model.backend.name} ({model.backend.device}), "
        f"budget {budget} cells, retention {options.retention}, layout {options.layout}"
        + told(sealing)
        + aggregating.told(aggregation)
        + layering.told(layers)
    )
    if not model.trained:
        output.event({"event": "warning", "t": round(start, 3), "message": UNTRAINED})
    if sealing is not None and not has_tables(prepared.checkpoint):
        message = unmeasured(prepared.checkpoint.path.name)
        output.event({"event": "warning", "t": round(start, 3), "message": message})
    if measured is not None and measured != model_label(model.name):
        message = f"{options.sinks} was measured on {measured}, not on {model_label(model.name)}"
        output.event({"event": "warning", "t": round(start, 3), "message": message})
    places = saved.settings.layout if saved else layout(options.layout)
    with (
        explained(
            options,
            _name(source),
            rule,
            places,
            f"{budget} cells{told(sealing)}{aggregating.told(aggregation)}{layering.told(layers)}",
            by_group=layers is not None,
        ) as watcher,
        traced(options.trace) as tracer,
    ):
        watching = {"recorder": recorder, "tracer": tracer}
        settings = {"budget": budget, "retention": rule, "layout": places}
        settings |= {"aggregation": aggregation, "layers": layers}

        def begin(show: Callable[[Event], None], look: Look | None = None) -> Session:
            seen = {"watcher": look(places, watcher) if look else watcher, **watching}
            if saved is not None:
                return Session.resume(model, saved, on_event=show, **seen)
            return _open_session(options, model, on_event=show, **settings, **seen)

        if isinstance(source, Clip):
            return _follow(options, output, source, model, begin, tracer, start, prepared.watch)

        def wrap(screen: Output) -> Output:
            return screen if recorder is None else Kept(screen, recorder)

        return follow_devices(options, output, source, model, begin, start, prepared.watch, wrap)


def _follow(
    options: LiveOptions,
    output: Output,
    clip: Clip,
    model: Model,
    begin: Begin,
    tracer: Tracer,
    start: float,
    asked: str,
) -> int:
    framer = framer_for(clip, model, block=options.fast, start=start)
    for ask in options.asks:
        framer.cut(ask.time)

    def warn(message: str) -> None:
        output.event({"event": "warning", "t": round(player.end, 3), "message": message})

    def show(event: Event) -> None:
        if event["event"] == "unit":
            dropped = {"frames": framer.dropped_frames, "samples": framer.dropped_samples}
            event |= {"dropped": dropped, "lag_ms": player.lag(event["t"])}
            if options.watches:
                event["watch_ms"] = watches.cost
        if event["event"] == "answer" and questions.truth is not None:
            event["truth"] = questions.truth
        if event["event"] == "summary" and questions.score[1]:
            event["right"], event["known"] = questions.score
        output.event(event)
        if event["event"] == "token":
            questions.hold()

    player = Player(
        clip,
        framer,
        paced=not options.fast,
        loop=options.loop,
        duration=options.duration,
        warn=warn,
        start=start,
        tracer=tracer,
    )
    asking: list[Questions | Watches] = []

    def stop() -> None:
        player.stop()
        for part in asking:
            part.stop()

    with (
        begin(show, None) as session,
        gently(stop) as ending,
        saved_at_end(options, session, output),
    ):
        questions = Questions(options.asks, session, output)
        watches = Watches(options.watches, session, output.event, asked)
        asking += [questions, watches]
        questions.put(start)
        for unit in player.units():
            session.append(unit)
            questions.put(unit.stop)
            watches.look(unit.stop)
        questions.put_last(player.end, clip)
    output.drawing(drawn_pages(session))
    return ending.code


def _open_session(options: LiveOptions, model: Model, **settings: Any) -> Session:
    if options.system is not None:
        settings["system"] = options.system
    return Session(
        model,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        kv_bits=options.kv_bits,
        seal=options.seal or RECENT,
        **settings,
    )


def _name(source: Clip | Devices) -> str:
    return source.path.name if isinstance(source, Clip) else source.name


def _introduce(output: Output, clip: Clip | Devices, options: LiveOptions) -> None:
    if isinstance(clip, Devices):
        output.note(f"following {clip.name}")
        return
    if options.source is None:
        output.note(
            "no --source, no camera and no microphone: playing the demo clip that ships with "
            "omnilive"
        )
        absence = deaf()
        if isinstance(absence, Absence) and absence != NONE:
            output.note(str(absence))
    length = "" if clip.duration is None else f"{clip.duration:.2f} s, "
    kinds = " and ".join(kind for kind in (clip.picture, clip.sound) if kind)
    output.note(f"{clip.path}: {length}{kinds}")
