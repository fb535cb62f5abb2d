"""Merging a frame's tokens by twos: those that are each other's best match, round by round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from omni_core.aggregation.likeness import above
from omni_core.aggregation.rule import Aggregation
from omni_core.backend import MergePlan
from omni_core.units import Int32

Nearest = Callable[[MergePlan, Int32], tuple[Int32, Int32]]
"""Each group's best match and how alike they are, see :class:`omni_core.backend.VisionMemory`."""


def mutual(partner: Int32, level: Int32, rule: Aggregation) -> Int32:
    """Pairs of groups to merge, ``int32[p, 2]``, the earlier one first.

    Args:
        partner: ``int32[k]``, each group's best match.
        level: ``int32[k]``, how alike they are.
        rule: the threshold.
    """
    own = np.arange(partner.size, dtype=np.int32)
    first = (partner[partner] == own) & (own < partner) & above(level, rule.intra)
    return np.stack([own[first], partner[first]], axis=1)


def merged(groups: Int32, first: Int32, pairs: Int32) -> tuple[Int32, Int32]:
    """The group of each token once pairs have become one, and the first token of each group.

    Args:
        groups: ``int32[T]``, numbered by their first tokens.
        first: ``int32[k]``, the first token of each, ascending.
        pairs: ``int32[p, 2]``, the earlier group first.
    """
    stays = np.ones(first.size, np.bool_)
    stays[pairs[:, 1]] = False
    number = np.cumsum(stays, dtype=np.int32) - np.int32(1)
    number[pairs[:, 1]] = number[pairs[:, 0]]
    return number[groups], first[stays]


def merge_frame(
    rows: Int32, ids: Int32, nearest: Nearest, rule: Aggregation
) -> tuple[Int32, Int32]:
    """The group of each of a frame's tokens, ``int32[T]``, and which stands for each, ``int32[k]``.

    Groups are disjoint, and a group's embedding is the mean of its tokens': pairs merged by a mean
    weighted by counts come to the same. The earliest of a group stands for it.

    Args:
        rows: ``int32[T]``, rows of the embeddings, ascending.
        ids: ``int32[T]``, places in the picture, ascending.
        nearest: tells each group's best match.
        rule: threshold and rounds.
    """
    groups = first = np.arange(rows.size, dtype=np.int32)
    for _ in range(rule.rounds):
        if first.size < 2:
            break
        pairs = mutual(*nearest(MergePlan.of(rows, groups), ids[first]), rule)
        if not pairs.size:
            break
        groups, first = merged(groups, first, pairs)
    return groups, first
