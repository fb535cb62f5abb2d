"""What part of the cache each layer is worth, after Video-MemComp (section 3.3, appendix D).

The paper blends three distributions over layers: a uniform one, which is each layer's minimum; the
structural one, gradient norms measured beforehand; and the dynamic one, log feature magnitude and
log(1 + attention entropy) measured while the stream runs:

    share(l) = λ_u / L + λ_s · S(l) / Σ S + λ_e · D(l) / Σ D,    λ_u + λ_s + λ_e = 1
    D(l) = log(M(l) / min M) + log(1 + H(l))

Its text gives λ_e = 0.025 as best and has the structural part dominate. It leaves open, and here is
chosen:

- λ_s = 0.775, so that a fifth of the cache is spread evenly.
- Each part is divided by its sum, as distributions are blended (appendix D.5).
- The two logarithms add up, with one weight: they are the log of the magnitude and entropy product
  that they stand for (appendix D.3).
- The unit of the magnitude, whose log could be negative: that of the layer with the least. Values
  that are all scaled alike then change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.errors import OmniError

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Blend:
    """The weights of the three distributions.

    Attributes:
        structural: λ_s, of sensitivity measured beforehand.
        dynamic: λ_e, of what is measured as the stream runs.
    """

    structural: float = 0.775
    dynamic: float = 0.025

    def __post_init__(self) -> None:
        """Check the weights.

        Raises:
            OmniError: one is below 0, or they sum to more than 1.
        """
        if not (self.structural >= 0 and self.dynamic >= 0 and self.uniform >= 0):
            raise OmniError(
                f"layer budgets are blended with weights {self.structural:g} and "
                f"{self.dynamic:g}; give two of 0 or above whose sum is at most 1"
            )

    @property
    def uniform(self) -> float:
        """λ_u, what is left for each layer alike."""
        # 0.1 + 0.9 and the like are rounded to a little more than 1.
        left = 1 - (self.structural + self.dynamic)
        return left if abs(left) > 1e-12 else 0.0


def dynamic_utility(magnitude: npt.ArrayLike, entropy: npt.ArrayLike) -> Float:
    """D of each layer, ``float64[layers]``, 0 or above.

    Args:
        magnitude: ``[layers]``, above 0, as :func:`~omni_core.layer_budgets.feature_magnitude`
            gives it.
        entropy: ``[layers]``, 0 or above, as :func:`~omni_core.layer_budgets.attention_entropy`
            gives it.

    Raises:
        OmniError: a number that cannot be.
    """
    norms = _checked("feature magnitude", magnitude)
    if not norms.all():
        raise OmniError(
            f"layer {int(np.argmin(norms))} has feature magnitude 0, expected a number above it; "
            "the model's values are damaged"
        )
    # A quotient could overflow where the logs do not.
    found: Float = np.log(norms) - np.log(norms.min())
    return found + np.log1p(_checked("attention entropy", entropy))


def importance(sensitivity: npt.ArrayLike, utility: npt.ArrayLike, blend: Blend) -> Float:
    """The share of the cache that each layer is worth: ``float64[layers]`` of sum 1.

    A part that is 0 in every layer tells nothing, and counts as uniform.

    Args:
        sensitivity: ``[layers]``, S, 0 or above.
        utility: ``[layers]``, D, 0 or above; zeros as long as nothing has been measured.
        blend: the weights.

    Raises:
        OmniError: a number that cannot be, or another number of layers.
    """
    structural = _distribution(_checked("sensitivity", sensitivity))
    dynamic = _distribution(_checked("dynamic utility", utility))
    if structural.shape != dynamic.shape:
        raise OmniError(
            f"sensitivity is of {structural.size} layers, and what the stream tells of "
            f"{dynamic.size}; give both for the same model"
        )
    found: Float = blend.uniform / structural.size + (
        blend.structural * structural + blend.dynamic * dynamic
    )
    return found


def _distribution(numbers: Float) -> Float:
    # Divided by the largest first: a sum could overflow.
    scaled = numbers / numbers.max() if numbers.any() else np.ones_like(numbers)
    found: Float = scaled / scaled.sum()
    return found


def _checked(name: str, numbers: npt.ArrayLike) -> Float:
    found = np.asarray(numbers, np.float64)
    if found.ndim != 1 or not found.size:
        raise OmniError(f"{name} has shape {list(found.shape)}; expected a number for each layer")
    wrong = ~(np.isfinite(found) & (found >= 0))
    if wrong.any():
        layer = int(np.argmax(wrong))
        raise OmniError(
            f"layer {layer} has {name} {found[layer]:g}; expected a finite number of 0 or above"
        )
    return found
