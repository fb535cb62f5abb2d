"""Rotations of values, and the file that carries a model's tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.errors import OmniError
from omni_core.model_config import TextConfig
from omni_core.quantization import LayerTables, codec, decode_keys, decode_values, seal
from omni_core.quantization.hadamard import hadamard
from omni_core.quantization.key_feedback import feedback
from omni_core.quantization.tables_file import read_about, read_tables, write_tables
from omni_core.quantization.value_rotations import error, fitted
from omni_core.units import Modality

LAYERS, KV_HEADS, SIZE = 2, 2, 32
TEXT = TextConfig(100, 64, 64, LAYERS, 4, KV_HEADS, SIZE, 1e-6, 1e4, (), 100, True)
ABOUT = {"model": "small", "identity": "0123", "date": "2026-01-02"}


def tables(fed: bool = True) -> list[LayerTables]:
    draw = np.random.default_rng(0)
    found = []
    for layer in range(LAYERS):
        turns = np.linalg.qr(draw.standard_normal((KV_HEADS, len(Modality), SIZE, SIZE)))[0]
        plain = LayerTables.uncalibrated(layer, KV_HEADS, SIZE)
        above = np.triu(draw.standard_normal((KV_HEADS, SIZE, SIZE)), 1).astype(np.float32)
        turned = replace(plain, rotations=turns.astype(np.float32))
        found.append(replace(turned, feedback=above) if fed else turned)
    return found


def read(file: Path, text: TextConfig = TEXT, identity: str = "0123") -> list[LayerTables]:
    return read_tables(file, text, "mine", identity)


@pytest.mark.parametrize("fed", [False, True])
def test_tables_come_back(tmp_path: Path, fed: bool) -> None:
    file, given_tables = tmp_path / "values.safetensors", tables(fed)
    file.write_bytes(write_tables(given_tables, ABOUT))
    for found, wanted in zip(read(file), given_tables, strict=True):
        assert found.layer == wanted.layer and not found.key_means.any()
        assert np.array_equal(found.rotations, wanted.rotations)
        assert (found.feedback is not None) == fed
        if found.feedback is not None:
            assert np.array_equal(found.feedback, wanted.feedback)
    about = read_about(file)
    assert ABOUT.items() <= about.items() and about["version"] == 1


def test_other_readers_of_safetensors_read_it(tmp_path: Path) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    file = tmp_path / "values.safetensors"
    file.write_bytes(write_tables(tables(), ABOUT))
    found = numpy_reader.load_file(file)
    shape = (len(Modality), KV_HEADS, SIZE, SIZE)
    assert found["value_rotations.1"].shape == shape
    assert np.array_equal(found["value_rotations.1"][2, 0], tables()[1].rotations[0, 2])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"head_dim": 64}, r"is F32 \[3, 2, 32, 32\], expected F32 \[3, 2, 64, 64\] for mine"),
        ({"kv_heads": 1}, r"expected F32 \[3, 1, 32, 32\]"),
        ({"layers": 3}, "value_rotations.2 is not there"),
    ],
)
def test_a_model_of_other_shapes_is_refused(
    tmp_path: Path, changed: dict[str, int], says: str
) -> None:
    file = tmp_path / "values.safetensors"
    file.write_bytes(write_tables(tables(), ABOUT))
    with pytest.raises(OmniError, match=says):
        read(file, replace(TEXT, **changed))


def test_another_model_of_the_same_shapes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "values.safetensors"
    file.write_bytes(write_tables(tables(), ABOUT))
    with pytest.raises(OmniError, match="measured on the model small, and mine is another one"):
        read(file, identity="4567")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_file_that_is_cut_short_is_refused_wherever(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = write_tables(tables(), ABOUT)
    length = data.draw(st.integers(0, len(content) - 1))
    file = tmp_path_factory.mktemp("cut") / "values.safetensors"
    file.write_bytes(content[:length])
    with pytest.raises(OmniError, match=f"{file}: .*omnilive calibrate values"):
        read(file)


def renamed(content: bytes, **about: object) -> bytes:
    """The file with other words about it, of the same length."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    told = json.loads(header["__metadata__"]["omnilive"]) | about
    header["__metadata__"] = {"omnilive": json.dumps(told)}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "values.safetensors"
    with pytest.raises(OmniError, match="no such file; make one with"):
        read(file)
    content = write_tables(tables(), ABOUT)
    for given_bytes, says in (
        (b"{}", "do not hold a safetensors header"),
        (renamed(content, format="another"), "is no calibration of values"),
        (renamed(content, version=2), "has version 2, and version 1 is read here"),
        (content[:8] + content[8:].replace(b"__metadata__", b"__metadatb__"), "described wrongly"),
    ):
        file.write_bytes(given_bytes)
        with pytest.raises(OmniError, match=says):
            read(file)


