"""``omnilive doctor``: each part tried on this very machine, and what to do where one fails."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from omni_core import Model
from omni_core.budget import machine_bytes
from omni_core.errors import OmniError
from omnilive import backends
from omnilive.models import EMBEDDED, Prepared, prepare
from omnilive.options import BACKENDS
from omnilive.terminal import put

EXACT, ROUNDED = 1e-3, 0.15
"""Largest relative difference of logits from float64, in float32 and in 16 bits."""
_NARROW = (80, 24)
_CELLS, _LONGEST, _SAME = 1024, 8, 1e-3


@dataclass(frozen=True)
class Finding:
    """What became of a check.

    Attributes:
        part: what was checked.
        state: ``ok``; ``none``, not there and not needed; ``warn``, works but not well; ``FAIL``.
        found: what there is.
        mend: what to do; empty where there is nothing to do.
    """

    part: str
    state: str
    found: str
    mend: str = ""


def run(backend: str = "auto") -> bool:
    """Check everything and print a line each as it comes; whether nothing failed.

    Args:
        backend: ``auto`` checks all that are installed.
    """
    fine = True
    for finding in _findings(backend):
        put(f"{finding.state:4}  {finding.part}: {finding.found}\n")
        if finding.mend:
            put(f"      -> {finding.mend}\n")
        fine = fine and finding.state != "FAIL"
    return fine


def _findings(backend: str) -> Iterator[Finding]:
    yield _system()
    wanted = [name for name in BACKENDS if name != "auto" and backend in ("auto", name)]
    found = [_guarded(f"backend {name}", lambda name=name: _backend(name)) for name in wanted]
    if backend == "auto" and all(finding.state == "none" for finding in found):
        found = [
            Finding(one.part, "FAIL", one.found, f"{one.mend}; one backend is needed")
            for one in found
        ]
    yield from found
    yield _guarded("cameras", _cameras)
    yield _guarded("microphones", _microphones)
    yield _guarded("turn taking", _speech)
    yield _guarded("voice", _voice)
    yield _terminal()


def _guarded(part: str, check: Callable[[], Finding]) -> Finding:
    """A part that breaks is a finding, and the others are still checked."""
    try:
        return check()
    except OmniError as error:
        return Finding(part, "FAIL", str(error))
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return Finding(part, "FAIL", what, "install its packages again; if it stays, report this")


def _system() -> Finding:
    memory = machine_bytes() / 2**30
    cores = os.cpu_count() or 1
    about = (
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"{cores} cores, {memory:.1f} GiB"
    )
    return Finding("machine", "ok", about)


def _backend(name: str) -> Finding:
    part, library = f"backend {name}", backends.LIBRARIES[name][0]
    missing = backends.lacking(name)
    if missing is not None:
        mend = f'pip install -e ".[{name}]" in the checkout'
        return Finding(part, "none", f"{missing} is not installed", mend)
    prepared = prepare(EMBEDDED, name)
    prepared.check()
    worst, model = _difference(prepared)
    bound = EXACT if model.backend.element == 4 else ROUNDED
    wrong = _senses(model) if model.trained else None
    memory = model.backend.memory()
    about = (
        f"{library} {version(library)} on {model.backend.device}, "
        f"{memory.measured / 2**20:.0f} MiB in use; logits within {worst:.1e} of float64"
    )
    if wrong is not None and worst <= bound:
        return Finding(
            part,
            "FAIL",
            f"{about}; but {wrong}",
            "the embedded model's files are damaged, or this machine's encoders compute wrongly: "
            f"install omnilive again, then try another release of {library}",
        )
    if worst <= bound:
        seen = "; sees what the demo clip shows" if model.trained else ""
        return Finding(part, "ok", about + seen)
    return Finding(
        part,
        "FAIL",
        f"{about}, expected {bound:g}",
        f"this machine computes wrongly with {library} {version(library)}: try another release of "
        "it, or --device cpu",
    )


def _difference(prepared: Prepared) -> tuple[float, Model]:
    from omni_core.reference.backbone import ReferenceBackbone
    from omni_core.reference.check import worst_difference

    model = prepared.load()
    oracle = ReferenceBackbone(prepared.checkpoint, prepared.config)
    return worst_difference(model.backend, prepared.config.text, oracle), model


def _senses(model: Model) -> str | None:
    """What the embedded model answers wrongly about the start of the clip that ships, if anything.

    The oracle reads the weights that the backend reads, and has no encoders.
    """
    from omni_core import Session
    from omnilive.live import DEMO
    from omnilive.stream import open_clip

    asks = json.loads(DEMO.with_suffix(".json").read_bytes())["questions"]
    first = [ask for ask in asks if ask["seconds"] == asks[0]["seconds"]]
    with Session(model, budget=_CELLS, max_tokens=_LONGEST) as session:
        for unit in open_clip(DEMO, model):
            session.append(unit)
            if unit.stop >= first[0]["seconds"] - _SAME:
                break
        for ask in first:
            answer = session.ask(ask["question"], branch=True).strip()
            if answer != ask["answer"]:
                return f"{ask['question']!r} is answered {answer!r}, expected {ask['answer']!r}"
    return None


def _cameras() -> Finding:
    from omnilive.capture.listing import cameras
    from omnilive.capture.permissions import mend

    found = list(cameras())
    works = [entry for entry in found if entry.problem is None]
    if not found:
        return Finding("cameras", "none", "none found", "plug one in, or use --source CLIP")
    told = "; ".join(
        f"{e.index} {e.name} " + (e.problem or f"{e.width}x{e.height} at {e.fps:g} fps")
        for e in found
    )
    if works:
        return Finding("cameras", "ok", told)
    return Finding("cameras", "FAIL", told, mend("camera"))


def _microphones() -> Finding:
    from omnilive.capture.clock import SystemClock
    from omnilive.capture.listing import microphones
    from omnilive.capture.permissions import mend, unmute
    from omnilive.capture.soundservers import NONE, no_microphones

    found = list(microphones(SystemClock()))
    works = [entry for entry in found if entry.problem is None]
    if not found:
        # What a server that does not answer would have is not known.
        absence = no_microphones()
        state = "none" if absence == NONE else "warn"
        return Finding("microphones", state, absence.found, absence.mend)
    told = "; ".join(
        f"{e.index} {e.name} " + (e.problem or f"{e.rate} Hz, {e.level_db:.0f} dB") for e in found
    )
    if not works:
        return Finding("microphones", "FAIL", told, mend("microphone"))
    if all(entry.level_db <= -90 for entry in works):
        return Finding("microphones", "warn", f"{told}: silence", unmute())
    return Finding("microphones", "ok", told)


def _speech() -> Finding:
    import numpy as np

    from omnilive.speech.vad import SpeechDetector

    detector = SpeechDetector()
    quiet = max(chance for _, chance in detector.feed(np.zeros(16_000, np.float32)))
    if quiet > 0.3:
        return Finding(
            "turn taking", "FAIL", f"silence is taken for speech ({quiet:.2f})", "install again"
        )
    about = f"onnxruntime {version('onnxruntime')}; silence is speech with {quiet:.3f}"
    return Finding("turn taking", "ok", about)


def _voice() -> Finding:
    from omnilive.speech import SpeechError
    from omnilive.speech.programs import find_program

    try:
        program = find_program()
    except SpeechError as error:
        return Finding("voice", "none", str(error))
    return Finding("voice", "ok", program.command[0])


def _terminal() -> Finding:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Finding("terminal", "none", "stdin or stdout is no terminal: lines, no screen")
    size = shutil.get_terminal_size()
    kind, encoding = os.environ.get("TERM", ""), (sys.stdout.encoding or "").lower()
    about = f"{size.columns}x{size.lines}, TERM={kind}, {encoding}"
    if kind in ("", "dumb"):
        return Finding("terminal", "warn", about, "set TERM, as to xterm-256color: no screen else")
    if "utf" not in encoding:
        return Finding("terminal", "warn", about, "set LANG to a UTF-8 locale, as C.UTF-8")
    if (size.columns, size.lines) < _NARROW:
        return Finding("terminal", "warn", about, "make the window 80x24 or larger")
    return Finding("terminal", "ok", about)
