"""MXFP4 numbers as a kernel makes them, by the steps of :mod:`omni_core.quantization.mxfp4`."""

from __future__ import annotations

import triton
import triton.language as tl

from omni_cuda.kernels.sealed_folds import over


@triton.jit
def exponents(x, blocks: tl.constexpr):
    """Exponent bytes of ``[D]`` by blocks of 32, and as many times as there are channels."""
    size: tl.constexpr = x.shape[0]
    largest = tl.max(tl.abs(tl.reshape(x, (size // 32, 32))), axis=1)
    bits = largest.to(tl.int32, bitcast=True)
    found = (bits >> 23) - 2 + ((bits & 0x7FFFFF) > 0x400000).to(tl.int32)
    found = tl.minimum(tl.maximum(found, 1), 254)
    each = tl.reshape(tl.broadcast_to(found[:, None], (size // 32, 32)), (size,))
    return found, each


@triton.jit
def decoded(codes, exponent):
    """Numbers of codes and exponent bytes."""
    magnitude = codes & 7
    scaled = ((magnitude << 22) + (126 << 23)).to(tl.float32, bitcast=True)
    scaled = tl.where(magnitude < 2, magnitude.to(tl.float32) * 0.5, scaled)
    scaled = tl.where(codes & 8 != 0, -scaled, scaled)
    return scaled * (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def encoded(x, exponent, exact: tl.constexpr):
    """Codes of the numbers nearest; half way, the larger magnitude."""
    s = tl.abs(over(x, (exponent << 23).to(tl.float32, bitcast=True), exact))
    magnitude = (s >= 0.25).to(tl.int32) + (s >= 0.75).to(tl.int32) + (s >= 1.25).to(tl.int32)
    magnitude += (s >= 1.75).to(tl.int32) + (s >= 2.5).to(tl.int32) + (s >= 3.5).to(tl.int32)
    magnitude += (s >= 5.0).to(tl.int32)
    return tl.where((x < 0) & (magnitude > 0), magnitude | 8, magnitude)


@triton.jit
def around(x, exponent, exact: tl.constexpr):
    """Codes of the numbers that ``x`` lies between, the lesser one first."""
    s = over(x, (exponent << 23).to(tl.float32, bitcast=True), exact)
    at = (s >= -6.0).to(tl.int32) + (s >= -4.0).to(tl.int32) + (s >= -3.0).to(tl.int32)
    at += (s >= -2.0).to(tl.int32) + (s >= -1.5).to(tl.int32) + (s >= -1.0).to(tl.int32)
    at += (s >= -0.5).to(tl.int32) + (s >= 0.0).to(tl.int32) + (s >= 0.5).to(tl.int32)
    at += (s >= 1.0).to(tl.int32) + (s >= 1.5).to(tl.int32) + (s >= 2.0).to(tl.int32)
    at += (s >= 3.0).to(tl.int32) + (s >= 4.0).to(tl.int32) + (s >= 6.0).to(tl.int32)
    at = tl.minimum(tl.maximum(at, 1), 14)
    low, high = at - 1, at
    low = tl.where(low < 7, (7 - low) | 8, low - 7)
    high = tl.where(high < 7, (7 - high) | 8, high - 7)
    return low, high


@triton.jit
def nearest(x, centre, step, bits: tl.constexpr, exact: tl.constexpr):
    """Codes of the levels nearest."""
    apart = over(x - centre, tl.where(step > 0, step, 1.0), exact)
    above = tl.where(step > 0, apart, 0.0) + 2 ** (bits - 1)
    return tl.minimum(tl.maximum(tl.floor(above), 0.0), 2**bits - 1).to(tl.int32)
