"""Attention inside the segments of one packed sequence: windows of a picture, chunks of sound.

transformers' towers split queries, keys and values by lengths that lie on the device, and attend
once a segment. To an attention whose name asks for flash attention they hand the sequence whole:
the one below, which finds the segments described on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

_NAME = "flash_inside_segments"
"""What the towers look for in it is "flash"."""


@dataclass(frozen=True)
class Segments:
    """How a packed sequence falls into segments.

    Attributes:
        slices: equal parts of the sequence.
        runs: ``(count, length)`` of the segments of a slice, in order: those of one length that
            follow each other are a run.
    """

    slices: int
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, lengths: Iterable[int], slices: int = 1) -> Segments:
        """Each slice in segments of these lengths, one after the other."""
        runs = [(len(list(equal)), length) for length, equal in groupby(lengths)]
        return cls(slices, tuple(runs))

    @property
    def longest(self) -> int:
        """Elements of the longest segment."""
        return max(length for _, length in self.runs)

    def bounds(self) -> torch.Tensor:
        """Where segments begin, and the end: ``int32[segments + 1]``, on the CPU."""
        lengths = [length for count, length in self.runs for _ in range(count)]
        ends = np.cumsum([0, *lengths * self.slices], dtype=np.int32)
        return torch.from_numpy(ends)


def attend_within(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    segments: Segments,
    scale: float,
) -> torch.Tensor:
    """Bidirectional attention inside each segment.

    Segments of a run are a batch: without padding or a mask, and, in one slice, without a copy.

    Args:
        queries, keys, values: ``[heads, sequence, head_dim]``.
        segments: of the sequence.
        scale: of the scores.

    Returns:
        ``[sequence, heads, head_dim]``.
    """
    heads, _, size = queries.shape
    slices, parts, start = segments.slices, [], 0
    for count, length in segments.runs:
        batches = [
            x.view(heads, slices, -1, size)
            .narrow(2, start, count * length)
            .reshape(heads, slices * count, length, size)
            .transpose(0, 1)
            for x in (queries, keys, values)
        ]
        found = scaled_dot_product_attention(*batches, scale=scale).transpose(1, 2)
        parts.append(found.reshape(slices, count * length, heads, size))
        start += count * length
    return (torch.cat(parts, 1) if len(parts) > 1 else parts[0]).flatten(0, 1)


def attend_inside_segments(tower: nn.Module) -> nn.Module:
    """Have a tower of transformers attend so; its calls need :func:`described`."""
    tower.config._attn_implementation = _NAME
    return tower


def described(*segments: Segments) -> dict[str, Mapping[int, Segments]]:
    """What a call of a tower needs: the segments of its layers, no two with the same longest."""
    return {"segments": {each.longest: each for each in segments}}


def _attend(
    module: nn.Module,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    max_length_q: int,
    segments: Mapping[int, Segments],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """``[1, heads, sequence, head_dim]`` to ``[1, sequence, heads, head_dim]``."""
    packed = (queries[0], keys[0], values[0])
    return attend_within(*packed, segments[max_length_q], scaling)[None], None


AttentionInterface.register(_NAME, _attend)
