"""Single things of the loop: a decode step beside its floor, encoders, memory over many units."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.stream_loop_clock import Clock
from benchmarks.stream_loop_models import ModelShape, audio_config, step_bytes, vision_config
from benchmarks.stream_loop_stream import LoopStream, embedded_rows, unit_block
from omni_core.budget import cell_bytes
from omni_core.frontend.base import VisionInput
from omni_core.units import Role, TokenBlock
from omni_cuda.backend import TorchBackend

GRIDS = {79: (16, 16), 700: (52, 52), 2300: (96, 96)}
"""Patches high and wide by the tokens of a unit; 2 by 2 of them, of two frames, are a token."""
_FRAMES_A_SECOND = 100
_STEPS, _WARM = 60, 10


def decode_step(
    backend: TorchBackend,
    shape: ModelShape,
    budget: int,
    unit: int,
    bandwidth: float,
    wait: Callable[[], None],
) -> dict[str, Any]:
    """A decode step with a full cache, host included, as a row.

    Args:
        backend: what runs it.
        shape: of its model.
        budget: cells; units are read until some have been dropped.
        unit: tokens of a unit.
        bandwidth: bytes that the device reads in a second.
        wait: for the device.
    """
    clock = Clock(wait)
    stream = LoopStream(backend, shape.text, "omnipick", "page", budget, unit, clock)
    like = backend.backbone.lm_head.weight
    rows = torch.randn(
        1, embedded_rows(unit_block(unit, 0)), shape.text.hidden, device=like.device
    ).to(like.dtype)
    while not stream.cache.evicted or len(stream.cache.ledger) < budget * 15 // 16:
        stream.read(unit, rows)
    cells = len(stream.cache.ledger)
    clock.speaking = True
    forward: list[float] = []
    with stream.cache.whole(keep=False):
        stream.cache.make_room(_STEPS)
        for place in range(_STEPS):
            _say(stream, place)
            forward.append(clock.last)
    # And as it is without a clock, where the host goes on while the device computes.
    clock.wait = _nothing
    with stream.cache.whole(keep=False):
        stream.cache.make_room(_STEPS)
        for place in range(_STEPS):
            if place == _WARM:
                start = time.perf_counter()
            _say(stream, place)
        whole = (time.perf_counter() - start) * 1e3 / (_STEPS - _WARM)
    ms = median(forward[_WARM:])
    weights, live = step_bytes(backend.backbone), cells * cell_bytes(shape.text, backend.element)
    floor = (weights + live) / bandwidth * 1e3
    return {
        "part": "decode step",
        "model": shape.name,
        "cells": cells,
        "weight_bytes": weights,
        "cache_bytes": live,
        "read_bytes_a_second": bandwidth,
        "floor_ms": round(floor, 4),
        "ms": round(ms, 4),
        "with_core_ms": round(whole, 4),
        "device_ms": _device_milliseconds(stream),
        "ratio": round(ms / floor, 4),
    }


def encode_unit(
    backend: TorchBackend, shape: ModelShape, unit: int, seconds: float, wait: Callable[[], None]
) -> dict[str, Any]:
    """Encoding a picture pair and the sound of a unit, as a row."""
    vision = vision_config(shape.text.hidden)
    high, wide = GRIDS[unit]
    draw = np.random.default_rng(unit)
    size = vision.channels * vision.temporal_patch * vision.patch**2
    patches = draw.standard_normal((high * wide, size)).astype(np.float32)
    frames = round(seconds * _FRAMES_A_SECOND)
    mel = draw.standard_normal((audio_config(1).mel_bins, frames)).astype(np.float32)
    given = [VisionInput(patches, (1, high, wide))], [mel]
    clock, taken = Clock(wait), []
    for _ in range(6):
        with clock.span("encode", device=True):
            rows = backend.encode(*given)
        taken.append(clock.last)
    return {
        "part": "encode",
        "model": shape.name,
        "unit": unit,
        "vision_tokens": high * wide // vision.merge**2,
        "audio_seconds": seconds,
        "rows": int(rows.shape[1]),
        "ms": round(median(taken[2:]), 4),
    }


def memory_over_units(
    backend: TorchBackend,
    shape: ModelShape,
    units: int,
    reserved: Callable[[], int],
    longest: int = 1000,
    budget: int = 3072,
) -> dict[str, Any]:
    """Bytes that the allocator holds over units of varied lengths.

    Early is the most in the first fifth: by then most lengths have occurred twice, and their graphs
    are there. ``held_bytes`` are those after each twentieth.
    """
    stream = LoopStream(backend, shape.text, "omnipick", "page", budget, longest, Clock())
    like = backend.backbone.lm_head.weight
    pool = torch.randn(1, longest, shape.text.hidden, device=like.device).to(like.dtype)
    draw = np.random.default_rng(7)
    held: list[int] = []
    for _ in range(units):
        tokens = int(draw.integers(20, longest + 1))
        logits = stream.read(tokens, pool[:, : embedded_rows(unit_block(tokens, 0))])
        stream.say(logits, int(draw.integers(1, 6)))
        held.append(reserved())
    early = max(held[: max(1, units // 5)])
    return {
        "part": "memory",
        "model": shape.name,
        "units": units,
        "tokens": stream.position,
        "early_bytes": early,
        "last_bytes": held[-1],
        "most_bytes": max(held),
        "held_bytes": held[max(0, units // 20 - 1) :: max(1, units // 20)],
        "growth": round(held[-1] / early, 6) if early else 1.0,
    }


def _nothing() -> None:
    pass


def _say(stream: LoopStream, place: int) -> None:
    block = TokenBlock.text([place], stream.position + place, Role.GENERATED)
    stream.cache.step(block, logits=[0])


def _device_milliseconds(stream: LoopStream, steps: int = 5) -> float | None:
    """What the device's kernels take in a step, gaps left out; None where that cannot be read."""
    if not torch.cuda.is_available():
        return None
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    try:
        with stream.cache.whole(keep=False), profile(activities=[ProfilerActivity.CUDA]) as found:
            for place in range(steps):
                _say(stream, place)
            torch.cuda.synchronize()
    except RuntimeError as error:
        # Counters may be closed to whoever is no administrator.
        print(f"no profile of the device: {error}", file=sys.stderr)
        return None
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in found.events()
        if event.device_type == DeviceType.CUDA
    ]
    return round(_covered(spans) / 1e3 / steps, 4) if spans else None


def _covered(spans: list[tuple[float, float]]) -> float:
    """Time that lies in one of these spans at least: kernels start before the last one ends."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
