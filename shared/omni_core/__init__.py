"""The backend-agnostic core: what stays in the cache, where it lies, what a backend must do."""

from omni_core.errors import OmniError
from omni_core.frontend.base import UnitMedia
from omni_core.recording import Recorder, Recording
from omni_core.session import Model, Session

__all__ = ["Model", "OmniError", "Recorder", "Recording", "Session", "UnitMedia"]
