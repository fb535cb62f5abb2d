"""How kernels are launched: compiled or interpreted, and early where the card can."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from triton import knobs

INTERPRETED: bool = knobs.runtime.interpret
"""Whether kernels run on the CPU, a program at a time; ``tl.dot`` of bfloat16 is wrong there."""


@cache
def early(device: torch.device) -> bool:
    """Whether a kernel can start while the one before it ends (from compute capability 9.0 on)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def roomy(device: torch.device) -> bool:
    """Whether a block has more shared memory than the 99 KB of consumer cards."""
    if device.type != "cuda":
        return False
    found = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return found > 160 * 1024


def early_launch(device: torch.device) -> dict[str, Any]:
    """What a launch is told so that it does.

    Its kernel waits with ``gdc_wait`` before it reads or writes what others do, and only then lets
    the next one start with ``gdc_launch_dependents``: so whatever came before the one before is
    done as well.
    """
    return {"launch_pdl": True} if early(device) else {}
