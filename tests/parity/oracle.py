"""What the twins are compared with: transformers, run densely under a mask for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.units import EMBEDDED
from tests.parity.tiny import VOCAB, torch

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Tokens:
    """A sequence: ids ``[T]``, rows of ``embeddings[rows, hidden]``, positions ``[3, T]``."""

    ids: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    embeddings: Float32


def text(count: int, seed: int = 0) -> Tokens:
    """Random text at positions 0, 1, 2, …"""
    ids = np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)
    line = np.arange(count, dtype=np.int32)
    none = np.full(count, -1, np.int32)
    return Tokens(ids, none, np.tile(line, (3, 1)), np.zeros((0, 1), np.float32))


def mixed(hidden: int, seed: int = 0) -> Tokens:
    """Text, a vision grid of 3 x 5, 22 audio tokens and text, at multimodal positions."""
    draw = np.random.default_rng(seed)
    high, wide = np.divmod(np.arange(15), 5)
    spans = [
        np.tile(np.arange(6), (3, 1)),
        np.stack([np.full(15, 6), 6 + high, 6 + wide]),
        np.tile(np.arange(6, 28), (3, 1)),
        np.tile(np.arange(28, 37), (3, 1)),
    ]
    positions = np.concatenate(spans, 1).astype(np.int32)
    count = positions.shape[1]
    ids = draw.integers(0, VOCAB, count).astype(np.int32)
    rows = np.full(count, -1, np.int32)
    rows[6:43] = np.arange(37)
    ids[6:43] = EMBEDDED
    return Tokens(ids, rows, positions, draw.standard_normal((37, hidden)).astype(np.float32))


@torch.no_grad()
def logits(
    model: Any,
    tokens: Tokens,
    masks: Sequence[npt.NDArray[np.bool_]] | None = None,
    bias: Float32 | None = None,
) -> Float32:
    """Logits ``float32[T, vocab]`` of one dense run.

    ``masks`` has a ``bool[T, T]`` for each layer group (causal where None), ``bias`` is added to
    the scores of each key.
    """
    device = next(model.parameters()).device
    given = model.get_input_embeddings()(torch.from_numpy(np.maximum(tokens.ids, 0)).to(device))
    embedded = np.flatnonzero(tokens.rows >= 0)
    if embedded.size:
        given[embedded] = torch.from_numpy(tokens.embeddings[tokens.rows[embedded]]).to(given)
    count = tokens.ids.size
    masks = [np.tri(count, dtype=np.bool_)] if masks is None else masks
    additive = [_additive(mask, bias) for mask in masks]
    layers = part(model, "ThinkerTextModel").layers
    hooks = [
        layer.register_forward_pre_hook(
            _masked(additive[index * len(masks) // len(layers)]), with_kwargs=True
        )
        for index, layer in enumerate(layers)
    ]
    try:
        run = model(
            inputs_embeds=given[None],
            position_ids=torch.from_numpy(tokens.positions)[:, None].long().to(device),
            attention_mask=additive[0],
            use_cache=False,
        )
    finally:
        for hook in hooks:
            hook.remove()
    return run.logits[0].float().cpu().numpy()


@torch.no_grad()
def vision(model: Any, patches: Float32, grid: tuple[int, int, int]) -> Float32:
    """Embeddings ``[rows, hidden]`` of one grid."""
    tower = part(model, "VisionEncoder")
    return tower(torch.from_numpy(patches), grid_thw=torch.tensor([grid])).pooler_output.numpy()


@torch.no_grad()
def audio(model: Any, mel: Float32) -> Float32:
    """Embeddings ``[rows, hidden]`` of one spectrogram."""
    tower = part(model, "AudioEncoder")
    frames = torch.tensor([mel.shape[1]])
    halved, _ = tower._get_feat_extract_output_lengths(frames)
    run = tower(torch.from_numpy(mel), feature_lens=frames, aftercnn_lens=halved)
    return run.last_hidden_state.numpy()


def part(model: Any, name: str) -> Any:
    # Releases of transformers differ in how deep the thinker's parts lie.
    return next(part for part in model.modules() if type(part).__name__ == f"Qwen2_5Omni{name}")


def _additive(mask: npt.NDArray[np.bool_], bias: Float32 | None) -> torch.Tensor:
    scores = np.where(mask, 0.0 if bias is None else bias, np.finfo(np.float32).min)
    return torch.from_numpy(scores.astype(np.float32))[None, None]


def _masked(mask: torch.Tensor) -> Any:
    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"attention_mask": mask}

    return hook


def distance(found: Float32, expected: Float32) -> float:
    """The largest relative difference of a row."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    gap = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return float(gap.max())
