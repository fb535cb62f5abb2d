"""A thinker's text backbone in float64: what a backend's logits are held against anywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.checkpoints import Checkpoint
from omni_core.model_config import ThinkerConfig
from omni_core.reference.attention import masked_attention
from omni_core.reference.rotary import rotary_tables, rotate
from omni_core.safetensors_header import TensorInfo
from omni_core.stored_weights import HEAD, has_own_head
from omni_core.units import Int32

Float64 = npt.NDArray[np.float64]


class ReferenceBackbone:
    """The text layers of a checkpoint, over whole sequences of text under a mask.

    Args:
        checkpoint: whose weights are read, all at once: it is for small ones.
        config: the checkpoint's shapes.
    """

    def __init__(self, checkpoint: Checkpoint, config: ThinkerConfig) -> None:
        self._checkpoint, self._config = checkpoint, config
        self._table = self._read("model.embed_tokens.weight")
        own = has_own_head(checkpoint, config)
        self._head = self._read(HEAD) if own else self._table

    def logits(self, tokens: Int32, positions: Int32, seen: npt.NDArray[np.bool_]) -> Float64:
        """Logits of every token.

        Args:
            tokens: ``int32[T]``, text alone.
            positions: ``int32[3, T]``.
            seen: ``bool[T, T]``, which tokens each token sees, itself among them.

        Returns:
            ``float64[T, vocab]``.
        """
        text = self._config.text
        x = self._table[tokens]
        cos, sin = rotary_tables(positions, text.head_dim, text.rope_theta, text.mrope_section)
        for layer in range(text.layers):
            name = f"model.layers.{layer}"
            x = x + self._attention(name, self._norm(f"{name}.input_layernorm", x), cos, sin, seen)
            y = self._norm(f"{name}.post_attention_layernorm", x)
            gate = self._linear(f"{name}.mlp.gate_proj", y)
            y = gate / (1 + np.exp(-gate)) * self._linear(f"{name}.mlp.up_proj", y)
            x = x + self._linear(f"{name}.mlp.down_proj", y)
        found: Float64 = self._norm("model.norm", x) @ self._head.T
        return found

    def _attention(
        self,
        layer: str,
        x: Float64,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        seen: npt.NDArray[np.bool_],
    ) -> Float64:
        text, name = self._config.text, f"{layer}.self_attn"
        parts = (self._linear(f"{name}.{part}_proj", x) for part in "qkv")
        q, k, v = (part.reshape(len(x), -1, text.head_dim) for part in parts)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        rows = []
        for row, visible in enumerate(seen):
            # One query over what it sees, so that a hole in the mask is a hole in the keys.
            order = np.zeros(int(visible.sum()), np.int64)
            keys = k[visible], v[visible], order[:1], order, np.zeros(order.size)
            rows.append(masked_attention(q[row : row + 1], *keys, text.head_dim**-0.5).reshape(-1))
        return self._linear(f"{name}.o_proj", np.stack(rows))

    def _norm(self, name: str, x: Float64) -> Float64:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        found: Float64 = x / np.sqrt(mean + self._config.text.rms_eps)
        return found * self._read(f"{name}.weight")

    def _linear(self, name: str, x: Float64) -> Float64:
        found: Float64 = x @ self._read(f"{name}.weight").T
        bias = f"{name}.bias"
        if self._config.prefix + bias in self._checkpoint.tensors:
            found = found + self._read(bias)
        return found

    def _read(self, name: str) -> Float64:
        return read_floats(self._checkpoint.tensors[self._config.prefix + name])


def read_floats(info: TensorInfo) -> Float64:
    """A stored tensor of floats."""
    kind = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}[info.dtype]
    count = int(np.prod(info.shape))
    raw = np.fromfile(info.file, np.dtype(kind), count, offset=info.offset)
    if info.dtype == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.reshape(info.shape).astype(np.float64)
