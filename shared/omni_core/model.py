"""A loaded model: what a session runs on."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_core.backend import Backend
from omni_core.frontend.base import Frontend
from omni_core.model_config import TextConfig
from omni_core.retention import OmniPick, Policy, policy


@dataclass(frozen=True)
class Model:
    """A loaded model: the backend that runs it and the frontend that feeds it.

    Attributes:
        trained: False for random weights, whose answers mean nothing.
        omnipick: the policy of that name as it suits the model: what its checkpoint says of it.
        identity: a digest that only the same weights have, see :mod:`omni_core.identity`.
        weights: number format or bits of the weights, as ``f32``.
    """

    backend: Backend
    frontend: Frontend
    text: TextConfig
    name: str
    trained: bool = True
    omnipick: OmniPick = field(default_factory=OmniPick)
    identity: str = ""
    weights: str = ""

    def policy(self, retention: str | Policy) -> Policy:
        """The policy of a name, as it suits the model."""
        if retention == self.omnipick.name:
            return self.omnipick
        return policy(retention) if isinstance(retention, str) else retention
