"""From a model's name to a loaded model: what is chosen, and what is refused."""

from __future__ import annotations

import json
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from omni_core import Session
from omni_core.calibration import FORMAT, VERSION
from omni_core.errors import BackendError, CheckpointError, OmniError
from omni_core.retention import Fifo, OmniPick
from omnilive import backends, models
from omnilive.cli import main
from omnilive.live import DEMO
from omnilive.models import load, prepare
from omnilive.tokenizer import FileTokenizer


@pytest.fixture
def checkpoint(tmp_path: Path, untrained: Path) -> Path:
    return Path(shutil.copytree(untrained, tmp_path / "checkpoint"))


def installed(monkeypatch: pytest.MonkeyPatch, *names: str, system: str) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name in names else None

    monkeypatch.setattr(backends, "find_spec", find_spec)
    monkeypatch.setattr(backends.platform, "system", lambda: system)


@pytest.mark.parametrize(
    ("names", "system", "chosen"),
    [
        (("mlx", "torch", "transformers"), "Linux", "cuda"),
        (("mlx", "torch", "transformers"), "Darwin", "mlx"),
        (("mlx", "torch"), "Linux", "mlx"),
        (("mlx",), "Linux", "mlx"),
        (("torch", "transformers"), "Darwin", "cuda"),
    ],
)
def test_which_backend_auto_takes(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], system: str, chosen: str
) -> None:
    installed(monkeypatch, *names, system=system)
    assert backends.choose("auto") == chosen


def test_a_backend_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "mlx", system="Linux")
    with pytest.raises(BackendError, match="needs torch, which is not installed"):
        backends.choose("cuda")
    installed(monkeypatch, system="Linux")
    with pytest.raises(BackendError, match=r"no backend is installed; run `pip install"):
        backends.choose("auto")


@pytest.mark.parametrize("name", ["mlx", "cuda"])
@pytest.mark.parametrize("weights", ["auto", "f32", "bf16"])
def test_the_element_told_before_loading_is_the_backends(name: str, weights: str) -> None:
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    ready = prepare(backend=name, device="cpu", weights=weights)
    assert ready.element == ready.load().backend.element


@pytest.mark.shipped
def test_the_embedded_checkpoint_says_that_it_is_trained() -> None:
    assert prepare().trained


def test_an_untrained_checkpoint_says_that_it_is(untrained: Path) -> None:
    assert not prepare(str(untrained)).trained


def test_a_folder_is_found_again_from_elsewhere(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    assert models.location("checkpoint") == str(checkpoint.resolve())
    assert models.location("embedded") == "embedded"
    assert models.location("owner/name") == "owner/name"


def test_no_such_folder() -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        prepare("./nowhere")


def test_code_in_a_checkpoint_never_runs(checkpoint: Path, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(trap)!r}).touch()\n"
    (checkpoint / "modeling_evil.py").write_text(code)
    for file in ("config.json", "preprocessor_config.json"):
        before = (checkpoint / file).read_text()
        config = json.loads(before) | {"auto_map": {"AutoModel": "modeling_evil.Model"}}
        (checkpoint / file).write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=f"{file}: `auto_map` names code"):
            prepare(str(checkpoint))
        (checkpoint / file).write_text(before)
    prepare(str(checkpoint))
    assert not trap.exists()


def test_pickled_weights_are_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="a pickle, which can run code"):
        prepare(str(checkpoint))


def test_truncated_weights_name_the_tensor(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"truncated: tensor [a-z]"):
        prepare(str(checkpoint))


@pytest.mark.parametrize("name", ["mlx", "cuda"])
def test_weights_of_another_shape_name_the_tensor(checkpoint: Path, name: str) -> None:
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"]["intermediate_size"] += 64
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"tensor .*mlp.* has shape"):
        prepare(str(checkpoint), backend=name, device="cpu").load()


def test_a_device_that_is_not_there() -> None:
    pytest.importorskip("torch")
    with pytest.raises(OmniError, match="device"):
        prepare(backend="cuda", device="tpu").load()


def byte_level_files(folder: Path) -> int:
    """Write vocab.json and merges.txt with all bytes and a few words; the next free id."""
    entry = json.loads((models.EMBEDDED_FOLDER / "tokenizer.json").read_text())
    letters = [token for token in entry["model"]["vocab"] if len(token) == 1]
    assert len(letters) == 256
    merges = ["h i", "Ġ hi", "1 2", "' s", "Ċ Ċ"]
    tokens = letters + [merge.replace(" ", "") for merge in merges]
    vocab = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    return len(tokens)


def write_added(folder: Path, number: int) -> None:
    added = {str(number): {"content": "<|im_end|>", "special": True}}
    text = json.dumps({"added_tokens_decoder": added})
    (folder / "tokenizer_config.json").write_text(text)


def test_tokenizer_from_vocab_and_merges(tmp_path: Path) -> None:
    end = byte_level_files(tmp_path)
    write_added(tmp_path, end)
    tokenizer = FileTokenizer(tmp_path)
    ids = tokenizer.encode("hi hi<|im_end|>")
    assert len(ids) == 3 and ids[-1] == end
    assert tokenizer.decode(ids) == "hi hi"
    write_added(tmp_path, end + 7)
    with pytest.raises(CheckpointError, match="of different checkpoints"):
        FileTokenizer(tmp_path)


def test_vocab_and_merges_cut_words_as_qwen2_does(tmp_path: Path) -> None:
    qwen2 = pytest.importorskip("transformers").Qwen2Tokenizer
    byte_level_files(tmp_path)
    theirs = qwen2(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    ours = FileTokenizer(tmp_path)
    for text in ("hi hi", "it's 12, not 123!\n\n  hi", "Ünïcode \u00e9 e\u0301 漢字", "a\t b  "):
        ids = ours.encode(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]


def test_tokenizer_files_that_are_missing_or_damaged(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not readable as a tokenizer"):
        prepare(str(checkpoint))
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer.json, and no vocab.json"):
        prepare(str(checkpoint))


def test_what_suits_a_model_comes_with_it(untrained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(untrained, folder)
    content = {"format": FORMAT, "version": VERSION, "sinks": {"vision": 0}, "share": 0.8}
    (folder / "retention.json").write_text(json.dumps(content))
    pytest.importorskip("mlx.core")
    model = load(str(folder), backend="mlx", device="cpu")
    assert model.omnipick == OmniPick(vision=0, share=0.8)
    assert Session(model, budget=1024).policy == model.omnipick
    assert Session(model, budget=1024, retention="fifo").policy == Fifo()
    assert Session(model, budget=1024, retention=OmniPick()).policy == OmniPick()
    recording = tmp_path / "run"
    command = ["live", "--fast", "--duration", "2", "--model", str(folder), "--backend", "mlx"]
    assert main([*command, "--source", str(DEMO), "--record", str(recording)]) == 0
    assert json.loads((recording / "session.json").read_text())["policy"]["share"] == 0.8
    (folder / "retention.json").write_text("{")
    assert main([*command, "--source", str(DEMO)]) == 1
