"""Stand-ins for the sounddevice and cv2 modules, on a virtual clock, with faults on order.

What they give says when it was taken: a sample's value is its place on the world's time line, a
frame's colour is the hundredth of a second. So tests read skew, gaps and repeats from the media.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from omnilive.capture.clock import VirtualClock, Worker

RATE = 16_000
RAMP = 30_000
"""Samples after which values repeat."""


def ramp(first: int, count: int) -> np.ndarray:
    """The world's sound: sample ``k`` at 16 kHz is ``k % RAMP + 1`` in steps of 1 / 32768."""
    return ((np.arange(first, first + count) % RAMP + 1) / 32768).astype(np.float32)


def places(samples: np.ndarray) -> np.ndarray:
    """The place on the time line modulo ``RAMP`` that each sample came from, -1 for silence."""
    return np.round(samples * 32768).astype(np.int64) - 1


def taken_at(frame: np.ndarray) -> float:
    """The world's second at which a fake camera took an RGB frame."""
    red, green, blue = (int(value) for value in frame[0, 0])
    return (red * 65536 + green * 256 + blue) / 100


@dataclass
class Fault:
    """What one opening of a device does wrong, ``after`` so many seconds.

    ``kind``: ``open`` (raises), ``stop`` (no longer active), ``stall`` (no more callbacks),
    ``raise`` (the library's next call raises), ``nan``, ``zeros``, ``overflow`` (half a second is
    lost, and flagged), ``hiccup`` (0.6 s late, then all at once).
    """

    kind: str
    after: float = 0.0


class FakeSound:
    """The sounddevice module, with one microphone unless told otherwise.

    Args:
        faults: of the first opening, the second, …; later ones have none.
        drift: by how much the device's clock is fast, as a share.
        sound: gives samples from the place on the time line and their count.
    """

    PortAudioError = RuntimeError

    def __init__(
        self,
        clock: VirtualClock,
        *,
        rate: int = RATE,
        channels: int = 1,
        faults: tuple[Fault | None, ...] = (),
        drift: float = 0.0,
        sound: Callable[[int, int], np.ndarray] = ramp,
        names: tuple[str, ...] = ("Fake microphone",),
    ) -> None:
        self.clock, self.drift, self.sound = clock, drift, sound
        self.rate, self.channels, self.names = rate, channels, names
        self.faults = list(faults)
        self.opened: list[FakeStream] = []
        self.looks = 0

    def query_devices(self, index: int | None = None, kind: str | None = None) -> Any:
        devices = [
            {
                "index": index,
                "name": name,
                "max_input_channels": self.channels,
                "default_samplerate": float(self.rate),
            }
            for index, name in enumerate(self.names)
        ]
        if kind is not None or index is not None:
            if not devices:
                raise self.PortAudioError("Error querying device -1")
            return devices[index or 0]
        return devices

    def InputStream(self, **settings: Any) -> FakeStream:  # noqa: N802
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault.kind == "open":
            raise self.PortAudioError("Error opening InputStream: Device unavailable")
        stream = FakeStream(self, fault, **settings)
        self.opened.append(stream)
        return stream

    def _terminate(self) -> None:
        assert all(stream.closed for stream in self.opened)

    def _initialize(self) -> None:
        self.looks += 1


