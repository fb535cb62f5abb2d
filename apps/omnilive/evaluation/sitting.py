"""One setting's way through some streams: units in, questions asked as branches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from omni_core.aggregation import Counts
from omni_core.answering import check_finite
from omni_core.batch import Encoded, StreamBatch
from omnilive.evaluation.exam import Exam


@dataclass(frozen=True)
class Sitting:
    """What came of it.

    Attributes:
        right: ``bool[s, Q]``.
        cells: most cells alive at a unit's end, of one stream.
        bytes: most bytes of pages in use at a unit's end, of one stream.
        units: units that all streams together took in.
        seconds: how long that took, deciding and moving included; questions but for the first at
            each moment, which waits for the units before it, are left out.
        aggregated: vision tokens before and after; none where they are not aggregated.
    """

    right: npt.NDArray[np.bool_]
    cells: int
    bytes: int
    units: int
    seconds: float
    aggregated: Counts = field(default_factory=Counts)


def sit(batch: StreamBatch, encoded: Sequence[Encoded], exam: Exam, streams: slice) -> Sitting:
    """Let the streams flow through a fresh batch, and ask.

    Args:
        batch: the streams' cache.
        encoded: their units, in order.
        exam: whose streams they are.
        streams: which of them.
    """
    right = np.zeros(exam.questions.unit[streams].shape, np.bool_)
    most, seconds = 0, 0.0
    started = time.perf_counter()
    for unit, part in enumerate(encoded):
        batch.append(part)
        most = max(most, batch.usage()["bytes"])
        slots = exam.slots(unit)
        for slot in slots:
            logits = batch.branch(exam.branch(streams, slot))
            check_finite(logits)
            likeliest = logits.argmax(axis=2)
            right[:, slot] = exam.right(streams, slot, likeliest.astype(np.int32))
            if slot == slots[0]:
                seconds += time.perf_counter() - started
        if slots:
            started = time.perf_counter()
    units = len(encoded) * batch.streams
    return Sitting(right, batch.most_cells, most, units, seconds, batch.aggregated)
