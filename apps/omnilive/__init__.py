"""The terminal assistant: clips in, answers out, on either backend.

::

    from omni_core import Session
    from omnilive import load, open_clip

    session = Session(load(), budget=1024)
    for unit in open_clip("clip.mp4", session.model):
        session.append(unit)
    print(session.ask("What is on screen?"))
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omnilive.models import load as load
    from omnilive.stream import open_clip as open_clip

__all__ = ["load", "open_clip"]

_HOMES = {"load": "omnilive.models", "open_clip": "omnilive.stream"}


def __getattr__(name: str) -> object:
    # Imported on first use, so that `omnilive --help` needs neither PyAV nor a backend.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
