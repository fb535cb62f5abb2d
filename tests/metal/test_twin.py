"""Whole steps of the MLX twin through the shipped text, beside the same steps in MLX's operations.

On a GPU the kernels run where they belong; without one their text runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.backend import PAGE, MovePlan, StepPlan, StepResult

mx = pytest.importorskip("mlx.core")
pytest.importorskip("torch")
pytest.importorskip("transformers")

import omni_mlx  # noqa: E402
from metal_kernels import run  # noqa: E402
from metal_kernels.cutting import Gpu, programs  # noqa: E402
from omni_core.checkpoints import open_checkpoint  # noqa: E402
from omni_mlx.devices import gpu  # noqa: E402
from omni_mlx.paged import Kernels  # noqa: E402
from tests.metal.on_mlx import run_as_text  # noqa: E402
from tests.parity import tiny  # noqa: E402
from tests.parity.oracle import distance, logits, text  # noqa: E402
from tests.parity.planner import Planner  # noqa: E402
from tests.parity.playing import play  # noqa: E402
from tests.parity.wandering import ROWS, SHAPE, step, wander  # noqa: E402

GPU = mx.is_available(mx.gpu)
SIZES = [[3, 1], [2, 1], [6, 2], [2, 1], [1, 17]]
"""Tokens of the steps of each frame."""


class Pair:
    """A backend with kernels that runs every plan, and one without on the CPU that checks it."""

    def __init__(self, folder: Path, streams: int) -> None:
        def load(device: str) -> Any:
            checkpoint = open_checkpoint(folder)
            return omni_mlx.load(checkpoint, device=device, weights="f32", streams=streams)

        self.kernels, self.plain = load("gpu" if GPU else "cpu"), load("cpu")
        self.launched: set[str] = set()
        self.compared = 0

    def allocate(self, planner: Planner, streams: int = 1, count: int = 5) -> None:
        layout = planner.layout(SHAPE, streams)
        for backend in (self.kernels, self.plain):
            backend.allocate(layout)

        arena, self.stored, self.last = self.kernels._arena, set(), None
        plain = arena.settle

        def settle(*others: Any) -> None:
            # What is asked for has the last store among what it is made from, or is that itself.
            assert self.last is None or any(each is self.last for each in others)
            self.stored, self.last = set(), None
            plain(*others)

        arena.settle = settle

        def launch(of: Any, inputs: Any) -> list[Any]:
            name = of.kernel.name
            self.launched.add(name)
            if name == "move" and inputs["from_keys"] is inputs["keys"]:
                # Read and written in one launch, in no order.
                count = int(inputs["numbers"][0])
                source, target = (set(inputs[x][:count].tolist()) for x in ("source", "target"))
                assert not source & target
            made = run.run(of, inputs) if GPU else run_as_text(of, inputs)
            if name == "store":
                # What another step or layer group may still read is evaluated before.
                assert id(inputs["keys"]) not in self.stored
                self.stored.add(id(inputs["keys"]))
                (self.last,) = made
            return made

        self.cut = gpu() if GPU else Gpu(count)
        self.kernels._kernels = Kernels(self.kernels._config.text, layout, self.cut, launch)
        # What is dead may hold anything.
        for part in (self.kernels._arena.keys, self.kernels._arena.values):
            part[:] = [mx.full(x.shape, float("nan"), x.dtype) for x in part]
            mx.eval(part)

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        given = None if embeddings is None else mx.array(embeddings)
        expected = self.plain.forward(plan, given)
        found: StepResult = self.kernels.forward(plan, given)
        assert found.logits.shape == expected.logits.shape
        if found.logits.size:
            assert distance(found.logits, expected.logits) < 1e-4
            self.compared += 1
        assert (found.mass is None) == (expected.mass is None)
        for mass, truth in zip(found.mass or (), expected.mass or (), strict=True):
            assert np.abs(mass - truth).max() < 1e-4 * truth.max()
            self.compared += 1
        return found

    def move(self, plan: MovePlan) -> None:
        self.plain.move(plan)
        self.kernels.move(plan)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = tiny.make(SHAPE)
    return model, tiny.save(model, tmp_path_factory.mktemp("small"))


@pytest.fixture
def make_pair(small: Any) -> Callable[[int], Pair]:
    return lambda streams=1: Pair(small[1], streams)


@pytest.mark.parametrize(
    ("placement", "lengths", "count"),
    [("scattered", [33, 1, 2, 31], 2), ("reversed", [2, 5, 1, 16], 24)],
)
def test_logits_equal_transformers(
    make_pair: Callable[..., Pair], small: Any, placement: str, lengths: list[int], count: int
) -> None:
    pair = make_pair()
    tokens = text(sum(lengths), seed=len(lengths))
    planner = Planner(pages=4, placement=placement)
    pair.allocate(planner, count=count)

    def thin(planner: Planner) -> None:
        planner.evict([rank for rank in sorted(planner.where[0])[2:] if rank % 5 == 3])

    found = play(pair, planner, tokens, lengths, after=thin)
    assert pair.compared == len(lengths)
    assert {"store", "decode"} <= pair.launched
    assert not planner.masks()[-1].all()
    assert distance(found, logits(small[0], tokens, [planner.masks()])) < 1e-4


@pytest.mark.parametrize(("groups", "streams", "count"), [(1, 2, 1), (2, 1, 16)])
def test_frames_merged_tokens_evictions_and_moves(
    make_pair: Callable[..., Pair], groups: int, streams: int, count: int
) -> None:
    pair, planner = make_pair(streams), Planner(7 * groups, groups, "scattered")
    pair.allocate(planner, streams, count)
    assert wander(pair, planner, SIZES, streams, seed=groups) > 20
    wanted = {"store", "decode", "prefill", "mass", "move"}
    if programs(1, SHAPE.q_heads // SHAPE.kv_heads, SHAPE.kv_heads * streams, pair.cut) > 1:
        wanted.add("merge")
    assert pair.launched == wanted
    assert pair.compared > 10


def test_what_no_logits_ask_for_is_stored_all_the_same(make_pair: Callable[..., Pair]) -> None:
    tokens = text(12, seed=3)
    pair, planner = make_pair(), Planner(2)
    pair.allocate(planner)
    pair.forward(step(planner, tokens, 0, 11, logits=[]))
    pair.forward(step(planner, tokens, 11, 12))
    cells = np.asarray([planner.where[0][rank] for rank in range(12)], np.int32)
    for layer in range(SHAPE.layers):
        for found, expected in zip(
            pair.kernels.read(layer, cells), pair.plain.read(layer, cells), strict=True
        ):
            assert distance(found, expected) < 1e-5
    assert pair.compared == 1 and ROWS and PAGE
