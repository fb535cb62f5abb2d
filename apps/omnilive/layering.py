"""``--layer-budgets`` and ``--layer-blend``: how layers share the cells of a cache."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from omni_core.layer_budgets import Blend, LayerBudgets, read_sensitivity
from omni_core.retention import NoSlide
from omnilive.models import Prepared
from omnilive.options import UsageError


def check(file: Path | None, blend: tuple[float, float] | None, retention: Iterable[str]) -> None:
    """Refuse words that do not fit together, before anything is loaded.

    Args:
        file, blend: as given; None for the same budget in each layer, and for usual weights.
        retention: policies by name.

    Raises:
        UsageError: none of the policies evicts, or weights of nothing.
    """
    if file is None and blend is not None:
        raise UsageError(
            "--layer-blend weighs what --layer-budgets says, and each layer holds the same: give "
            "--layer-budgets, or leave --layer-blend out"
        )
    if file is not None and set(retention) == {NoSlide.name}:
        raise UsageError(
            f"--layer-budgets is of what is evicted, and --retention {NoSlide.name} evicts "
            "nothing: choose another, or leave --layer-budgets out"
        )


def chosen(
    file: Path | None, blend: tuple[float, float] | None, prepared: Prepared
) -> LayerBudgets | None:
    """What a file says of the model that is to run; None where none was given.

    Args:
        file, blend: as given, the latter the weights of a :class:`Blend`; None for usual ones.
        prepared: the model.

    Raises:
        OmniError: it is not there, damaged, no such file, or of another model.
    """
    if file is None:
        return None
    own = prepared.described(prepared.element).identity
    found = read_sensitivity(file, prepared.config.text.layers, prepared.name, own)
    return LayerBudgets(tuple(found.tolist()), Blend(*blend) if blend else Blend())


def told(layers: LayerBudgets | None) -> str:
    """The end of a line about a cache: ``, by layer``; empty where each holds the same."""
    return "" if layers is None else ", by layer"
