"""A run's recording: taken before anything is loaded, given up if no unit came."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from omni_core import Recorder
from omni_core.retention import Policy
from omnilive.models import location
from omnilive.options import LiveOptions


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
        "versions": _versions(),
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


def _give_up(folder: Path, made: list[Path]) -> None:
    shutil.rmtree(folder / "media")
    for name in ("plans.jsonl", "session.json"):
        (folder / name).unlink(missing_ok=True)
    # A folder above may have been put to use by others since.
    with suppress(OSError):
        for part in made:
            part.rmdir()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("omnilive", "numpy", "av", "mlx", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
