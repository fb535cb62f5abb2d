"""Telling models apart: a digest of a checkpoint that costs no reading of its weights."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack

from omni_core.checkpoints import Checkpoint, is_wanted
from omni_core.errors import CheckpointError

_SAMPLE = 64
"""Bytes of each tensor that are looked at, in its middle."""


def identity(checkpoint: Checkpoint) -> str:
    """What a model is: its config, its tensors' names, kinds and shapes, and some of each's bytes.

    The same wherever the folder lies, and for another number of files.

    Raises:
        CheckpointError: a weight file cannot be read.
    """
    digest = hashlib.sha256()
    about = [checkpoint.config, checkpoint.preprocessor]
    digest.update(json.dumps(about, sort_keys=True).encode())
    with ExitStack() as files:
        opened = {}
        for name, info in sorted(checkpoint.tensors.items()):
            if not is_wanted(name):
                continue
            try:
                if info.file not in opened:
                    opened[info.file] = files.enter_context(info.file.open("rb"))
                opened[info.file].seek(info.offset + max(0, info.bytes // 2 - _SAMPLE))
                sample = opened[info.file].read(min(_SAMPLE, info.bytes))
            except OSError as error:
                raise CheckpointError(f"{info.file}: cannot be read: {error.strerror}") from None
            digest.update(f"{name} {info.dtype} {info.shape} {sample.hex()}\n".encode())
    return digest.hexdigest()[:32]
