"""A device's sound as one unbroken line of samples that stays in step with the clock."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from omni_core.frontend.base import SAMPLE_RATE
from omnilive.capture.resampling import Samples, stretched

SETTLE = 0.3
LOSS = 0.02
"""Seconds by which all blocks of ``SETTLE`` seconds must be late for sound to be missing before
them, where the driver says that some is."""
JUMP = 0.2
"""The same where it does not."""
DRIFT = 0.015
"""Seconds that the device's own clock may be off by before it is corrected, bit by bit."""
WINDOW = 10.0
"""Seconds over which the block that came with the least delay tells how far it is off."""
SLIP = 2000
"""Samples from one that is put in or left out to the next: 500 millionths, which nobody hears."""
_EARLY = 1.0


class SoundLine:
    """Lays blocks of 16 kHz sound where they belong, by the device's count and by the clock.

    Within an opening of the device, blocks follow each other without a seam: their place comes from
    the count of samples. The clock, whose readings scatter by what callbacks are late, says when
    that count has gone wrong. A hole is filled with silence; what comes for a time that is
    filled already is dropped.

    Attributes:
        reach: where the line ends, in samples from second 0.
        filled: samples of silence put in for sound that did not come, from the first sound on.
        late: samples dropped because their time was filled already.
    """

    def __init__(self) -> None:
        self.reach = self.filled = self.late = 0
        self._sounded = False
        self.begin()

    def begin(self) -> None:
        """The device has been opened: its count starts anew."""
        self._ahead: float | None = None
        self._counted = 0.0
        self._next = 0
        self._recent: deque[tuple[float, float]] = deque()
        self._lost = False
        self._owed = self._since_slip = 0
        self._window: tuple[float, float] | None = None
        self._usual: float | None = None

    def fill(self, time: float) -> Samples:
        """Silence up to a second, if the line does not reach it yet."""
        return self._silence(round(time * SAMPLE_RATE))

    def lay(
        self,
        counted: float,
        length: float,
        taken: float,
        arrived: float,
        samples: Samples,
        lost: bool = False,
    ) -> Samples:
        """Add a block; returns what the line goes on by.

        Args:
            counted: seconds of its first sample by the device's own count.
            length: seconds that it lasts.
            taken: second of the stream at which its first sample was taken, as the driver has it.
            arrived: second at which it was handed over. Drivers' times wander by tens of
                milliseconds, so they say where the first block belongs, and no more.
            samples: as they come out of the resampler.
            lost: whether the driver says that sound before it was lost.
        """
        if self._ahead is None:
            self._ahead, self._counted = arrived - counted, counted
            self._next = round(taken * SAMPLE_RATE)
        # Blocks are missing in the device's own count.
        self._next += round((counted - self._counted) * SAMPLE_RATE)
        self._counted = counted + length
        leap = self._leap(arrived, arrived - counted - self._ahead, lost)
        if leap:
            self._ahead += leap
            self._next += round(leap * SAMPLE_RATE)
            self._recent.clear()
            self._lost, self._owed, self._window, self._usual = False, 0, None, None
        self._watch(arrived, arrived - counted - self._ahead)
        samples = self._slipped(samples)
        hole = self._silence(self._next)
        overlap = min(samples.size, max(0, self.reach - self._next))
        self._next += samples.size
        self.late += overlap if self._sounded else 0
        self._sounded = True
        samples = samples[overlap:]
        self.reach += samples.size
        return np.concatenate([hole, samples]) if hole.size else samples

    def _silence(self, stop: int) -> Samples:
        count = max(0, stop - self.reach)
        self.reach += count
        self.filled += count if self._sounded else 0
        return np.zeros(count, np.float32)

    def _leap(self, arrived: float, skew: float, lost: bool) -> float:
        """Seconds by which the count is plainly wrong: sound was lost, or the clock has leapt."""
        if lost:
            self._recent.clear()
            self._lost = True
        self._recent.append((arrived, skew))
        while len(self._recent) > 1 and arrived - self._recent[1][0] >= SETTLE:
            self._recent.popleft()
        if len(self._recent) < 3 or arrived - self._recent[0][0] < SETTLE:
            return 0.0
        # What was held up comes late at first, and then catches up: the least late one counts.
        skews = [late for _, late in self._recent]
        missing, self._lost = min(skews) > (LOSS if self._lost else JUMP), False
        if missing:
            return min(skews)
        return max(skews) if max(skews) < -JUMP else 0.0

    def _watch(self, arrived: float, skew: float) -> None:
        """Measure the drift by the least late block of each window, from the first one on."""
        # The first blocks of an opening come as they like.
        start, least = (arrived + _EARLY, math.inf) if self._window is None else self._window
        self._window = (start, min(least, skew) if arrived >= start else least)
        if arrived - start < WINDOW:
            return
        least, self._window = self._window[1], (arrived, math.inf)
        if self._usual is None:
            self._usual = least
        elif abs(least - self._usual) > DRIFT:
            self._owed = round((least - self._usual) * SAMPLE_RATE)

    def _slipped(self, samples: Samples) -> Samples:
        self._since_slip += samples.size
        if not self._owed or self._since_slip < SLIP or samples.size < SLIP // 20:
            return samples
        step = 1 if self._owed > 0 else -1
        self._since_slip, self._owed = 0, self._owed - step
        if self._ahead is not None:
            self._ahead += step / SAMPLE_RATE
        return stretched(samples, samples.size + step)
