"""MXFP4 over all codes, all ties and the ends of its range."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from omni_core.quantization import mxfp4

NUMBERS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_every_code_of_every_exponent_comes_back() -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), 2)
    # Beyond, 6 is no float32 any more.
    for byte in range(1, 253):
        exponent = np.array([byte], np.uint8)
        decoded = mxfp4.decode(codes, exponent)
        exact = np.array([*NUMBERS, *(-n for n in NUMBERS)] * 2) * 2.0 ** (byte - 127)
        assert np.array_equal(decoded.astype(np.float64), exact)
        # The one code that is not written is that of minus 0.
        again = mxfp4.encode(decoded, exponent)
        assert np.array_equal(again, np.where(codes == 8, 0, codes))
        # A block that holds 6 has this exponent.
        assert mxfp4.exponents(decoded).tolist() == [byte]


def test_half_way_goes_away_from_0() -> None:
    exponent = np.array([127], np.uint8)
    for below, above in pairwise(NUMBERS):
        middle = np.full(32, (below + above) / 2, np.float32)
        assert (mxfp4.decode(mxfp4.encode(middle, exponent), exponent) == above).all()
        assert (mxfp4.decode(mxfp4.encode(-middle, exponent), exponent) == -above).all()
        under = np.nextafter(middle, np.float32(0))
        assert (mxfp4.decode(mxfp4.encode(under, exponent), exponent) == below).all()


@pytest.mark.parametrize("most", [6, 3, 1.5, 4.5, 6.001, 12, 0.75, 0.7500001, 1e-5, 3e37])
def test_the_exponent_is_the_least_that_clips_nothing(most: float) -> None:
    x = np.zeros(32, np.float32)
    x[3] = -most
    byte = int(mxfp4.exponents(x)[0])
    assert 6 * 2.0 ** (byte - 127) >= np.float32(most) > 6 * 2.0 ** (byte - 128)


def test_short_blocks_have_their_own_exponent() -> None:
    x = np.ones(48, np.float32)
    x[:32] = 100
    assert mxfp4.blocks(48) == 2
    assert np.array_equal(mxfp4.decode(mxfp4.encode(x, e := mxfp4.exponents(x)), e)[32:], x[32:])


def test_nothing_is_nothing() -> None:
    x = np.zeros((2, 32), np.float32)
    exponent = mxfp4.exponents(x)
    assert exponent.tolist() == [[1], [1]] and not mxfp4.encode(x, exponent).any()


@given(
    arrays.arrays(
        np.float32,
        (3, 32),
        elements=st.floats(-(2.0**40), 2.0**40, width=32).filter(
            lambda number: number == 0 or abs(number) > 2.0**-40
        ),
    )
)
def test_neighbours_enclose_and_the_nearest_is_one_of_them(x: np.ndarray) -> None:
    exponent = mxfp4.exponents(x)
    below, above = (mxfp4.decode(codes, exponent) for codes in mxfp4.around(x, exponent))
    assert (below <= x).all() and (x <= above).all() and (below < above).all()
    nearest = mxfp4.decode(mxfp4.encode(x, exponent), exponent)
    assert np.array_equal(np.abs(nearest - x), np.minimum(x - below, above - x))
