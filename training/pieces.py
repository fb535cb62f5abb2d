"""Saving tensors as files of a limited size, and reading them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

PIECE_BYTES = 15 << 20
RECORD = "state.json"


def save(folder: Path, tensors: dict[str, torch.Tensor], record: dict[str, Any]) -> None:
    """Write ``tensors`` in files of at most 15 MiB, and ``record`` last, which makes it valid."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)
    for old in folder.glob("piece-*.safetensors"):
        old.unlink()
    pieces: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if pieces[-1] and filled + tensor.nbytes > PIECE_BYTES:
            pieces.append({})
            filled = 0
        pieces[-1][name] = tensor.contiguous()
        filled += tensor.nbytes
    for index, piece in enumerate(pieces):
        save_file(piece, folder / f"piece-{index}.safetensors")
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")


def load(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """What :func:`save` wrote, or None where there is no whole checkpoint."""
    if not (folder / RECORD).exists():
        return None
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("piece-*.safetensors")):
        tensors |= load_file(file)
    return tensors, json.loads((folder / RECORD).read_text())
