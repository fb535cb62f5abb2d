"""Make the checkpoint that the app loads: ``python training/export.py TRAINED FOLDER``.

``TRAINED`` is the folder that ``training/embedded.py`` wrote; the result is a normal Hugging Face
folder in float16.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "shared"), str(ROOT / "benchmarks")]

import torch
from safetensors.torch import save_file

from omni_core.errors import CheckpointError
from streamworld import tokens
from training import log, pieces
from training.card import card
from training.claims import claims, plain_tests
from training.model import Model
from training.shape import Shape, preprocessor

TRANSFORMERS = "5.24.0"
"""The release in whose form the config is written."""


def restored(trained: Path, device: torch.device) -> tuple[Model, dict[str, Any]]:
    """The model in float32, as a finished or unfinished training left it, and the record of it.

    Raises:
        CheckpointError: no whole checkpoint, or one whose text backbone has not begun.
    """
    found = pieces.load(trained)
    if found is None:
        raise CheckpointError(f"{trained}: no {pieces.RECORD}: give the --out of a training")
    tensors, record = found
    if record["phase"] != "text":
        raise CheckpointError(
            f"{trained}: training stopped in phase {record['phase']!r}, before the text backbone "
            "began: go on with it first"
        )
    model = Model.build(Shape(**_tuples(record["shape"])), device, record["seed"])
    weights = {n: tensors[f"weight.{n}"].float() for n, _ in model.thinker.named_parameters()}
    model.thinker.load_state_dict(weights)
    return model, record


def export(trained: Path, folder: Path) -> None:
    """Write the Hugging Face folder."""
    model, record = restored(trained, torch.device("cpu"))
    folder.mkdir(parents=True, exist_ok=True)
    save(model, folder)
    lines = log.read(trained)
    (folder / "README.md").write_text(card(model, record, lines))
    (folder / "training_log.json").write_text(_compact(lines))
    _write(folder / "claims.json", claims(plain_tests(lines)))


def save(model: Model, folder: Path) -> None:
    """Weights, configs and tokenizer."""
    halves = {n: tensor.half().contiguous() for n, tensor in model.thinker.released().items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokens.write(folder)
    end, pad = tokens.special("<|im_end|>"), tokens.special("<|endoftext|>")
    _write(folder / "config.json", model.config | {"transformers_version": TRANSFORMERS})
    _write(folder / "preprocessor_config.json", preprocessor())
    _write(folder / "generation_config.json", {"eos_token_id": [end, pad], "pad_token_id": pad})


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}


def _compact(lines: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]\n"


def _write(file: Path, document: dict[str, Any]) -> None:
    text = json.dumps(dict(sorted(document.items())), indent=2, ensure_ascii=False)
    file.write_text(text + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the checkpoint that the app loads.")
    parser.add_argument("trained", type=Path, help="--out of training/embedded.py")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    export(options.trained, options.folder)
