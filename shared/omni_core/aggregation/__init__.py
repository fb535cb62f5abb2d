"""Fewer tokens in: what a stream has shown already is left out, what repeats in a frame is merged.

Source: Video-MemComp (Niu et al. 2026), token aggregation before rotary embedding with a log-count
bias. ``rule`` has the parameters, ``likeness`` what is alike, ``interframe`` and ``intraframe`` the
two steps, ``places`` what of the stream a frame is compared with, ``unit`` what is left of one
unit, ``stream`` all of it, unit after unit. Embeddings stay where the backend computes: ``memory``
is what it does there, in NumPy.
"""

from __future__ import annotations

from omni_core.aggregation.rule import Aggregation as Aggregation
from omni_core.aggregation.stream import Aggregator as Aggregator
from omni_core.aggregation.unit import AggregatedUnit as AggregatedUnit
from omni_core.aggregation.unit import Counts as Counts

__all__ = ["AggregatedUnit", "Aggregation", "Aggregator", "Counts"]
