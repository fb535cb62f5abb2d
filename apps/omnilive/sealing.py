"""``--kv-bits`` and ``--seal``: how the cache is sealed, known before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable

from omni_core.backend import SUBBLOCK
from omni_core.quantization.tables_file import OWN
from omni_core.retention import POLICIES
from omni_core.sealing import ALL, RECENT, Sealing
from omnilive.options import UsageError


def chosen(kv_bits: int, seal: str | None, retention: Iterable[str]) -> Sealing | None:
    """What was asked for; None for a cache of 16 bits.

    Args:
        kv_bits: of a key or value number.
        seal: what is sealed, or None for what is no longer new.
        retention: policies by name.

    Raises:
        UsageError: words that do not fit together.
    """
    if kv_bits == 16:
        if seal is not None:
            raise UsageError(
                f"--seal {seal} is for a cache of 4, 3 or 2 bits, and this one is of 16: give "
                "--kv-bits, or leave --seal out"
            )
        return None
    for name in retention:
        if POLICIES[name]().scored:
            raise UsageError(
                f"--retention {name} lets tokens go one by one, and {SUBBLOCK} of a sealed cache "
                "share their room: choose another, or leave --kv-bits out"
            )
    return Sealing(kv_bits, seal or RECENT)


def told(sealing: Sealing | None) -> str:
    """The end of a line about a cache: ``, sealed to 2 bits``; empty at 16."""
    if sealing is None:
        return ""
    return f", {'all of it ' if sealing.seal == ALL else ''}sealed to {sealing.bits} bits"


def unmeasured(model: str) -> str:
    """What to know of sealing with a model that has no tables of its own."""
    return (
        f"{model} has no {OWN}: keys are sealed without feedback and values by Hadamard, which "
        "loses more at few bits; measure the model by omnilive calibrate values"
    )
