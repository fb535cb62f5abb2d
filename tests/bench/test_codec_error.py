"""The codec benchmark: its rivals, its measures, its verdict, and what is captured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import codec_calibrated as calibrated
from benchmarks import codec_error, harness
from benchmarks.codec_capture import Captured, attention, of_stream
from benchmarks.codec_losses import (
    FEEDBACK,
    MODAL,
    PAPER,
    SHARED,
    biased,
    methods_of,
    rows_of,
    scores,
    tables_of,
)
from benchmarks.codec_rivals import Ours, rivals
from benchmarks.perplexity_model import NotInstalledError
from omni_core.frontend.base import SAMPLE_RATE, UnitMedia
from omni_core.quantization import codec
from omni_core.reference.attention import masked_attention
from omni_core.units import Modality

HEADS, KV_HEADS, SIZE = 4, 2, 64


def stream(seed: int, tokens: int = 160) -> Captured:
    draw = np.random.default_rng(seed)
    queries = draw.standard_normal((2, tokens, HEADS, SIZE)).astype(np.float32)
    keys, values = draw.standard_normal((2, 2, tokens, KV_HEADS, SIZE)).astype(np.float32)
    # Each modality says a few things of its own, over and over.
    modality = (np.arange(tokens) // 5 % 3).astype(np.int8)
    things = np.random.default_rng(1).standard_normal((3, 6, KV_HEADS, SIZE))
    said = things[modality, draw.integers(0, 6, tokens)]
    values = (said + 0.3 * values).astype(np.float32)
    kept = np.arange(tokens) % 3 > 0
    return Captured("small", queries, keys, values, modality, kept)


def test_attention_is_the_oracles() -> None:
    one = stream(0)
    found = attention(one.queries[0], one.keys[0], one.values[0])
    order = np.arange(160)
    wanted = masked_attention(
        one.queries[0], one.keys[0], one.values[0], order, order, np.zeros(160), SIZE**-0.5
    )
    assert np.allclose(found, wanted, atol=1e-5)
    dots = np.einsum("td,nd->tn", one.queries[0, :, 3], one.keys[0, :, 1]) * SIZE**-0.5
    assert np.allclose(scores(one.queries[0], one.keys[0])[3], dots, atol=1e-4)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_rivals_read_back_what_their_bits_allow(bits: int) -> None:
    draw = np.random.default_rng(2)
    keys, values = draw.standard_normal((2, 32, KV_HEADS, SIZE)).astype(np.float32)
    for method in rivals(bits):
        found = method(0, keys, values, Modality.TEXT)
        for read, given in zip(found, (keys, values), strict=True):
            error = np.linalg.norm(read - given) / np.linalg.norm(given)
            assert 0.02 < error < (0.62, 0.27, 0.13)[bits - 2]
        assert all(bits < stored <= bits + 1.3 for stored in method.stored_bits(SIZE))


def test_groups_are_of_one_modality_and_of_survivors() -> None:
    one = stream(0)
    for kept in (False, True):
        groups = one.groups(Modality.AUDIO, kept)
        assert groups.shape == (1, 32)
        assert (one.modality[groups] == Modality.AUDIO).all()
        assert (np.diff(groups.reshape(-1)) > 0).all()
    assert one.survives[one.groups(Modality.AUDIO, True)].all()


def test_rows_and_claims(tmp_path: Path) -> None:
    one, others = stream(0), [stream(1, 900), stream(2, 900)]
    plain = calibrated.plain(one)
    methods = methods_of(plain, tables_of(plain, others, True), 2)
    rows = [*rows_of(one, methods, range(2)), *biased(one, 1)]
    names = {row["codec"] for row in rows}
    assert {"fitted", "omnikvquant", PAPER, FEEDBACK, SHARED, MODAL, "TurboQuant-like"} <= names
    assert all(row["score_error"] > 0 for row in rows)
    claims = {claim.name: claim for claim in codec_error.claims(rows)}
    assert len(claims) == 3 + 4 + 3 * 3 + 1
    # What the streams were made to show.
    for kind in ("text", "vision", "audio"):
        of_kind = {
            peer: claims[f"small: rotation a modality over {peer}, {kind} values"].value
            for peer in ("one for all", "Hadamard", "paper's")
        }
        assert 0.4 < of_kind["Hadamard"] < of_kind["one for all"] < 1.05
    assert (
        claims["small: fitted over omnikvquant, all bits, worst layer's score error"].value < 0.95
    )
    assert len(codec_error.lines(rows)) == 2 * len(methods)
    assert harness.Report("codec-error", rows, list(claims.values())).write(tmp_path).exists()


def test_means_take_a_bias_away() -> None:
    rows = {row["codec"]: row for row in biased(stream(0, 480), 1)}
    for name in ("fitted", "omnikvquant"):
        for measure in ("bias", "bias_apart"):
            assert rows[f"{name}, means"][measure] < 0.7 * rows[name][measure]


def test_a_modality_that_never_came_keeps_hadamard() -> None:
    one = stream(0)
    mute = Captured(
        *(one.model, one.queries, one.keys, one.values, np.minimum(one.modality, 1), one.survives)
    )
    plain = calibrated.plain(one)
    found = calibrated.with_rotations(plain, [mute])
    for own, was in zip(found, plain, strict=True):
        same = [np.array_equal(own.rotations[:, kind], was.rotations[:, kind]) for kind in Modality]
        assert same == [False, False, True]


def test_a_stream_is_captured_as_the_model_attends(untrained: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from omnilive import load

    model = load(str(untrained), backend="cuda", device="cpu", weights="f32")
    draw = np.random.default_rng(0)
    units = [
        UnitMedia(
            second,
            second + 1,
            (draw.integers(0, 255, (56, 56, 3), np.uint8),),
            draw.standard_normal(SAMPLE_RATE).astype(np.float32),
        )
        for second in range(8)
    ]
    found = of_stream(model, units, "untrained", 256)
    layers, tokens = found.keys.shape[:2]
    assert layers == model.text.layers and tokens == found.modality.size == found.survives.size
    assert set(found.modality.tolist()) == {0, 1, 2}
    assert 0 < found.survives.sum() <= tokens
    again = of_stream(model, units[:2], "untrained", 256)
    # What was captured does not depend on what came later.
    count = again.keys.shape[1]
    assert np.allclose(again.keys, found.keys[:, :count], atol=1e-4)
    method = Ours(codec(), calibrated.plain(found), "fitted")
    assert [row["codec"] for row in rows_of(found, [method], [0])] == ["fitted", "fitted"]


def test_a_model_that_is_not_installed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")

    def absent(count: int) -> None:
        raise NotInstalledError("run `pip install it`")

    monkeypatch.setattr(codec_error, "embedded", lambda: (stream(0), [stream(1)]))
    monkeypatch.setattr(codec_error, "smollm2", absent)
    codec_error.main(["--quick", "--out", str(tmp_path)])
    assert "run `pip install it`" in capsys.readouterr().err
