"""The codec ``fitted``: uniform levels in a range that is fitted to the codes, not to extremes.

Each channel of a subblock keeps its centre and its step, for a centre lies nearer to 0 than a least
value does and so is rounded less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_core.quantization import codebooks, mxfp4
from omni_core.quantization.folding import folded
from omni_core.quantization.key_codes import KeyCodes, extent, relative
from omni_core.quantization.key_feedback import Feedback

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

WIDER = {2: 1.18, 3: 1, 4: 1}
"""How much longer steps are with feedback: few bits leave much to make up for."""
DRAWN_IN = {2: 0.12, 3: 0.05, 4: 0.02}
"""How far inside the extent the outer levels lie, as a share of it, before the fit."""


@dataclass(frozen=True)
class Fitted:
    """Uniform levels; implements :class:`~omni_core.quantization.codec.Codec`."""

    bits: int
    name: str = "fitted"

    @property
    def key_levels(self) -> Float32:
        """Steps from the centre, which is a key's offset."""
        return codebooks.centred(self.bits)

    @property
    def value_levels(self) -> Float32:
        """Steps from 0; how long a step is goes into a cell's scale."""
        return codebooks.centred(self.bits)

    @property
    def value_bounds(self) -> Float32:
        """Half way between levels that are the best step of a Gaussian apart."""
        return codebooks.middles(self.value_levels) * np.float32(codebooks.UNIFORM_STEP[self.bits])

    def encode_keys(self, x: Float32, live: Bool, feedback: Feedback | None) -> KeyCodes:
        """Codes of ``x[kv_heads, 32, D]``, with feedback where it is given.

        A line is drawn through numbers and codes by least squares. Of the MXFP4 numbers around its
        step and, for each, around the centre that suits it, the pair that errs least is kept; the
        exponents are the line's, so that each channel chooses by itself.
        """
        x = np.where(live[..., None], x, 0).astype(np.float32)
        weight = _weights(x, live)
        mean = folded(x * weight, 1)
        centre, step = self._line(x, live, weight, mean)
        centre_exponent = mxfp4.exponents(centre)
        near = mxfp4.decode(mxfp4.encode(centre, centre_exponent), centre_exponent)
        # A channel far from 0 that hardly moves: levels reach at least to where it really is.
        step = np.maximum(step, np.abs(centre - near) / self.key_levels[-1])
        step_exponent = mxfp4.exponents(step)
        tried: list[tuple[Float32, UInt8, UInt8]] = []
        for spans in mxfp4.around(step, step_exponent):
            span = mxfp4.decode(spans, step_exponent)
            steps = self.key_levels[self._nearest(x, centre, span)]
            suited = mean - span * folded(steps * weight, 1)
            for offsets in mxfp4.around(suited, centre_exponent):
                offset = mxfp4.decode(offsets, centre_exponent)
                steps = self.key_levels[self._nearest(x, offset, span)]
                gap = x - offset[:, None] - span[:, None] * steps
                tried.append((folded(gap * gap * weight, 1), offsets, spans))
        errors, all_offsets, all_spans = (np.stack(part) for part in zip(*tried, strict=True))
        best = errors.argmin(axis=0)[None]
        offsets, spans = (np.take_along_axis(p, best, 0)[0] for p in (all_offsets, all_spans))
        offset, span = mxfp4.decode(offsets, centre_exponent), mxfp4.decode(spans, step_exponent)
        if feedback is None:
            codes = self._nearest(x, offset, span)
        else:
            # A channel has to reach what those before it ask for, beside its own numbers.
            wide = span * np.float32(WIDER[self.bits])
            step_exponent = mxfp4.exponents(wide)
            spans = mxfp4.encode(wide, step_exponent)
            codes = self._fed_back(x, offset, mxfp4.decode(spans, step_exponent), feedback)
        return KeyCodes(codes, offsets, spans, centre_exponent, step_exponent)

    def _line(
        self, x: Float32, live: Bool, weight: Float32, mean: Float32
    ) -> tuple[Float32, Float32]:
        """Centre and step ``float32[kv_heads, D]`` of the line through numbers and first codes."""
        least, most = extent(x, live)
        last = np.float32(2**self.bits - 1)
        step = (most - least) * np.float32((1 - 2 * DRAWN_IN[self.bits]) / last)
        steps = self.key_levels[self._nearest(x, (least + most) * np.float32(0.5), step)]
        middle = folded(steps * weight, 1)
        apart = (steps - middle[:, None]) * weight
        spread = folded(steps * apart, 1)
        slope = folded((x - mean[:, None]) * apart, 1)
        step = np.divide(slope, spread, out=step, where=spread > 0)
        return mean - step * middle, step

    def _nearest(self, x: Float32, centre: Float32, step: Float32) -> UInt8:
        """Codes of the levels nearest; half way, the upper one."""
        above = relative(x - centre[:, None], step) + np.float32(2 ** (self.bits - 1))
        codes: UInt8 = np.clip(np.floor(above), 0, 2**self.bits - 1).astype(np.uint8)
        return codes

    def _fed_back(self, x: Float32, centre: Float32, step: Float32, feedback: Feedback) -> UInt8:
        """Codes channel by channel, each with the errors of those before it."""
        codes = np.zeros(x.shape, np.uint8)
        wanted = x.copy()
        for d in range(x.shape[-1]):
            now = slice(d, d + 1)
            codes[..., now] = self._nearest(wanted[..., now], centre[:, now], step[:, now])
            level = self.key_levels[codes[..., now]]
            error = x[..., now] - centre[:, None, now] - step[:, None, now] * level
            wanted += error * feedback[:, None, d]
        return codes


def _weights(x: Float32, live: Bool) -> Float32:
    """What each cell counts in the fit: ``float32[kv_heads, cells, 1]``, of sum 1 or 0.

    As much as its squared distance from the mean, where that is more than usual. An attention sink
    is a key apart that many queries read; a fit to the other 31 would clip all of its channels.
    """
    alive = live.astype(np.float32)[..., None]
    count = np.maximum(alive.sum(axis=1, keepdims=True), 1)
    apart = (x - folded(x, 1)[:, None] / count) * alive
    distance = folded(apart * apart, -1)[..., None]
    usual = folded(distance, 1)[:, None] / count
    weight = np.maximum(distance, usual) * alive
    # Where all keys are the same, so are their weights.
    weight = np.where(usual > 0, weight, alive)
    total = folded(weight, 1)[:, None]
    found: Float32 = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    return found
