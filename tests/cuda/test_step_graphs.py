"""Steps on a card: graphs that are replayed, no waiting, and kernels that fit consumer cards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.parity import tiny
from tests.parity.oracle import text, torch
from tests.parity.planner import Planner
from tests.parity.wandering import ROWS, SHAPE, step, wander


@pytest.mark.cuda
@pytest.mark.parametrize("mass", [False, True])
@pytest.mark.parametrize("count", [1, 2, 17, 65])
def test_replays_are_equal_to_the_bit(card: Any, count: int, mass: bool) -> None:
    tokens = text(40 + count)
    planner = Planner(pages=3, placement="scattered")
    card.allocate(planner)
    card.forward(step(planner, tokens, 0, 40))
    plan = step(planner, tokens, 40, 40 + count, mass=mass)
    # The same cells are written anew each time: at once, by the first replay, and by two more.
    _, *replayed = [card.forward(plan) for _ in range(4)]
    assert next(reversed(card.kernels._steps._kept.values()))._graph is not None
    for run in replayed[1:]:
        np.testing.assert_array_equal(run.logits, replayed[0].logits)


@pytest.mark.cuda
def test_garbage_does_not_end_a_capture(card: Any, collected_at_once: Any) -> None:
    tokens = text(60)
    planner = Planner(pages=3)
    card.allocate(planner)
    plan = step(planner, tokens, 0, 20)
    card.forward(plan)
    with collected_at_once():
        card.forward(plan)
    assert next(reversed(card.kernels._steps._kept.values()))._graph is not None


@pytest.mark.cuda
def test_graphs_take_turns(card: Any) -> None:
    tokens = text(200)
    planner = Planner(pages=4)
    card.allocate(planner)
    start = 0
    for _ in range(6):
        for size, how in (
            (1, {}),
            (2, {"logits": []}),
            (17, {}),
            (1, {"mass": True}),
            (5, {"logits": [2, 4]}),
        ):
            card.forward(step(planner, tokens, start, start + size, **how))
            start += size
    assert all(kept._graph is not None for kept in card.kernels._steps._kept.values())
    assert card.compared == 6 * 5


@pytest.mark.cuda
@pytest.mark.parametrize(("groups", "streams"), [(1, 1), (2, 1), (1, 2)])
def test_graphs_over_frames_evictions_and_moves(
    make_pair: Callable[..., Any], groups: int, streams: int
) -> None:
    pair, planner = make_pair("cuda", streams), Planner(20 * groups, groups)
    pair.allocate(planner, streams=streams)
    sizes = [[1, 2, 3, 1, 17, 1] * 4] * 6
    assert wander(pair, planner, sizes, streams, seed=7) > 1000
    assert pair.tables == {1, 2, 3, 4, 5}


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    with warnings.catch_warnings():
        # It says that the mode is young.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@pytest.mark.parametrize("count", [1, 20, 1100])
def test_a_step_without_an_answer_does_not_wait_for_the_card(card: Any, count: int) -> None:
    planner = Planner(pages=40)
    card.allocate(planner)
    kernels, tokens = card.kernels, text(count)
    rows = np.where(np.arange(count) < ROWS, np.arange(count), -1).astype(np.int32)
    given = torch.randn(1, ROWS, SHAPE.hidden, device="cuda")
    plans = []
    for _ in range(5):
        plan = planner.step(tokens.ids[None], rows, tokens.positions, logits=[])
        planner.evict(sorted(planner.where[0]))
        plans.append(plan)
    for plan in plans[:3]:
        kernels.forward(plan, given)
    torch.cuda.synchronize()
    with _refusing_to_wait():
        for plan in plans[3:]:
            assert kernels.forward(plan, given).logits.shape == (1, 0, tiny.VOCAB)
        with pytest.raises(RuntimeError, match="synchroniz"):
            given.sum().item()


class Launches:
    """A kernel that notes the shared memory of each compiled variant that is launched."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.shared = kernel, []

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **options: Any) -> Any:
            compiled = self.kernel[grid](*args, **options)
            self.shared.append(compiled.metadata.shared)
            return compiled

        return launch


@pytest.mark.cuda
@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_kernels_fit_a_consumer_card(
    monkeypatch: pytest.MonkeyPatch, dtype: str, programs: int
) -> None:
    from omni_cuda.kernels import attention, mass
    from tests.cuda import kernel_cases

    monkeypatch.setattr(attention, "roomy", lambda device: False)
    attend, add_mass = Launches(attention._attend), Launches(mass._add_mass)
    monkeypatch.setattr(attention, "_attend", attend)
    monkeypatch.setattr(mass, "_add_mass", add_mass)
    for size in kernel_cases.LARGE:
        case = kernel_cases.make_case(size._replace(programs=programs, dtype=dtype))
        queries, keys, values = case.tensors("cuda")
        pages = case.page_list("cuda")
        sums = torch.empty(queries.shape[1:4], device="cuda")
        attention.attend_pages(queries, keys, values, pages, case.scale, sums=sums)
        given = torch.zeros(case.order.size, device="cuda")
        mass.add_mass(queries, keys, pages, case.scale, sums, given)
    for kernel in (attend, add_mass):
        assert len(kernel.shared) == len(kernel_cases.LARGE)
        assert min(kernel.shared) > 0 and max(kernel.shared) <= 101_376
