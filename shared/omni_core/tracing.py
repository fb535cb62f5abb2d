"""Spans of time as a Chrome trace, written as they end; ``chrome://tracing`` and Perfetto open it.

Source of the format: "Trace Event Format", the Chromium project's document.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

from omni_core.errors import RecordingError

_MOST_THREADS = 4096
"""Threads whose names are told: what is remembered of a trace stays bounded."""


class Span(Protocol):
    """What is measured between entering and leaving it."""

    def __enter__(self) -> Span: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def add(self, **args: Any) -> None:
        """Tell what is known only inside the span."""
        ...


class Tracer(Protocol):
    """Measures spans, or does nothing: see :data:`NO_TRACE`."""

    def span(self, name: str, **args: Any) -> Span:
        """A span of this thread, with JSON values to show beside it."""
        ...


class NoTrace:
    """Measures nothing, at next to no cost. A tracer and its only span."""

    def span(self, name: str, **args: Any) -> NoTrace:
        """Itself."""
        return self

    def add(self, **args: Any) -> None:
        """Nothing to tell it."""

    def __enter__(self) -> NoTrace:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None: ...


NO_TRACE = NoTrace()
"""The tracer of whoever wants no trace."""


class FileTracer:
    """Writes each span as it ends, as a complete event of a JSON array.

    The array is closed by :meth:`close`; without, as after a crash, Chrome reads it all the same.
    Threads may share a tracer. A file that cannot be written any further ends the trace and
    nothing else.

    Attributes:
        failed: why the trace ended early, or None.
    """

    def __init__(self, file: Path | str) -> None:
        """Begin a file; one that is there is written over.

        Raises:
            RecordingError: it cannot be written.
        """
        self._path, self._lock = Path(file), threading.Lock()
        self._process, self._origin = os.getpid(), time.perf_counter_ns()
        self._threads: set[int] = set()
        self.failed: str | None = None
        try:
            self._file: TextIO | None = self._path.open("w", encoding="utf-8")
        except OSError as error:
            raise RecordingError(f"{file}: cannot be written: {error.strerror}") from None
        about = {"name": "process_name", "ph": "M", "pid": self._process, "tid": 0}
        self._write("[\n" + _json({**about, "args": {"name": "omnilive"}}))

    def span(self, name: str, **args: Any) -> FileSpan:
        """A span of this thread, with JSON values to show beside it."""
        return FileSpan(self, name, args)

    def close(self) -> None:
        """Close the array and the file. Spans that end later are left out."""
        with self._lock:
            self._write("\n]\n")
            if self._file is not None:
                self._file.close()
            self._file = None

    def __enter__(self) -> FileTracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ended(self, name: str, start: int, stop: int, args: dict[str, Any]) -> None:
        """Write a span of this thread, given in nanoseconds of ``time.perf_counter_ns``."""
        thread = threading.current_thread()
        number = thread.native_id or 0
        event = {"name": name, "ph": "X", "pid": self._process, "tid": number}
        times = {"ts": (start - self._origin) / 1e3, "dur": (stop - start) / 1e3}
        with self._lock:
            if number not in self._threads and len(self._threads) < _MOST_THREADS:
                self._threads.add(number)
                about = {"name": "thread_name", "ph": "M", "pid": self._process, "tid": number}
                self._write(",\n" + _json({**about, "args": {"name": thread.name}}))
            self._write(",\n" + _json({**event, **times, "args": args}))

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            self.failed = f"{self._path}: the trace has ended: {error.strerror}"
            file, self._file = self._file, None
            # What could not be flushed cannot be flushed now.
            with suppress(OSError):
                file.close()


class FileSpan:
    """A span of a :class:`FileTracer`."""

    __slots__ = ("_args", "_name", "_start", "_tracer")

    def __init__(self, tracer: FileTracer, name: str, args: dict[str, Any]) -> None:
        self._tracer, self._name, self._args = tracer, name, args

    def __enter__(self) -> FileSpan:
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._tracer.ended(self._name, self._start, time.perf_counter_ns(), self._args)

    def add(self, **args: Any) -> None:
        """Tell what is known only inside the span."""
        self._args.update(args)


def _json(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))
