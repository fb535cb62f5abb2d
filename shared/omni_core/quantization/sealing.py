"""Sealing: 32 cells of one modality become codes, once; and what is read from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from omni_core.backend import SUBBLOCK
from omni_core.errors import BackendError, OmniError
from omni_core.quantization import hadamard, value_rotations
from omni_core.quantization.codec import Codec
from omni_core.quantization.folding import norm, turned
from omni_core.quantization.key_feedback import Feedback
from omni_core.quantization.subblock import SealedSubblock
from omni_core.units import Modality

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]

_MOST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class LayerTables:
    """What sealing takes of a layer beside a codec; see :meth:`uncalibrated`.

    Attributes:
        layer: its number, for messages.
        rotations: ``float32[kv_heads, modalities, D, D]``, of values.
        key_means: ``float32[kv_heads, D]``, taken from each key before it is coded. A query's dot
            with it is added to its scores again: one number for all sealed cells.
        feedback: of keys, or None.
    """

    layer: int
    rotations: Float32
    key_means: Float32
    feedback: Feedback | None = None

    @staticmethod
    def uncalibrated(layer: int, kv_heads: int, head_dim: int) -> LayerTables:
        """Hadamard for all values, no mean, no feedback."""
        rotations = value_rotations.fallback(kv_heads, head_dim)
        return LayerTables(layer, rotations, np.zeros((kv_heads, head_dim), np.float32))


def digest(tables: Sequence[LayerTables]) -> str:
    """Tells apart by what sealed bytes are read: they mean the same where it is the same."""
    found = sha256()
    for each in tables:
        found.update(each.rotations.astype("<f4").tobytes())
        found.update(each.key_means.astype("<f4").tobytes())
    return found.hexdigest()


def seal(
    keys: Floats, values: Floats, modality: Modality, codec: Codec, tables: LayerTables
) -> SealedSubblock:
    """Code the tokens of a subblock, in float32.

    Two ways of adding in another order may code a number that lies half way otherwise; layout and
    decoding leave no such room.

    Args:
        keys, values: ``[n, kv_heads, D]`` of one layer, keys rotated by position; ``n`` up to 32,
            fewer only where no more of this modality will come. Cells that are not filled get a
            scale of 0 and draw no range towards them.
        modality: of all of them.
        codec: of the pages.
        tables: of the layer.

    Raises:
        BackendError: a number that is not finite, or a value too large; it names the layer.
        OmniError: no token, or more than a subblock holds.
    """
    count = len(keys)
    if not 1 <= count <= SUBBLOCK:
        raise OmniError(
            f"{count} tokens cannot be sealed as one subblock, expected 1 to {SUBBLOCK}"
        )
    for name, numbers in (("keys", keys), ("values", values)):
        if not np.isfinite(numbers).all():
            raise BackendError(
                f"layer {tables.layer}: {name} hold a number that is not finite, expected none; "
                "nothing is sealed: try another number format of the weights"
            )
    # [kv_heads, 32, D], the cells that no token fills at the end.
    filled = [(0, 0), (0, SUBBLOCK - count), (0, 0)]
    k, v = (np.pad(part.astype(np.float32).swapaxes(0, 1), filled) for part in (keys, values))
    k[:, :count] -= tables.key_means[:, None]
    rotated_keys = hadamard.rotate(k)
    # A norm beyond float16 stops at its largest: the ranges hold what is left, whatever it is.
    scales = np.minimum(norm(k), _MOST).astype(np.float16)
    live = scales > 0
    x = _over(rotated_keys, scales.astype(np.float32))
    coded = codec.encode_keys(x, live, tables.feedback)
    rotated = turned(tables.rotations[:, modality], v)
    codes, value_scales = _values(rotated, codec, tables.layer)
    return SealedSubblock(coded, scales, codes, value_scales)


def decode_keys(sealed: SealedSubblock, codec: Codec, tables: LayerTables) -> Float32:
    """Keys ``float32[kv_heads, 32, D]`` as attention reads them; the means where no token is."""
    scales = sealed.key_scales.astype(np.float32)[..., None]
    decoded = hadamard.rotate(scales * sealed.keys.decode(codec.key_levels))
    return decoded + tables.key_means[:, None]


def decode_values(
    sealed: SealedSubblock, modality: Modality, codec: Codec, tables: LayerTables
) -> Float32:
    """Values ``float32[kv_heads, 32, D]`` as attention reads them."""
    scales = sealed.value_scales.astype(np.float32)[..., None]
    rotated = scales * codec.value_levels[sealed.value_codes]
    back: Float32 = np.einsum("hde,hcd->hce", tables.rotations[:, modality], rotated)
    return back


def _values(
    rotated: Float32, codec: Codec, layer: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Codes and scales of rotated values ``float32[kv_heads, 32, D]``."""
    norms = norm(rotated)
    unit = _over(rotated, norms) * np.float32(rotated.shape[-1] ** 0.5)
    codes = np.searchsorted(codec.value_bounds, unit, side="right").astype(np.uint8)
    scales = norms / norm(codec.value_levels[codes])
    if scales.max() > _MOST:
        raise BackendError(
            f"layer {layer}: a value has a norm of {norms.max():.3g}, more than a sealed page can "
            "hold; keep this model's cache in 16 bits"
        )
    return codes, scales.astype(np.float16)


def _over(x: Float32, scales: Float32) -> Float32:
    """``x[kv_heads, cells, D] / scales[kv_heads, cells]``, and 0 where a scale is 0."""
    wide = scales[..., None]
    return np.divide(x, wide, out=np.zeros_like(x), where=wide > 0)
