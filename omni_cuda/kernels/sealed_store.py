"""Sealing: cells of 16 bits become subblocks of 2, 3 or 4 bits, all layers at once.

A program takes the keys or the values of one subblock of one key head, by the very steps of
:mod:`omni_core.quantization` in float32: sums are folded in its order, quotients and roots rounded
to nearest, no product contracted into a sum, so that the bytes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.errors import BackendError
from omni_core.quantization import DEFAULT, Codec, SealedLayout
from omni_core.quantization.codebooks import UNIFORM_STEP
from omni_cuda.kernels.launching import INTERPRETED
from omni_cuda.kernels.sealed_folds import over, over_channels, root
from omni_cuda.kernels.sealed_keys import seal_keys
from omni_cuda.kernels.sealed_words import store_values

_STAGED = 64 << 20
"""Bytes of keys that are on their way at a time."""


@dataclass(frozen=True)
class SealTables:
    """What sealing takes of all layers of a group.

    Attributes:
        rotations: ``float32[layers, modalities, kv_heads, D, D]``, transposed: a value ``v`` is
            rotated as ``v @ R``.
        key_means: ``float32[layers, kv_heads, D]``, taken from keys; None where all are 0.
        feedback: ``float32[layers, kv_heads, D, D]`` of
            :mod:`omni_core.quantization.key_feedback`, or None.
    """

    rotations: torch.Tensor
    key_means: torch.Tensor | None = None
    feedback: torch.Tensor | None = None


def check_codec(codec: Codec) -> None:
    """See that these kernels can seal as a codec does.

    Raises:
        BackendError: they cannot.
    """
    if codec.name != DEFAULT:
        raise BackendError(
            f"pages cannot be sealed with the codec {codec.name} on a GPU, expected {DEFAULT}: "
            "choose it"
        )


def seal_cells(
    source: torch.Tensor,
    target: torch.Tensor,
    modality: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sealed: torch.Tensor,
    layout: SealedLayout,
    tables: SealTables,
    faults: torch.Tensor,
) -> None:
    """Code cells of every layer and stream as the codec ``fitted`` does, and write them.

    Args:
        source: ``int32[n, 32]``, cells ``page * PAGE + slot``, filled ones first; -1 is none.
        target: ``int32[n]``, subblocks ``page * 2 + half`` of the sealed pages.
        modality: ``int32[n]``.
        keys, values: ``[layers, streams, pages, kv_heads, PAGE, D]``, contiguous.
        sealed: ``uint8[layers, streams, sealed_pages, kv_heads, layout.bytes]``, contiguous.
        layout: of the pages.
        tables: of the layers.
        faults: ``int32[layers]``, set to 1 where a number is not finite, to 2 where a value is too
            large to be sealed; 0 is left.
    """
    layers, streams, pages, kv_heads, _, head_dim = keys.shape
    bits = layout.bits
    shared: dict[str, Any] = {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "padded": max(32, triton.next_power_of_2(head_dim)),
        "page": PAGE,
        "bits": bits,
        "size": layout.bytes,
        "exact": INTERPRETED,
        "num_warps": 4,
    }
    if not INTERPRETED:
        shared["enable_fp_fusion"] = False
    lines = layers * streams * kv_heads * SUBBLOCK
    step = max(1, _STAGED // (4 * lines * head_dim))
    for begin in range(0, source.shape[0], step):
        some = slice(begin, begin + step)
        grid = (source[some].shape[0] * kv_heads, layers * streams)
        seal_keys(
            source[some], target[some], keys, sealed, layout, tables.key_means, tables.feedback,
            faults, grid, shared,
        )  # fmt: skip
        _seal_values[grid](
            source[some],
            target[some],
            modality[some],
            values,
            sealed,
            tables.rotations,
            faults,
            streams,
            pages,
            sealed.shape[2],
            tables.rotations.shape[1],
            codes_at=layout.value_codes,
            code_bytes=layout.value_code_bytes,
            scales_at=layout.value_scales,
            unit=UNIFORM_STEP[bits],
            widened=head_dim**0.5,
            **shared,
        )


@triton.jit(do_not_specialize=["streams", "pages", "sealed_pages", "modalities"])
def _seal_values(
    source,
    target,
    modality,
    values,
    sealed,
    rotations,
    faults,
    streams,
    pages,
    sealed_pages,
    modalities,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded: tl.constexpr,
    page: tl.constexpr,
    bits: tl.constexpr,
    size: tl.constexpr,
    codes_at: tl.constexpr,
    code_bytes: tl.constexpr,
    scales_at: tl.constexpr,
    unit: tl.constexpr,
    widened: tl.constexpr,
    exact: tl.constexpr,
):
    half: tl.constexpr = (2**bits - 1) / 2
    which = tl.program_id(0) // kv_heads
    head = tl.program_id(0) % kv_heads
    slab = tl.program_id(1).to(tl.int64)
    layer = slab // streams
    kind = tl.load(modality + which)
    cell = tl.arange(0, 32)
    d = tl.arange(0, padded)
    number = tl.load(source + which * 32 + cell)
    filled = number >= 0
    number = tl.where(filled, number, 0)
    at = ((slab * pages + number // page) * kv_heads + head) * page + number % page
    lines = values + at * head_dim
    turn = rotations + ((layer * modalities + kind) * kv_heads + head) * (head_dim * head_dim)
    # Rotated term after term.
    v = tl.zeros([32, padded], tl.float32)
    bad = tl.zeros([32], tl.int32)
    for channel in range(head_dim):
        column = tl.load(lines + channel, mask=filled, other=0.0).to(tl.float32)
        sound = tl.abs(column) < float("inf")
        bad |= sound.to(tl.int32) ^ 1
        column = tl.where(sound, column, 0.0)
        v += column[:, None] * tl.load(turn + channel * head_dim + d, d < head_dim, 0.0)[None, :]
    norm = root(over_channels(v * v), exact)
    by = tl.where(norm > 0, norm, 1.0)
    v = tl.where((norm > 0)[:, None], over(v, by[:, None], exact), 0.0) * widened
    codes = tl.zeros([32, padded], tl.int32)
    # The bounds half way between levels are products in float32.
    between = tl.full([32, padded], unit, tl.float32)
    for level in range(1, 2**bits):
        codes += (v >= between * (level - 2 ** (bits - 1))).to(tl.int32)
    levels = tl.where((d < head_dim)[None, :], codes.to(tl.float32) - half, 0.0)
    scale = over(norm, root(over_channels(levels * levels), exact), exact)
    any_bad = tl.max(bad)
    if any_bad + tl.max((scale > 65504.0).to(tl.int32)) > 0:
        tl.store(faults + layer, 2 - any_bad)
    scale = tl.minimum(scale, 65504.0)
    subblock = tl.load(target + which)
    part = subblock & 1
    place = ((slab * sealed_pages + (subblock >> 1)) * kv_heads + head) * size
    words = (sealed + place + codes_at + part * code_bytes).to(tl.pointer_type(tl.int32))
    halves = (sealed + place + scales_at + part * 64).to(tl.pointer_type(tl.float16))
    store_values(words, codes, head_dim, padded, bits)
    tl.store(halves + cell, scale.to(tl.float16))
