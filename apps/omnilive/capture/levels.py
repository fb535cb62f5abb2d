"""Loudness in decibels of full scale."""

from __future__ import annotations

import math

import numpy as np

from omnilive.capture.resampling import Samples

SILENT = -120.0
"""Decibels of no sound at all."""


def decibels(samples: Samples) -> float:
    """The root of the mean square of ``float32[n]``; a full sine is -3, nothing at all -120."""
    power = float(np.mean(np.square(samples, dtype=np.float64))) if samples.size else 0.0
    return max(SILENT, 10 * math.log10(power)) if power > 0 else SILENT
