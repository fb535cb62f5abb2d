"""Sealing by the text that ships against the definition in NumPy, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

from metal_kernels import seal as sealing
from metal_kernels.loader import Text, load
from omni_core.backend import PAGE, SUBBLOCK
from omni_core.quantization import LayerTables, SealedLayout, codec, seal, store
from omni_core.quantization.key_feedback import feedback
from omni_core.units import Modality
from tests.metal import numbers
from tests.metal.cases import Run
from tests.metal.numbers import AnyArray
from tests.metal.runner import KernelFault, run

NEAR = "simdgroup_barrier(mem_flags::mem_threadgroup);"


class Size(NamedTuple):
    """Shapes of what is sealed."""

    head_dim: int
    bits: int
    kv_heads: int = 1
    streams: int = 1
    fed: bool = False
    dtype: str = "float16"


SIZES = [
    Size(128, 2, 2, fed=True, dtype="bfloat16"),
    Size(64, 2, 1, 2),
    Size(80, 3, fed=True),
    Size(96, 4, dtype="float32"),
    Size(16, 3, 2),
]


@dataclass(frozen=True)
class Case:
    """A layer's cells, what of them is sealed, and the bytes that come of it."""

    of: sealing.Sealing
    given: dict[str, AnyArray]
    wanted: AnyArray

    def made(self, text: Text | None = None, run_kernel: Run | None = None) -> dict[str, AnyArray]:
        launch = sealing.store_sealed(self.of)
        return run_kernel(launch, self.given) if run_kernel else run(launch, self.given, text)


def make_case(size: Size) -> Case:
    draw = np.random.default_rng(list(size[:4]))
    layout, chosen, d = SealedLayout(size.head_dim, size.bits), codec(bits=size.bits), size.head_dim
    pages = 3
    of = sealing.Sealing(layout, size.streams, size.kv_heads, pages, 2, size.fed, size.dtype)
    cells = draw.permutation(pages * PAGE)[: 3 * SUBBLOCK].reshape(3, SUBBLOCK)
    flat = draw.standard_normal((2, size.streams, pages * PAGE, size.kv_heads, d), np.float32)
    # A sink, a large channel, a key and a value of 0.
    flat[0][:, cells[0, 3]] *= 40
    flat[0][..., 5] += 60
    flat[0][:, cells[0, 7]] = 0
    flat[1][:, cells[0, 9]] = 0
    held = numbers.stored(flat, size.dtype)
    read = numbers.read(held, size.dtype).astype(np.float32)
    lying = held.reshape(2, size.streams, pages, PAGE, size.kv_heads, d).swapaxes(3, 4)
    source = cells.astype(np.int32)
    source[2, 11:] = -1
    target, kinds = np.array([11, 14, 15], np.int32), draw.integers(0, len(Modality), 3)
    plain = LayerTables.uncalibrated(0, size.kv_heads, d)
    turns = np.linalg.qr(draw.standard_normal((size.kv_heads, len(Modality), d, d)))[0]
    means = draw.standard_normal((size.kv_heads, d)).astype(np.float32)
    tables = replace(plain, rotations=turns.astype(np.float32), key_means=means)
    if size.fed:
        queries = draw.standard_normal((size.kv_heads, 3 * d, d)) * np.geomspace(1, 9, d)
        tables = replace(tables, feedback=feedback(queries.swapaxes(1, 2) @ queries))
    written, placed, of_half = sealing.halves(source, target, kinds)
    before = draw.integers(0, 256, (size.streams, 2, size.kv_heads, layout.bytes), np.uint8)
    wanted = before.copy()
    for stream in range(size.streams):
        for n, kind in enumerate(kinds.tolist()):
            some = source[n][source[n] >= 0]
            part = seal(*read[:, stream, some], Modality(kind), chosen, tables)
            page = written.tolist().index(target[n] // 2)
            store(part, layout, wanted[stream, page], int(target[n]) % 2)
    given = {
        "keys": np.ascontiguousarray(lying[0]),
        "values": np.ascontiguousarray(lying[1]),
        "before": before,
        "cells": placed,
        "kinds": of_half,
        "means": means,
        "rotations": np.ascontiguousarray(tables.rotations.swapaxes(0, 1)),
        "feedback": sealing.NO_FEEDBACK if tables.feedback is None else tables.feedback,
        "numbers": sealing.numbers(of),
        **sealing.codec_numbers(chosen, d),
    }
    return Case(of, given, wanted)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bytes_are_the_definitions(size: Size, run_kernel: Run) -> None:
    case = make_case(size)
    found = case.made(run_kernel=run_kernel)
    np.testing.assert_array_equal(found["made"], case.wanted)
    halves = 2 * case.of.sealed * size.kv_heads * size.streams
    assert not found["faults"][:halves].any()


def test_what_cannot_be_sealed_is_marked() -> None:
    case = make_case(SIZES[1])
    keys, values = case.given["keys"], case.given["values"]
    cells = case.given["cells"]
    first, second = int(cells[0, 1, 4]), int(cells[1, 1, 2])
    keys[1, first // PAGE, 0, first % PAGE, 9] = np.inf
    values[0, second // PAGE, 0, second % PAGE] = 60000
    faults = case.made()["faults"].reshape(2, 1, 4)
    assert faults[:, 0].tolist() == [[0, 0, 0, 2], [0, 1, 0, 0]]


FAULTS = {
    "channels are folded side by side": ("i + half_size < D", "false"),
    "a cell counts for itself": ("x += simd_shuffle_xor(x, ushort(step));", "x += x;"),
    "means are read before they are there": (
        f"mean, lane);\n    }}\n    {NEAR}\n    const float far",
        "mean, lane);\n    }\n    const float far",
    ),
    "lines are read before they are there": (
        f"usual), lane);\n    }}\n    {NEAR}",
        "usual), lane);\n    }",
    ),
    "all cells count alike": ("live ? max(distance, usual) : 0.0f", "alive"),
    "steps are not widened": (
        "decoded(both >> 4, before), wider)",
        "decoded(both >> 4, before), 1.0f)",
    ),
    "errors are not fed on": ("rounded_product(error, feedback", "rounded_product(0.0f, feedback"),
    "the first range is kept": ("|| error < least", ""),
    "keys keep their mean": ("number - means[d]", "number"),
    "one rotation is for all": ("Offset(kinds[group.x])", "Offset(0)"),
    "a pair's cells change places": ("own | other << 16", "other | own << 16"),
    "the other half is lost": ("keep_half<D, BITS>(before, made, which, lane);", ""),
    "a short half's cells are read": ("bool filled = cell >= 0", "bool filled = true"),
    "norms are not rounded": ("const float by = float(scale)", "const float by = norm"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(fault: tuple[str, str]) -> None:
    text, (old, new) = load("sealed_store"), fault
    assert text.header.count(old) == 1
    case = make_case(Size(32, 2, 1, 1, fed=True))
    try:
        found = case.made(Text(text.header.replace(old, new), text.body))
    except KernelFault:
        return
    assert not np.array_equal(found["made"], case.wanted)


def test_without_a_fault_it_is_right() -> None:
    case = make_case(Size(32, 2, 1, 1, fed=True))
    np.testing.assert_array_equal(case.made()["made"], case.wanted)
