"""Answers spoken aloud while they are still being written."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from omnilive.speech.programs import Program, find_program
from omnilive.speech.sentences import Sentences

MOST_WAITING = 200
"""Sentences that may wait to be spoken; those of a faster writer are left out."""

_PATIENCE = 15.0
_SLOWEST = 4.0
_GOING = 2.0


class Voice:
    """Speaks each sentence as soon as it is complete, in a process and on a thread of its own.

    Sentences reach the program by its standard input, never through a shell. When it fails the
    rest stays silent, after one warning. Use it in a ``with`` block, or call :meth:`close`: no
    process of its own is left then.

    Attributes:
        left_out: sentences that were not spoken, because too many were waiting.

    Args:
        warn: told once what went wrong, from the thread that uses the voice.
        program: what speaks; None looks for one.

    Raises:
        SpeechError: no program that speaks is there.
    """

    def __init__(self, warn: Callable[[str], None], program: Program | None = None) -> None:
        self._program = program or find_program()
        self._warn = warn
        self._sentences = Sentences()
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._writing = self._failed = self._stopped = self._late = self._closed = False
        self.left_out = 0
        self._complaint: str | None = None
        atexit.register(self.close)

    @property
    def speaking(self) -> bool:
        """Whether an answer is under way: from its first word until its last one has been said."""
        with self._changed:
            return not self._failed and (self._writing or self._busy())

    def add(self, text: str) -> None:
        """A piece of the answer; the sentences that it completes are spoken. Never blocks."""
        with self._changed:
            self._put(self._sentences.add(text), writing=self._writing or bool(text.strip()))
        self._complain()

    def finish(self) -> None:
        """The answer is complete: what is left of it is spoken too."""
        with self._changed:
            self._put(self._sentences.finish(), writing=False)
        self._complain()

    def wait(self, timeout: float | None = None) -> bool:
        """Until every complete sentence was said; whether it was within ``timeout`` seconds."""
        with self._changed:
            said = self._changed.wait_for(lambda: not self._busy(), timeout)
        self._complain()
        return said

    def stop(self) -> None:
        """Be silent at once, and forget what was added; another answer may follow."""
        with self._changed:
            self._sentences.finish()
            self._waiting.clear()
            self._writing = False
            if self._child is not None:
                self._stopped = True
                self._end_child()
            self._changed.wait_for(lambda: self._child is None, _GOING)

    def close(self) -> None:
        """Be silent for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.stop()
        if self._thread is not None:
            self._thread.join(_GOING)
        atexit.unregister(self.close)
        self._complain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _busy(self) -> bool:
        return bool(self._waiting) or self._child is not None

    def _put(self, sentences: list[str], *, writing: bool) -> None:
        if self._failed or self._closed:
            return
        self._writing = writing
        room = MOST_WAITING - len(self._waiting)
        if len(sentences) > room and not self.left_out:
            self._complaint = "the voice is too slow for the answers: it leaves sentences out"
        self.left_out += max(0, len(sentences) - room)
        self._waiting.extend(sentences[:room])
        self._changed.notify_all()
        if self._thread is None and sentences:
            self._thread = threading.Thread(target=self._run, name="voice", daemon=True)
            self._thread.start()

    def _complain(self) -> None:
        with self._changed:
            complaint, self._complaint = self._complaint, None
        if complaint is not None:
            self._warn(complaint)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                text = self._waiting.popleft()
                child = self._start(text)
            if child is not None:
                self._see_through(child, text)

    def _start(self, text: str) -> subprocess.Popen[bytes] | None:
        command = self._program.command if self._program.piped else (*self._program.command, text)
        self._stopped = self._late = False
        try:
            # A group of its own: Ctrl-C is for us to pass on, and what it starts ends with it.
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            self._fail(f"cannot be started ({error.strerror})")
        return self._child

    def _see_through(self, child: subprocess.Popen[bytes], text: str) -> None:
        limit = _PATIENCE + len(text) / _SLOWEST
        watch = threading.Timer(limit, self._end_late, (child,))
        watch.daemon, watch.name = True, "voice-limit"
        watch.start()
        child.communicate(f"{text}\n".encode() if self._program.piped else None)
        watch.cancel()
        if self._stopped and self._program.hush is not None:
            self._hush(self._program.hush)
        with self._changed:
            self._child = None
            code = child.returncode
            if code and not self._stopped:
                ended = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
                self._fail(f"did not end within {limit:.0f} s" if self._late else ended)
            self._changed.notify_all()

    def _hush(self, command: tuple[str, ...]) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_GOING / 2,
                check=False,
            )

    def _end_late(self, child: subprocess.Popen[bytes]) -> None:
        with self._changed:
            if child is self._child:
                self._late = True
                self._end_child()

    def _end_child(self) -> None:
        # One that was waited for has a return code, and its number may be somebody else's.
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _fail(self, what: str) -> None:
        self._failed, self._writing = True, False
        self._waiting.clear()
        self._changed.notify_all()
        self._complaint = (
            f"the voice failed: {self._program.command[0]} {what}, so answers are no longer "
            f"spoken; see what `{self._program.example()}` says"
        )
