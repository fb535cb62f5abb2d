"""Timed questions: refused if out of reach, put at their time until the run is stopped."""

from __future__ import annotations

from collections.abc import Sequence

from omni_core.errors import MediaError
from omnilive.clip import Clip
from omnilive.conversation import Answering
from omnilive.options import Ask, LiveOptions, UsageError
from omnilive.output import Output

# Units end where they should but for the rounding of a fraction.
_SAME = 1e-4
# Containers round their length; a question this little beyond the true end is put at the end.
_ROUNDING = 0.1


class Questions:
    """The questions of a run that are still to be put, by time."""

    def __init__(self, asks: Sequence[Ask], session: Answering, output: Output) -> None:
        self._asks, self._session, self._output = list(asks), session, output
        self._stopped = False
        self._known = self._right = 0
        self.truth: str | None = None
        """The true answer of the question that is being answered, if known."""

    @property
    def score(self) -> tuple[int, int]:
        """How many answers were the true ones, and of how many that is known."""
        return self._right, self._known

    def stop(self) -> None:
        """End a running answer and put no more questions. May be called from a signal handler."""
        self._stopped = True
        self._session.interrupt()

    def hold(self) -> None:
        """End an answer that began at the very moment of :meth:`stop`; called at each token."""
        if self._stopped:
            self._session.interrupt()

    def put(self, now: float, slack: float = _SAME) -> None:
        """Ask what is due at a second of the stream."""
        while not self._stopped and self._asks and self._asks[0].time <= now + slack:
            ask = self._asks.pop(0)
            self.truth = ask.truth
            self._output.question(now, ask.question)
            # Showing it takes a while: the stop may have come meanwhile.
            if self._stopped:
                return
            answer = self._session.ask(ask.question)
            if ask.truth is not None:
                self._known += 1
                self._right += answer.strip().lower() == ask.truth.strip().lower()

    def put_last(self, end: float, clip: Clip | None) -> None:
        """Ask what a rounded length put just past the end; on devices warn of what is left.

        Raises:
            MediaError: a clip's question lies further off.
        """
        if self._stopped or not self._asks:
            return
        if self._asks[0].time <= end + _ROUNDING:
            message = (
                f"the stream ended at {end:.2f} s; the question at {self._asks[0].time:g} s comes "
                "there"
            )
            self._warn(end, message)
            self.put(end, _ROUNDING)
        if self._asks and not self._stopped:
            time = self._asks[0].time
            missed = (
                f"the stream ended at {end:.2f} s, before the question at {time:g} s; ask earlier"
            )
            if clip is not None:
                mend = "repeat the clip with --loop or --duration"
                raise MediaError(f"{clip.path}: {missed}, or {mend}")
            self._warn(end, missed)

    def _warn(self, now: float, message: str) -> None:
        self._output.event({"event": "warning", "t": round(now, 3), "message": message})


def check_asks(options: LiveOptions, clip: Clip | None, start: float = 0.0) -> None:
    """Refuse a question that cannot be reached, where the clip's length is known.

    Args:
        options: the questions, and how long the clip is played.
        clip: what is played, None where devices are followed.
        start: second of the stream at which it begins.

    Raises:
        UsageError: it lies before the beginning or past the end.
    """
    length = options.duration
    if length is None and clip is not None and clip.duration is not None:
        length = clip.duration * options.loop
    for ask in options.asks:
        if ask.time < start - _SAME:
            raise UsageError(
                f"the question at {ask.time:g} s lies before {start:g} s, where the saved session "
                "goes on; ask later"
            )
        if length is not None and ask.time > start + length:
            what, mend = "the stream", "let it go on with a longer --duration"
            if clip is not None:
                what, mend = str(clip.path), "repeat the clip with --loop or --duration"
            raise UsageError(
                f"the question at {ask.time:g} s lies past the end of {what} at "
                f"{start + length:g} s; ask earlier, or {mend}"
            )