class FakeStream:
    def __init__(
        self,
        library: FakeSound,
        fault: Fault | None,
        *,
        device: int,
        samplerate: int,
        channels: int,
        dtype: str,
        blocksize: int,
        callback: Callable[..., None],
    ) -> None:
        assert dtype == "float32" and device < len(library.names)
        if channels > library.channels:
            raise library.PortAudioError("Invalid number of channels")
        self._library, self._fault = library, fault
        self._rate, self._channels, self._size = samplerate, channels, blocksize
        self._callback = callback
        self._active = self.closed = False
        self._worker: Worker | None = None

    @property
    def active(self) -> bool:
        if self._failing("raise"):
            raise self._library.PortAudioError("Unanticipated host error\nwith more lines")
        return self._active and not self._failing("stop")

    def start(self) -> None:
        self._active, self._began = True, self._library.clock.now()
        self._worker = self._library.clock.run("fake callback", self._call())

    def abort(self) -> None:
        self._active = False

    def close(self) -> None:
        self.closed, self._active = True, False
        if self._worker is not None:
            self._worker.stop()

    def _failing(self, kind: str) -> bool:
        fault = self._fault
        return (
            fault is not None
            and fault.kind == kind
            and self._library.clock.now() - self._began >= fault.after
        )

    def _call(self) -> Iterator[float]:
        clock, library = self._library.clock, self._library
        self._place = clock.now() * RATE
        overflow, held = False, 0
        while self._active:
            pace = library.rate * (1 + library.drift)
            yield self._size / pace
            if self._failing("stall") or self._failing("stop"):
                continue
            if self._failing("hiccup") and held * self._size < 0.6 * pace:
                held += 1
                continue
            if self._failing("overflow"):
                self._place += RATE / 2
                overflow, self._fault = True, None
                yield 0.5
            for _ in range(1 + held):
                self._give(overflow)
                overflow = False
            if held:
                held, self._fault = 0, None

    def _give(self, overflow: bool) -> None:
        scale = RATE / self._library.rate
        start = round(self._place)
        self._place += self._size * scale
        if scale == 1:
            samples = self._library.sound(start, self._size)
        else:
            # Another rate: the same world, read off in between.
            world = self._library.sound(start, round(self._size * scale) + 2)
            samples = np.interp(np.arange(self._size) * scale, np.arange(world.size), world)
        if self._failing("nan"):
            samples = np.where(np.arange(self._size) % 2, samples, np.nan)
        if self._failing("zeros"):
            samples = np.zeros(self._size)
        data = np.repeat(np.float32(samples)[:, None], self._channels, axis=1)
        now = self._library.clock.now()
        info = SimpleNamespace(currentTime=now, inputBufferAdcTime=now - self._size / self._rate)
        self._callback(data, self._size, info, SimpleNamespace(input_overflow=overflow))


class FakeCv2:
    """The cv2 module, with one camera of 30 frames a second.

    Args:
        faults: of the first opening, the second, …: ``open``, ``gone`` (no more frames), ``raise``,
            or an odd frame for a second: ``empty``, ``none``, ``grey``, ``wide``, ``float``.
    """

    CAP_FFMPEG, CAP_PROP_FPS = 1900, 5
    CAP_PROP_OPEN_TIMEOUT_MSEC, CAP_PROP_READ_TIMEOUT_MSEC = 53, 54

    def __init__(self, clock: VirtualClock, *, faults: tuple[Fault | None, ...] = ()) -> None:
        self.clock, self.faults = clock, list(faults)
        self.opened: list[FakeVideo] = []

    def VideoCapture(self, *place: Any) -> FakeVideo:  # noqa: N802
        video = FakeVideo(self, place, self.faults.pop(0) if self.faults else None)
        self.opened.append(video)
        return video


class FakeVideo:
    def __init__(self, library: FakeCv2, place: tuple[Any, ...], fault: Fault | None) -> None:
        self.place, self._library, self._fault = place, library, fault
        self._began = library.clock.now()
        self.released = False

    def isOpened(self) -> bool:  # noqa: N802
        return not self._failing("open")

    def grab(self) -> bool:
        assert not self.released
        if self._failing("raise"):
            raise RuntimeError("OpenCV(5.0.0) error: (-2) in function 'grab'")
        return not self._failing("gone")

    def retrieve(self) -> tuple[bool, Any]:
        count = int(self._library.clock.now() * 30) * 100 // 30
        colour = np.array([count & 255, count >> 8 & 255, count >> 16], np.uint8)
        frame = np.broadcast_to(colour, (12, 16, 3)).copy()
        odd = {
            "empty": (True, np.zeros((0, 0, 3), np.uint8)),
            "none": (False, None),
            "wide": (True, np.zeros((2, 900, 3), np.uint8)),
            "float": (True, np.zeros((12, 16, 3))),
        }
        fault, since = self._fault, self._library.clock.now() - self._began
        if fault is not None and fault.kind in odd and fault.after <= since < fault.after + 1:
            return odd[fault.kind]
        return True, frame

    def read(self) -> tuple[bool, Any]:
        return self.retrieve() if self.grab() else (False, None)

    def get(self, setting: int) -> float:
        assert setting == FakeCv2.CAP_PROP_FPS
        return 30.0

    def release(self) -> None:
        self.released = True

    def _failing(self, kind: str) -> bool:
        fault = self._fault
        now = self._library.clock.now()
        return fault is not None and fault.kind == kind and now - self._began >= fault.after
