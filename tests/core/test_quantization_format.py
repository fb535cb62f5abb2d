"""The format: the Hadamard rotation, how codes are packed, where the parts of a page lie."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.backend import SUBBLOCK
from omni_core.errors import OmniError
from omni_core.quantization import SealedLayout, codec, packing
from omni_core.quantization.hadamard import block_size, hadamard, rotate

SIZES = (16, 48, 64, 80, 96, 128)
BITS = (2, 3, 4)


@pytest.mark.parametrize("size", SIZES)
def test_the_rotation_is_orthogonal_and_its_own_inverse(size: int) -> None:
    matrix = hadamard(size).astype(np.float64)
    assert np.allclose(matrix @ matrix.T, np.eye(size), atol=1e-6)
    assert np.array_equal(matrix, matrix.T)
    x = np.random.default_rng(0).standard_normal((5, 3, size)).astype(np.float32)
    assert np.allclose(rotate(x), x @ matrix, atol=1e-5)
    assert np.allclose(rotate(rotate(x)), x, atol=1e-5)
    # By blocks: each channel is spread over its own block, evenly.
    block = block_size(size)
    assert np.count_nonzero(matrix) == size * block
    assert np.allclose(np.abs(matrix[matrix != 0]), block**-0.5)


def test_blocks_are_the_largest_power_of_two() -> None:
    assert [block_size(size) for size in SIZES] == [16, 16, 64, 16, 32, 128]


@pytest.mark.parametrize("size", [0, 8, 40, 100])
def test_other_head_dims_are_refused(size: int) -> None:
    with pytest.raises(OmniError, match=f"head_dim of {size}"):
        SealedLayout(size, 2)


@pytest.mark.parametrize("bits", [1, 5, 8, 16])
def test_other_bits_are_refused(bits: int) -> None:
    with pytest.raises(OmniError, match=f"{bits} bits"):
        SealedLayout(128, bits)
    with pytest.raises(OmniError, match=f"{bits} bits"):
        codec("fitted", bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", SIZES)
def test_codes_come_back(size: int, bits: int) -> None:
    codes = np.random.default_rng(size).integers(0, 2**bits, (2, SUBBLOCK, size)).astype(np.uint8)
    keys, values = packing.pack_keys(codes, bits), packing.pack_values(codes, bits)
    assert keys.shape == (2, packing.key_words(size, bits))
    assert values.shape == (2, packing.value_words(size, bits))
    assert np.array_equal(packing.unpack_keys(keys, size, bits), codes)
    assert np.array_equal(packing.unpack_values(values, size, bits), codes)


@pytest.mark.parametrize("bits", BITS)
def test_each_code_lies_where_the_layout_says(bits: int) -> None:
    size, largest = 96, 2**bits - 1
    for cell, channel in [(0, 0), (5, 33), (13, 95), (31, 64)]:
        codes = np.zeros((1, SUBBLOCK, size), np.uint8)
        codes[0, cell, channel] = largest
        key, value, low = (
            packing.pack_keys(codes, bits)[0],
            packing.pack_values(codes, bits)[0],
            [0, 0],
        )
        for plane in packing.planes(bits):
            mask = 2**plane - 1
            per_key, per_value = 32 // plane, 16 // plane
            word = low[0] + channel // per_key * SUBBLOCK + cell
            place = channel % per_key
            assert key[word] == mask << (16 * (place % 2) + plane * (place // 2))
            pair, half = 4 * (cell // 8) + cell % 4, cell // 4 % 2
            word = low[1] + channel // per_value * 16 + pair
            assert value[word] == mask << (16 * half + plane * (channel % per_value))
            low[0] += SUBBLOCK * -(-size // per_key)
            low[1] += 16 * size // per_value
        assert np.count_nonzero(key) == np.count_nonzero(value) == len(packing.planes(bits))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", SIZES)
def test_the_parts_of_a_page_are_aligned_and_do_not_overlap(size: int, bits: int) -> None:
    layout = SealedLayout(size, bits)
    parts = [
        (layout.key_codes, layout.key_code_bytes),
        (layout.value_codes, layout.value_code_bytes),
        (layout.ranges, layout.range_bytes),
        (layout.key_scales, layout.scale_bytes),
        (layout.value_scales, layout.scale_bytes),
        (layout.exponents, layout.exponent_bytes),
    ]
    end = 0
    for begin, count in parts:
        assert begin == end and begin % 16 == 0
        end = begin + 2 * count
    assert all(count % 16 == 0 for _, count in parts[:-1])
    assert end <= layout.bytes < end + 16 and layout.bytes % 16 == 0


def test_two_bits_take_as_many_bytes_as_is_claimed() -> None:
    layout = SealedLayout(128, 2)
    assert layout.bytes == 4624
    assert layout.key_bits == pytest.approx(2.391, abs=1e-3)
    assert layout.value_bits == 2.125
    assert layout.share <= 0.16
    # What padding a third bit and odd sizes take.
    assert SealedLayout(128, 3).key_bits == pytest.approx(3.391, abs=1e-3)
    assert SealedLayout(80, 3).share < SealedLayout(80, 4).share
