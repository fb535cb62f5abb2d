"""A device's sound, whatever its rate, channels and numbers, as mono at 16 kHz."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.frontend.base import SAMPLE_RATE

Samples = npt.NDArray[np.float32]


class Resampler:
    """Turns blocks of a running sound into ``float32[n]`` at 16 kHz, as one sound without borders.

    What comes out is filtered, so that nothing above 8 kHz folds back, and belongs to the time that
    it came in at; a few samples wait inside for the block that follows.

    Attributes:
        broken: samples that were no numbers, or infinite, and were taken for silence.
    """

    def __init__(self, rate: int) -> None:
        self.broken = 0
        self._rate, self._filter = rate, None
        if rate != SAMPLE_RATE:
            from omnilive.codecs import av

            self._filter = av.AudioResampler("flt", "mono", SAMPLE_RATE)

    def feed(self, block: npt.NDArray[Any]) -> Samples:
        """One block, ``float32`` or ``int16``, ``[samples]`` or ``[samples, channels]``."""
        mono = self._mono(block)
        if self._filter is None or not mono.size:
            return mono
        from omnilive.codecs import av

        frame = av.AudioFrame.from_ndarray(mono[None], "flt", "mono")
        frame.sample_rate = self._rate
        parts = [out.to_ndarray()[0] for out in self._filter.resample(frame)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _mono(self, block: npt.NDArray[Any]) -> Samples:
        samples = block.astype(np.float32)
        if block.dtype == np.int16:
            samples /= 32768
        usable = np.isfinite(samples)
        if not usable.all():
            self.broken += int(samples.size - usable.sum())
            samples[~usable] = 0
        if samples.ndim == 2:
            samples = samples.mean(axis=1)
        return np.clip(samples, -1, 1)


def stretched(samples: Samples, count: int) -> Samples:
    """The same sound in ``count`` samples, its first and last ones kept: a slip without a click.

    Cubic through four neighbours (Catmull-Rom); for a change of a sample or two.
    """
    if count == samples.size or samples.size < 2 or count < 2:
        return samples
    place = np.linspace(0, samples.size - 1, count)
    left = np.minimum(place.astype(np.int64), samples.size - 2)
    x = (place - left).astype(np.float32)
    padded = np.pad(samples, 1, mode="edge")
    a, b, c, d = (padded[left + offset] for offset in range(4))
    bent = b + 0.5 * x * (c - a + x * (2 * a - 5 * b + 4 * c - d + x * (3 * (b - c) + d - a)))
    return bent.astype(np.float32)
