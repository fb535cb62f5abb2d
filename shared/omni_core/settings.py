"""What a session was asked to do: all that decides beside the media and the questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from omni_core.aggregation.rule import Aggregation
from omni_core.errors import OmniError
from omni_core.layer_budgets.rule import LayerBudgets
from omni_core.paging import LAYOUTS, Layout
from omni_core.retention import POLICIES, Policy
from omni_core.sealing import RECENT, Sealing, sealing
from omni_core.state import expect, number, text, whole

SYSTEM = "You are a helpful assistant who watches and listens, and answers briefly."
"""The system prompt where none is given."""

_LEFT_OUT = ("aggregation", "layers")
"""Settings of which a saved session says nothing where they are off."""


@dataclass(frozen=True)
class Settings:
    """The settings of a session, named as in :class:`omni_core.session.Session`."""

    budget: int
    retention: Policy
    layout: Layout
    system: str
    max_tokens: int
    temperature: float
    seed: int
    prefill_chunk: int
    groups: int
    frame: int | None
    kv_bits: int = 16
    seal: str = RECENT
    aggregation: Aggregation | None = None
    layers: LayerBudgets | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            OmniError: naming it.
        """
        check_counts(
            prefill_chunk=self.prefill_chunk,
            groups=self.groups,
            max_tokens=self.max_tokens,
            frame=self.frame,
        )
        if not 0 <= self.temperature < float("inf"):
            raise OmniError(f"temperature is {self.temperature}, expected 0 or more")
        sealing(self.kv_bits, self.seal)

    @property
    def sealing(self) -> Sealing | None:
        """How the cache is sealed; None where it is of 16 bits."""
        return sealing(self.kv_bits, self.seal)

    def state(self) -> dict[str, Any]:
        """The settings as JSON values, policy and layout with their parameters."""
        found = asdict(self)
        for name in _LEFT_OUT:
            if found[name] is None:
                del found[name]
        return found

    def named(self) -> dict[str, Any]:
        """What a recording tells of them: policy and layout by their names."""
        names = ("budget", "kv_bits", "seal", "system", "max_tokens", "temperature", "seed")
        found = {name: getattr(self, name) for name in names}
        found |= {"retention": self.retention.name, "layout": self.layout.name}
        if self.aggregation is not None:
            found["aggregation"] = self.aggregation.state()
        if self.layers is not None:
            found["layers"] = self.layers.state()
        return found

    @staticmethod
    def restored(state: Mapping[str, Any]) -> Settings:
        """The settings that :meth:`state` told of.

        Raises:
            OmniError: a policy or layout that is not one of the project's.
            ValueError, TypeError, KeyError: no such settings.
        """
        frame = state["frame"]
        return Settings(
            budget=whole(state["budget"]),
            retention=_made(state["retention"], POLICIES, "retention policy"),
            layout=_made(state["layout"], LAYOUTS, "layout"),
            system=text(state["system"]),
            max_tokens=whole(state["max_tokens"]),
            temperature=number(state["temperature"]),
            seed=whole(state["seed"], 0, 2**64 - 1),
            prefill_chunk=whole(state["prefill_chunk"]),
            groups=whole(state["groups"]),
            frame=None if frame is None else whole(frame),
            # Sessions were saved before there were sealed pages.
            kv_bits=whole(state.get("kv_bits", 16)),
            seal=text(state.get("seal", RECENT)),
            aggregation=Aggregation.restored(state.get("aggregation")),
            layers=LayerBudgets.restored(state.get("layers")),
        )


def check_counts(**values: int | None) -> None:
    """Refuse a setting below 1, by its name; None is one that was left out.

    Raises:
        OmniError: naming it.
    """
    for name, value in values.items():
        if value is not None and value < 1:
            raise OmniError(f"{name} is {value}, expected 1 or more")


def _made(state: Mapping[str, Any], known: Mapping[str, Callable[..., Any]], what: str) -> Any:
    """A policy or layout with the parameters that it had."""
    name = text(state["name"])
    if name not in known:
        raise OmniError(
            f"the {what} {name!r} of the saved session is none of {', '.join(known)}: a session "
            "with one of your own cannot be resumed"
        )
    plain = asdict(known[name]())
    expect(plain.keys() == state.keys(), f"the parameters {', '.join(plain)}")
    same = all(type(state[key]) is type(value) for key, value in plain.items())
    expect(same, f"parameters as {plain}")
    return known[name](**state)
