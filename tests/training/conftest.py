"""A tiny model of the stream world, the device it runs on, and a bank that needs no packages."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> Any:
    import torch

    return torch.device("cpu")


@pytest.fixture(scope="session")
def world() -> Any:
    from training import synthetic

    return synthetic.bank()


@pytest.fixture(scope="session")
def bank(world: Any, device: Any) -> Any:
    from training.bank import DeviceBank

    return DeviceBank.of(world, device)


@pytest.fixture(scope="session")
def model(device: Any) -> Any:
    """Random weights that no bias or norm is left out of, and attention that looks at things."""
    import torch

    from training.model import Model
    from training.shape import SMALL

    made = Model.build(SMALL, device, 0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in made.thinker.named_parameters():
            if weight.dim() < 2:
                weight.add_(torch.randn(weight.shape, generator=draw) * 0.1)
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.mul_(2)
    return made
