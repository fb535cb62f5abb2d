from __future__ import annotations

import numpy as np
import pytest

from omni_core.frontend.log_mel import MIN_SAMPLES, audio_tokens, log_mel, mel_filters, mel_frames


@pytest.fixture(scope="module")
def extractor():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    # Ten seconds of padding instead of 300: what it gives for a shorter clip is the same.
    return transformers.WhisperFeatureExtractor(
        feature_size=128, chunk_length=10, return_attention_mask=True
    )


def expected(extractor, samples: np.ndarray) -> np.ndarray:
    out = extractor(
        samples,
        sampling_rate=16_000,
        padding="max_length",
        return_attention_mask=True,
        return_tensors="np",
    )
    return out["input_features"][0][:, out["attention_mask"][0].astype(bool)]


def signals() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    time = np.arange(16_000) / 16_000
    late = np.zeros(16_000)
    late[-50:] = 0.9
    return {
        "noise": random.standard_normal(16_000) * 0.1,
        "tone": 0.8 * np.sin(2 * np.pi * 440 * time),
        "sweep": 0.5 * np.sin(2 * np.pi * (100 + 3000 * time) * time) * np.exp(-3 * time),
        "silence": np.zeros(16_000),
        "faint": random.standard_normal(16_000) * 1e-6,
        "loudest at the very end": late,
    }


@pytest.mark.parametrize("name", signals())
def test_a_second_is_whispers(extractor, name):
    samples = signals()[name].astype(np.float32)
    ours = log_mel(samples, 128)
    assert ours.dtype == np.float32 and ours.shape == (128, 100)
    np.testing.assert_allclose(ours, expected(extractor, samples), atol=1e-4, rtol=0)


@pytest.mark.parametrize("count", [321, 400, 479, 480, 481, 5_920, 15_999, 16_001, 37_920])
def test_lengths_that_are_no_whole_hops(extractor, count):
    samples = (np.random.default_rng(count).standard_normal(count) * 0.1).astype(np.float32)
    ours, reference = log_mel(samples, 128), expected(extractor, samples)
    assert ours.shape == reference.shape == (128, mel_frames(count))
    np.testing.assert_allclose(ours, reference, atol=1e-4, rtol=0)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_silence(broken):
    samples = signals()["noise"].astype(np.float32)
    silent = samples.copy()
    samples[[0, 5_000, 15_999]], silent[[0, 5_000, 15_999]] = broken, 0
    np.testing.assert_array_equal(log_mel(samples, 128), log_mel(silent, 128))
    assert np.isfinite(log_mel(np.full(16_000, broken, np.float32), 128)).all()


@pytest.mark.parametrize("count", [1, 2, 159, 160, 161, 199, 200, 201, 320])
def test_a_clip_too_short_for_a_token_is_padded_to_one(extractor, count):
    samples = np.full(count, 0.5, np.float32)
    ours, reference = log_mel(samples, 128), expected(extractor, samples)
    assert ours.shape == (128, 3) and audio_tokens(3) == 1
    np.testing.assert_allclose(ours[:, : reference.shape[1]], reference, atol=1e-4, rtol=0)


def test_the_shortest_clip_is_the_shortest_that_gives_a_token():
    assert MIN_SAMPLES == 321
    assert audio_tokens(-(-MIN_SAMPLES // 160)) == 1
    assert audio_tokens(-(-(MIN_SAMPLES - 1) // 160)) == 0
    assert audio_tokens(1) == 0 and audio_tokens(0) == 0


@pytest.mark.parametrize(("frames", "tokens"), [(100, 25), (200, 50), (237, 59), (37, 9)])
def test_tokens_of_frames(frames, tokens):
    assert audio_tokens(frames) == tokens


@pytest.mark.parametrize("bins", [32, 80, 128])
def test_filters_are_slaneys(bins):
    reference = pytest.importorskip("transformers.audio_utils").mel_filter_bank(
        num_frequency_bins=201,
        num_mel_filters=bins,
        min_frequency=0.0,
        max_frequency=8000.0,
        sampling_rate=16_000,
        norm="slaney",
        mel_scale="slaney",
    )
    np.testing.assert_allclose(mel_filters(bins), reference.T, atol=1e-12)
