"""From safetensors to modules: only the thinker's tensors are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from omni_core.checkpoints import Checkpoint
from omni_core.errors import CheckpointError
from omni_core.model_config import ThinkerConfig
from omni_core.stored_weights import has_own_head
from omni_cuda.backbone import PACKED, Backbone
from omni_cuda.int4 import Int4Linear
from omni_cuda.int8 import Int8Linear

_IN_BITS: dict[int, type[Int4Linear | Int8Linear]] = {4: Int4Linear, 8: Int8Linear}


def fill(
    module: nn.Module,
    checkpoint: Checkpoint,
    prefix: str,
    device: torch.device,
    dtype: torch.dtype,
    packed: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Read the tensors of a checked module, as ``dtype`` on ``device``.

    Args:
        module: whose names, behind ``prefix``, are the checkpoint's.
        packed: parts of the module that hold the rows of several of the checkpoint's, in order.

    Raises:
        CheckpointError: a shard changed or cannot be read.
    """
    parts = {name: _stored_names(name, packed) for name in module.state_dict()}
    shards: dict[Path, list[str]] = defaultdict(list)
    for name in chain.from_iterable(parts.values()):
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
    whole = {}
    for name, of in parts.items():
        rows = [state.pop(part) for part in of]
        whole[name] = torch.cat(rows) if len(rows) > 1 else rows[0]
    module.load_state_dict(whole, assign=True)


def _stored_names(name: str, packed: Mapping[str, Sequence[str]]) -> list[str]:
    part, _, kind = name.rpartition(".")
    return [f"{stored}.{kind}" for stored in packed[part]] if part in packed else [name]


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
        fill(layer, checkpoint, f"{prefix}layers.{index}.", device, dtype, PACKED)
        if bits is not None:
            quantise(layer, bits)
    fill(backbone.model.embed_tokens, checkpoint, prefix + "embed_tokens.", device, dtype)
    fill(backbone.model.norm, checkpoint, prefix + "norm.", device, dtype)
    if has_own_head(checkpoint, config):
        fill(backbone.lm_head, checkpoint, config.prefix + "lm_head.", device, dtype)
    else:
        backbone.lm_head.weight = backbone.model.embed_tokens.weight


def quantise(module: nn.Module, bits: int) -> None:
    """Replace every linear layer inside ``module``, in place."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, _IN_BITS[bits](child))
        else:
            quantise(child, bits)


def saved_bytes(module: nn.Module, bits: int, dtype: torch.dtype) -> int:
    """Bytes that :func:`quantise` saves of a module in ``dtype``.

    Raises:
        BackendError: a linear layer has sizes that cannot be quantised.
    """
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    whole = sum(part.weight.numel() for part in linear) * dtype.itemsize
    return whole - sum(_IN_BITS[bits].weight_bytes(part) for part in linear)


def weight_bytes(*modules: nn.Module) -> int:
    """Bytes of all weights, shared ones once."""
    tensors = {}
    for module in modules:
        for value in [*module.parameters(), *module.buffers()]:
            tensors[value.data_ptr()] = value.nbytes
    return sum(tensors.values())
