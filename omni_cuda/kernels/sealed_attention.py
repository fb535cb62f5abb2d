"""Attention over sealed pages: which kernel reads them, and how it is launched."""

from __future__ import annotations

import torch
import triton

from omni_core.quantization import SealedLayout
from omni_cuda.kernels import sealed_plain
from omni_cuda.kernels.launching import INTERPRETED, early, early_launch
from omni_cuda.kernels.sealed_list import SealedList
from omni_cuda.kernels.sealed_prefill import prefill_sealed
from omni_cuda.kernels.tiling import SEALED_WARPS

_LOG2E = 1.4426950408889634


def attend_sealed(
    queries: torch.Tensor,
    sealed: torch.Tensor,
    pages: SealedList,
    layout: SealedLayout,
    rotations: torch.Tensor,
    scale: float,
    found: torch.Tensor,
    found_sums: torch.Tensor,
    *,
    key_means: torch.Tensor | None = None,
    levels: torch.Tensor | None = None,
) -> None:
    """What each share of a listing's rows finds, for :func:`omni_cuda.kernels.merge.merge_shares`.

    Shares of 16-bit rows may stand beside them in the same tensors: all are one softmax.

    Args:
        queries: ``[tables, streams, T, q_heads, head_dim]``.
        sealed: ``uint8[streams, pages, kv_heads, layout.bytes]``, a layer.
        pages: what is alive.
        layout: of the pages.
        rotations: of :func:`omni_cuda.kernels.sealed_list.undoing`.
        scale: factor on the dot products.
        found: ``float32[programs * shares, streams, T, q_heads, head_dim]``, contiguous; not
            written where a share saw nothing.
        found_sums: ``float32[programs * shares, streams, T, q_heads]``, log-sum-exp to base 2; -inf
            there.
        key_means: ``float32[kv_heads, head_dim]``, taken from the keys; None where all are 0.
        levels: of :func:`omni_cuda.kernels.sealed_list.codebook`; None for the codec ``fitted``.
    """
    given = queries, sealed, pages, layout, rotations, scale, found, found_sums
    if queries.shape[2] == 1 and pages.programs > 1 and levels is None:
        decode_sealed(*given, key_means=key_means)
    else:
        prefill_sealed(*given, key_means=key_means, levels=levels)


def decode_sealed(
    queries: torch.Tensor,
    sealed: torch.Tensor,
    pages: SealedList,
    layout: SealedLayout,
    rotations: torch.Tensor,
    scale: float,
    found: torch.Tensor,
    found_sums: torch.Tensor,
    *,
    warps: int = SEALED_WARPS,
    plain: bool = False,
    registers: int = 0,
    key_means: torch.Tensor | None = None,
) -> None:
    """What each program of a listing finds for one query.

    Args:
        queries: ``[tables, streams, 1, q_heads, head_dim]``.
        sealed: ``uint8[streams, pages, kv_heads, layout.bytes]``, a layer.
        pages: what is alive.
        layout: of the pages; codes of the codec ``fitted``.
        rotations: of :func:`omni_cuda.kernels.sealed_list.undoing`.
        scale: factor on the dot products.
        found: ``float32[programs, streams, 1, q_heads, head_dim]``.
        found_sums: ``float32[programs, streams, 1, q_heads]``.
        warps, registers: of a program, and at most of a thread; 0 registers are the compiler's
            choice.
        plain: whether layouts are left to the compiler.
        key_means: as in :func:`attend_sealed`.
    """
    _, streams, _, q_heads, head_dim = queries.shape
    kv_heads = sealed.shape[2]
    group = q_heads // kv_heads
    padded = max(16, triton.next_power_of_2(head_dim))
    grid = (kv_heads * streams, pages.programs)
    tensors = (
        queries,
        sealed.view(torch.int32),
        sealed.view(torch.int16),
        rotations,
        pages.rows.view(torch.int32),
        pages.segments,
        pages.rotations,
        pages.bias,
        key_means,
        found,
        found_sums,
        scale * _LOG2E,
        streams,
        pages.room,
        pages.first,
        sealed.stride(0) // 16,
    )
    shapes = {
        "kv_heads": kv_heads,
        "group": group,
        "head_dim": head_dim,
        "padded": padded,
        "heads": max(8, triton.next_power_of_2(group)),
        "bits": layout.bits,
        "page_words": layout.bytes // 4,
        "key_words": layout.key_code_bytes // 4,
        "value_at": layout.value_codes // 4,
        "ranges_at": layout.ranges // 4,
        "key_scales_at": layout.key_scales // 4,
        "value_scales_at": layout.value_scales // 4,
        "exponents_at": layout.exponents // 2,
        "warps": warps,
        "far": sealed.stride(0) >= 1 << 31,
        "dependent": early(queries.device),
        "num_warps": warps,
        **early_launch(queries.device),
    }
    # Of fewer channels than lanes load at once, no layouts are made.
    if INTERPRETED or plain or padded < 64:
        low = 2 if layout.bits == 3 else layout.bits
        sealed_plain.decode[grid](*tensors, low=low, exact=INTERPRETED, **shapes)
    else:
        from omni_cuda.kernels import sealed_decode, sealed_loads

        more = {"maxnreg": registers} if registers else {}
        where = sealed_loads.layouts(padded, layout.bits, warps)
        sealed_decode.decode[grid](*tensors, **shapes, **where, **more)
