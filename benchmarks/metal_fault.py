"""Kernels broken by hand, and what the CPU runner says of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metal_kernels.loader import load
from tests.attended import Size, spread
from tests.metal.cases import attend, make_case
from tests.metal.runner import KernelFault

_FEW = Size(300, 3, 2, 3, 64, 2, 2)
_MANY = Size(300, 17, 2, 3, 64, 2, 2)
_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


@dataclass(frozen=True)
class Fault:
    """A change to a kernel's text.

    Attributes:
        what: it does, in words.
        kernel: its name.
        size: of a case that it spoils.
        old, new: text that is replaced, which occurs once, and by what.
    """

    what: str
    kernel: str
    size: Size
    old: str
    new: str


FAULTS = (
    Fault(
        "a barrier is dropped: columns are joined before all simdgroups' are there",
        "decode",
        _FEW,
        f"{_BARRIER}\n        ROLLED",
        "ROLLED",
    ),
    Fault(
        "a barrier is put where only some of the threads come by",
        "prefill",
        _MANY,
        f"{_BARRIER}\n            some_keys.put",
        f"if (busy) {_BARRIER}\n            some_keys.put",
    ),
    Fault(
        "lines beyond the last are written, beyond the output's end",
        "decode",
        _FEW,
        "first_line + line >= of.sizes.lines() ||",
        "",
    ),
    Fault(
        "the page walk begins a row too late",
        "prefill",
        _MANY,
        "unit = segment.begin * (",
        "unit = (segment.begin + 1) * (",
    ),
)


def said(fault: Fault) -> str:
    """What becomes of a case under a fault, in a line.

    Raises:
        ValueError: the text is not there once.
    """
    text = load(fault.kernel)
    if text.header.count(fault.old) != 1:
        raise ValueError(f"{fault.kernel} has {fault.old!r} {text.header.count(fault.old)} times")
    broken = replace(text, header=text.header.replace(fault.old, fault.new))
    case = make_case(fault.size)
    try:
        found, _ = attend(case, {fault.kernel: broken})
    except KernelFault as stopped:
        return f"KernelFault: {stopped}"
    gap = spread(found, case.attended())
    error = "NaN" if np.isnan(gap) else f"{gap:.2g}"
    return f"no fault in the run, and the result is off the oracle by {error} of a head's norm"
