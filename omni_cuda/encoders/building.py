"""Building a transformers tower without filling its weights first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def build_empty(make: Callable[[int], nn.Module], depth: int) -> nn.Module:
    """A tower of ``depth`` layers whose weights are on the ``meta`` device, its tables on the CPU.

    Tables such as rotary frequencies are no part of a checkpoint. They do not depend on the depth,
    so they are computed by a tower without layers.

    Args:
        make: builds the tower with the given number of layers.
        depth: layers wanted.
    """
    with torch.device("meta"):
        tower = make(depth)
    for name, table in make(0).named_buffers():
        owner, _, attribute = name.rpartition(".")
        setattr(tower.get_submodule(owner), attribute, table)
    return tower.eval().requires_grad_(False)


def place_tables(tower: nn.Module, device: torch.device) -> None:
    """Move the tables to the device; they stay float32, as the angles need it."""
    for name, table in list(tower.named_buffers()):
        owner, _, attribute = name.rpartition(".")
        setattr(tower.get_submodule(owner), attribute, table.to(device))
