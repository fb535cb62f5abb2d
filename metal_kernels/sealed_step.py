"""What a step's layers share in reading a layer group's sealed pages, as MLX's arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from metal_kernels import attention, sealed
from metal_kernels.launch import CONSTANT_BELOW, Launch
from omni_core.arena_layout import ArenaLayout
from omni_core.paging.listing import Listing

Run = Callable[[Launch, Mapping[str, mx.array]], list[mx.array]]
"""Carries out a launch, see :func:`metal_kernels.run.run`."""


@dataclass(frozen=True)
class SealedLayer:
    """What a layer's sealed pages are read by, see :mod:`metal_kernels.sealed`.

    Attributes:
        pages: ``uint8[streams, pages, kv_heads, bytes]``.
        means: ``float32[kv_heads, head_dim]``.
        rotations: ``float32[modalities, kv_heads, head_dim, head_dim]``.
    """

    pages: mx.array
    means: mx.array
    rotations: mx.array


@dataclass(frozen=True)
class SealedStep:
    """Launches and inputs that all layers of a layer group share."""

    attend: Launch
    merge: Launch
    inputs: dict[str, mx.array]
    merged: dict[str, mx.array]

    @staticmethod
    def of(
        plain: attention.Attention,
        listing: Listing,
        layout: ArenaLayout,
        bias: mx.array | None,
        book: tuple[bool, mx.array],
    ) -> SealedStep:
        """Of a step that lists sealed rows.

        Args:
            plain: its attention over 16-bit pages.
            listing: of the layer group.
            layout: of the arena.
            bias: ``float32[sealed_pages, PAGE]``; None where no cell carries one.
            book: of :func:`metal_kernels.sealed.codebook`.
        """
        rows = sealed.sealed_listing(listing)
        of = sealed.SealedAttention(
            plain=plain,
            layout=layout.sealed,
            first=layout.pages,
            pages=layout.sealed_pages,
            rows=len(rows["rows"]),
            programs=listing.modality.size,
            table=book[0],
            biased=bias is not None,
        )
        inputs = {
            "rows": mx.array(rows["rows"]),
            "segments": mx.array(rows["segments"]),
            "bias": mx.array(attention.NO_BIAS) if bias is None else bias,
            "levels": book[1],
            "numbers": mx.array(sealed.numbers(of)),
            "scale": mx.array(attention.factor(plain.head_dim**-0.5)),
        }
        merged = {
            "kinds": mx.array(rows["kinds"]),
            "numbers": mx.array(sealed.merge_numbers(of)),
        }
        return SealedStep(sealed.attend_sealed(of), sealed.merge_sealed(of), inputs, merged)

    def __call__(
        self, run: Run, queries: mx.array, layer: SealedLayer, found: mx.array, sums: mx.array
    ) -> list[mx.array]:
        """Output and sums of all cells of a layer.

        Args:
            run: carries out launches.
            queries: ``[tables, streams, T, q_heads, head_dim]``, rotated.
            layer: what is read.
            found, sums: of 16-bit cells, as attention over them gave it.
        """
        given = {"queries": queries, "sealed": layer.pages, "means": layer.means}
        coded, coded_sums = run(self.attend, self.inputs | given)
        sums = sums.reshape(-1)
        short = max(0, CONSTANT_BELOW - sums.size)
        both = {
            "found": found,
            "found_sums": mx.pad(sums, (0, short)) if short else sums,
            "sealed_found": coded,
            "sealed_sums": coded_sums,
            "rotations": layer.rotations,
        }
        return run(self.merge, self.merged | both)
