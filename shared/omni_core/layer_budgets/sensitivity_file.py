"""The JSON file of a model's layer sensitivity: written by calibration, read for either twin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError
from omni_core.fields import is_number, plain, shown
from omni_core.layer_budgets.gradient_norms import GradientNorms

FORMAT = "omnilive layer sensitivity"
VERSION = 1
AGAIN = "make it again with `omnilive calibrate layers`"

Float = npt.NDArray[np.float64]


def document(norms: GradientNorms, about: Mapping[str, Any]) -> dict[str, Any]:
    """What ``omnilive calibrate layers`` writes: a number a layer, and whence.

    Args:
        norms: what was measured.
        about: ``model``, its ``identity``, and how it was measured; for JSON.
    """
    numbers = {
        "sensitivity": norms.sensitivity,
        "spread": norms.spread,
        "keys": norms.keys,
        "values": norms.values,
    }
    rounded = {name: [float(f"{x:.6g}") for x in line] for name, line in numbers.items()}
    head = {"format": FORMAT, "version": VERSION, "samples": len(norms)}
    return head | rounded | {"about": dict(about)}


def read_sensitivity(file: Path, layers: int, name: str, own: str) -> Float:
    """The sensitivity of each layer, ``float64[layers]``, for the model that it was measured on.

    Args:
        file: holds what :func:`document` gave.
        layers: the model's.
        name, own: of the model, the second its :func:`omni_core.identity.identity`.

    Raises:
        OmniError: it is not there, damaged, no such file, or of another model.
    """
    content = _content(file)
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise OmniError(
            f"{file}: is no calibration of layers; make one with `omnilive calibrate layers`"
        )
    if content.get("version") != VERSION:
        raise OmniError(
            f"{file}: has version {shown(content.get('version'))}, and version {VERSION} is read "
            f"here; {AGAIN}"
        )
    found = content.get("sensitivity")
    if (
        not isinstance(found, list)
        or len(found) != layers
        or not all(is_number(one) and one >= 0 for one in found)
    ):
        has = f"{len(found)} entries" if isinstance(found, list) else shown(found)
        raise OmniError(
            f"{file}: `sensitivity` is {has}, expected a number of 0 or above for each of the "
            f"{layers} layers of {name}: give the file of this model, or {AGAIN}"
        )
    about = content.get("about")
    measured = about if isinstance(about, Mapping) else {}
    if measured.get("identity") != own:
        raise OmniError(
            f"{file}: measured on the model {plain(str(measured.get('model')))}, and {name} is "
            f"another one or has other weights: give the file of this model, or {AGAIN}"
        )
    return np.asarray(found, np.float64)


def _content(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise OmniError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise OmniError(f"{file}: is no JSON; {AGAIN}") from None
