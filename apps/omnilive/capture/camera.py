"""A camera: its newest frame, read on a thread of its own through OpenCV."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from omni_core.errors import MediaError
from omni_core.frontend.tracks import Frame
from omnilive.capture.clock import Steps, Worker
from omnilive.capture.reopening import Host, Reopener, one_line

LEAST_RATE = 8.0
"""Frames a second that are looked at, though the model may want fewer: for people to see."""
_MOST_RATE = 120.0
_BAD_READS = 20
_RETRY = 0.05
_WIDEST = 100
_OPEN_MS, _READ_MS = 5000, 3000
STALL = 4.0
"""Seconds without a frame after which a camera counts as stalled."""

Timed = tuple[float, Frame]
"""A second, and RGB ``uint8[H, W, 3]``."""


class PictureSource(Protocol):
    """Where a stream's picture comes from."""

    name: str
    """For people."""
    skipped: int
    """Frames that were none: corrupt, empty or of an odd form."""
    ended: bool
    """Whether no more will come."""

    @property
    def state(self) -> str:
        """``opening``, ``on``, ``off``, ``lost`` or ``ended``."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it does not work, if it does not."""
        ...

    def open(self, host: Host, rate: float) -> None:
        """Get it going; ``rate`` is the frames a second that are wanted."""
        ...

    def begin(self, zero: float) -> None:
        """The stream's second 0 is at this steady time; forget what came before."""
        ...

    def take(self) -> Timed | None:
        """The newest frame with its second of the stream, if it was not taken yet."""
        ...

    def rest(self, resting: bool) -> None:
        """Give no frames for a while, or go on."""
        ...

    def close(self) -> list[Worker]:
        """Ask it to end; returns who must still do so."""
        ...


class Camera:
    """A camera or a network stream, kept open.

    Args:
        place: what OpenCV opens: a number, a path or an address.
        name: for people.

    Attributes:
        skipped: frames that were none.

    Raises:
        MediaError: OpenCV is not installed.
    """

    ended = False

    def __init__(self, place: int | str, name: str) -> None:
        opencv()
        self.name = name
        self._place = place
        self._zero = 0.0
        self.skipped = 0
        self._resting = False
        self._reopener: Reopener[_Opening] | None = None

    @property
    def state(self) -> str:
        """``opening``, ``on``, ``off`` or ``lost``."""
        if self._resting:
            return "off"
        return "opening" if self._reopener is None else self._reopener.state

    @property
    def failure(self) -> str | None:
        """Why it does not work."""
        return None if self._reopener is None else self._reopener.failure

    def open(self, host: Host, rate: float) -> None:
        """Start opening it; on the main thread, where that can be."""
        rate = max(rate, LEAST_RATE)
        if sys.platform == "darwin" and isinstance(self._place, int):
            # macOS asks for consent where the main thread opens a camera, and nowhere else.
            with suppress(Exception):
                open_capture(self._place).release()
        self._reopener = Reopener(
            f"camera {self.name}",
            host,
            lambda: _Opening(host, self._place, rate, self._skip),
            STALL,
        )
        self._reopener.tend()

    def begin(self, zero: float) -> None:
        """Frames count from here on."""
        self._zero = zero

    def take(self) -> Timed | None:
        """The newest frame."""
        assert self._reopener is not None, "not opened"
        if self._resting:
            return None
        opening = self._reopener.tend()
        if opening is None or (newest := opening.newest) is None:
            return None
        opening.newest = None
        time, frame = newest
        return (time - self._zero, frame) if time >= self._zero else None

    def rest(self, resting: bool) -> None:
        """Close the device, so that its light goes out, or open it again."""
        self._resting = resting
        if resting and self._reopener is not None:
            self._reopener.close()

    def close(self) -> list[Worker]:
        """Close the device."""
        if self._reopener is None:
            return []
        self._reopener.close()
        return self._reopener.workers()

    def _skip(self) -> None:
        self.skipped += 1


class _Opening:
    """A capture of OpenCV, from being opened to being released, on a thread of its own."""

    def __init__(self, host: Host, place: int | str, rate: float, skip: Callable[[], None]) -> None:
        self.heard: float | None = None
        self.failure: str | None = None
        self.newest: Timed | None = None
        self._time, self._gap, self._skip = host.time, 1 / rate, skip
        self.worker = host.clock.run("camera", self._work(place))

    def _work(self, place: int | str) -> Steps:
        try:
            capture = open_capture(place)
        except Exception as error:
            self.failure = f"cannot be opened: {one_line(error)}"
            return
        try:
            yield from self._read(capture)
        except Exception as error:
            self.failure = f"has failed: {one_line(error)}"
        finally:
            with suppress(Exception):
                capture.release()

    def _read(self, capture: Any) -> Steps:
        bad, due = 0, -np.inf
        while bad < _BAD_READS:
            began = self._time()
            # Every frame is fetched, or the driver's queue would grow old; few are decoded.
            fetched = bool(capture.grab())
            now = self._time()
            if fetched and now < due:
                yield max(0.0, began + 1 / _MOST_RATE - now)
                continue
            frame = usable(*capture.retrieve()) if fetched else None
            if frame is None:
                bad += 1
                if fetched:
                    self._skip()
                yield _RETRY
                continue
            self.newest, self.heard, bad = (now, frame), now, 0
            due = max(due + self._gap, now + self._gap / 2)
            yield max(0.0, began + 1 / _MOST_RATE - self._time())
        self.failure = "gives no more frames"


def usable(read: bool, frame: Any) -> Frame | None:
    """A frame as OpenCV gives it as RGB ``uint8[H, W, 3]``; None where it is none."""
    if not read or not isinstance(frame, np.ndarray) or frame.dtype != np.uint8:
        return None
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.ndim != 3 or frame.shape[2] not in (1, 3, 4):
        return None
    short, long = sorted(frame.shape[:2])
    if short < 2 or long > _WIDEST * short:
        return None
    if frame.shape[2] == 1:
        return np.repeat(frame, 3, axis=2)
    # What comes is blue, green, red.
    return np.ascontiguousarray(frame[..., 2::-1])


def open_capture(place: int | str) -> Any:
    """An open ``VideoCapture``.

    Raises:
        MediaError: OpenCV is not installed, or does not get it open.
    """
    cv2 = opencv()
    if isinstance(place, str) and "://" in place:
        # A network that hangs must not hang us.
        limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _OPEN_MS]
        limits += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, _READ_MS]
        capture = cv2.VideoCapture(place, cv2.CAP_FFMPEG, limits)
    else:
        capture = cv2.VideoCapture(place)
    if not capture.isOpened():
        capture.release()
        raise MediaError("it is not there, in use, or not allowed to this program")
    return capture


def opencv() -> Any:
    """The ``cv2`` module, which writes nothing to the screen.

    Raises:
        MediaError: it is not installed.
    """
    # Read when it is loaded, or when the first stream is opened.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    try:
        import cv2
    except (ImportError, OSError) as error:
        raise MediaError(
            f"cameras need OpenCV, which cannot be loaded: {one_line(error)}; "
            "pip install -e . in the checkout, or go on without: --camera none"
        ) from None
    with suppress(AttributeError):
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    return cv2
