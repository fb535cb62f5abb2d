"""Drawing tokens from logits."""

from __future__ import annotations

import numpy as np

from omni_core.sampling import draw


def test_temperature_zero_takes_the_largest_and_of_equal_ones_the_first() -> None:
    logits = np.asarray([1.0, 3.0, 3.0, -2.0], np.float32)
    assert draw(logits, 0.0, np.random.default_rng(0)) == 1


def test_draws_follow_the_shares() -> None:
    shares = np.asarray([0.1, 0.2, 0.0, 0.3, 0.4])
    with np.errstate(divide="ignore"):
        logits = np.log(shares).astype(np.float32)
    generator = np.random.default_rng(1)
    for temperature in (1.0, 0.5):
        expected = shares ** (1 / temperature)
        counts = np.bincount(
            [draw(logits, temperature, generator) for _ in range(4000)], minlength=5
        )
        np.testing.assert_allclose(counts / 4000, expected / expected.sum(), atol=0.03)
        assert counts[2] == 0


def test_large_logits_do_not_overflow() -> None:
    logits = np.asarray([-1e30, 0.0, 1e30], np.float32)
    assert draw(logits, 1.0, np.random.default_rng(0)) == 2
