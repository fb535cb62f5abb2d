"""Captures of a card: pools that lose their graphs, and captures that are broken off."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from omni_cuda.graphs import Captures  # noqa: E402

pytestmark = pytest.mark.cuda


@pytest.fixture
def captures() -> Captures:
    return Captures(torch.device("cuda"))


def _doubled(captures: Captures, given: torch.Tensor) -> Any:
    def launch() -> torch.Tensor:
        return given * 2

    launch()
    return captures.take(launch)


def test_a_pool_that_lost_all_of_its_graphs_takes_more(captures: Captures) -> None:
    given = torch.ones(5, device="cuda")
    for value in range(4):
        taken = _doubled(captures, given)
        assert taken is not None
        given.fill_(value)
        taken[0].replay()
        assert taken[1].tolist() == [2.0 * value] * 5
        del taken


@pytest.mark.parametrize("before", [0, 2])
def test_a_capture_that_is_broken_off_leaves_others_be(captures: Captures, before: int) -> None:
    given = torch.ones(5, device="cuda")
    earlier = [_doubled(captures, given) for _ in range(before)]
    # What a capture cannot do: wait for the card.
    assert captures.take(lambda: given.sum().item()) is None
    # PyTorch draws random numbers, which it would not within a capture.
    assert 0 <= float(torch.rand(1, device="cuda")) < 1
    later = _doubled(captures, given)
    assert later is not None
    given.fill_(3.0)
    for graph, found in [*earlier, later]:
        graph.replay()
        assert found.tolist() == [6.0] * 5
