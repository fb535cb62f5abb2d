"""The PyTorch twin: the Qwen2.5-Omni thinker over a paged arena, on NVIDIA cards or the CPU."""

from __future__ import annotations

from omni_core.backend import Backend
from omni_core.checkpoints import Checkpoint
from omni_core.errors import BackendError

__all__ = ["load"]


def load(
    checkpoint: Checkpoint, *, device: str = "auto", weights: str = "auto", streams: int = 1
) -> Backend:
    """Load a checkpoint's thinker; the arena is allocated later, by the session.

    Args:
        checkpoint: an opened checkpoint folder.
        device: ``auto`` (CUDA if there is a card, else the CPU), ``cuda``, ``cuda:N`` or ``cpu``.
        weights: ``auto`` (``f32`` on the CPU, else ``bf16``), ``f32``, ``bf16``, or ``8`` or ``4``
            (bits of the text layers' weights).
        streams: streams of one layout that each step runs.

    Raises:
        BackendError: PyTorch, the device or the weight format is not there.
        CheckpointError: config, weights and tokenizer do not fit each other.
        BudgetError: the device cannot hold the weights.
    """
    try:
        from omni_cuda.backend import TorchBackend
    except ImportError as error:
        raise BackendError(
            f"the cuda backend needs PyTorch and transformers ({error}): "
            "pip install -e '.[cuda]' in the checkout, or use --backend mlx"
        ) from error
    return TorchBackend.load(checkpoint, device=device, weights=weights, streams=streams)