@pytest.mark.parametrize("number", [np.nan, 3.0])
def test_damaged_numbers_are_refused_by_layer(tmp_path: Path, number: float) -> None:
    file, damaged = tmp_path / "values.safetensors", tables()
    damaged[1].rotations[0, 0, 3, 4] = number
    file.write_bytes(write_tables(damaged, ABOUT))
    with pytest.raises(OmniError, match=r"value_rotations\.1 is no rotation"):
        read(file)
    damaged = tables()
    fed = damaged[0].feedback
    assert fed is not None
    fed[1, 2, 3] = np.inf
    file.write_bytes(write_tables(damaged, ABOUT))
    with pytest.raises(OmniError, match=r"key_feedback\.0 holds a number that is not finite"):
        read(file)


@pytest.mark.parametrize("size", [32, 80, 96])
def test_a_fit_errs_less_on_other_values_too(size: int) -> None:
    draw = np.random.default_rng(1)
    # A few things that return, as in a stream.
    things = draw.standard_normal((12, size))[draw.integers(0, 12, 6000)]
    values = (things + 0.3 * draw.standard_normal((6000, size))).astype(np.float32)
    rotation = fitted(values[:4000])
    assert rotation.dtype == np.float32
    assert np.allclose(rotation @ rotation.T, np.eye(size), atol=1e-5)
    assert error(values[4000:], rotation) < 0.8 * error(values[4000:], hadamard(size))


def test_error_is_what_sealing_loses() -> None:
    values = np.random.default_rng(2).standard_normal((32, 1, SIZE)).astype(np.float32)
    own = tables()[0]
    one = replace(own, rotations=own.rotations[:1], key_means=own.key_means[:1], feedback=None)
    sealed = seal(values, values, Modality.AUDIO, codec(), one)
    read_back = decode_values(sealed, Modality.AUDIO, codec(), one).swapaxes(0, 1)
    wanted = np.square(read_back - values).sum() / np.square(values).sum()
    found = error(values[:, 0], one.rotations[0, Modality.AUDIO])
    assert found == pytest.approx(wanted, rel=2e-3)


def test_values_of_0_fit_and_lose_nothing() -> None:
    nothing = np.zeros((8, SIZE), np.float32)
    rotation = fitted(nothing)
    assert np.allclose(rotation @ rotation.T, np.eye(SIZE), atol=1e-5)
    assert error(nothing, rotation) == 0


def calibrated(kv_heads: int, size: int) -> LayerTables:
    """Random rotations, and feedback from queries that are not alike in all directions."""
    draw = np.random.default_rng(5)
    queries = draw.standard_normal((kv_heads, 500, size)) * 0.9 ** np.arange(size)
    plain = LayerTables.uncalibrated(0, kv_heads, size)
    turns = np.linalg.qr(draw.standard_normal((kv_heads, len(Modality), size, size)))[0]
    fed = feedback(queries.swapaxes(1, 2) @ queries / 500)
    return replace(plain, rotations=turns.astype(np.float32), feedback=fed)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("size", [64, 96])
def test_calibrated_tables_hold_odd_keys_too(size: int, bits: int) -> None:
    tables, chosen = calibrated(2, size), codec("fitted", bits)
    usual = np.random.default_rng(6).standard_normal((32, 2, size)).astype(np.float32)
    few = 6 + np.abs(usual[:3])
    biased = usual.copy()
    biased[..., 5] += 600
    holes = usual + 5
    holes[7] = holes[20, 1] = 0
    for keys, most in ((usual, 0.6), (few, 0.1), (biased, 0.02), (holes, 0.2), (1e6 * usual, 0.6)):
        sealed = seal(keys, usual[: len(keys)], Modality.AUDIO, chosen, tables)
        found = decode_keys(sealed, chosen, tables).swapaxes(0, 1)
        gap = np.linalg.norm(found[: len(keys)] - keys) / np.linalg.norm(keys)
        assert gap < most
        assert not found[len(keys) :].any()
        assert not found[: len(keys)][~keys.any(axis=-1)].any()
