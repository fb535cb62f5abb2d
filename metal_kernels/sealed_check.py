"""Whether this GPU seals and reads by kernels as is meant, found out before a stream does.

A few cells of two modalities are sealed and attended, by kernels and by the float64 oracle.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np

from metal_kernels import cutting
from metal_kernels import seal as seal_kernel
from metal_kernels.attention import Attention
from metal_kernels.cutting import Gpu
from metal_kernels.sealed import codebook, sealed_programs
from metal_kernels.sealed_step import Run, SealedLayer, SealedStep
from omni_core.arena_layout import PAGE, SUBBLOCK, ArenaLayout
from omni_core.paging.listing import list_subblocks
from omni_core.paging.mirror import ListedPages
from omni_core.quantization import LayerTables, codec, seal, store
from omni_core.quantization.hadamard import hadamard
from omni_core.reference.sealed import SealedCells, sealed_attention
from omni_core.units import Modality

_COUNTS = (1, 40)
"""New tokens: few, and many."""
_KINDS = (Modality.VISION, Modality.AUDIO)
"""Of each sealed page, whose first half alone is filled."""
_MOST = {"float32": 5e-3, "float16": 5e-3, "bfloat16": 2e-2}
"""Most that results may differ, as ``|kernels - oracle| / |oracle|``."""


_MOST_UNLIKE = 0.01
"""Share of bytes that may be others: what lies half way between codes may be coded either way."""


def fault(arena: ArenaLayout, q_heads: int, dtype: str, gpu: Gpu, run: Run) -> str | None:
    """What is wrong with the kernels that read, in a few words; None if nothing is.

    Args:
        arena: whose sealed pages are to be read.
        q_heads: query heads of the model.
        dtype: of its numbers.
        gpu: that runs them.
        run: carries out launches.
    """
    try:
        worst = max(_apart(arena, q_heads, count, dtype, gpu, run) for count in _COUNTS)
    except Exception as error:  # Whatever it is, MLX's operations are there.
        return _said(error)
    # Also where there was NaN.
    return None if worst <= _MOST[dtype] else f"they are {worst:.2g} off"


def seal_fault(arena: ArenaLayout, dtype: str, run: Run) -> str | None:
    """What is wrong with the kernel that seals, likewise; None where the codec has none either.

    Args:
        arena, dtype, run: as in :func:`fault`.
    """
    if arena.codec != seal_kernel.CODEC:
        return None
    try:
        unlike = _unlike(arena, dtype, run)
    except Exception as error:  # Whatever it is, the host can seal.
        return _said(error)
    return None if unlike <= _MOST_UNLIKE else f"{unlike:.2g} of the bytes are others"


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _apart(arena: ArenaLayout, q_heads: int, count: int, dtype: str, gpu: Gpu, run: Run) -> float:
    layout = replace(arena, pages=1, streams=1, sealed_pages=len(_KINDS))
    kv_heads, head_dim, draw = layout.kv_heads, layout.head_dim, np.random.default_rng(count)
    tables, chosen = _tables(kv_heads, head_dim), codec(layout.codec, layout.bits)
    pages = np.zeros((len(_KINDS), kv_heads, layout.sealed.bytes), np.uint8)
    cells = []
    for page, kind in enumerate(_KINDS):
        pair = draw.standard_normal((2, SUBBLOCK, kv_heads, head_dim), np.float32)
        part = seal(*pair, kind, chosen, tables)
        store(part, layout.sealed, pages[page], 0)
        none = np.zeros(SUBBLOCK)
        live = np.arange(SUBBLOCK) % 3 > 0
        cells.append(SealedCells(part, kind, live, none.astype(np.int64), none))
    given = draw.standard_normal((count, q_heads, head_dim), np.float32)
    queries = mx.array(given).astype(getattr(mx, dtype))
    alive = np.packbits(cells[0].live, bitorder="little").view(np.uint32)
    every = np.arange(1, 1 + len(_KINDS), dtype=np.int32)
    about = ListedPages(
        every,
        np.stack([[*alive, 0]] * every.size).astype(np.uint32),
        np.zeros_like(every),
        np.zeros(every.size, np.bool_),
        np.zeros((0, 2 * SUBBLOCK), np.int64),
        sealed=np.asarray(_KINDS, np.int8),
    )
    shares = cutting.programs(count, q_heads // kv_heads, kv_heads, gpu)
    listing = list_subblocks(about, 1, 1, sealed_programs(shares, every.size))
    shape = {"kv_heads": kv_heads, "group": q_heads // kv_heads, "head_dim": head_dim}
    plain = Attention(
        tables=1, streams=1, count=count, pages=1, dtype=dtype, rows=4, segments=2, programs=1,
        biased=False, tall=gpu.tall, **shape,
    )  # fmt: skip
    table, levels = codebook(chosen)
    step = SealedStep.of(plain, listing, layout, None, (table, mx.array(levels)))
    layer = SealedLayer(
        mx.array(pages),
        mx.array(tables.key_means @ hadamard(head_dim)),
        mx.array(np.ascontiguousarray(tables.rotations.swapaxes(0, 1))),
    )
    # Of 16 bits nothing is seen.
    nothing = mx.full((count, q_heads), -mx.inf)
    found, _ = step(run, queries, layer, mx.zeros(plain.out, queries.dtype), nothing)
    held = np.array(queries.astype(mx.float32))
    expected = sealed_attention(
        held, cells, np.zeros(count, np.int64), head_dim**-0.5, chosen, tables
    )
    gap = np.array(found.astype(mx.float32))[0] - expected
    off = float(np.linalg.norm(gap) / np.linalg.norm(expected))
    return off if np.isfinite(off) else float("inf")


def _unlike(arena: ArenaLayout, dtype: str, run: Run) -> float:
    """The share of a page's bytes that the kernel and the definition do not agree on."""
    layout, chosen = arena.sealed, codec(arena.codec, arena.bits)
    kv_heads, size = arena.kv_heads, arena.head_dim
    tables, draw = _tables(kv_heads, size), np.random.default_rng(7)
    given = draw.standard_normal((2, 1, kv_heads, PAGE, size), np.float32)
    lying = [mx.array(part).astype(getattr(mx, dtype))[None] for part in given]
    keys, values = (np.array(part[0, 0].astype(mx.float32)).swapaxes(0, 1) for part in lying)
    half = np.arange(SUBBLOCK)
    wanted = np.zeros((kv_heads, layout.bytes), np.uint8)
    store(seal(keys[half], values[half], _KINDS[0], chosen, tables), layout, wanted, 0)
    of = seal_kernel.Sealing(layout, 1, kv_heads, 1, 1, False, dtype)
    one = np.zeros(1, np.int32)
    _, cells, kinds = seal_kernel.halves(half[None].astype(np.int32), one, one + _KINDS[0])
    inputs = {
        "before": np.zeros_like(wanted)[None, None],
        "cells": cells,
        "kinds": kinds,
        "means": tables.key_means,
        "rotations": np.ascontiguousarray(tables.rotations.swapaxes(0, 1)),
        "feedback": seal_kernel.NO_FEEDBACK,
        "numbers": seal_kernel.numbers(of),
        **seal_kernel.codec_numbers(chosen, size),
    }
    held = {name: mx.array(array) for name, array in inputs.items()}
    held |= {"keys": lying[0], "values": lying[1]}
    made, _, _ = run(seal_kernel.store_sealed(of), held)
    return float((np.array(made).reshape(wanted.shape) != wanted).mean())


def _tables(kv_heads: int, head_dim: int) -> LayerTables:
    """Of which one modality's values are not rotated, and whose keys have a mean."""
    plain = LayerTables.uncalibrated(0, kv_heads, head_dim)
    rotations = plain.rotations.copy()
    rotations[:, _KINDS[1]] = np.eye(head_dim)
    means = np.full((kv_heads, head_dim), 0.25, np.float32)
    return replace(plain, rotations=rotations, key_means=means)
