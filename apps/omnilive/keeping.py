"""What a run keeps: its recording and its trace, each taken before anything is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from omni_core import Recorder
from omni_core.errors import RecordingError
from omni_core.recording import START
from omni_core.retention import Policy
from omni_core.tracing import NO_TRACE, FileTracer, Tracer
from omnilive.models import location
from omnilive.options import LiveOptions
from omnilive.output import Event, Output
from omnilive.provenance import versions
from omnilive.terminal import say

_PACKAGES = ("omnilive", "numpy", "av", "mlx", "torch", "transformers")


@contextmanager
def recorded(options: LiveOptions, rule: Policy) -> Iterator[Recorder | None]:
    """A recorder, if one is wanted. A run that fails before its first unit leaves no folder.

    Raises:
        RecordingError: the folder holds something, or cannot be written.
    """
    folder = options.record
    if folder is None:
        yield None
        return
    about = {
        "model": location(options.model.model),
        "weights": options.model.weights,
        "policy": asdict(rule),
        "versions": versions(_PACKAGES),
    }
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    recorder = Recorder(folder, about)
    try:
        yield recorder
    except BaseException:
        recorder.close()
        if not any((folder / "media").iterdir()):
            _give_up(folder, made)
        raise
    finally:
        recorder.close()


@contextmanager
def traced(file: Path | None) -> Iterator[Tracer]:
    """A tracer that writes to a file, if one is wanted.

    Raises:
        RecordingError: the file cannot be written.
    """
    if file is None:
        yield NO_TRACE
        return
    with FileTracer(file) as tracer:
        yield tracer
    if tracer.failed is not None:
        say(f"warning: {tracer.failed}")


class Kept:
    """An output whose events are recorded as well."""

    def __init__(self, output: Output, recorder: Recorder) -> None:
        self._output, self._recorder = output, recorder
        self._ended = False

    def event(self, event: Event) -> None:
        """Record the event and show it; a recording that cannot be written ends with a warning."""
        if not self._ended:
            try:
                self._recorder.event(event)
            except RecordingError as error:
                self._ended = True
                message = f"the recording of events has ended: {error}"
                self._output.event({"event": "warning", "t": event["t"], "message": message})
        self._output.event(event)

    def question(self, time: float, text: str, spoken: bool = False) -> None:
        """Announce a question."""
        self._output.question(time, text, spoken)

    def note(self, text: str) -> None:
        """Tell people something."""
        self._output.note(text)

    def drawing(self, text: str) -> None:
        """Show people a drawing."""
        self._output.drawing(text)


def _give_up(folder: Path, made: list[Path]) -> None:
    for name in ("media", START):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("plans.jsonl", "events.jsonl", "session.json"):
        (folder / name).unlink(missing_ok=True)
    # A folder above may have been put to use by others since.
    with suppress(OSError):
        for part in made:
            part.rmdir()
