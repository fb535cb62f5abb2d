"""Fetching a checkpoint from the Hugging Face hub: the files that are read, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from omni_core.checkpoints import read_json, refuse_code, wanted_shards
from omni_core.errors import CheckpointError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_INDEX = "model.safetensors.index.json"
_SMALL = [
    "config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "retention.json",
    "claims.json",
    _INDEX,
]


def is_hub_id(model: str) -> bool:
    """Whether ``model`` has the form ``owner/name`` and is no path that exists."""
    return _ID.fullmatch(model) is not None and not Path(model).exists()


def fetch(model: str) -> Path:
    """Download what is needed of a hub checkpoint, or find it in the cache.

    Configs come first and are checked, then the weight shards that hold the thinker. Progress
    goes to stderr.

    Raises:
        CheckpointError: unknown, gated, not reachable, or a checkpoint that wants to run code.
    """
    folder = _snapshot(model, None, _SMALL)
    config = folder / "config.json"
    refuse_code(read_json(config), config)
    index = folder / _INDEX
    shards = ["model.safetensors"]
    if index.exists():
        shards = wanted_shards(read_json(index).get("weight_map") or {})
    # The first snapshot's folder is named after its commit: both calls see one revision.
    return _snapshot(model, folder.name, shards)


def _snapshot(model: str, revision: str | None, files: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise CheckpointError(
            f"{model}: no such folder here, and the hub needs huggingface_hub, which cannot be "
            f"loaded: {error}; pip install -e . in the checkout, or give a checkpoint folder"
        ) from None
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=files))
    except GatedRepoError:
        raise CheckpointError(
            f"{model}: gated on the hub; accept its terms there and run `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise CheckpointError(
            f"{model}: no such folder here and no such model on the hub; check the name"
        ) from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"{model}: no such folder here, and the hub cannot be reached or HF_HUB_OFFLINE is "
            "set; go online once, or give a checkpoint folder"
        ) from None
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{model}: the download failed: {reason}; run it again") from None
