"""The retention policy that was asked for, with the sink counts of a calibration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_core.errors import OmniError
from omni_core.retention import OmniPick, Policy, policy
from omnilive import hub
from omnilive.options import UsageError


def choose_policy(retention: str, file: Path | None) -> tuple[Policy, str | None]:
    """The policy, and the name of the model that its counts were measured on, if they were.

    Raises:
        UsageError: sinks for a policy that has none to count.
        OmniError: the calibration file cannot be read, or is none.
    """
    if file is None:
        return policy(retention), None
    if retention != "omnipick":
        raise UsageError(f"--sinks is for --retention omnipick, not for {retention}; leave one out")
    content = _read(file)
    try:
        rule = OmniPick.from_calibration(content)
    except OmniError as error:
        raise OmniError(f"{file}: {error}") from None
    about = content.get("about")
    model = about.get("model") if isinstance(about, dict) else None
    return rule, model if isinstance(model, str) else None


def model_label(name: str) -> str:
    """A model's name without the folders above it."""
    return name if hub.is_hub_id(name) else Path(name).resolve().name


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise OmniError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise OmniError(
            f"{path}: not JSON; make the file with `omnilive calibrate retention`"
        ) from None
