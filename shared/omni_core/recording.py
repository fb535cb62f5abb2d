"""Recordings: the plans and units of a session as they came.

A recording is a folder, readable up to where it was written::

    session.json        model, settings, versions
    plans.jsonl         a line a plan: its arrays, and the largest logits that came back
    events.jsonl        a line an event, as it was shown
    media/000012.npz    the unit as it was captured, without loss
    start/              the saved session that it goes on from, if any
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from omni_core.backend import MergePlan, MovePlan, StepPlan
from omni_core.errors import RecordingError
from omni_core.frontend.base import UnitMedia
from omni_core.plans import Plan, from_lists, to_lists

FORMAT = 1
START = "start"
_TOP = 8
_KINDS: dict[str, type[Plan]] = {"step": StepPlan, "move": MovePlan, "merge": MergePlan}
"""Lines of plans by their word."""
_DAMAGE = (OSError, EOFError, zipfile.BadZipFile)


class Recorder:
    """Writes a recording line by line."""

    def __init__(self, folder: Path | str, about: dict[str, Any] | None = None) -> None:
        """Take a folder that does not exist yet or is empty.

        Args:
            folder: where to write.
            about: entries of ``session.json`` beside those of the session, and over them.

        Raises:
            RecordingError: the folder holds something, or cannot be written.
        """
        self.folder, self._about = Path(folder), about or {}
        self._units = 0
        self._events: TextIO | None = None
        try:
            if self.folder.exists() and any(self.folder.iterdir()):
                raise RecordingError(f"{self.folder}: not empty; give a new folder for --record")
            (self.folder / "media").mkdir(parents=True, exist_ok=True)
            self._lines: TextIO = (self.folder / "plans.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise RecordingError(f"{self.folder}: cannot record there: {error}") from None

    @property
    def start(self) -> Path:
        """Where the saved session goes that this recording begins with."""
        return self.folder / START

    def describe(self, **about: Any) -> None:
        """More entries of ``session.json``, before :meth:`begin`."""
        self._about = {**self._about, **about}

    def begin(self, meta: dict[str, Any]) -> None:
        """Write what the session is: its model, settings and arena."""
        text = json.dumps({"format": FORMAT, **meta, **self._about}, indent=2)
        try:
            (self.folder / "session.json").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise RecordingError(f"{self.folder}: cannot record there: {error}") from None

    def unit(self, media: UnitMedia) -> None:
        """Keep a unit's media; the steps that follow use its embeddings."""
        number = self._units
        self._units += 1
        frames = {f"frame{i}": frame for i, frame in enumerate(media.frames)}
        sound = {} if media.audio is None else {"audio": media.audio}
        span = np.asarray([media.start, media.stop])
        try:
            with (self.folder / "media" / f"{number:06d}.npz").open("wb") as file:
                np.savez_compressed(file, span=span, **sound, **frames)  # type: ignore[arg-type]
        except OSError as error:
            raise RecordingError(f"{self.folder}: recording stopped: {error}") from None
        self._write(self._lines, {"kind": "unit", "unit": number})

    def plan(self, plan: Plan, logits: npt.NDArray[np.float32] | None = None) -> None:
        """Keep a plan that was carried out, and the largest of its logits."""
        kind = next(name for name, made in _KINDS.items() if isinstance(plan, made))
        line = {"kind": kind, **to_lists(plan)}
        if logits is not None and logits.size:
            top = np.argsort(-logits, axis=-1, kind="stable")[..., :_TOP]
            line["top"] = top.tolist()
            line["values"] = np.take_along_axis(logits, top, axis=-1).tolist()
        self._write(self._lines, line)

    def event(self, event: dict[str, Any]) -> None:
        """Keep an event."""
        try:
            if self._events is None:
                self._events = (self.folder / "events.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise RecordingError(f"{self.folder}: recording stopped: {error}") from None
        self._write(self._events, event)

    def close(self) -> None:
        """Close the files."""
        for file in (self._lines, self._events):
            # What a full disk did not take at a write, it does not take now.
            with suppress(OSError):
                if file is not None:
                    file.close()

    def _write(self, file: TextIO, line: dict[str, Any]) -> None:
        try:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
        except OSError as error:
            raise RecordingError(f"{self.folder}: recording stopped: {error}") from None


@dataclass(frozen=True)
class Entry:
    """One line of a recording: a unit's media, or a plan with the logits that came back."""

    media: UnitMedia | None = None
    plan: Plan | None = None
    top: npt.NDArray[np.int64] | None = None
    values: npt.NDArray[np.float32] | None = None


class Recording:
    """A recording that is read back."""

    def __init__(self, folder: Path | str) -> None:
        """Open a recording.

        Raises:
            RecordingError: there is none, or it is of another format.
        """
        self.folder = Path(folder)
        try:
            self.meta: dict[str, Any] = json.loads((self.folder / "session.json").read_text())
        except (OSError, ValueError) as error:
            raise RecordingError(f"{self.folder}: no readable recording ({error})") from None
        if not isinstance(self.meta, dict):
            raise RecordingError(f"{self.folder}/session.json: holds no object; record it again")
        if self.meta.get("format") != FORMAT:
            found = self.meta.get("format")
            raise RecordingError(f"{self.folder}: format {found}, this version reads {FORMAT}")

    def entries(self) -> Iterator[Entry]:
        """Units and plans in order. A last line that was cut off by a crash is left out.

        Raises:
            RecordingError: a damaged line or media file.
        """
        try:
            lines = (self.folder / "plans.jsonl").read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RecordingError(f"{self.folder}/plans.jsonl: not readable ({error})") from None
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
                yield self._entry(line)
            except FileNotFoundError as error:
                raise RecordingError(f"{error.filename}: the unit's media are missing") from None
            except (ArithmeticError, LookupError, TypeError, ValueError, *_DAMAGE) as error:
                if number == len(lines):
                    return
                where = f"{self.folder}/plans.jsonl line {number}"
                raise RecordingError(f"{where}: damaged ({error!r})") from None

    def plans(self) -> Iterator[Plan]:
        """The plans alone."""
        return (entry.plan for entry in self.entries() if entry.plan is not None)

    def events(self) -> Iterator[dict[str, Any]]:
        """The events in order, none where none were kept; a line that was cut off is left out."""
        file = self.folder / "events.jsonl"
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise RecordingError(f"{file}: not readable ({error})") from None
        for number, text in enumerate(lines, 1):
            try:
                event = json.loads(text)
                event["t"], event["event"] = float(event["t"]), str(event["event"])
            except (LookupError, TypeError, ValueError) as error:
                if number == len(lines):
                    return
                raise RecordingError(f"{file} line {number}: damaged ({error!r})") from None
            yield event

    def _entry(self, line: dict[str, Any]) -> Entry:
        if line["kind"] == "unit":
            return Entry(media=self._media(line["unit"]))
        plan = from_lists(_KINDS[line["kind"]], line)
        if "top" not in line:
            return Entry(plan=plan)
        return Entry(
            plan=plan, top=np.asarray(line["top"]), values=np.asarray(line["values"], np.float32)
        )

    def _media(self, number: int) -> UnitMedia:
        path = self.folder / "media" / f"{number:06d}.npz"
        # Opened here, since np.load leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            count = sum(name.startswith("frame") for name in stored.files)
            frames = tuple(stored[f"frame{i}"] for i in range(count))
            audio = stored["audio"] if "audio" in stored.files else None
            start, stop = (float(value) for value in stored["span"])
            return UnitMedia(start, stop, frames, audio)
