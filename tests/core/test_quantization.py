"""Sealing and reading again: both codecs, their tables, and numbers that are hard to hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.errors import BackendError, OmniError
from omni_core.quantization import (
    CODECS,
    LayerTables,
    SealedLayout,
    codec,
    decode_keys,
    decode_values,
    load,
    seal,
    store,
)
from omni_core.quantization.hadamard import hadamard, rotate
from omni_core.quantization.key_feedback import feedback
from omni_core.quantization.value_rotations import error, fallback, fitted
from omni_core.units import Modality

BITS = (2, 3, 4)


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plain(kv_heads: int, size: int) -> LayerTables:
    return LayerTables.uncalibrated(3, kv_heads, size)


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_other_codecs_are_refused() -> None:
    with pytest.raises(OmniError, match="'turbo'"):
        codec("turbo")


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_a_page_keeps_both_subblocks(name: str, bits: int, size: int) -> None:
    chosen, layout = codec(name, bits), SealedLayout(size, bits)
    page = np.full((2, layout.bytes), 0xA5, np.uint8)
    sealed = [
        seal(
            gaussian(32, 2, size, seed=i),
            gaussian(32, 2, size, seed=9),
            kind,
            chosen,
            plain(2, size),
        )
        for i, kind in enumerate((Modality.AUDIO, Modality.TEXT))
    ]
    for subblock, part in enumerate(sealed):
        store(part, layout, page, subblock)
    for subblock, part in enumerate(sealed):
        found = load(layout, page, subblock)
        for name_ in ("codes", "offsets", "spans", "offset_exponents", "span_exponents"):
            assert np.array_equal(getattr(found.keys, name_), getattr(part.keys, name_))
        assert np.array_equal(found.key_scales, part.key_scales)
        assert np.array_equal(found.value_scales, part.value_scales)
        assert np.array_equal(found.value_codes, part.value_codes)


# What Gaussian numbers lose, measured; a codec that does worse is broken.
WORST = {"fitted": {2: 0.36, 3: 0.19, 4: 0.1}, "omnikvquant": {2: 0.42, 3: 0.22, 4: 0.15}}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bits", BITS)
def test_errors_are_as_small_as_the_bits_allow(name: str, bits: int) -> None:
    chosen, tables = codec(name, bits), plain(4, 128)
    keys, values = gaussian(32, 4, 128), gaussian(32, 4, 128, seed=1)
    sealed = seal(keys, values, Modality.VISION, chosen, tables)
    found = decode_keys(sealed, chosen, tables).swapaxes(0, 1)
    assert relative(found, keys) < WORST[name][bits]
    found = decode_values(sealed, Modality.VISION, chosen, tables).swapaxes(0, 1)
    assert relative(found, values) < (0.37, 0.2, 0.11)[bits - 2]
    # Renormalised: a value keeps its length.
    lengths = np.linalg.norm(found, axis=-1) / np.linalg.norm(values, axis=-1)
    assert np.allclose(lengths, 1, atol=1e-3)


@pytest.mark.parametrize("bits", BITS)
def test_fitted_ranges_err_less_at_equal_bits(bits: int) -> None:
    keys, tables = gaussian(32, 8, 128, seed=4), plain(8, 128)
    errors = {}
    for name in CODECS:
        chosen = codec(name, bits)
        sealed = seal(keys, keys, Modality.TEXT, chosen, tables)
        errors[name] = relative(decode_keys(sealed, chosen, tables).swapaxes(0, 1), keys)
    assert errors["fitted"] ** 2 < 0.85 * errors["omnikvquant"] ** 2


def test_the_papers_codec_is_its_formula() -> None:
    keys = gaussian(32, 1, 64, seed=2) + 3
    chosen, tables = codec("omnikvquant"), plain(1, 64)
    sealed = seal(keys, keys, Modality.TEXT, chosen, tables)
    norms = np.linalg.norm(keys[:, 0], axis=-1).astype(np.float16).astype(np.float32)
    x = keys[:, 0] @ hadamard(64) / norms[:, None]
    least, span = (part[0] for part in sealed.keys.ranges())
    step = 2.0 ** (sealed.keys.offset_exponents[0].astype(int) - 127)
    assert np.abs(least - x.min(axis=0)).max() <= step.max() * 1.001
    u = np.clip((x - least) / np.where(span > 0, span, 1), 0, 1)
    codes = (u[..., None] >= np.float32([0.1751, 0.5, 0.8249])).sum(axis=-1)
    assert (codes == sealed.keys.codes[0])[:, span > 0].mean() > 0.999
    assert chosen.key_levels.tolist() == np.float32([0, 0.3501, 0.6499, 1]).tolist()
    assert chosen.value_levels.tolist() == np.float32([-1.5104, -0.4528, 0.4528, 1.5104]).tolist()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bits", BITS)
def test_a_few_keys_far_from_0_are_not_drawn_to_it(name: str, bits: int) -> None:
    keys = 6 + np.abs(gaussian(3, 2, 96))
    chosen, tables = codec(name, bits), plain(2, 96)
    sealed = seal(keys, keys, Modality.AUDIO, chosen, tables)
    assert not sealed.key_scales[:, 3:].any() and not sealed.value_scales[:, 3:].any()
    # As if a whole subblock had only these keys.
    again = np.tile(keys, (11, 1, 1))[:32]
    many = seal(again, again, Modality.AUDIO, chosen, tables)
    for one, other in zip(sealed.keys.ranges(), many.keys.ranges(), strict=True):
        assert relative(one, other) < 0.2
    found = decode_keys(sealed, chosen, tables)[:, :3].swapaxes(0, 1)
    assert relative(found, keys) < (0.05 if name == "fitted" else 0.15)
    assert (found > 4).all()


@pytest.mark.parametrize("name", CODECS)
def test_vectors_of_0_stay_0_and_disturb_nobody(name: str) -> None:
    keys = gaussian(32, 2, 64) + 5
    chosen, tables = codec(name), plain(2, 64)
    holes = keys.copy()
    holes[7] = holes[20, 1] = 0
    sealed = seal(holes, holes, Modality.TEXT, chosen, tables)
    found = decode_keys(sealed, chosen, tables).swapaxes(0, 1)
    values = decode_values(sealed, Modality.TEXT, chosen, tables).swapaxes(0, 1)
    assert not found[7].any() and not found[20, 1].any()
    assert not values[7].any() and not values[20, 1].any()
    others = np.arange(32) != 7
    assert relative(found[others, 0], keys[others, 0]) < 0.2
    nothing = seal(0 * keys, 0 * keys, Modality.TEXT, chosen, tables)
    assert not decode_keys(nothing, chosen, tables).any()


@pytest.mark.parametrize("name", CODECS)
def test_a_norm_beyond_float16_is_held_by_the_ranges(name: str) -> None:
    keys = gaussian(32, 1, 64) * 1e6
    chosen, tables = codec(name), plain(1, 64)
    sealed = seal(keys, gaussian(32, 1, 64), Modality.TEXT, chosen, tables)
    assert np.isfinite(sealed.key_scales).all()
    assert relative(decode_keys(sealed, chosen, tables).swapaxes(0, 1), keys) < 0.42


def test_a_value_beyond_float16_is_refused() -> None:
    values = gaussian(32, 1, 64) * 1e6
    with pytest.raises(BackendError, match="layer 3: a value has a norm of"):
        seal(gaussian(32, 1, 64), values, Modality.TEXT, codec(), plain(1, 64))


@pytest.mark.parametrize("what", ["keys", "values"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused_by_layer(what: str, number: float) -> None:
    given = {"keys": gaussian(32, 2, 64), "values": gaussian(32, 2, 64)}
    given[what][4, 1, 9] = number
    with pytest.raises(BackendError, match=f"layer 3: {what} hold"):
        seal(given["keys"], given["values"], Modality.TEXT, codec(), plain(2, 64))


@pytest.mark.parametrize("count", [0, 33])
def test_more_or_fewer_tokens_than_a_subblock_holds_are_refused(count: int) -> None:
    keys = gaussian(count, 2, 64)
    with pytest.raises(OmniError, match=f"{count} tokens"):
        seal(keys, keys, Modality.TEXT, codec(), plain(2, 64))


@pytest.mark.parametrize("name", CODECS)
def test_a_channel_that_never_moves_costs_no_precision(name: str) -> None:
    keys = gaussian(32, 1, 128) * 0
    keys[..., 5] = 600.0
    chosen, tables = codec(name), plain(1, 128)
    tables = replace(tables, key_means=keys.mean(axis=0))
    noisy = keys + gaussian(32, 1, 128)
    plainly, about = (
        seal(noisy, noisy, Modality.TEXT, chosen, plain(1, 128)),
        seal(noisy, noisy, Modality.TEXT, chosen, tables),
    )
    far = decode_keys(plainly, chosen, plain(1, 128)).swapaxes(0, 1) - noisy
    near = decode_keys(about, chosen, tables).swapaxes(0, 1) - noisy
    assert np.abs(near).max() < 2
    assert np.abs(near).mean() < 0.6 * np.abs(far).mean()


def test_feedback_lowers_what_queries_see() -> None:
    draw = np.random.default_rng(8)
    # Queries of a model fill few of their directions.
    basis = draw.standard_normal((2, 64, 64)) * (0.8 ** np.arange(64))[:, None]
    queries = np.einsum("hne,hed->hnd", draw.standard_normal((2, 4096, 64)), basis)
    keys = gaussian(32, 2, 64)
    turned = np.stack([rotate(part) for part in queries]).astype(np.float64)
    moments = np.einsum("hnd,hne->hde", turned[:, :2048], turned[:, :2048]) / 2048
    chosen, without = codec(), plain(2, 64)
    with_it = replace(without, feedback=feedback(moments))
    assert np.array_equal(np.tril(with_it.feedback), np.zeros((2, 64, 64)))
    errors = []
    for tables in (without, with_it):
        sealed = seal(keys, keys, Modality.TEXT, chosen, tables)
        gap = decode_keys(sealed, chosen, tables) - keys.swapaxes(0, 1)
        errors.append(np.square(np.einsum("hnd,hcd->hnc", queries[:, 2048:], gap)).mean())
    assert errors[1] < 0.5 * errors[0]
    one, other = (seal(keys, keys, Modality.TEXT, chosen, t).keys for t in (without, with_it))
    assert np.array_equal(one.offsets, other.offsets) and (one.codes != other.codes).any()
    # Steps are longer, as far as MXFP4 tells it.
    longer = other.ranges()[1] / one.ranges()[1]
    assert longer.min() == 1 and 1.05 < longer.mean() < 1.3


def test_feedback_of_silent_queries_changes_nothing() -> None:
    assert not feedback(np.zeros((1, 64, 64))).any()


def test_rotations_belong_to_their_modality() -> None:
    size = 64
    stretch = np.diag(0.7 ** np.arange(size) + 1e-3)
    turn = np.linalg.qr(gaussian(size, size, seed=3))[0]
    values = (gaussian(4096, size) @ stretch @ turn).astype(np.float32)
    rotation = fitted(values[:2048])
    assert np.allclose(rotation @ rotation.T, np.eye(size), atol=1e-5)
    # On values that it was not fitted to.
    assert error(values[2048:], rotation) < 0.8 * error(values[2048:], fallback(1, size)[0, 0])
    rotations = fallback(1, size).copy()
    rotations[0, Modality.AUDIO] = rotation
    tables = replace(plain(1, size), rotations=rotations)
    group, chosen = values[:32, None], codec()
    sealed = {
        kind: seal(group, group, kind, chosen, tables) for kind in (Modality.AUDIO, Modality.TEXT)
    }
    for kind, other in ((Modality.AUDIO, Modality.TEXT), (Modality.TEXT, Modality.AUDIO)):
        right = decode_values(sealed[kind], kind, chosen, tables).swapaxes(0, 1)
        wrong = decode_values(sealed[kind], other, chosen, tables).swapaxes(0, 1)
        assert relative(right, group) < 0.9 * relative(wrong, group)


@settings(max_examples=25)
@given(
    st.sampled_from([*CODECS]),
    st.sampled_from(BITS),
    st.sampled_from([16, 64, 96]),
    st.integers(1, 32),
    st.integers(0, 2**32 - 1),
    st.floats(-4, 4),
    st.floats(0.001, 1000),
)
def test_bytes_say_all_that_is_read(
    name: str, bits: int, size: int, count: int, seed: int, shift: float, scale: float
) -> None:
    draw = np.random.default_rng(seed)
    # Keys have ranges of their own; a value whose rotation is one peak has not.
    keys, values = (
        (scale * (draw.standard_normal((count, 2, size)) + add)).astype(np.float32)
        for add in (shift, 0)
    )
    chosen, tables, layout = codec(name, bits), plain(2, size), SealedLayout(size, bits)
    kind = Modality(seed % 3)
    sealed = seal(keys, values, kind, chosen, tables)
    page = draw.integers(0, 256, (2, layout.bytes)).astype(np.uint8)
    store(sealed, layout, page, 1)
    found = load(layout, page, 1)
    for decoded, again, wanted in (
        (decode_keys(sealed, chosen, tables), decode_keys(found, chosen, tables), keys),
        (
            decode_values(sealed, kind, chosen, tables),
            decode_values(found, kind, chosen, tables),
            values,
        ),
    ):
        assert np.array_equal(decoded, again)
        assert not decoded[:, count:].any()
        assert np.isfinite(decoded).all()
        assert relative(decoded[:, :count].swapaxes(0, 1), wanted) < 0.7
