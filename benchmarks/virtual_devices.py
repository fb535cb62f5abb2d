"""A microphone and a camera without hardware: a PulseAudio pipe source, and MJPEG over HTTP.

Both run in real time on the machine's clock, and say when each sample and frame was given.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np

RATE = 16_000
_STEP = RATE // 50
_PROTOCOL = "module-native-protocol-unix socket={socket} auth-anonymous=1"
_PIPE = "module-pipe-source source_name=virtual file={pipe} format=s16le rate=16000 channels=1"
_PACKAGES = "apt-get install pulseaudio libportaudio2 libasound2-plugins; pip install sounddevice"


class Lacking(Exception):
    """What the machine lacks for a virtual microphone, and what to install."""


class VirtualMicrophone:
    """What is played into the source; silence otherwise. Samples are counted from the start."""

    def __init__(self, pipe: Path, environment: dict[str, str]) -> None:
        self.environment = environment
        """What a process needs to have this microphone as its default one."""
        self._pipe, self._stopped = pipe, threading.Event()
        self._samples = np.zeros(0, "<i2")
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._write, name="virtual microphone", daemon=True)
        self._thread.start()

    def play(self, samples: np.ndarray) -> float:
        """Play ``float32[n]`` at 16 kHz from now on; returns the monotonic second of its start."""
        with self._lock:
            self._samples = np.round(samples * 32767).astype("<i2")
            return self._began + self._written / RATE

    @property
    def playing(self) -> bool:
        """Whether it has not all been played."""
        return bool(self._samples.size)

    def stop(self) -> None:
        """Give nothing any more, not even silence."""
        self._stopped.set()
        self._thread.join(2)

    def _write(self) -> None:
        self._written = 0
        # Not to wait for a server that has gone.
        pipe = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            while not self._stopped.is_set():
                with self._lock:
                    block, self._samples = self._samples[:_STEP], self._samples[_STEP:]
                    data = np.pad(block, (0, _STEP - block.size)).tobytes()
                    with suppress(BlockingIOError):
                        os.write(pipe, data)
                    self._written += _STEP
                self._stopped.wait(self._began + self._written / RATE - time.monotonic())
        except BrokenPipeError:
            pass
        finally:
            os.close(pipe)


@contextmanager
def virtual_microphone() -> Iterator[VirtualMicrophone]:
    """A PulseAudio server of our own with one source, the default one of this process too.

    Raises:
        Lacking: a part of it is not installed.
    """
    if shutil.which("pulseaudio") is None:
        raise Lacking(f"no virtual microphone, PulseAudio is not installed: {_PACKAGES}")
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        raise Lacking(f"no virtual microphone, {error}: {_PACKAGES}") from None
    # A socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="pulse") as folder:
        pipe, socket = Path(folder, "pipe"), Path(folder, "socket")
        places = {"socket": socket, "pipe": pipe}
        command = ["pulseaudio", "-n", "--daemonize=no", "--use-pid-file=no"]
        command += ["--exit-idle-time=-1", "--disable-shm=yes"]
        for module in (_PROTOCOL, _PIPE):
            command += ["-L", module.format(**places)]
        environment = {
            "PULSE_SERVER": f"unix:{socket}",
            "PULSE_SOURCE": "virtual",
            "XDG_RUNTIME_DIR": folder,
        }
        server = subprocess.Popen(
            command,
            env=os.environ | environment | {"HOME": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(lambda: socket.exists() and pipe.exists(), "PulseAudio did not start")
            before = {name: os.environ.get(name) for name in environment}
            os.environ.update(environment)
            sounddevice._terminate()
            sounddevice._initialize()
            if "pulse" not in [device["name"] for device in sounddevice.query_devices()]:
                raise Lacking(f"no virtual microphone, ALSA has no way to PulseAudio: {_PACKAGES}")
            microphone = VirtualMicrophone(pipe, environment)
            try:
                yield microphone
            finally:
                microphone.stop()
                for name, value in before.items():
                    os.environ.pop(name) if value is None else os.environ.update({name: value})
        finally:
            server.terminate()
            server.wait(5)


class VirtualCamera:
    """Frames at a steady rate to whoever opens :attr:`address`.

    Args:
        draw: gives the RGB frame of a number, ``uint8[H, W, 3]``.
        fps: frames a second.
    """

    def __init__(self, draw: Callable[[int], np.ndarray], fps: float = 15.0) -> None:
        self.given: dict[int, float] = {}
        """When each frame was sent last, by number, in monotonic seconds."""
        self._draw, self._fps = draw, fps
        self._stopped = self._closed = threading.Event()
        self._began = time.monotonic()
        camera = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """Give frames until somebody stops it."""
                camera._serve(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/camera.mjpg"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="virtual camera", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> VirtualCamera:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2)

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Nobody is served inside the block, and who was is cut off."""
        self._closed = threading.Event()
        stopped, self._stopped = self._stopped, self._closed
        self._closed.set()
        try:
            yield
        finally:
            self._stopped = stopped

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        if self._stopped.is_set():
            request.send_error(503)
            return
        request.send_response(200)
        request.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        request.end_headers()
        with suppress(OSError):
            while not self._stopped.is_set():
                number = round((time.monotonic() - self._began) * self._fps)
                frame = cv2.cvtColor(self._draw(number), cv2.COLOR_RGB2BGR)
                data = cv2.imencode(".jpg", frame)[1].tobytes()
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                self.given[number] = time.monotonic()
                request.wfile.write(head.encode() + data + b"\r\n")
                due = self._began + (number + 1) / self._fps
                self._stopped.wait(max(0.0, due - time.monotonic()))


def numbered(number: int) -> np.ndarray:
    """A frame that says its number in 16 black or white fields, as JPEG keeps them."""
    bits = [number >> bit & 1 for bit in range(16)]
    fields = np.array(bits, np.uint8).reshape(4, 4) * 200 + 20
    return np.repeat(np.kron(fields, np.ones((24, 32), np.uint8))[..., None], 3, axis=2)


def number_of(frame: np.ndarray) -> int:
    """The number that a frame of :func:`numbered` says."""
    fields = frame[12::24, 16::32, 0].ravel() > 120
    return sum(1 << bit for bit, set_ in enumerate(fields) if set_)


def noise(seconds: float) -> np.ndarray:
    """Sound ``float32[n]`` at 16 kHz that is like no other part of itself."""
    return np.random.default_rng(7).uniform(-0.5, 0.5, round(seconds * RATE)).astype(np.float32)


def found_in(sound: np.ndarray, played: np.ndarray) -> int:
    """The sample of ``sound`` at which ``played`` begins."""
    size = 1 << (sound.size + played.size).bit_length()
    alike = np.fft.irfft(np.fft.rfft(sound, size) * np.conj(np.fft.rfft(played, size)))
    return int(np.argmax(alike[: sound.size]))


def _wait_for(true: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + 10
    while not true():
        if time.monotonic() > until:
            raise TimeoutError(otherwise)
        time.sleep(0.02)
