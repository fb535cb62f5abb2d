"""What a benchmark of the kernels for NVIDIA's cards needs of the machine."""

from __future__ import annotations

from importlib.util import find_spec


def lacking(*more: str) -> str | None:
    """What is missing here, in a line; None where a card can run Triton's kernels.

    Args:
        more: packages that are needed beside PyTorch and Triton.
    """
    for name in ("torch", "triton", *more):
        if find_spec(name) is None:
            return f"needs {name}, which is not installed: pip install -e '.[cuda]' in the checkout"
    import torch

    if not torch.cuda.is_available():
        why = "no NVIDIA driver or card answers" if torch.version.cuda else "PyTorch has no CUDA"
        return f"needs an NVIDIA GPU: {why}"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"needs an NVIDIA GPU of compute capability 8.0 or more, found {major}.{minor}"
    return None
