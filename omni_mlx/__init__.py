"""The MLX twin: Apple Silicon through Metal, NVIDIA cards through MLX's CUDA build, or any CPU."""

from __future__ import annotations

from omni_core.backend import Backend
from omni_core.checkpoints import Checkpoint
from omni_core.errors import BackendError

__all__ = ["load"]


def load(
    checkpoint: Checkpoint, *, device: str = "auto", weights: str = "auto", streams: int = 1
) -> Backend:
    """Load the thinker of a checkpoint.

    Args:
        checkpoint: a folder that was looked through.
        device: ``auto`` (a GPU where MLX has one, else the CPU), ``gpu`` or ``cpu``.
        weights: ``auto`` (``f32`` on the CPU, ``bf16`` elsewhere), ``f32``, ``bf16``, or ``8`` or
            ``4`` bits for the text backbone.
        streams: how many streams of one layout each step runs.

    Raises:
        BackendError: MLX or the device is absent, or the words are unknown.
        BudgetError: the device cannot hold the weights.
        CheckpointError: config, weights and tokenizer do not fit each other.
    """
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        raise BackendError(
            f"MLX is not installed ({error}): pip install -e '.[mlx]' in the checkout, "
            "or use --backend cuda"
        ) from error
    from omni_mlx.backend import open_backend

    return open_backend(checkpoint, device, weights, streams)
