"""Checkpoint folders: what is read, and what is refused in one line."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from omni_core.checkpoints import open_checkpoint, wanted_shards
from omni_core.errors import CheckpointError
from omni_core.model_config import thinker_config

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
TEXT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "rope_parameters": ROPE,
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "window_size": 56,
    "fullatt_block_indexes": [1],
    "out_hidden_size": 64,
}
AUDIO = {
    "encoder_layers": 2,
    "d_model": 32,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "num_mel_bins": 32,
    "max_source_positions": 100,
    "n_window": 50,
    "output_dim": 64,
}
THINKER = {
    "model_type": "qwen2_5_omni_thinker",
    "text_config": TEXT,
    "vision_config": VISION,
    "audio_config": AUDIO,
}


def without(config: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != name}


def safetensors(tensors: dict[str, list[int]], spare: int = 0) -> bytes:
    """A file of float32 zeros, ``spare`` bytes longer or shorter than it should be."""
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at + spare)


def folder(path: Path, config: dict[str, Any] | None = None, weights: bytes | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(THINKER if config is None else config))
    (path / "model.safetensors").write_bytes(
        safetensors({"a": [2, 3], "b": [4]}) if weights is None else weights
    )
    return path


def test_a_whole_folder_opens(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folder(tmp_path / "m"))
    assert {name: info.shape for name, info in checkpoint.tensors.items()} == {
        "a": (2, 3),
        "b": (4,),
    }
    assert checkpoint.require("a", (2, 3)).dtype == "F32"
    with pytest.raises(CheckpointError, match=r"tensor c is missing"):
        checkpoint.require("c", (1,))
    with pytest.raises(CheckpointError, match=r"tensor b has shape \[4\].*\[5\]"):
        checkpoint.require("b", (5,))


def test_shards_of_the_talker_are_not_needed(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    (path / "model.safetensors").rename(path / "one.safetensors")
    names = {"thinker.a": "one.safetensors", "talker.x": "two.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert wanted_shards(names) == ["one.safetensors"]
    assert "a" in open_checkpoint(path).tensors
    names["thinker.b"] = "three.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match=r"three\.safetensors"):
        open_checkpoint(path)
    names["thinker.b"] = "../three.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match="outside"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (safetensors({"a": [2, 3], "b": [400]}, spare=-8), "truncated: tensor b"),
        (b"\x00" * 5, "incomplete"),
        (b"PK\x03\x04" + bytes(100), "safetensors"),
        (struct.pack("<Q", 9) + b"not json!", "header"),
        (struct.pack("<Q", 2) + b"[]", "header"),
        (struct.pack("<Q", 14) + b'{"a": "wrong"}', "tensor a"),
        (safetensors({"a": [2, 3]}, spare=100), "100 bytes follow the last tensor"),
        (struct.pack("<Q", 10**5) + b"[" * 10**5, "nested too deeply"),
    ],
)
def test_damaged_weights_name_what_is_wrong(tmp_path: Path, weights: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(folder(tmp_path / "m", weights=weights))
    assert "\n" not in str(caught.value)


def test_a_tensor_whose_bytes_do_not_match_its_shape_is_named(tmp_path: Path) -> None:
    header = {"w": {"dtype": "BF16", "shape": [3, 3], "data_offsets": [0, 36]}}
    text = json.dumps(header).encode()
    weights = struct.pack("<Q", len(text)) + text + bytes(36)
    with pytest.raises(CheckpointError, match=r"tensor w spans 36 bytes.*takes 18"):
        open_checkpoint(folder(tmp_path / "m", weights=weights))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": [float("inf")]}, r"shape is \[inf\]"),
        ({"shape": [1.5, 2]}, r"shape is \[1\.5, 2\]"),
        ({"shape": [-2, -3]}, r"shape is \[-2, -3\]"),
        ({"shape": [True, 6]}, "shape is"),
        ({"shape": "ab"}, "shape is 'ab'"),
        ({"shape": None}, "shape is None"),
        ({"dtype": None}, "dtype is None, expected one of F64"),
        ({"dtype": ["F32"]}, "dtype is"),
        ({"data_offsets": [0, 24, 25]}, "data_offsets is"),
        ({"data_offsets": [24, 0]}, "data_offsets is"),
        ({"data_offsets": [0.0, 24.0]}, "data_offsets is"),
        ({"data_offsets": [float("inf"), 24]}, "data_offsets is"),
        ({"data_offsets": [8, 32]}, "tensor a begins at byte 8, expected 0"),
    ],
)
def test_a_tensor_that_is_described_wrongly_is_named(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes
    text = json.dumps({"a": entry}).encode()
    weights = struct.pack("<Q", len(text)) + text + bytes(32)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(folder(tmp_path / "m", weights=weights))
    assert "tensor a" in str(caught.value)


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    span = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"a": span, "b": span | {"data_offsets": [4, 12]}}).encode()
    weights = struct.pack("<Q", len(text)) + text + bytes(12)
    with pytest.raises(CheckpointError, match=r"tensor b begins at byte 4.*shares bytes"):
        open_checkpoint(folder(tmp_path / "m", weights=weights))


def test_names_out_of_a_file_cannot_steer_a_terminal(tmp_path: Path) -> None:
    text = json.dumps({"\x1b[31mevil\n": {"dtype": "F32", "shape": [1]}}).encode()
    weights = struct.pack("<Q", len(text)) + text
    with pytest.raises(CheckpointError, match="evil") as caught:
        open_checkpoint(folder(tmp_path / "m", weights=weights))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ("x", "has no `weight_map`"),
        ([1], "has no `weight_map`"),
        ({}, "has no `weight_map`"),
        (None, "has no `weight_map`"),
        ({"a": 5}, "`weight_map` has 5 for tensor a"),
        ({"a": None}, "`weight_map` has None for tensor a"),
        ({"a": ""}, "`weight_map` has ''"),
        ({"a": ".."}, "`weight_map` has '..'"),
        ({"a": "x\0y"}, "`weight_map` has 'x"),
        ({"a": "/etc/passwd"}, "outside of the folder"),
        ({"a": "sub/x"}, "outside of the folder"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path: Path, weight_map: Any, words: str) -> None:
    path = folder(tmp_path / "m")
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(path)
    assert index.name in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "preprocessor_config.json"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str, kind: str) -> None:
    file = folder(tmp_path / "m") / name
    file.unlink(missing_ok=True)
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=f"{name}: is no regular file"):
        open_checkpoint(file.parent)


def test_a_link_to_a_file_is_opened(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    (path / "model.safetensors").rename(tmp_path / "blob")
    (path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert "a" in open_checkpoint(path).tensors


@pytest.mark.parametrize("key", ["auto_map", "model_file"])
def test_code_in_a_checkpoint_is_refused_by_name(tmp_path: Path, key: str) -> None:
    nested = {**THINKER, "text_config": {**TEXT, key: {"AutoModel": "evil.Model"}}}
    listed = {**THINKER, "parts": [1, [{"deep": {key: "evil.py"}}]]}
    for config in ({**THINKER, key: "evil.py"}, nested, listed):
        with pytest.raises(CheckpointError, match=f"config.json: `{key}` names code"):
            open_checkpoint(folder(tmp_path / "m", config=config))
    for name in ("tokenizer_config.json", "preprocessor_config.json"):
        path = folder(tmp_path / name)
        (path / name).write_text(json.dumps({"a": {key: None}}))
        with pytest.raises(CheckpointError, match=f"{name}: `{key}` names code"):
            open_checkpoint(path)


def test_pickles_are_refused_by_name(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        open_checkpoint(path)
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, a pickle"):
        open_checkpoint(path)


def test_missing_and_damaged_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "nowhere")
    path = folder(tmp_path / "m")
    for text in ("{", "[]", "\xff", "[" * 10**5, '{"a": ' + "9" * 5000 + "}"):
        (path / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(CheckpointError, match=r"config\.json"):
            open_checkpoint(path)


def test_shapes_are_read_from_both_layouts_and_both_spellings_of_rope() -> None:
    config = thinker_config(THINKER)
    assert config.prefix == "" and config.text.head_dim == 16 and config.text.rope_theta == 1e6
    old = {
        **without(TEXT, "rope_parameters"),
        "rope_theta": 5e5,
        "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]},
    }
    whole = thinker_config(
        {"model_type": "qwen2_5_omni", "thinker_config": {**THINKER, "text_config": old}}
    )
    assert whole.prefix == "thinker." and whole.text.rope_theta == 5e5
    assert whole.text.mrope_section == (2, 3, 3)


def test_a_missing_rope_theta_is_named_and_never_10000() -> None:
    rope = without(ROPE, "rope_theta")
    with pytest.raises(CheckpointError, match="rope_theta"):
        thinker_config({**THINKER, "text_config": {**TEXT, "rope_parameters": rope}})


@pytest.mark.parametrize("section", ["text_config", "vision_config", "audio_config"])
def test_every_missing_field_is_named(section: str) -> None:
    optional = {"rope_parameters"}
    for name in set(THINKER[section]) - optional:  # type: ignore[call-overload]
        config = {**THINKER, section: without(THINKER[section], name)}
        with pytest.raises(CheckpointError, match=name):
            thinker_config(config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_parameters": {**ROPE, "mrope_section": [2, 2, 2]}}, "mrope_section"),
        ({"rope_parameters": {**ROPE, "rope_type": "yarn"}}, "yarn"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"num_key_value_heads": 3}, "3 key heads"),
    ],
)
def test_shapes_that_cannot_be_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        thinker_config({**THINKER, "text_config": {**TEXT, **change}})


def test_other_model_families_are_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="llama"):
        thinker_config({"model_type": "llama"})
