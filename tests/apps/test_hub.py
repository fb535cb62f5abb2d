"""Hub checkpoints: only what is read is fetched, code is refused before weights come."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest

from omni_core.errors import CheckpointError
from omnilive import hub


class Hub:
    """Stands in for the hub: notes what is asked for and lays out a folder named after a commit."""

    def __init__(self, folder: Path, config: dict[str, object], index: dict[str, str]) -> None:
        self.folder = folder / "c0ffee"
        self.folder.mkdir()
        (self.folder / "config.json").write_text(json.dumps(config))
        if index:
            text = json.dumps({"weight_map": index})
            (self.folder / "model.safetensors.index.json").write_text(text)
        self.asked: list[tuple[str | None, list[str]]] = []

    def snapshot_download(
        self, model: str, *, revision: str | None, allow_patterns: list[str]
    ) -> str:
        self.asked.append((revision, allow_patterns))
        return str(self.folder)


def stand_in(
    monkeypatch: pytest.MonkeyPatch, folder: Path, config: dict[str, object], index: dict[str, str]
) -> Hub:
    made = Hub(folder, config, index)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    return made


def test_only_the_thinkers_shards_of_one_revision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index = {
        "thinker.model.embed_tokens.weight": "a.safetensors",
        "thinker.lm_head.weight": "b.safetensors",
        "talker.model.norm.weight": "c.safetensors",
        "token2wav.x": "d.safetensors",
    }
    made = stand_in(monkeypatch, tmp_path, {}, index)
    assert hub.fetch("owner/name") == made.folder
    (_, small), (revision, shards) = made.asked
    assert not any(name.endswith((".safetensors", ".py", ".bin")) for name in small)
    assert revision == "c0ffee"
    assert shards == ["a.safetensors", "b.safetensors"]


def test_a_checkpoint_without_an_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = stand_in(monkeypatch, tmp_path, {}, {})
    hub.fetch("owner/name")
    assert made.asked[1][1] == ["model.safetensors"]


def test_code_is_refused_before_weights_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = stand_in(monkeypatch, tmp_path, {"auto_map": {"AutoModel": "evil.Model"}}, {})
    with pytest.raises(CheckpointError, match="auto_map"):
        hub.fetch("owner/name")
    assert len(made.asked) == 1


def test_offline_and_not_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="the hub cannot be reached") as error:
        hub.fetch("omnilive-tests/no-such-model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "is_id"),
    [
        ("Qwen/Qwen2.5-Omni-3B", True),
        ("embedded", False),
        ("./some/folder", False),
        ("/some/folder", False),
        ("a/b/c", False),
        ("../x", False),
    ],
)
def test_what_a_hub_id_looks_like(model: str, is_id: bool) -> None:
    assert hub.is_hub_id(model) is is_id


def test_a_folder_of_that_name_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not hub.is_hub_id("owner/name")
