"""The runs of the stream loop, a model at a time: gates first, then streams, then the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import stream_loop_cases as cases
from benchmarks.attention_ceiling import read_bandwidth
from benchmarks.attention_contest import tidy
from benchmarks.stream_loop_claims import MOST_OFF
from benchmarks.stream_loop_gate import TOLERANCE, across_layouts, against_peer, peers_apart
from benchmarks.stream_loop_layouts import LAYOUTS, run_layout
from benchmarks.stream_loop_models import (
    GATE,
    SHAPES,
    ModelShape,
    backend_of,
    checkpoint_weights,
    random_backbone,
    random_towers,
)
from benchmarks.stream_loop_peer import peer_of
from benchmarks.stream_loop_size import Findings, Size
from benchmarks.stream_loop_steps import decode_step, encode_unit, memory_over_units
from omni_core.model_config import TextConfig
from omni_cuda.backend import TorchBackend

Row = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """What is measured on.

    Attributes:
        device, dtype: where and in which numbers models are.
        bandwidth: bytes that the device reads in a second.
        wait: until it has done all it was asked for.
        reserved: bytes that its allocator holds.
    """

    device: torch.device
    dtype: torch.dtype
    bandwidth: float
    wait: Callable[[], None]
    reserved: Callable[[], int]


def measure(size: Size, found: Findings) -> list[Row]:
    """Everything but what failed; returns no rows beside those that it keeps."""
    device, dtype = torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
    bandwidth, way = read_bandwidth(device)
    machine = Machine(device, dtype, bandwidth, torch.cuda.synchronize, torch.cuda.memory_reserved)
    found.rows.append(
        {
            "part": "device",
            "name": torch.cuda.get_device_name(device),
            "memory_bytes": torch.cuda.get_device_properties(device).total_memory,
            "read_bytes_a_second": bandwidth,
            "read_by": way,
        }
    )
    for kind in (torch.float32, dtype):
        found.take(f"gate, {kind}", lambda kind=kind: gates(GATE, device, kind))
    for shape in SHAPES:
        if shape.name in size.names:
            found.take(shape.name, lambda shape=shape: model(shape, size, found, machine))
            tidy()
    return []


def gates(text: TextConfig, device: torch.device, dtype: torch.dtype) -> list[Row]:
    """A small backbone against transformers, and against itself with its cells elsewhere."""
    backbone = random_backbone(text, device, dtype)
    peer = peer_of(text, checkpoint_weights(backbone, text), device)
    backend = backend_of(text, backbone, device, dtype)
    offs = {
        "against transformers": against_peer(backend, peer, text, device),
        "across layouts": across_layouts(backend, text, device, dtype),
    }
    return [_gate(f"small, {_name(dtype)}, {how}", off, dtype) for how, off in offs.items()]


def model(shape: ModelShape, size: Size, found: Findings, machine: Machine) -> list[Row]:
    """All of one model; returns no rows beside those that it keeps."""
    _streams(shape, size, found, machine)
    tidy()
    if size.alone:
        return []
    if shape.encoders:
        found.take(f"{shape.name}, encoders", lambda: _encoders(shape, size, machine))
        tidy()
    for unit, budget in size.layouts if shape.name == size.compared else ():
        for layout in LAYOUTS:
            found.take(
                f"{shape.name}, attention on {layout}, units of {unit}, {budget:,} cells",
                lambda layout=layout, unit=unit, budget=budget: run_layout(
                    shape,
                    "omnipick",
                    layout,
                    unit,
                    budget,
                    size.target,
                    machine.device,
                    machine.dtype,
                ),
            )
    return []


def _streams(shape: ModelShape, size: Size, found: Findings, machine: Machine) -> None:
    device, dtype, wait = machine.device, machine.dtype, machine.wait
    backbone = random_backbone(shape.text, device, dtype)
    peer = peer_of(shape.text, checkpoint_weights(backbone, shape.text), device)
    backend = backend_of(shape.text, backbone, device, dtype)
    streams = cases.cases(shape, size.units, size.target)
    _peers(shape, peer, backend, streams, found, machine)
    del peer
    for case in streams:
        for policy in size.policies:
            found.take(
                f"{shape.name}, units of {case.unit}, {policy}",
                lambda case=case, policy=policy: cases.run_loop(backend, case, policy, wait),
            )
    if size.alone:
        return
    found.take(
        f"{shape.name}, units of {streams[0].unit}, omnipick, {size.sealed} bits",
        lambda: cases.run_loop(backend, streams[0], "omnipick", wait, size.sealed),
    )
    found.take(
        f"{shape.name}, decode step",
        lambda: decode_step(backend, shape, 3072, 79, machine.bandwidth, wait),
    )
    if shape.name == size.varied:
        found.take(
            f"{shape.name}, memory",
            lambda: memory_over_units(backend, shape, size.memory, machine.reserved),
        )


def _peers(
    shape: ModelShape,
    peer: Any,
    backend: TorchBackend,
    streams: Sequence[cases.Case],
    found: Findings,
    machine: Machine,
) -> None:
    """The gate at full size, then what transformers takes."""
    device, dtype = machine.device, machine.dtype

    def gate() -> Row:
        apart = peers_apart(peer, shape.text, device)
        off = against_peer(backend, peer, shape.text, device)
        row = _gate(f"{shape.name}, {_name(dtype)}, against transformers", off, dtype)
        # Rounding grows with depth: two ways of transformers' own tell how much of it there is.
        most = min(max(row["tolerance"], 2 * apart), MOST_OFF)
        return row | {"peers_apart": apart, "tolerance": most}

    found.take(f"{shape.name}, gate", gate)
    for case in streams:
        found.take(
            f"{shape.name}, units of {case.unit}, transformers",
            lambda case=case: cases.run_peer(peer, case, device, machine.wait),
        )
        tidy()


def _encoders(shape: ModelShape, size: Size, machine: Machine) -> list[Row]:
    """Encoding a second's picture and sound, with encoders of random weights."""
    device, dtype = machine.device, machine.dtype
    towers = random_towers(shape.text.hidden, device, dtype)
    backend = backend_of(GATE, random_backbone(GATE, device, dtype), device, dtype, towers)
    return [encode_unit(backend, shape, unit, 1.0, machine.wait) for unit in size.units]


def _gate(what: str, off: float, dtype: torch.dtype) -> Row:
    return {"part": "gate", "what": what, "off": off, "tolerance": TOLERANCE[dtype]}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
