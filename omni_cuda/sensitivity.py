"""How sensitive a model's loss is to what each layer caches: gradients by a dense forward pass.

The layers, their weights and their arithmetic are the backbone's own; attention alone is another,
over all tokens at once and with nothing written to an arena, so that autograd can follow it. What
is differentiated is the mean cross-entropy of the next tokens, with respect to each layer's keys,
rotated as they are cached, and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from omni_core.errors import BackendError
from omni_core.model_config import TextConfig
from omni_core.units import TokenBlock
from omni_cuda import devices
from omni_cuda.backend import TorchBackend
from omni_cuda.ops import SPELLED_OUT
from omni_cuda.rotary import StepRotary, rotate

Part = tuple[TokenBlock, torch.Tensor | None]
"""Tokens, and what the backend encoded for those that are embedded: ``[1, rows, hidden]``."""

Float = npt.NDArray[np.float64]


class DenseRun:
    """A backend's text layers over whole sequences, for calibration."""

    def __init__(self, backend: TorchBackend) -> None:
        """Take a backend, which may but need not have an arena.

        Raises:
            BackendError: it does not compute in float32.
        """
        kinds = {weight.dtype for weight in backend.backbone.state_dict().values()}
        odd = next((str(kind) for kind in kinds if kind is not torch.float32), None)
        if odd is not None:
            raise BackendError(
                f"gradients are taken in float32, but the model has weights in {odd}; use "
                "--weights f32"
            )
        self._backbone, self._text = backend.backbone, backend.config.text
        self._device = backend.backbone.model.embed_tokens.weight.device

    def next_logits(self, parts: Sequence[Part]) -> npt.NDArray[np.float32]:
        """Logits ``float32[vocab]`` of what follows the parts."""
        with devices.current(self._device), torch.no_grad(), _room(parts):
            return self._logits(parts, 1, _Dense.over(parts, self._text, self._device))[0].numpy()

    def gradient_norms(self, parts: Sequence[Part], cached: int, following: Sequence[int]) -> Float:
        """Lengths of the gradient at keys and at values of each layer: ``float64[2, layers]``.

        Args:
            parts: what has been read, all but the last of the next tokens at its end.
            cached: first tokens whose keys and values count.
            following: the next tokens' ids, whose mean cross-entropy is differentiated.
        """
        with devices.current(self._device), torch.enable_grad(), _room(parts):
            dense = _Dense.over(parts, self._text, self._device)
            logits = self._logits(parts, len(following), dense)
            loss = nn.functional.cross_entropy(logits, torch.tensor(following))
            found = torch.autograd.grad(loss, [*dense.keys, *dense.values])
            norms = torch.stack([part[:, :cached].double().norm() for part in found])
            return norms.view(2, -1).cpu().numpy()

    def _logits(self, parts: Sequence[Part], last: int, dense: _Dense) -> torch.Tensor:
        """Logits ``float32[last, vocab]`` of the last rows, on the host."""
        x = torch.cat([self._embedded(*part) for part in parts], 1).requires_grad_()
        count = x.shape[1]
        rows = torch.arange(count - last, count, device=self._device)
        # A leaf must not be added to in place, as the residual stream is; the arena is only handed
        # on to attention, which has no use for it here.
        logits = self._backbone(x.clone(), [dense], None, rows, _OPS)
        return logits[0].cpu()

    def _embedded(self, block: TokenBlock, embeddings: torch.Tensor | None) -> torch.Tensor:
        ids = torch.from_numpy(np.maximum(block.tokens, 0)).to(self._device)
        x = self._backbone.model.embed_tokens(ids)[None].detach()
        places = np.flatnonzero(block.rows >= 0)
        if embeddings is not None and places.size:
            rows = torch.from_numpy(block.rows[places]).long().to(self._device)
            x[:, torch.from_numpy(places).to(self._device)] = embeddings[:, rows].to(x.dtype)
        return x


@dataclass(frozen=True)
class _Dense:
    """Causal attention of a whole sequence, which remembers each layer's keys and values.

    See :data:`omni_cuda.backbone.Attend`.
    """

    text: TextConfig
    tables: tuple[torch.Tensor, torch.Tensor]
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def over(cls, parts: Sequence[Part], text: TextConfig, device: torch.device) -> _Dense:
        positions = np.concatenate([block.positions for block, _ in parts], axis=1)
        return cls(text, StepRotary(positions, text, device).tables())

    def __call__(self, qkv: torch.Tensor, arena: Any, layer: int) -> torch.Tensor:
        text = self.text
        heads = qkv.unflatten(-1, (-1, text.head_dim))
        queries, keys, values = heads.split([text.q_heads, text.kv_heads, text.kv_heads], 2)
        queries, keys = rotate(queries, *self.tables), rotate(keys, *self.tables)
        self.keys.append(keys)
        self.values.append(values)
        group = text.q_heads // text.kv_heads
        q, k, v = queries, *(part.repeat_interleave(group, 2) for part in (keys, values))
        mixed = nn.functional.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in (q, k, v)), is_causal=True
        )
        return mixed.transpose(1, 2).flatten(2)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return SPELLED_OUT.rms_norm(x.clone(), weight, eps)


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    return _rms_norm(residual.add_(x), weight, eps)


_OPS = replace(SPELLED_OUT, rms_norm=_rms_norm, add_rms_norm=_add_rms_norm)
"""Operations that keep a copy of what a gradient will ask for."""


def _room(parts: Sequence[Part]) -> AbstractContextManager[None]:
    tokens = sum(len(block) for block, _ in parts)
    return devices.out_of_memory(f"the gradients of {tokens} tokens", "use fewer --units")
