"""The vision tower of the Qwen2.5-Omni thinker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import linear
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniVisionEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniRMSNorm,
    Qwen2_5OmniVisionEncoder,
)

from omni_core.model_config import VisionConfig
from omni_cuda.devices import upload
from omni_cuda.encoders.building import build_empty
from omni_cuda.encoders.segments import Segments, attend_inside_segments, described
from omni_cuda.ops import Ops


class PatchProduct(nn.Conv3d):
    """A convolution of single patches as the matrix product that it is.

    cuDNN has no fast way for it in some releases, and PyTorch's own goes patch by patch.
    """

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """``[patches, channels, time, height, width]`` to ``[patches, hidden]``."""
        return linear(patches.flatten(1), self.weight.flatten(1))


def build(vision: VisionConfig) -> nn.Module:
    """The tower of a checkpoint, without weights."""

    def make(depth: int) -> nn.Module:
        config = Qwen2_5OmniVisionEncoderConfig(
            depth=depth,
            hidden_size=vision.hidden,
            intermediate_size=vision.intermediate,
            num_heads=vision.heads,
            in_channels=vision.channels,
            patch_size=vision.patch,
            spatial_merge_size=vision.merge,
            temporal_patch_size=vision.temporal_patch,
            window_size=vision.window,
            out_hidden_size=vision.out,
            fullatt_block_indexes=list(vision.full_blocks),
            rope_parameters={"rope_type": "axial", "rope_theta": vision.rope_theta},
        )
        tower = Qwen2_5OmniVisionEncoder._from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
        size = (vision.temporal_patch, vision.patch, vision.patch)
        tower.patch_embed.proj = PatchProduct(
            vision.channels, vision.hidden, size, stride=size, bias=False
        )
        return attend_inside_segments(tower)

    return build_empty(make, vision.depth)


def norm_with(tower: nn.Module, ops: Ops) -> None:
    """Have the backbone's operation do what the tower's norms do."""
    for part in tower.modules():
        if isinstance(part, Qwen2_5OmniRMSNorm):
            part.forward = partial(_normed, ops, part)


def _normed(ops: Ops, norm: Qwen2_5OmniRMSNorm, x: torch.Tensor) -> torch.Tensor:
    return ops.rms_norm(x, norm.weight, norm.variance_epsilon)


def prepare(
    tower: nn.Module, grid: tuple[int, int, int], device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The tower for one grid, with what follows from the grid alone on the device.

    It takes patches as the frontend gives them and returns embeddings
    ``[t * (h / merge) * (w / merge), hidden]``. Nothing that it launches waits for the device.
    """
    merge = tower.spatial_merge_size
    side = tower.window_size // merge // tower.patch_size
    order, lengths = windows(grid, merge, side)
    inside, whole = Segments.of(lengths, grid[0]), Segments.of([grid[1] * grid[2]], grid[0])
    given: dict[str, Any] = {
        "grid_thw": torch.tensor([grid]),
        "position_ids": upload(_places(grid, merge), device),
        "window_index": upload(order, device),
        "cu_window_seqlens": inside.bounds(),
        "max_window_seqlen": inside.longest,
        "cu_seqlens": whole.bounds(),
        "max_seqlen": whole.longest,
        # A window as long as the whole slice is the slice.
        **described(inside, whole),
    }
    return lambda patches: tower(patches, **given).pooler_output


def windows(
    grid: tuple[int, int, int], merge: int, side: int
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Order of the merged patches by window, and patches in each window of a slice.

    In each slice, windows that an edge cuts come after the whole ones, equal ones together.

    Args:
        grid: ``(t, h, w)`` in patches; ``h`` and ``w`` are multiples of ``merge``.
        merge: patches along the side of a merged one.
        side: merged patches along the side of a window.
    """
    slices, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
    t, y, x = (axis.reshape(-1) for axis in np.indices((slices, rows, columns)))
    across = -(-columns // side)
    window = y // side * across + x // side
    sizes = np.bincount(window[t == 0]) * merge**2
    # Stable, so that patches of a window keep their order.
    order = np.lexsort((window, -sizes[window], t))
    return order, sorted(sizes.tolist(), reverse=True)


def _places(grid: tuple[int, int, int], merge: int) -> npt.NDArray[np.int64]:
    """Row and column of each patch ``int64[patches, 2]``; a merged one's follow each other."""
    slices, high, wide = grid
    places = np.indices((high, wide)).reshape(2, high // merge, merge, wide // merge, merge)
    return np.tile(places.transpose(1, 3, 2, 4, 0).reshape(-1, 2), (slices, 1))
