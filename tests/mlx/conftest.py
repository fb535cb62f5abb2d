"""A small random thinker, and plans made by hand over scattered cells."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.backend import FREE, PAGE, ArenaLayout, MovePlan, StepPlan, TableDelta
from omni_core.paging.mirror import pack_occupancy


class Planner:
    """Plans over cells drawn at random, groups and position frames in pages of their own."""

    def __init__(self, layout: ArenaLayout, seed: int = 0, frames: int = 1) -> None:
        self.layout, self.rng = layout, np.random.default_rng(seed)
        self.frame = np.arange(layout.pages, dtype=np.int32) // layout.groups % frames
        self.group = np.arange(layout.pages, dtype=np.int32) % layout.groups
        self.live = np.zeros((layout.pages, PAGE), bool)
        self.cells: list[np.ndarray] = []
        self.next = 0

    def step(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        rows=None,
        logits=None,
        counts=None,
        mass=False,
        shifts=((0, 0),),
    ) -> StepPlan:
        """The next tokens, in the last frame of ``shifts``."""
        tokens = np.atleast_2d(np.asarray(tokens, np.int32))
        count = tokens.shape[1]
        here = self.frame == shifts[-1][0]
        cells = np.stack([self._draw(group, here, count) for group in range(self.layout.groups)])
        order = np.arange(self.next, self.next + count, dtype=np.int64)
        self.next += count
        self.cells.append(cells)
        return StepPlan(
            tokens,
            np.full(count, -1, np.int32) if rows is None else np.asarray(rows, np.int32),
            np.broadcast_to(np.asarray(positions, np.int32), (3, count)).copy(),
            order,
            np.ones(count, np.int32) if counts is None else np.asarray(counts, np.int32),
            cells,
            np.asarray(shifts, np.int32),
            np.asarray([count - 1] if logits is None else logits, np.int32),
            mass,
            self.delta(),
        )

    def drop(self, cells: np.ndarray) -> MovePlan:
        self.live.reshape(-1)[cells.reshape(-1)] = False
        return MovePlan(np.zeros(0, np.int32), np.zeros(0, np.int32), self.delta())

    def delta(self) -> TableDelta:
        pages = np.arange(self.layout.pages, dtype=np.int32)
        used = np.where(self.live.any(axis=1), self.group, FREE).astype(np.int32)
        none = np.zeros(self.layout.pages, np.int8)
        return TableDelta(pages, used, pack_occupancy(self.live), none, self.frame)

    def _draw(self, group: int, here: np.ndarray, count: int) -> np.ndarray:
        pages = (self.group == group) & here
        free = np.flatnonzero(~self.live.reshape(-1) & pages.repeat(PAGE))
        cells = self.rng.choice(free, count, replace=False).astype(np.int32)
        self.live.reshape(-1)[cells] = True
        return cells


@pytest.fixture(params=["cpu", "gpu"])
def device(request):
    if request.param == "gpu":
        mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
        if not mx.is_available(mx.gpu):
            pytest.skip("no GPU for MLX (Metal or CUDA)")
    return request.param


@pytest.fixture
def planner():
    return Planner


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A thinker of transformers in float32, and the folder it was saved to."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config={
            "num_mel_bins": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 32,
            "n_window": 25,
            "output_dim": 64,
            "max_source_positions": 100,
            "initializer_range": 0.2,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 64,
            "initializer_range": 0.2,
        },
        text_config={
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "initializer_range": 0.2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2, 3, 3],
            },
        },
        initializer_range=0.2,
    )
    model = transformers.Qwen2_5OmniThinkerForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name or "ln_" in name:
                parameter.normal_(1, 0.2)
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder)
    return model, folder
