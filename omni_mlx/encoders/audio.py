"""The audio tower of Qwen2.5-Omni: Whisper's encoder over chunks that do not see each other."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from omni_core.errors import PlanError
from omni_core.model_config import AudioConfig
from omni_mlx.encoders.segments import Segments, attend_within, split


class AudioAttention(nn.Module):
    """Attention inside chunks; keys have no bias."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self._heads = config.heads
        self.q_proj = nn.Linear(config.hidden, config.hidden)
        self.k_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.hidden)
        self.out_proj = nn.Linear(config.hidden, config.hidden)

    def __call__(self, x: mx.array, segments: Segments) -> mx.array:
        """``[frames, hidden]`` to the same."""

        def heads(y: mx.array) -> mx.array:
            return y.reshape(x.shape[0], self._heads, -1)

        queries, keys, values = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        out = attend_within(heads(queries), heads(keys), heads(values), segments)
        return self.out_proj(out.reshape(x.shape))


class AudioBlock(nn.Module):
    """One layer."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden)
        self.self_attn = AudioAttention(config)
        self.final_layer_norm = nn.LayerNorm(config.hidden)
        self.fc1 = nn.Linear(config.hidden, config.intermediate)
        self.fc2 = nn.Linear(config.intermediate, config.hidden)

    def __call__(self, x: mx.array, segments: Segments) -> mx.array:
        """``[frames, hidden]`` to the same."""
        x = x + self.self_attn(self.self_attn_layer_norm(x), segments)
        return x + self.fc2(nn.gelu(self.fc1(self.final_layer_norm(x))))


class AudioTower(nn.Module):
    """Log-mel to embeddings, one spectrogram at a time.

    Attributes:
        relaid: parameters that checkpoints keep in another layout: channels before time.
    """

    relaid = ("conv1.weight", "conv2.weight")

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self._config = config
        self.conv1 = nn.Conv1d(config.mel_bins, config.hidden, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(config.hidden, config.hidden, kernel_size=3, stride=2, padding=1)
        self.layers = [AudioBlock(config) for _ in range(config.layers)]
        self.ln_post = nn.LayerNorm(config.hidden)
        self.proj = nn.Linear(config.hidden, config.out)

    def __call__(self, mel: npt.NDArray[np.float32]) -> mx.array:
        """Embeddings ``[tokens, out]`` of ``float32[mel_bins, frames]``, four frames a token.

        Raises:
            PlanError: another number of mel bins than the tower was made for.
        """
        config = self._config
        if mel.ndim != 2 or mel.shape[0] != config.mel_bins:
            raise PlanError(
                f"log-mel of shape {list(mel.shape)}: expected [{config.mel_bins}, frames]"
            )
        tokens = max(0, ((mel.shape[1] - 1) // 2 - 1) // 2 + 1)
        if tokens == 0:
            return mx.zeros((0, config.out), self.proj.weight.dtype)
        chunk = 2 * config.half_window
        whole = mel.shape[1] // chunk * chunk
        frames = mx.array(np.ascontiguousarray(mel.T)).astype(self.proj.weight.dtype)
        pieces = [frames[:whole].reshape(-1, chunk, config.mel_bins), frames[None, whole:]]
        parts = [self._convolved(piece) for piece in pieces if piece.size]
        segments = split([part.shape[1] for part in parts for _ in range(part.shape[0])])
        x = mx.concatenate([part.reshape(-1, config.hidden) for part in parts])
        for layer in self.layers:
            x = layer(x, segments)
        x = x[: 2 * tokens].reshape(tokens, 2, config.hidden).mean(axis=1)
        return self.proj(self.ln_post(x))

    def _convolved(self, chunks: mx.array) -> mx.array:
        """``[chunks, frames, mel_bins]`` to ``[chunks, frames / 2, hidden]``, positions from 0."""
        x = nn.gelu(self.conv2(nn.gelu(self.conv1(chunks))))
        return x + mx.array(sinusoids(x.shape[1], x.shape[2])).astype(x.dtype)


def sinusoids(length: int, channels: int) -> npt.NDArray[np.float32]:
    """Whisper's positions ``float32[length, channels]``: sines first, then cosines."""
    half = channels // 2
    rates = np.exp(-np.log(10_000.0) / (half - 1) * np.arange(half))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
