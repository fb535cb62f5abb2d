"""Streams whose layers hold different numbers of cells: budgets by layer in a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_dense import masked_dense, watched
from numpy_backend import SEALABLE, TEXT, NumpyBackend, PlainFrontend, plain_model, second
from scenes import noise, scene_model, shot
from streams import follow

from omni_core.aggregation import Aggregation
from omni_core.batch import StreamBatch
from omni_core.budget import least_budget
from omni_core.errors import BudgetError, OmniError, RecordingError
from omni_core.evictions import evictable, leaving
from omni_core.layer_budgets import Blend, LayerBudgets
from omni_core.layer_budgets.online import LayerSignals
from omni_core.ledger import Ledger
from omni_core.model import Model
from omni_core.paging import LAYOUTS
from omni_core.retention import POLICIES, policy
from omni_core.saving import STATE
from omni_core.session import Session
from omni_core.settings import Settings

FRONT = LayerBudgets((9.0, 1.0), Blend(structural=0.8, dynamic=0.0))
"""The first of two layers gets three quarters and more of the cells."""
MOVING = LayerBudgets((9.0, 1.0), Blend(structural=0.2, dynamic=0.8))
"""What the stream tells of its layers decides most."""
EVICTING = [name for name in POLICIES if name != "no-slide"]
UNSCORED = [name for name in EVICTING if not policy(name).scored]


def opened(model: Any = None, **given: Any) -> Session:
    settings = {"budget": 260, "max_tokens": 6, "system": "hello", "layers": FRONT, **given}
    return Session(model or plain_model(vision=11), **settings)


def within(session: Session) -> bool:
    """Whether each layer group is in its budget, and these are the whole."""
    cache = session._cache
    held = (cache.ledger.view().cells >= 0).sum(axis=1)
    assert cache.highs.sum() == session.budget * cache.highs.size
    assert held.tolist() == cache.ledger.alive().tolist()
    return bool((held <= cache.highs).all())


def run(session: Session, units: int) -> None:
    for index in range(units):
        session.append(second(index))
        assert within(session)
        if index % 7 == 3:
            session.ask("what?")
            assert within(session)
        if index % 5 == 2:
            session.ask("what else?", branch=True)


@pytest.mark.parametrize("retention", EVICTING)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("frame", [None, 100])
def test_each_layer_stays_in_its_own_budget(retention: str, layout: str, frame: int | None) -> None:
    session = opened(retention=retention, layout=layout, frame=frame)
    assert session.settings.groups == 2
    run(session, 40)
    first, last = session._cache.highs.tolist()
    assert first > 2 * last and first + last == 520
    held = session._cache.ledger.alive()
    assert held[0] > last >= held[1] > last // 2


@pytest.mark.parametrize("retention", EVICTING)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layer_attends_to_what_it_holds(retention: str, layout: str) -> None:
    model = plain_model(vision=11)
    steps = watched(model.backend)
    session = opened(model, retention=retention, layout=layout)
    for index in range(30):
        session.append(second(index))
        if index % 7 == 3:
            session.ask("what?")
    different = [len(step["live"][0][0]) != len(step["live"][1][0]) for step in steps]
    assert sum(different) > 20
    compared = 0
    for step, expected in zip(steps, masked_dense(steps, model.backend), strict=True):
        if expected.size:
            np.testing.assert_allclose(step["logits"][0], expected, rtol=1e-5, atol=1e-5)
            compared += 1
    assert compared > 10


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)),
    st.floats(0, 1),
    st.integers(0, 120),
    st.sampled_from(EVICTING),
)
def test_no_sensitivity_takes_a_layer_out_of_its_budget(
    sensitivity: tuple[float, float], weight: float, more: int, retention: str
) -> None:
    model = plain_model(vision=7, audio=3)
    unit = model.frontend.largest_unit
    least = least_budget(5, unit, 6)
    layers = LayerBudgets(sensitivity, Blend(weight, 0.0))
    session = opened(model, budget=least + more, layers=layers, retention=retention)
    assert session._cache.highs.min() >= least
    run(session, 20)


def test_layers_that_are_alike_plan_as_if_there_were_no_budgets_by_layer() -> None:
    alike = LayerBudgets((2.0, 2.0), Blend(0.8, 0.0))
    for retention in EVICTING:
        plain, even = (
            opened(retention=retention, layers=layers, groups=2) for layers in (None, alike)
        )
        for session in (plain, even):
            follow(session, 0, 30)
        assert plain.summary()["plans"] == even.summary()["plans"]
        assert plain.summary()["evicted"] == even.summary()["evicted"] > 0


def test_a_policy_is_asked_once_where_groups_are_alike() -> None:
    asked: list[tuple[int, int]] = []
    session = opened(groups=2, layers=None)
    plain = session.policy

    class Counting:
        name, scored = plain.name, plain.scored

        def evict(self, view, low):
            asked.append((len(view), low))
            return plain.evict(view, low)

    for index in range(4):
        session.append(second(index))
    view = session._ledger.view()
    low = len(view) - 30
    gone = evictable(Counting(), view, np.asarray([low, low]))
    assert len(asked) == 1 and (gone[0] == gone[1]).all() and gone[0].any()
    gone = evictable(Counting(), view, np.asarray([low, len(view)]))
    assert len(asked) == 2 and gone[0].any() and not gone[1].any()
    assert not leaving(view, gone).any()
    gone = evictable(Counting(), view, np.asarray([low, low - 9]))
    assert asked[2:] == [(len(view), low), (len(view), low - 9)]
    assert (leaving(view, gone) == gone.all(axis=0)).all()


def test_a_group_that_cannot_lose_enough_does_not_keep_another_from_it() -> None:
    session = opened(layers=None, groups=2)
    for index in range(4):
        session.append(second(index))
    view = session._ledger.view()
    lows = np.asarray([len(view) - 20, 1])
    with pytest.raises(BudgetError, match="do not fit"):
        evictable(session.policy, view, lows)
    gone = evictable(session.policy, view, lows, partial=True)
    assert gone[0].any() and not gone[1].any()
    with pytest.raises(BudgetError, match="do not fit"):
        evictable(session.policy, view, np.asarray([1, 1]), partial=True)


def test_tokens_count_as_evicted_once_no_layer_holds_them() -> None:
    events: list[dict[str, Any]] = []
    session = opened(on_event=events.append)
    order = 0
    for index in range(30):
        session.append(second(index))
        order = session._ledger.next_order
    summary = session.close()
    assert summary["evicted"] == order - len(session._ledger) > 0
    found = [event for event in events if event["event"] == "evict"]
    assert sum(sum(event["tokens"].values()) for event in found) == summary["evicted"]
    assert any(not event["units"] for event in found)
    highs = session._cache.highs.tolist()
    held = session._ledger.alive().tolist()
    assert summary["kv"]["by_group"] == {"cells": held, "budget": highs}
    assert summary["kv"]["cells"] == sum(held) // 2 <= summary["kv"]["budget"]
    assert summary["kv"]["most_cells"] <= summary["kv"]["budget"]
    for event in found:
        assert event["cells"] == sum(event["by_group"]) // 2
        assert (np.asarray(event["by_group"]) <= highs).all()


def test_without_budgets_by_layer_nothing_tells_of_them(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    session = opened(layers=None, on_event=events.append)
    for index in range(20):
        session.append(second(index))
    assert any(event["event"] == "evict" for event in events)
    assert "by_group" not in json.dumps(events) + json.dumps(session.summary())
    assert "layers" not in session.settings.state().keys() | session.settings.named().keys()
    session.save(tmp_path / "s")
    assert '"highs"' not in (tmp_path / "s" / STATE).read_text()


@pytest.mark.parametrize("retention", EVICTING)
@pytest.mark.parametrize("layers", [FRONT, MOVING])
def test_a_saved_stream_goes_on_as_if_uninterrupted(
    retention: str, layers: LayerBudgets, tmp_path: Path
) -> None:
    whole, first = (opened(retention=retention, layers=layers) for _ in range(2))
    follow(whole, 0, 40)
    follow(first, 0, 20)
    first.save(tmp_path / "s")
    second_half = Session.resume(plain_model(vision=11), tmp_path / "s")
    assert second_half.settings.layers == layers
    follow(second_half, 20, 40)
    assert second_half.summary()["plans"] == whole.summary()["plans"]
    assert within(second_half)


def test_settings_bring_layer_budgets_back() -> None:
    session = opened()
    state = json.loads(json.dumps(session.settings.state()))
    assert Settings.restored(state) == session.settings
    assert session.settings.named()["layers"] == FRONT.state()
    for wrong in (
        {"sensitivity": [1.0]},
        {**FRONT.state(), "sensitivity": ["x"]},
        {**FRONT.state(), "sensitivity": []},
        {**FRONT.state(), "blend": {"structural": 1.0}},
        {**FRONT.state(), "blend": {"structural": 1.0, "dynamic": 1.0}},
    ):
        with pytest.raises((ValueError, KeyError, OmniError)):
            Settings.restored({**state, "layers": wrong})


def test_budgets_that_do_not_sum_to_the_whole_are_refused(tmp_path: Path) -> None:
    session = opened()
    session.append(second(0))
    session._cache.highs = session._cache.highs + 1
    session.save(tmp_path / "s")
    with pytest.raises(RecordingError):
        Session.resume(plain_model(vision=11), tmp_path / "s")


def test_budgets_of_another_number_of_layers_are_refused() -> None:
    with pytest.raises(OmniError, match="of 3 layers, and the model has 2"):
        opened(layers=LayerBudgets((1.0, 2.0, 3.0)))
    with pytest.raises(OmniError, match="do not divide into 2"):
        LayerBudgets((1.0, 2.0, 3.0)).cells(2, 100, 10)
    with pytest.raises(OmniError, match="sensitivity"):
        LayerBudgets((1.0, float("nan")))


def test_a_groups_share_is_the_sum_of_its_layers() -> None:
    layers = LayerBudgets((6.0, 1.0, 2.0, 1.0), Blend(1.0, 0.0))
    assert layers.cells(4, 100, 0).tolist() == [240, 40, 80, 40]
    assert layers.cells(2, 100, 0).tolist() == [140, 60]
    assert layers.cells(1, 100, 0).tolist() == [100]
    assert layers.cells(4, 100, 100).tolist() == [100] * 4


@pytest.mark.parametrize("retention", UNSCORED)
def test_layers_of_a_sealed_cache_stay_in_their_own_budgets(retention: str) -> None:
    session = opened(
        plain_model(vision=33, text=SEALABLE),
        budget=600,
        retention=retention,
        kv_bits=2,
        frame=128,
    )
    run(session, 60)
    assert session.summary()["kv"]["sealed_cells"] > 100


def test_layers_of_an_aggregated_stream_stay_in_their_own_budgets() -> None:
    session = opened(scene_model(), aggregation=Aggregation(), budget=200)
    for index in range(60):
        session.append(shot(index, noise(index // 2)))
        assert within(session)
    assert session.summary()["evicted"] > 0


def test_a_batch_shares_its_cells_out_among_layers() -> None:
    model = Model(NumpyBackend(streams=2), PlainFrontend(vision=11), TEXT, "plain")
    batch = StreamBatch(
        model, streams=2, budget=220, retention="fifo", system="hello", longest=58, layers=FRONT
    )
    for index in range(30):
        batch.append(batch.encode([second(index)] * 2))
        usage = batch.usage()["by_group"]
        assert (np.asarray(usage["cells"]) <= usage["budget"]).all()
    assert usage["cells"][0] > usage["budget"][1]
    assert batch.most_cells <= 220


def test_the_ledger_counts_by_group() -> None:
    assert Ledger(3).alive().tolist() == [0, 0, 0]


@pytest.mark.parametrize("retention", EVICTING)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_budgets_follow_what_the_stream_tells_of_its_layers(retention: str, layout: str) -> None:
    model = plain_model(vision=11)
    steps = watched(model.backend)
    session = opened(model, retention=retention, layout=layout, layers=MOVING)
    seen = set()
    for index in range(50):
        session.append(second(index))
        assert within(session)
        seen.add(tuple(session._cache.highs.tolist()))
        if index % 7 == 3:
            session.ask("what?")
            assert within(session)
    signals = session._cache.signals
    assert signals is not None and signals.looks == 4 and len(seen) > 2
    assert (signals.magnitude > 0).all() and (signals.entropy > 0).all()
    if retention != "h2o":
        asked = [step["plan"].mass for step in steps]
        assert asked.count(True) == 4
        # A policy that does not ask for mass has none, for a stream to go on with.
        assert not session._ledger.view().mass.any()


def test_a_look_tells_how_large_values_are_and_how_attention_spreads() -> None:
    model = plain_model(vision=11)
    session = opened(model, layers=MOVING)
    looks: list[tuple[LayerSignals, LayerSignals, Any, np.ndarray]] = []
    look = LayerSignals.with_look

    def noted(self: LayerSignals, backend: Any, view: Any, unit: int, mass: Any) -> LayerSignals:
        found = look(self, backend, view, unit, mass)
        newest = view.unit == unit
        size = [
            np.linalg.norm(backend.values[0][0, cells[newest]], axis=-1).mean()
            for cells in view.cells
        ]
        looks.append((self, found, [np.float64(part) for part in mass], np.asarray(size)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerSignals, "with_look", noted)
        for index in range(33):
            session.append(second(index))
    assert len(looks) == 3
    for number, (before, after, mass, size) in enumerate(looks, 1):
        shares = [part / part.sum() for part in mass]
        entropy = [-(part[part > 0] * np.log(part[part > 0])).sum() for part in shares]
        for name, look_now in (("magnitude", size), ("entropy", np.asarray(entropy))):
            was, now = getattr(before, name), getattr(after, name)
            np.testing.assert_allclose(now, was + (look_now - was) / number, rtol=1e-5)
        assert after.looks == number
    wanted = MOVING.cells(2, 260, session._cache._least, session._cache.signals.utility())
    assert session._cache.highs.tolist() == wanted.tolist()


def test_what_is_no_number_is_no_look() -> None:
    session = opened(layers=MOVING)
    for index in range(2):
        session.append(second(index))
    cache = session._cache
    before, view = cache.signals, cache.ledger.view()
    assert before is not None
    count = len(view)
    good, bad = np.ones(count, np.float32), np.full(count, np.nan, np.float32)
    given = cache.backend, view
    assert before.with_look(*given, 1, (good, bad)) is before
    assert before.with_look(*given, 1, (good, 0 * good)) is before
    assert before.with_look(*given, 7, (good, good)) is before
    cells = view.cells[0, view.unit == 1]
    cache.backend.values[0][:, cells] = np.nan
    assert before.with_look(*given, 1, (good, good)) is before
    cache.backend.values[0][:, cells] = 1.0
    assert before.with_look(*given, 1, (good, good)).looks == before.looks + 1


def test_a_unit_that_fails_is_no_look() -> None:
    model = plain_model(vision=11)
    session = opened(model, layers=MOVING, prefill_chunk=7)
    model.backend.fail_in = 2
    with pytest.raises(RuntimeError):
        session.append(second(0))
    assert session._cache.signals.looks == 0
    session.ask("what?")
    assert session._cache.signals.looks == 0
    for index in range(16):
        session.append(second(index))
    assert session._cache.signals.looks == 1


def test_signals_that_cannot_be_are_refused() -> None:
    none = LayerSignals.none(2)
    good = {"looks": 3, "due": 48, "magnitude": [1.0, 2.0], "entropy": [0.5, 0.0]}
    assert none.restored(good).state() == good
    assert none.utility().tolist() == [0, 0] and none.restored(none.state()).looks == 0
    for wrong in (
        {**good, "looks": -1},
        {**good, "due": 1.5},
        {**good, "magnitude": [1.0]},
        {**good, "magnitude": [0.0, 1.0]},
        {**good, "entropy": ["x", 1.0]},
    ):
        with pytest.raises(ValueError, match="expected"):
            none.restored(wrong)


def test_streams_in_step_cannot_follow_what_each_tells() -> None:
    model = Model(NumpyBackend(streams=2), PlainFrontend(vision=11), TEXT, "plain")
    with pytest.raises(OmniError, match="one at a time, or with a dynamic weight of 0"):
        StreamBatch(
            model,
            streams=2,
            budget=260,
            retention="fifo",
            system="hello",
            longest=58,
            layers=MOVING,
        )


def test_groups_that_hold_others_are_asked_for_each() -> None:
    session = opened(layers=None, groups=2)
    for index in range(6):
        session.append(second(index))
    view = session._ledger.view()
    # The second group has lost what is oldest of the first unit, the first what is newest in it.
    own = np.flatnonzero(view.unit == 0)
    gone = np.zeros(view.cells.shape, np.bool_)
    gone[1, own[:4]], gone[0, own[-4:]] = True, True
    session._ledger.drop(gone)
    view = session._ledger.view()
    held = view.cells >= 0
    low = int(held[0].sum()) - 2
    assert held[0].sum() == held[1].sum()
    found = evictable(policy("streaming-llm"), view, np.asarray([low, low]))
    assert not (found & ~held).any() and not np.array_equal(found[0], found[1])
    assert ((held & ~found).sum(axis=1) <= low).all()


def test_a_group_within_its_budget_loses_nothing() -> None:
    session = opened()
    for index in range(60):
        session.append(second(index))
        before, highs = session._ledger.alive(), session._cache.highs
        # The next unit takes the second group out of its budget, and not the first.
        over = before + 20 > highs
        if over.tolist() == [False, True] and before[0] > highs[0] * 7 // 8:
            break
    assert index < 59
    session.append(second(index + 1))
    after = session._ledger.alive()
    assert after[0] > before[0] and after[1] < before[1]
