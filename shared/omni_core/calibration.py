"""OmniPick's sink counts from measured attention, and the file that carries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError
from omni_core.units import Modality

_MOST_SINKS = 10**6
FORMAT = "omnilive retention calibration"
VERSION = 1
COVER = 0.5
"""Share of a modality's mass on the content of old units that its sinks are to cover."""

Float = npt.NDArray[np.float64]
_NAMES = {kind: kind.name.lower() for kind in Modality}


def sink_counts(shares: Float, cover: float = COVER) -> dict[str, int]:
    """The fewest first tokens of each modality's span that cover a share of its mass.

    Args:
        shares: ``float64[6, offsets]``, as :meth:`~omni_core.mass_profile.MassProfile.shares` has
            them.
        cover: share of the modality's mass on old content, above 0, to 1.

    Returns:
        Counts by modality name; modalities that got no mass are left out.
    """
    counts = {}
    for kind, name in _NAMES.items():
        sums = np.cumsum(shares[kind])
        if sums.size and sums[-1] > 0:
            # A little less, so that rounding of the sum asks for no token more.
            wanted = cover * sums[-1] * (1 - 1e-12)
            counts[name] = int(np.searchsorted(sums, wanted)) + 1
    return counts


def document(shares: Float, cover: float, about: Mapping[str, Any]) -> dict[str, Any]:
    """What ``omnilive calibrate retention`` writes: the counts, the curve, and whence.

    Args:
        shares: as :meth:`~omni_core.mass_profile.MassProfile.shares` gives them.
        cover: as for :func:`sink_counts`.
        about: model, clips and how they were measured, for people.
    """
    content = {kind: name for kind, name in _NAMES.items() if shares[kind].any()}
    delimiters = {
        name: float(shares[len(Modality) + kind].sum())
        for kind, name in _NAMES.items()
        if shares[len(Modality) + kind].any()
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "policy": "omnipick",
        "sinks": sink_counts(shares, cover),
        "cover": cover,
        "mass": {name: _curve(shares[kind]) for kind, name in content.items()},
        "delimiters": {name: _rounded(share) for name, share in delimiters.items()},
        "about": dict(about),
    }


def read_sinks(content: Any) -> dict[str, int]:
    """The sink counts of such a document, by modality.

    Raises:
        OmniError: it is none, or damaged.
    """
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise OmniError(
            "this is no retention calibration; make one with `omnilive calibrate retention`"
        )
    if content.get("version") != VERSION:
        raise OmniError(
            f"the retention calibration has version {content.get('version')!r}, but version "
            f"{VERSION} is read here; calibrate again"
        )
    sinks = content.get("sinks")
    if not isinstance(sinks, Mapping) or not sinks or not set(sinks) <= set(_NAMES.values()):
        raise OmniError(
            f"the retention calibration's `sinks` are {sinks!r}; expected a count for some of "
            f"{', '.join(_NAMES.values())}; calibrate again"
        )
    for name, count in sinks.items():
        if type(count) is not int or not 0 <= count <= _MOST_SINKS:
            raise OmniError(
                f"the retention calibration has {count!r} {name} sinks; expected a whole number "
                f"from 0 to {_MOST_SINKS}; calibrate again"
            )
    return dict(sinks)


def _curve(shares: Float) -> list[float]:
    return [_rounded(share) for share in np.trim_zeros(shares, "b")]


def _rounded(share: float) -> float:
    return float(f"{share:.4g}")


def read_share(content: Mapping[str, Any]) -> float | None:
    """The share of the room that old units' sinks may take, where such a document says one.

    Raises:
        OmniError: it is no share.
    """
    share = content.get("share")
    if share is None:
        return None
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise OmniError(
            f"the retention calibration has a share of {share!r}; expected a number from 0 to 1; "
            "calibrate again"
        )
    return float(share)
