"""How alike tokens must be to be left out or merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from omni_core.errors import OmniError
from omni_core.state import expect, number, whole


@dataclass(frozen=True)
class Aggregation:
    """The parameters, with the paper's defaults (§4.3).

    Attributes:
        inter: cosine similarity above which a token is left out for what the stream has shown.
        intra: cosine similarity above which two tokens of a frame are merged.
        least: tokens of a frame that enter however alike they are, those that are least so. The
            paper has none. But a unit of which nothing is left says neither that there was a
            picture nor when: one cell a frame says that it is as it was.
        rounds: how often a frame's tokens are paired; a cell stands for at most ``2 ** rounds`` of
            them. The paper weighs the mean and counts raw tokens, so a merged one may merge again;
            this bounds over how much of a picture one position is stretched.
    """

    inter: float = 0.8
    intra: float = 0.85
    rounds: int = 4
    least: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no similarity and no number of rounds.

        Raises:
            OmniError: naming it.
        """
        for name in ("inter", "intra"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise OmniError(
                    f"aggregation: `{name}` is {value}, expected a similarity above 0, to 1"
                )
        if not 0 <= self.rounds <= 8:
            raise OmniError(f"aggregation: `rounds` is {self.rounds}, expected 0 to 8")
        if self.least < 0:
            raise OmniError(f"aggregation: `least` is {self.least}, expected 0 or more")

    def state(self) -> dict[str, Any]:
        """The parameters as JSON values."""
        return asdict(self)

    @staticmethod
    def restored(state: Mapping[str, Any] | None) -> Aggregation | None:
        """What :meth:`state` told of; None of a stream without.

        Raises:
            ValueError, KeyError, TypeError, OmniError: no such parameters.
        """
        if state is None:
            return None
        expect(state.keys() == asdict(Aggregation()).keys(), "the parameters of an aggregation")
        inter, intra = number(state["inter"]), number(state["intra"])
        return Aggregation(inter, intra, whole(state["rounds"]), whole(state["least"]))
