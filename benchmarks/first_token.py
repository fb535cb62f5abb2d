"""How long after somebody has ended speaking does an answer begin?

``python benchmarks/first_token.py [--quick] [--turns N]`` runs ``omnilive live`` on a virtual
microphone and a virtual camera, in real time: voices of the stream world's test split ask about
what is on the screen, one turn after another. It prints median, 90th percentile and worst of the
time from the decision that the turn has ended to the first token, as the run's own events tell it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import LACKS, Claim, Report, as_process, out_folder, table
from benchmarks.virtual_devices import RATE, Lacking, VirtualCamera, virtual_microphone
from omnilive.models import EMBEDDED
from omnilive.options import BACKENDS
from streamworld import banks, render, script, spec
from streamworld.questions import draw

TURNS, QUICK = 48, 6
BOUND = 1.0
"""Seconds from a turn's end to the first token, median."""
UNITS = 4
"""Units of a script; the last two hold the question."""
LOST = 12.0
"""Seconds of stream after which a turn is taken for one that was not heard."""
PACKAGES = ("numpy", "torch", "mlx", "onnxruntime", "opencv-python-headless", "sounddevice")


@dataclass(frozen=True)
class Turn:
    """What is shown, ``uint8[H, W, 3]``, what is said, ``float32[n]`` at 16 kHz, and the answer."""

    frame: np.ndarray
    sound: np.ndarray
    truth: str


def turns(count: int, seed: int = 0) -> Iterator[Turn]:
    """Spoken questions about what is on the screen, in a quiet room, that begin at any time."""
    bank = banks.load(banks.SHIPPED, "test")
    written = script.write(seed, 4 * count, UNITS, "test", spoken=1.0)
    written.voice[..., 3:6] = 30_000
    questions = draw(written, seed, 1)
    rng = np.random.default_rng(seed)
    now = [form for form, (kind, *_) in enumerate(spec.SPOKEN_FORMS) if kind == "now"]
    for row in np.flatnonzero(np.isin(written.spoken, now))[:count]:
        units = written.take(slice(row, row + 1)).flat()
        before = np.zeros(rng.integers(RATE), np.float32)
        sound = render.sounds(units, bank)[-2:].reshape(-1)
        frame = np.kron(render.frames(units, bank)[-1], np.ones((3, 3, 1), np.uint8))
        yield Turn(frame, np.concatenate([before, sound]), questions.answer_text(row, 0))


def converse(count: int, arguments: Sequence[str]) -> dict[str, Any]:
    """A row about so many turns; times in milliseconds.

    Raises:
        Lacking: no virtual microphone can be had here, or ``omnilive live`` has failed.
    """
    asked = list(turns(count))
    shown = asked[0].frame
    answers: list[dict[str, Any]] = []
    lost = right = 0
    with virtual_microphone() as microphone, VirtualCamera(lambda _: shown) as camera:
        command = [sys.executable, "-m", "omnilive", "live", "--jsonl", *arguments]
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        with _taken_along(
            [*command, "--camera", camera.address], os.environ | paths | microphone.environment
        ) as process:
            running: Turn | None = None
            since, backend = 0.0, {}
            for line in process.stdout or ():
                event = json.loads(line)
                if event["event"] == "answer" and running is not None and "latency_ms" in event:
                    answers.append(event)
                    right += event["text"].strip() == running.truth
                    running, since = None, event["t"]
                elif event["event"] == "summary":
                    backend = {key: event[key] for key in ("model", "backend", "device")}
                elif event["event"] == "unit" and running is not None:
                    if event["t"] > since + LOST:
                        lost, running = lost + 1, None
                elif event["event"] == "unit" and event["t"] > since + 1.5:
                    if not asked:
                        # The second one would end it at once.
                        process.send_signal(signal.SIGINT)
                        since = np.inf
                        continue
                    running, since = asked.pop(0), event["t"]
                    shown = running.frame
                    microphone.play(running.sound)
        if process.returncode or not answers:
            raise Lacking(f"omnilive live ended with {process.returncode}: see what it says")
    latencies = np.asarray([answer["latency_ms"] for answer in answers])
    return {
        "part": "spoken turns",
        **backend,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "turns": count,
        "not_answered": lost,
        "right": right,
        "latency_ms_median": round(float(np.median(latencies)), 1),
        "latency_ms_p90": round(float(np.percentile(latencies, 90)), 1),
        "latency_ms_most": round(float(latencies.max()), 1),
        "latency_ms": latencies.tolist(),
    }


@contextmanager
def _taken_along(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A process whose output is read here; a signal that ends this one ends it too."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except KeyboardInterrupt:
            process.terminate()
            process.communicate()
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} turns")
    parser.add_argument("--turns", type=int, metavar="N", help=f"{TURNS} by default")
    parser.add_argument("--model", default=EMBEDDED, metavar="NAME", help="folder, or `embedded`")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="what computes")
    parser.add_argument("--device", default="auto", help="as for `omnilive live`")
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file")
    options = parser.parse_args(arguments)
    count = (QUICK if options.quick else TURNS) if options.turns is None else options.turns
    if count < 1:
        parser.error(f"--turns is {count}, expected 1 or more")
    print(f"takes about {count / 10:.0f} minutes", file=sys.stderr, flush=True)
    chosen = ["--backend", options.backend, "--device", options.device]
    try:
        row = converse(count, ["--model", options.model, *chosen])
    except Lacking as error:
        print(error, file=sys.stderr)
        return LACKS
    claims = [
        Claim("turn's end to first token, s, median", row["latency_ms_median"] / 1e3, BOUND),
        Claim("turns that were not answered", row["not_answered"], count // 20),
    ]
    lines = [
        [name.replace("_", " "), str(told)]
        for name, told in row.items()
        if name not in ("part", "latency_ms")
    ]
    print(table(["spoken turns", ""], lines))
    changed = (options.model, options.backend, options.device) != (EMBEDDED, "auto", "auto")
    report = Report("first-token", [row], claims, count < TURNS, PACKAGES, changed=changed)
    print(f"\nwrote {report.write(options.out)}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(as_process(main))
