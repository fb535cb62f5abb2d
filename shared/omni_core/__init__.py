"""The backend-agnostic core: what stays in the cache, where it lies, what a backend must do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_core.batch import StreamBatch as StreamBatch
    from omni_core.errors import OmniError as OmniError
    from omni_core.frontend.base import UnitMedia as UnitMedia
    from omni_core.recording import Recorder as Recorder
    from omni_core.recording import Recording as Recording
    from omni_core.session import Model as Model
    from omni_core.session import Session as Session

__all__ = ["Model", "OmniError", "Recorder", "Recording", "Session", "StreamBatch", "UnitMedia"]

_HOMES = {
    "Model": "omni_core.session",
    "OmniError": "omni_core.errors",
    "Recorder": "omni_core.recording",
    "Recording": "omni_core.recording",
    "Session": "omni_core.session",
    "StreamBatch": "omni_core.batch",
    "UnitMedia": "omni_core.frontend.base",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that a command can begin, or be ended, before NumPy is loaded.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
