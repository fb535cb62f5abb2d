"""Before anything is timed: the loop gives transformers' logits, wherever its cells lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.stream_loop_clock import Clock
from benchmarks.stream_loop_peer import PeerStream, embedded
from benchmarks.stream_loop_stream import LoopStream, embedded_rows, unit_block
from benchmarks.traces import PREFIX
from omni_core.backend import Backend
from omni_core.model_config import TextConfig
from omni_core.retention import NoSlide, OmniPick
from omni_core.units import Role, TokenBlock

UNITS = (79, 33, 130, 65)
"""Units of the comparison: odd lengths."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Most that logits may be off, as ``|ours - theirs| / |theirs|``."""
Logits = npt.NDArray[np.float32]


def against_peer(backend: Backend, peer: Any, text: TextConfig, device: torch.device) -> float:
    """How far logits are off transformers', at worst, over units and words with nothing dropped."""
    clock, worst = Clock(), 0.0
    ours = LoopStream(backend, text, NoSlide(), "page", 1024, max(UNITS), clock)
    theirs = PeerStream(peer, clock)
    table = peer.get_input_embeddings()
    prefix = TokenBlock.text([0] * PREFIX, 0, Role.PREFIX)
    theirs.read(embedded(table, prefix, torch.zeros(1, 0, text.hidden, device=device)))
    for number, tokens in enumerate(UNITS):
        block = unit_block(tokens, 0)
        rows = _rows(block, text, device, peer.dtype, number)
        one, two = ours.read(tokens, rows), theirs.read(embedded(table, block, rows))
        worst = max(worst, _off(one, two))
        # Both are told the same words, so that one doubtful choice is not counted for ever.
        one, two = ours.say(two, 1), theirs.say(two, 1)
        worst = max(worst, _off(one, two))
        worst = max(worst, _off(ours.say(two, 1), theirs.say(two, 1)))
    return worst


def peers_apart(peer: Any, text: TextConfig, device: torch.device) -> float:
    """How far transformers' own two ways to attend are apart over the same units and words."""
    worst, table = 0.0, peer.get_input_embeddings()
    ways = [("sdpa", PeerStream(peer, Clock())), ("eager", PeerStream(peer, Clock()))]

    def both(run: Callable[[PeerStream], Logits]) -> list[Logits]:
        found = []
        for how, stream in ways:
            peer.set_attn_implementation(how)
            found.append(run(stream))
        return found

    try:
        for number, tokens in enumerate(UNITS):
            block = unit_block(tokens, 0)
            x = embedded(table, block, _rows(block, text, device, peer.dtype, number))
            one, two = both(lambda stream, x=x: stream.read(x))  # type: ignore[misc]
            worst = max(worst, _off(two, one))
            one, two = both(lambda stream, told=one: stream.say(told, 1))  # type: ignore[misc]
            worst = max(worst, _off(two, one))
    finally:
        peer.set_attn_implementation("sdpa")
    return worst


def across_layouts(
    backend: Backend, text: TextConfig, device: torch.device, dtype: torch.dtype
) -> float:
    """How far logits depend on where cells lie, at worst, while tokens are dropped and moved."""
    found: list[list[Logits]] = []
    for layout in ("page", "native", "eager"):
        stream = LoopStream(backend, text, OmniPick(), layout, 512, max(UNITS), Clock())
        logits: list[Logits] = []
        for number in range(10):
            tokens = UNITS[number % len(UNITS)]
            rows = _rows(unit_block(tokens, 0), text, device, dtype, number)
            logits.append(stream.read(tokens, rows))
        found.append(logits)
    return max(
        _off(one, two) for other in found[1:] for one, two in zip(other, found[0], strict=True)
    )


def _rows(
    block: TokenBlock, text: TextConfig, device: torch.device, dtype: torch.dtype, seed: int
) -> torch.Tensor:
    drawn = np.random.default_rng(seed).standard_normal((1, embedded_rows(block), text.hidden))
    return torch.from_numpy(drawn.astype(np.float32)).to(device, dtype)


def _off(one: Logits, two: Logits) -> float:
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        return float("inf")
    return float(np.linalg.norm(one - two) / np.linalg.norm(two))
