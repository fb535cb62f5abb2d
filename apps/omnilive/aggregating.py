"""``--aggregate``: which vision tokens do not enter, known before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from omni_core.aggregation import Aggregation
from omnilive.options import UsageError


def chosen(aggregate: bool, inter: float | None, intra: float | None) -> Aggregation | None:
    """What was asked for; None where all tokens enter.

    Args:
        aggregate: whether.
        inter, intra: the thresholds that were given.

    Raises:
        UsageError: a threshold of nothing.
    """
    if not aggregate:
        for word, value in (("--theta-inter", inter), ("--theta-intra", intra)):
            if value is not None:
                raise UsageError(
                    f"{word} {value:g} is for --aggregate, and all tokens enter: give --aggregate, "
                    f"or leave {word} out"
                )
        return None
    plain = Aggregation()
    return Aggregation(
        plain.inter if inter is None else inter, plain.intra if intra is None else intra
    )


def told(aggregation: Aggregation | None) -> str:
    """The end of a line about a cache: ``, aggregated``; empty where all tokens enter."""
    if aggregation is None:
        return ""
    plain = Aggregation()
    if aggregation == plain:
        return ", aggregated"
    return f", aggregated above {aggregation.inter:g} and {aggregation.intra:g}"


def shown(counts: Mapping[str, int]) -> str:
    """Vision tokens before and after, as ``12 of 256 vision tokens entered (...)``."""
    parts = {"shown": "seen before", "merged": "merged", "invalid": "no numbers"}
    rest = ", ".join(f"{counts[name]} {words}" for name, words in parts.items() if counts[name])
    left = f"{counts['entered']} of {counts['seen']} vision tokens entered"
    return f"{left} ({rest})" if rest else left
