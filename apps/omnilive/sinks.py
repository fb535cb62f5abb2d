"""The retention policy that was asked for, with the sink counts of a calibration file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.errors import OmniError
from omni_core.retention import OmniPick, Policy, policy
from omnilive import hub
from omnilive.options import UsageError

OWN = "retention.json"
"""In a checkpoint's folder: the calibration that suits the model, taken where none is given."""


def choose_policy(
    retention: str, file: Path | None, folder: Path | None
) -> tuple[Policy, str | None]:
    """The policy, and the name of the model that its counts were measured on, if a file says so.

    Args:
        retention: the policy's name.
        file: a calibration that was asked for.
        folder: the checkpoint's, whose own calibration serves where none was asked for.

    Raises:
        UsageError: sinks for a policy that has none to count.
        OmniError: the calibration file cannot be read, or is none.
    """
    if file is None:
        if retention == OmniPick.name and folder is not None:
            return own_omnipick(folder), None
        return policy(retention), None
    if retention != OmniPick.name:
        raise UsageError(f"--sinks is for --retention omnipick, not for {retention}; leave one out")
    rule, content = _calibrated(file)
    about = content.get("about")
    model = about.get("model") if isinstance(about, dict) else None
    return rule, model if isinstance(model, str) else None


def own_omnipick(folder: Path) -> OmniPick:
    """OmniPick as the checkpoint in a folder says it suits the model, else with its defaults.

    Raises:
        OmniError: the calibration in the folder cannot be read, or is none.
    """
    file = folder / OWN
    # A link that leads nowhere is no calibration that was left out.
    return _calibrated(file)[0] if file.exists() or file.is_symlink() else OmniPick()


def model_label(name: str) -> str:
    """A model's name without the folders above it."""
    return name if hub.is_hub_id(name) else Path(name).resolve().name


def _calibrated(file: Path) -> tuple[OmniPick, Mapping[str, Any]]:
    content = _read(file)
    try:
        return OmniPick.from_calibration(content), content
    except OmniError as error:
        raise OmniError(f"{file}: {error}") from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise OmniError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise OmniError(
            f"{path}: not JSON; make the file with `omnilive calibrate retention`"
        ) from None
