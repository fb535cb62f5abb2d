"""From safetensors to modules: only the thinker's tensors are read."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from omni_core.checkpoints import Checkpoint
from omni_core.errors import CheckpointError
from omni_core.model_config import ThinkerConfig
from omni_core.stored_weights import has_own_head
from omni_cuda.backbone import Backbone
from omni_cuda.int8 import quantise


def fill(
    module: nn.Module, checkpoint: Checkpoint, prefix: str, device: torch.device, dtype: torch.dtype
) -> None:
    """Read the tensors of a checked module, as ``dtype`` on ``device``.

    Raises:
        CheckpointError: a shard changed or cannot be read.
    """
    shards: dict[Path, list[str]] = defaultdict(list)
    for name in module.state_dict():
        shards[checkpoint.tensors[prefix + name].file].append(name)
    state = {}
    for file, names in shards.items():
        try:
            with safe_open(file, framework="pt") as stored:
                for name in names:
                    # A copy, since the file stays mapped behind the tensor that was read.
                    value = stored.get_tensor(prefix + name)
                    state[name] = value.to(device, dtype, copy=True)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file}: not readable ({error}); fetch it again") from None
    module.load_state_dict(state, assign=True)


def fill_backbone(
    backbone: Backbone,
    checkpoint: Checkpoint,
    config: ThinkerConfig,
    device: torch.device,
    dtype: torch.dtype,
    bits: int | None,
) -> None:
    """Read the backbone layer by layer, so that quantising never holds it whole in ``dtype``."""
    prefix = config.prefix + "model."
    for index, layer in enumerate(backbone.model.layers):
        fill(layer, checkpoint, f"{prefix}layers.{index}.", device, dtype)
        if bits == 8:
            quantise(layer)
    fill(backbone.model.embed_tokens, checkpoint, prefix + "embed_tokens.", device, dtype)
    fill(backbone.model.norm, checkpoint, prefix + "norm.", device, dtype)
    if has_own_head(checkpoint, config):
        fill(backbone.lm_head, checkpoint, config.prefix + "lm_head.", device, dtype)
    else:
        backbone.lm_head.weight = backbone.model.embed_tokens.weight


def weight_bytes(*modules: nn.Module) -> int:
    """Bytes of all weights, shared ones once."""
    tensors = {}
    for module in modules:
        for value in [*module.parameters(), *module.buffers()]:
            tensors[value.data_ptr()] = value.nbytes
    return sum(tensors.values())
