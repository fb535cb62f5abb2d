"""``omnilive live`` on devices: what they give into a session, and turns answered as they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from omni_core import Model, Session
from omni_core.errors import MediaError
from omni_core.paging import Layout
from omni_core.watcher import Watcher
from omnilive.capture.camera import PictureSource
from omnilive.capture.cameras import found_cameras
from omnilive.capture.choosing import choose_camera, choose_microphone
from omnilive.capture.framers import live_framer
from omnilive.capture.microphone import SoundSource
from omnilive.capture.sounddevices import inputs, sound_library
from omnilive.capture.soundservers import NONE, Absence, no_microphones
from omnilive.capture.source import Capture
from omnilive.conversation import Conversation
from omnilive.explanation import drawn_pages
from omnilive.forgiving import Forgiving
from omnilive.interrupts import gently
from omnilive.options import LiveOptions, UsageError
from omnilive.output import Event, Output
from omnilive.questions import Questions
from omnilive.resuming import saved_at_end
from omnilive.speech.turns import Began, Ended
from omnilive.terminal import say
from omnilive.watch import Watches

Look = Callable[[Layout, Watcher | None], Watcher]
Begin = Callable[[Callable[[Event], None], Look | None], Session]
Wrap = Callable[[Output], Output]


@dataclass(frozen=True)
class Devices:
    """A camera, a microphone, or both; none of them is open yet."""

    camera: PictureSource | None
    microphone: SoundSource | None

    @property
    def name(self) -> str:
        """For people."""
        return " and ".join(one.name for one in (self.camera, self.microphone) if one is not None)


def choose_devices(options: LiveOptions) -> Devices | None:
    """The devices that were named, and the default of what was not; None without any.

    Raises:
        UsageError: devices beside a clip, or ``none`` for both.
        MediaError: one that was named is not there, or its library is missing.
    """
    named = options.camera is not None or options.mic is not None
    if options.source is not None:
        if named:
            raise UsageError(
                "--source brings its own picture and sound; leave --camera and --mic out, or name "
                "the clip there: --camera CLIP --mic none"
            )
        return None
    if options.camera == options.mic == "none":
        raise UsageError("--camera none and --mic none leave nothing to follow; choose one of them")
    camera = choose_camera(options.camera or ("default" if _any_camera() else "none"))
    why = None if options.mic is not None else deaf()
    if camera is not None and why not in (None, NONE):
        say(f"no microphone is used: {why}")
    microphone = choose_microphone(options.mic or ("default" if why is None else "none"))
    if camera is None and microphone is None:
        if named:
            raise MediaError(
                "no camera was found; `omnilive devices` lists what there is"
                if why is None
                else f"without a camera a microphone is needed, but {why}"
            )
        return None
    return Devices(camera, microphone)


def deaf() -> Absence | MediaError | None:
    """Why there is no microphone, if there is none: what is absent, or what is not installed."""
    try:
        return None if inputs(sound_library()) else no_microphones()
    except MediaError as error:
        return error


def follow_devices(
    options: LiveOptions,
    output: Output,
    devices: Devices,
    model: Model,
    begin: Begin,
    start: float,
    asked: str,
    wrap: Wrap,
) -> int:
    """Follow devices until somebody ends it; the exit code.

    Args:
        options: the run's.
        output: where events go without a screen.
        devices: what is followed.
        model: loaded.
        begin: begins the session.
        start: second at which the stream goes on.
        asked: how a watch is put to the model.
        wrap: puts a recording around a screen.
    """
    with ExitStack() as stack:
        run = _Run(options, devices, model, start, asked)
        title = f"{model.name} on {model.backend.name}, {options.retention}"
        screen = None if options.jsonl else _screen(title, output, run)
        run.output = output if screen is None else wrap(screen)
        if screen is not None:
            stack.enter_context(screen)
            run.hearing = screen.hearing
        look = None if screen is None else screen.onlooker
        with (
            gently(run.stop) as ending,
            begin(run.show, look) as session,
            saved_at_end(options, session, run.output),
        ):
            run.follow(session)
        run.output.drawing(drawn_pages(session))
    return ending.code


class _Run:
    """One stream from devices: what its parts know of each other."""

    def __init__(
        self, options: LiveOptions, devices: Devices, model: Model, start: float, asked: str
    ) -> None:
        self._options, self._start, self._asked = options, start, asked
        self._framer = live_framer(model.frontend, devices.camera, devices.microphone, start)
        self._listener: Any = None
        self.capture = Capture(
            devices.camera,
            devices.microphone,
            self._framer,
            warn=self._warn,
            duration=options.duration,
            start=start,
            tap=None if devices.microphone is None else self._tap,
        )
        self.output: Output
        self.hearing: Callable[[bool], None] = lambda _: None
        self._talk: Conversation | None = None
        self._questions: Questions | None = None
        self._watches: Watches | None = None
        self._muted = self._blind = self._ended = False
        self._typed: deque[str] = deque()
        self._first: float | None = None

    def follow(self, session: Session) -> None:
        """Take units in and answer, until the end."""
        with _voice(self._options, self._warn) as voice, self.capture:
            self._follow(session, voice)

    def _follow(self, session: Session, voice: Any) -> None:
        options = self._options
        asking = Forgiving(session, self._warn)
        self._talk = talk = Conversation(
            asking, self.output, cut=self.capture.cut, barge_in=options.barge_in, voice=voice
        )
        self._questions = Questions(options.asks, talk, self.output)
        if options.watches:
            self._watches = Watches(options.watches, asking, self.output.event, self._asked)
        self._take_typed()
        for ask in options.asks:
            self._framer.cut(ask.time)
        if self._ended:
            # It came before there was anything to stop.
            self.stop()
        self.capture.open()
        self._listener = self._listening(voice)
        self.output.note("listening; Ctrl-C ends it")
        self._questions.put(self._start)
        for unit in self.capture.units():
            session.append(unit)
            self._questions.put(unit.stop)
            talk.answer(unit.stop)
            if self._watches is not None:
                self._watches.look(unit.stop)
        self._questions.put_last(self.capture.end, None)

    def stop(self) -> None:
        """End in good order. May be called from a signal handler."""
        self._ended = True
        if self._questions is not None:
            self._questions.stop()
        if self._watches is not None:
            self._watches.stop()
        if self._talk is not None:
            self._talk.stop()
        self.capture.stop()

    def show(self, event: Event) -> None:
        """Add to an event what only the devices know, and show it."""
        if event["event"] == "unit":
            capture = self.capture
            event |= {
                "dropped": {
                    "frames": self._framer.dropped_frames,
                    "samples": self._framer.dropped_samples,
                },
                "lag_ms": capture.lag(event["t"]),
            }
            if self._watches is not None:
                event["watch_ms"] = self._watches.cost
        talk = self._talk
        if talk is not None and event["event"] in ("token", "answer"):
            if self._first is None:
                self._first = talk.latency()
            if event["event"] == "token":
                talk.token(event["text"])
            elif self._first is not None:
                event["latency_ms"], self._first = self._first, None
        self.output.event(event)
        if event["event"] == "token" and self._questions is not None:
            self._questions.hold()

    def type(self, text: str) -> None:
        """Take a typed line, even before there is a session; on the keyboard's thread."""
        self._typed.append(text)
        self._take_typed()

    def mute(self) -> None:
        """Turn the microphone off, or on again."""
        self._muted = not self._muted
        self.capture.mute(self._muted)
        if self._muted and self._listener is not None:
            self.hearing(False)

    def camera(self) -> None:
        """Turn the camera off, or on again."""
        self._blind = not self._blind
        self.capture.blind(self._blind)

    def _take_typed(self) -> None:
        while self._talk is not None:
            try:
                text = self._typed.popleft()
            except IndexError:
                return
            self._talk.type(text, self.capture.now())

    def _listening(self, voice: Any) -> Any:
        if self.capture.view().microphone_state == "none":
            return None
        from omnilive.speech import SpeechError
        from omnilive.speech.listener import Listener
        from omnilive.speech.turns import Turns
        from omnilive.speech.vad import SpeechDetector

        try:
            detector = SpeechDetector()
        except SpeechError as error:
            self._warn(f"what is said is heard, but not taken for questions: {error}")
            return None
        speaking = None if voice is None else (lambda: bool(voice.speaking))
        return Listener(detector, Turns(pause=self._options.pause), self._heard, speaking)

    def _tap(self, time: float, samples: Any) -> None:
        if self._listener is not None:
            self._listener(time, samples)

    def _heard(self, event: Began | Ended) -> None:
        self.hearing(isinstance(event, Began))
        if self._talk is None:
            return
        if isinstance(event, Ended):
            event = replace(event, decided=min(event.decided, self.capture.end))
        self._talk.hear(event)

    def _warn(self, message: str) -> None:
        now = round(self.capture.end, 3)
        self.output.event({"event": "warning", "t": now, "message": message})


@contextmanager
def _voice(options: LiveOptions, warn: Callable[[str], None]) -> Iterator[Any]:
    if not options.speak:
        yield None
        return
    from omnilive.speech.voice import Voice

    with Voice(warn) as voice:
        yield voice


def _screen(title: str, output: Output, run: _Run) -> Any:
    """A screen, where the terminal can show one; else a line that says why not."""
    from omnilive.screen.fitness import look, unfit

    reason = unfit()
    if reason is not None:
        if "no terminal" not in reason:
            output.note(f"no screen: {reason}")
        return None
    from omnilive.screen.controls import Actions
    from omnilive.screen.display import Screen

    actions = Actions(run.type, run.stop, run.mute, run.camera)
    return Screen(title, look(), actions, snapshot=run.capture.view)


def _any_camera() -> bool:
    try:
        return bool(found_cameras())
    except MediaError:
        return False
