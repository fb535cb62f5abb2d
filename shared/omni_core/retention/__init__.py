"""Retention policies: which tokens stay. One policy a file; :func:`policy` finds them by name."""

from __future__ import annotations

from omni_core.errors import OmniError
from omni_core.retention.base import Policy
from omni_core.retention.fifo import Fifo
from omni_core.retention.no_slide import NoSlide
from omni_core.retention.omnipick import OmniPick

POLICIES: dict[str, type[NoSlide] | type[Fifo] | type[OmniPick]] = {
    "no-slide": NoSlide,
    "fifo": Fifo,
    "omnipick": OmniPick,
}
"""Policies by the name that ``--retention`` takes."""


def policy(name: str) -> Policy:
    """The policy of that name with its default parameters.

    Raises:
        OmniError: no such policy.
    """
    if name not in POLICIES:
        raise OmniError(f"no retention policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]()


__all__ = ["POLICIES", "Fifo", "NoSlide", "OmniPick", "Policy", "policy"]
