"""The peer: transformers' Qwen2 with the same weights, its growing cache and its SDPA attention."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from benchmarks.stream_loop_clock import Clock
from omni_core.model_config import TextConfig
from omni_core.units import TokenBlock

# Its name has changed within the releases that are supported.
_CACHE = "cache" if "cache" in signature(Qwen2ForCausalLM.forward).parameters else "past_key_values"


def peer_of(text: TextConfig, weights: dict[str, Any], device: torch.device) -> Qwen2ForCausalLM:
    """A model of transformers around a backbone's weights, which are shared and not copied.

    Args:
        text: the shapes.
        weights: of a backbone, by the names of a checkpoint. Where the three axes of multimodal
            RoPE are equal, it is the plain RoPE of this model.
        device: where the weights are.
    """
    dtype = weights["lm_head.weight"].dtype
    config = Qwen2Config(
        vocab_size=text.vocab,
        hidden_size=text.hidden,
        intermediate_size=text.intermediate,
        num_hidden_layers=text.layers,
        num_attention_heads=text.q_heads,
        num_key_value_heads=text.kv_heads,
        rms_norm_eps=text.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": text.rope_theta},
        max_position_embeddings=4 * text.max_positions,
        tie_word_embeddings=False,
        use_sliding_window=False,
        attn_implementation="sdpa",
        dtype=dtype,
    )
    with torch.device("meta"):
        peer = Qwen2ForCausalLM(config)
    peer.load_state_dict(weights, assign=True)
    # Its frequencies are no weights, and were made on no device.
    peer.model.rotary_emb = Qwen2RotaryEmbedding(config=config).to(device)
    return peer.eval().requires_grad_(False)


def embedded(table: nn.Module, block: TokenBlock, rows: torch.Tensor) -> torch.Tensor:
    """What a block's tokens enter the layers as, ``[1, T, hidden]``; ``rows`` as backends take."""
    ids = torch.from_numpy(np.maximum(block.tokens, 0)).to(rows.device)
    x = table(ids)[None].clone()
    places = np.flatnonzero(block.rows >= 0)
    taken = torch.from_numpy(block.rows[places]).to(rows.device).long()
    x[:, torch.from_numpy(places).to(rows.device)] = rows[:, taken].to(x.dtype)
    return x


class PeerStream:
    """A stream through the peer: nothing is ever dropped."""

    def __init__(self, peer: Qwen2ForCausalLM, clock: Clock) -> None:
        self._peer, self._clock, self._cache = peer, clock, DynamicCache(config=peer.config)

    def read(self, x: torch.Tensor) -> npt.NDArray[np.float32]:
        """Take embeddings ``[1, T, hidden]`` in; logits ``float32[vocab]`` of the last."""
        with self._clock.span("prefill", device=True):
            return self._run(inputs_embeds=x)

    def say(self, logits: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
        """Draw and read ``count`` tokens, the likeliest; logits after the last."""
        for _ in range(count):
            with self._clock.span("decode", device=True):
                token = torch.tensor([[int(logits.argmax())]], device=self._peer.device)
                logits = self._run(input_ids=token)
        return logits

    @torch.inference_mode()
    def _run(self, **given: Any) -> npt.NDArray[np.float32]:
        given[_CACHE] = self._cache
        out = self._peer(**given, use_cache=True, logits_to_keep=1).logits
        return out[0, -1].float().cpu().numpy()
