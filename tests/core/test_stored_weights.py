"""Config, weights and tokenizer against each other, before any module is built."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from frontend_family import config

from omni_core.checkpoints import Checkpoint, open_checkpoint
from omni_core.errors import CheckpointError
from omni_core.model_config import thinker_config
from omni_core.safetensors_header import TensorInfo
from omni_core.stored_weights import check_weights, has_own_head, tensors

TEXT, VISION, AUDIO = "model.layers.", "visual.blocks.", "audio_tower.layers."


def checkpoint(path: Path, prefix: str = "", **changes: Any) -> Checkpoint:
    """What the family's config asks for, all there."""
    made = config()
    if prefix:
        made = {"model_type": "qwen2_5_omni", "thinker_config": made}
    file = path / "model.safetensors"
    stored = {
        name: TensorInfo(file, "BF16", shape) for name, shape in tensors(thinker_config(made), True)
    }
    return Checkpoint(path, made, {}, stored | changes)


def check(found: Checkpoint, **changes: Any) -> None:
    """Check it against its config, with fields of ``text``, ``vision`` or ``audio`` changed."""
    thinker = thinker_config(found.config)
    parts = {name: replace(getattr(thinker, name), **new) for name, new in changes.items()}
    check_weights(found, replace(thinker, **parts))


@pytest.mark.parametrize("prefix", ["", "thinker."])
def test_a_whole_thinker_passes_under_either_prefix(tmp_path: Path, prefix: str) -> None:
    found = checkpoint(tmp_path, prefix)
    assert f"{prefix}visual.merger.mlp.2.bias" in found.tensors
    check(found)


def test_names_and_shapes_are_those_that_transformers_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    theirs = transformers.Qwen2_5OmniThinkerConfig(**config())
    transformers.Qwen2_5OmniThinkerForConditionalGeneration(theirs).save_pretrained(tmp_path)
    found = open_checkpoint(tmp_path)
    written = {name: info.shape for name, info in found.tensors.items()}
    assert dict(tensors(thinker_config(found.config), True)) == written


@pytest.mark.parametrize(
    ("layers", "part", "field"),
    [(TEXT, "text", "layers"), (VISION, "vision", "depth"), (AUDIO, "audio", "layers")],
)
@pytest.mark.parametrize("number", [1, 3, 10**9])
def test_another_number_of_layers_names_both(
    tmp_path: Path, layers: str, part: str, field: str, number: int
) -> None:
    found = checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=f"says {number} layers .* weights hold 2 ") as caught:
        check(found, **{part: {field: number}})
    assert layers in str(caught.value)


def test_weights_without_the_prefix_that_the_config_means(tmp_path: Path) -> None:
    found = checkpoint(tmp_path)
    released = {"model_type": "qwen2_5_omni", "thinker_config": found.config}
    with pytest.raises(CheckpointError, match=r"hold 0 \(thinker\.model\.layers\."):
        check(replace(found, config=released))


@pytest.mark.parametrize("kind", ["F64", "I8", "F8_E4M3"])
def test_weights_that_are_stored_otherwise_are_refused(tmp_path: Path, kind: str) -> None:
    name = "visual.blocks.1.attn.k.bias"
    found = checkpoint(tmp_path)
    found.tensors[name] = replace(found.tensors[name], dtype=kind)
    with pytest.raises(CheckpointError, match=f"{name} is stored as {kind}, expected one of F32"):
        check(found)


def test_a_head_may_be_missing_only_where_it_is_tied(tmp_path: Path) -> None:
    found = checkpoint(tmp_path)
    assert has_own_head(found, thinker_config(found.config))
    del found.tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        check(found)
    check(found, text={"tied": True})


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"tokenizer.json": {"model": {"vocab": {"a": 0, "b": 5000}}}}, "'b' has id 5000"),
        ({"tokenizer.json": {"model": {"vocab": {"a": -1}}}}, "'a' has id -1"),
        ({"tokenizer.json": {"model": {"vocab": {"a": "1"}}}}, "'a' has id '1'"),
        ({"tokenizer.json": {"model": {"vocab": [["a", 0.0]] * 513}}}, "has id 512"),
        ({"tokenizer.json": {"added_tokens": [{"content": "<x>", "id": 512}]}}, "'<x>' has id 512"),
        ({"vocab.json": {"a": 0, "b": 512}}, "'b' has id 512"),
        (
            {
                "vocab.json": {"a": 0},
                "tokenizer_config.json": {"added_tokens_decoder": {"512": {"content": "<x>"}}},
            },
            "has id 512",
        ),
    ],
)
def test_a_tokenizer_with_more_ids_than_the_vocabulary(
    tmp_path: Path, files: dict[str, Any], says: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=f"{says}, expected 0 to 511 .* vocabulary of 512"):
        check(checkpoint(tmp_path))


def test_a_tokenizer_within_the_vocabulary_passes(tmp_path: Path) -> None:
    whole = {
        "model": {"vocab": {"a": 0, "b": 510}},
        "added_tokens": [{"content": "<x>", "id": 511}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    (tmp_path / "vocab.json").write_text("{}")
    check(checkpoint(tmp_path))
