"""Loading: as released, tied heads, and files that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import BackendError, CheckpointError
from omni_core.frontend.base import VisionInput
from tests.parity import tiny as checkpoints
from tests.parity.oracle import distance, logits, text, torch
from tests.parity.planner import Planner
from tests.parity.playing import play
from tests.parity.tiny import load_file, save_file

KEY = "model.layers.1.self_attn.k_proj.bias"


def _same_logits(backend: Any, tiny: Any) -> None:
    tokens = text(12)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(tiny.shape))
    found = play(backend, planner, tokens, [12])
    assert distance(found, logits(tiny.model, tokens)) < 1e-4


@pytest.fixture
def folder(tiny_of: Any, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(tiny_of("4-2-16").folder, tmp_path / "copy"))


def _rewrite(folder: Path, changed: dict[str, torch.Tensor | None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | {name: t for name, t in changed.items() if t is not None}
    save_file({name: t for name, t in tensors.items() if changed.get(name, t) is not None}, file)


def test_released_layout_without_its_speech_output(twin: Any, tiny_of: Any, tmp_path: Path) -> None:
    tiny = tiny_of("6-2-32")
    released = checkpoints.save_released(tiny.folder, tmp_path / "released")
    _same_logits(twin.load(released), tiny)


def test_tied_head(twin: Any, tiny_of: Any) -> None:
    tiny = tiny_of("3-3-16")
    assert "lm_head.weight" not in load_file(tiny.folder / "model.safetensors")
    _same_logits(twin.load(tiny.folder), tiny)


def test_a_missing_head_that_is_not_tied(twin: Any, folder: Path) -> None:
    _rewrite(folder, {"lm_head.weight": None})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        twin.load(folder)


@pytest.mark.parametrize(
    "name",
    [
        KEY,
        "model.embed_tokens.weight",
        "model.norm.weight",
        "visual.merger.mlp.2.weight",
        "visual.patch_embed.proj.weight",
        "audio_tower.conv2.bias",
        "audio_tower.layers.0.self_attn.k_proj.weight",
    ],
)
def test_a_missing_tensor_is_named(twin: Any, folder: Path, name: str) -> None:
    _rewrite(folder, {name: None})
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        twin.load(folder)


@pytest.mark.parametrize("name", [KEY, "visual.blocks.2.attn.q.weight", "audio_tower.conv1.weight"])
def test_a_tensor_of_another_shape_is_named(twin: Any, folder: Path, name: str) -> None:
    _rewrite(folder, {name: torch.zeros(5, 3)})
    with pytest.raises(CheckpointError, match=rf"tensor {name} has shape \[5, 3\]"):
        twin.load(folder)


def test_a_truncated_file_names_a_tensor(twin: Any, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"truncated: tensor \S+"):
        twin.load(folder)


def test_a_field_without_default_is_named(twin: Any, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["text_config"]["rope_parameters"]["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="rope_theta"):
        twin.load(folder)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("text_config", "hidden_act", "gelu"),
        ("vision_config", "hidden_act", "gelu"),
        ("vision_config", "rope_theta", 5000.0),
        ("audio_config", "activation_function", "relu"),
        ("text_config", "num_hidden_layers", 3),
        ("vision_config", "depth", 2),
        ("audio_config", "encoder_layers", 10**9),
    ],
)
def test_what_a_twin_would_ignore_is_refused(
    twin: Any, folder: Path, section: str, field: str, value: Any
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config[section].pop("layer_types", None)
    config[section][field] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=field):
        twin.load(folder)


def test_an_alias_in_the_config_changes_nothing(twin: Any, folder: Path) -> None:
    draw = np.random.default_rng(0)
    patches = draw.standard_normal((24, 1176)).astype(np.float32)
    media = [VisionInput(patches, (1, 4, 6))], [draw.standard_normal((32, 90)).astype(np.float32)]
    before = twin.array(twin.load(folder).encode(*media))
    config = json.loads((folder / "config.json").read_text())
    config["audio_config"] |= {"num_attention_heads": 4, "num_hidden_layers": 1}
    config["vision_config"] |= {"num_attention_heads": 1, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    assert np.array_equal(twin.array(twin.load(folder).encode(*media)), before)


def test_half_precision_files_load_as_float32(twin: Any, tiny_of: Any, folder: Path) -> None:
    tiny = tiny_of("4-2-16")
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t.bfloat16() for n, t in tensors.items()}, folder / "model.safetensors")
    tokens = text(12)
    backend = twin.load(folder)
    planner = Planner(pages=1)
    backend.allocate(planner.layout(tiny.shape))
    found = play(backend, planner, tokens, [12])
    assert 1e-5 < distance(found, logits(tiny.model, tokens)) < 0.1


def test_an_unknown_device_is_one_line(twin: Any, tiny_of: Any) -> None:
    with pytest.raises(BackendError) as raised:
        type(twin)(twin.name, "abacus").load(tiny_of("4-2-16").folder)
    assert "abacus" in str(raised.value)
    assert "\n" not in str(raised.value)
