"""Retention policies: which tokens stay. One policy a file; :func:`policy` finds them by name."""

from __future__ import annotations

from collections.abc import Callable

from omni_core.errors import OmniError
from omni_core.retention.base import Policy
from omni_core.retention.fifo import Fifo
from omni_core.retention.h2o import H2O
from omni_core.retention.no_slide import NoSlide
from omni_core.retention.omnipick import OmniPick
from omni_core.retention.streaming_llm import StreamingLLM
from omni_core.retention.token_basic import TokenBasic

POLICIES: dict[str, Callable[[], Policy]] = {
    "omnipick": OmniPick,
    "fifo": Fifo,
    "token-basic": TokenBasic,
    "streaming-llm": StreamingLLM,
    "h2o": H2O,
    "no-slide": NoSlide,
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


__all__ = [
    "H2O",
    "POLICIES",
    "Fifo",
    "NoSlide",
    "OmniPick",
    "Policy",
    "StreamingLLM",
    "TokenBasic",
    "policy",
]
