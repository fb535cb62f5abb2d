"""Sensitivity of layers from gradient norms, averaged over samples of a calibration.

A first-order expansion of a loss bounds what compressing a layer's cache costs by the length of the
loss's gradient there times the length of the change (Video-MemComp, sections 3.1 and D.4). The
paper takes the gradient at a layer's attention output; here it is taken at what the cache holds,
keys and values, so that each is weighed as it is stored.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.errors import BackendError, OmniError

Float = npt.NDArray[np.float64]


class GradientNorms:
    """Gradient norms of a model's layers by sample."""

    def __init__(self) -> None:
        self._keys: list[Float] = []
        self._values: list[Float] = []

    def add(self, keys: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Take a sample in.

        Args:
            keys, values: ``[layers]``, the length of the gradient at all of a layer's keys, and at
                all of its values.

        Raises:
            BackendError: one is not finite.
        """
        both = np.asarray([keys, values], np.float64)
        wrong = ~np.isfinite(both).all(axis=0)
        if wrong.any():
            raise BackendError(
                f"the gradient at layer {int(np.argmax(wrong))} is not finite; the weights are "
                "damaged"
            )
        self._keys.append(both[0])
        self._values.append(both[1])

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> Float:
        """The mean over samples at keys, ``float64[layers]``."""
        return self._mean(self._keys)

    @property
    def values(self) -> Float:
        """The mean over samples at values, ``float64[layers]``."""
        return self._mean(self._values)

    @property
    def sensitivity(self) -> Float:
        """The mean over samples of the length at keys and values together, ``float64[layers]``."""
        return self._mean(self._joint())

    @property
    def spread(self) -> Float:
        """The standard deviation of it over samples as a share of the mean, ``float64[layers]``."""
        mean = self.sensitivity
        found: Float = np.std(self._joint(), axis=0)
        return np.divide(found, mean, out=np.zeros_like(mean), where=mean > 0)

    def _joint(self) -> list[Float]:
        return [np.hypot(k, v) for k, v in zip(self._keys, self._values, strict=True)]

    def _mean(self, samples: list[Float]) -> Float:
        if not samples:
            raise OmniError("no sample was measured; give clips that hold a unit")
        found: Float = np.mean(samples, axis=0)
        return found
