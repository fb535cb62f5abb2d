"""PyAV, which decodes files and resamples sound, or a line that says what to install."""

from __future__ import annotations

from omni_core.errors import MediaError

try:
    import av
except (ImportError, OSError) as error:
    raise MediaError(
        f"picture and sound need PyAV, which cannot be loaded: {' '.join(str(error).split())}; "
        "pip install -e . in the checkout"
    ) from None

__all__ = ["av"]
