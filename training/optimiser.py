"""Muon for the matrices inside the layers and AdamW for the rest, on float32 master weights.

Weights of one shape lie in one tensor, so that a step costs a few launches a shape. The modules
hold views of a copy in the training dtype, and gradients gather in views of a third.
Source of Muon: Keller Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import nn

MOMENTUM = 0.95
BETAS = (0.9, 0.98)
EPS = 1e-8
TOWERS = ("visual.", "audio_tower.")


@dataclass(frozen=True)
class Rates:
    """Learning rates and decay."""

    muon: float = 0.005
    muon_decay: float = 0.1
    adam: float = 1e-3
    adam_decay: float = 0.05
    towers: float = 0.3
    clip: float = 1.0


@dataclass
class _Group:
    """Parameters of one shape and treatment: ``[count, *shape]`` in each tensor."""

    names: list[str]
    muon: bool
    scale: float
    master: torch.Tensor
    live: torch.Tensor
    grad: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor | None


class Optimiser:
    """Steps a module whose parameters it has taken over.

    Args:
        module: parameters in float32; they become views in ``dtype``.
        dtype: what the module computes in.
        rates: learning rates, which :meth:`step` multiplies by its argument.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, rates: Rates) -> None:
        self.rates, self._module = rates, module
        device = next(module.parameters()).device
        self.factor = torch.zeros((), device=device)
        self.count = torch.zeros((), device=device)
        self.groups: list[_Group] = []
        alike: dict[tuple[object, ...], list[tuple[str, nn.Parameter]]] = defaultdict(list)
        for name, weight in module.named_parameters():
            muon = weight.dim() == 2 and "embed" not in name and "token" not in name
            slow = rates.towers if name.startswith(TOWERS) else 1.0
            alike[(muon, slow, *weight.shape)].append((name, weight))
        for (muon, slow, *_), members in alike.items():
            self.groups.append(_gather(members, bool(muon), float(slow), dtype))

    def zero(self) -> None:
        """Forget the gradients."""
        torch._foreach_zero_([group.grad for group in self.groups])

    def step(self, adam: float = 1.0) -> torch.Tensor:
        """One step at ``factor`` times the rates; gives the gradient's norm before clipping."""
        rates = self.rates
        norms = torch._foreach_norm([group.grad for group in self.groups], dtype=torch.float32)
        norm = torch.stack(norms).square().sum().sqrt()
        clip = (rates.clip / (norm + 1e-6)).clamp(max=1.0)
        self.count += 1
        for group in self.groups:
            grad = group.grad.float() * clip
            if group.muon:
                self._muon(group, grad)
            else:
                self._adam(group, grad, adam)
            group.live.copy_(group.master)
        return norm

    def _muon(self, group: _Group, grad: torch.Tensor) -> None:
        group.first.lerp_(grad, 1 - MOMENTUM)
        update = orthogonal(grad.lerp(group.first, MOMENTUM))
        rate = self.factor * (self.rates.muon * group.scale)
        group.master.mul_(1 - rate * self.rates.muon_decay)
        stretch = math.sqrt(max(1.0, update.shape[1] / update.shape[2]))
        group.master.sub_(update * (rate * stretch))

    def _adam(self, group: _Group, grad: torch.Tensor, adam: float) -> None:
        assert group.second is not None
        group.first.lerp_(grad, 1 - BETAS[0])
        group.second.lerp_(grad.square(), 1 - BETAS[1])
        first = group.first / (1 - BETAS[0] ** self.count)
        second = group.second / (1 - BETAS[1] ** self.count)
        rate = self.factor * (self.rates.adam * adam * group.scale)
        if group.master.dim() > 2:
            group.master.mul_(1 - rate * self.rates.adam_decay)
        group.master.sub_(rate * first / (second.sqrt() + EPS))

    def release(self) -> None:
        """Give the module its parameters back in float32, without gradients."""
        named = dict(self._module.named_parameters())
        for group in self.groups:
            for index, name in enumerate(group.names):
                named[name].grad = None
                named[name].data = group.master[index].clone()

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and AdamW's moments by name.

        Muon's weights are kept in 16 bits and its momentum not at all: twenty steps renew it.
        """
        found = {"count": self.count.cpu().clone()}
        for group in self.groups:
            for index, name in enumerate(group.names):
                weight = group.master[index]
                if group.second is not None:
                    found[f"first.{name}"] = group.first[index].cpu()
                    found[f"second.{name}"] = group.second[index].cpu()
                found[f"weight.{name}"] = (weight.half() if group.muon else weight).cpu()
        return found

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take up a :meth:`state`."""
        self.count.copy_(state["count"])
        for group in self.groups:
            for index, name in enumerate(group.names):
                group.master[index].copy_(state[f"weight.{name}"])
                if group.second is not None:
                    group.first[index].copy_(state[f"first.{name}"])
                    group.second[index].copy_(state[f"second.{name}"])
            group.live.copy_(group.master)


def _gather(
    members: list[tuple[str, nn.Parameter]], muon: bool, scale: float, dtype: torch.dtype
) -> _Group:
    master = torch.stack([weight.detach().float() for _, weight in members])
    live, grad = master.to(dtype, copy=True), torch.zeros_like(master, dtype=dtype)
    for index, (_, weight) in enumerate(members):
        weight.data = live[index]
        weight.grad = grad[index]
    second = None if muon else torch.zeros_like(master)
    names = [name for name, _ in members]
    return _Group(names, muon, scale, master, live, grad, torch.zeros_like(master), second)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest matrices with orthonormal rows or columns, roughly: ``[count, rows, columns]``.

    Five steps of a quintic Newton-Schulz iteration in bfloat16.
    """
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(
            x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return (x.transpose(1, 2) if tall else x).float()
