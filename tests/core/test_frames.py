"""Position frames: distances in range for hours, and positions that never run backwards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_backend import TEXT, PlainFrontend, plain_model, second

from omni_core.backend import StepPlan, StepResult
from omni_core.errors import BudgetError
from omni_core.frames import Frames, check_range
from omni_core.session import Session


def test_the_first_unit_opens_a_frame_and_the_prefix_keeps_its_own() -> None:
    frames = Frames.begin(32768)
    assert frames.current == 0 and frames.length == 8192
    frames = frames.at(40)
    assert frames.current == 1 and frames.starts == {0: 0, 1: 40}
    assert frames.at(40 + 8191) is frames
    assert frames.at(40 + 8192).starts == {0: 0, 1: 40, 2: 8232}


def test_local_positions_and_true_shifts_while_there_is_room() -> None:
    frames = Frames.begin(32768).at(40).at(8232)
    positions = np.asarray([[8240, 8241], [8240, 8240], [8240, 8250]], np.int32)
    assert frames.local(positions).tolist() == [[8, 9], [8, 8], [8, 18]]
    shifts = frames.shifts(np.asarray([0, 1], np.int32), 18)
    assert shifts.tolist() == [[0, 8232], [1, 8192], [2, 0]]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(64, 5000),
    st.integers(1, 4000),
    st.lists(st.integers(1, 300), min_size=1, max_size=200),
    st.integers(0, 10),
)
def test_no_distance_leaves_the_range_and_older_frames_are_never_nearer(
    reach: int, length: int, units: list[int], drop: int
) -> None:
    frames, position = Frames.begin(reach, length), 10
    live = {0}
    for number, unit in enumerate(units):
        unit = min(unit, reach // 4)
        frames = frames.at(position)
        last = position + unit - 1 - frames.starts[frames.current]
        live.add(frames.current)
        shifts = frames.shifts(np.asarray(sorted(live), np.int32), last)
        assert shifts[:, 0].tolist() == sorted(live)
        # The farthest key is a frame's first, at local position 0.
        assert (last + shifts[:, 1] < reach).all() and (shifts[:, 1] >= 0).all()
        assert (np.diff(shifts[:, 1]) <= 0).all() and shifts[-1].tolist() == [frames.current, 0]
        position += unit
        if drop and number % drop == 0 and len(live) > 2:
            live.discard(sorted(live)[1])
        if len(frames.far()) > 1:
            first, *rest = frames.far()
            joined = frames.shifts(np.asarray([first, *rest], np.int32), last)
            assert len(set(joined[: len(rest) + 1, 1].tolist())) == 1
            live -= set(rest)
        frames = frames.keep(np.asarray(sorted(live), np.int32))
        assert set(frames.starts) == live
        assert len(live) <= reach // frames.length + 2


def test_an_old_frame_moves_closer_by_one_number_a_frame() -> None:
    frames, seen = Frames.begin(4096, 512), set()
    for position in range(10, 60_000, 50):
        frames = frames.at(position)
        last = position + 49 - frames.starts[frames.current]
        shift = frames.shifts(np.asarray([0, frames.current], np.int32), last)[0, 1]
        seen.add((frames.current, int(shift)))
    assert len(seen) == len({frame for frame, _ in seen})
    assert max(shift for _, shift in seen) == 4096 - 1 - 512 - 128


@pytest.mark.parametrize("layout", ["page", "native"])
def test_eight_hours_stay_in_the_trained_range(layout: str) -> None:
    """25 positions a second for 8 hours, at the model's own range; keys are written once."""
    model = plain_model(vision=1, audio=20)
    assert isinstance(model.frontend, PlainFrontend)
    written: dict[int, int] = {}
    worst = 0

    def watch(plan: StepPlan, embeddings: object = None) -> object:
        nonlocal worst
        for order, cell in zip(plan.order.tolist(), plan.cells[0].tolist(), strict=True):
            assert order not in written
            written[order] = cell
        farthest = int(plan.positions.max()) + int(plan.shifts[:, 1].max())
        worst = max(worst, farthest)
        assert farthest < TEXT.max_positions and plan.positions.min() >= 0
        model.backend.mirror.commit(plan)
        return StepResult(np.zeros((1, plan.logits.size, TEXT.vocab), np.float32))

    model.backend.forward = watch
    session = Session(model, budget=220, max_tokens=8, layout=layout, system="look")
    for index in range(28_800 // 10):
        session.append(second(index))
        # Ten seconds pass for each: what matters is how far the stream's positions get.
        session._cursor = type(session._cursor)(session._cursor.position + 9 * 25)
    assert session.summary()["position"] > 700_000
    assert worst > TEXT.max_positions // 2


@pytest.mark.parametrize(
    ("reach", "prefix", "unit", "answer", "says"),
    [
        (400, 51, 20, 10, "system prompt"),
        (400, 50, 20, 60, "--max-tokens"),
        (4096, 5, 2500, 8, "u"),
    ],
)
def test_what_would_leave_the_range_is_refused(
    reach: int, prefix: int, unit: int, answer: int, says: str
) -> None:
    with pytest.raises(BudgetError, match=says):
        check_range(reach, prefix, unit, answer)
    check_range(32768, 4096, 1600, 4096)


@settings(max_examples=60, deadline=None)
@given(st.integers(1000, 40_000), st.data())
def test_what_is_accepted_stays_in_the_range_and_ahead_of_the_prefix(
    reach: int, data: st.DataObject
) -> None:
    prefix = data.draw(st.integers(1, reach // 8))
    rest = reach // 2 - 128
    unit = data.draw(st.integers(1, rest - 1))
    answer = data.draw(st.integers(1, rest - unit))
    check_range(reach, prefix, unit, answer)
    frames, position = Frames.begin(reach), prefix
    while position < 4 * reach:
        frames = frames.at(position)
        first = position - frames.starts[frames.current]
        last = first + unit + 128 + answer - 1
        shift = int(frames.shifts(np.asarray([0], np.int32), last)[0, 1])
        # The farthest key of the prefix is at 0, the nearest at its end.
        assert last + shift < reach and first + shift > prefix - 1
        position += unit + 128 + answer
