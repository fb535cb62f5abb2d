"""Streams in step against sessions of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy_backend import TEXT, NumpyBackend, PlainFrontend, second

from omni_core.backend import StepPlan
from omni_core.batch import Encoded, StreamBatch
from omni_core.errors import BudgetError, MediaError, OmniError, PlanError
from omni_core.frontend.base import UnitMedia
from omni_core.plans import PlanDigest
from omni_core.session import Model, Session

STREAMS = 3
QUESTION = "what is it?"


def model_of(streams: int, **shape: Any) -> Model:
    return Model(NumpyBackend(streams=streams), PlainFrontend(**shape), TEXT, "plain")


def media(index: int) -> list[UnitMedia]:
    """The unit ``index`` of each stream, all different."""
    return [second(index, audio=np.full(1, stream)) for stream in range(STREAMS)]


def ids_of(text: str) -> list[int]:
    return [2 + ord(letter) % 90 for letter in text]


class Spy:
    """Digest of all plans by the first stream, and the logits of each of their tokens."""

    def __init__(self, backend: Any) -> None:
        self.digest, self.logits, self.moves = PlanDigest(), [], 0
        self._forward, self._move = backend.forward, backend.move
        backend.forward, backend.move = self.forward, self.move

    def forward(self, plan: StepPlan, embeddings: Any = None) -> Any:
        self.digest.add(replace(plan, tokens=plan.tokens[:1]))
        every = replace(plan, logits=np.arange(plan.rows.size, dtype=np.int32))
        result = self._forward(every, embeddings)
        self.logits.append(result.logits)
        return replace(result, given=result.logits[:, plan.logits])

    def move(self, plan: Any) -> None:
        self.digest.add(plan)
        self._move(plan)
        self.moves += 1


SETTINGS = [
    ("no-slide", "page", False, None, 2048),
    ("fifo", "page", True, 100, 220),
    ("fifo", "native", False, None, 220),
    ("omnipick", "page", False, 64, 220),
    ("omnipick", "eager", True, None, 220),
]


@pytest.mark.parametrize(("retention", "layout", "brackets", "frame", "budget"), SETTINGS)
def test_streams_in_step_are_streams_of_their_own(
    retention: str, layout: str, brackets: bool, frame: int | None, budget: int
) -> None:
    shared: dict[str, Any] = {
        "budget": budget, "retention": retention, "layout": layout, "system": "hello",
        "frame": frame, "prefill_chunk": 17,
    }  # fmt: skip
    model = model_of(STREAMS, brackets=brackets)
    spy = Spy(model.backend)
    batch = StreamBatch(model, streams=STREAMS, **shared)
    for index in range(30):
        batch.append(batch.encode(media(index)))
    logits = np.concatenate(spy.logits, axis=1)
    assert np.abs(logits[0] - logits[1]).max() > 0.1
    for stream in range(STREAMS):
        single = model_of(1, brackets=brackets)
        alone = Spy(single.backend)
        session = Session(single, max_tokens=8, **shared)
        for index in range(30):
            session.append(media(index)[stream])
        np.testing.assert_allclose(logits[stream], np.concatenate(alone.logits, axis=1)[0], 1e-6)
        assert alone.digest.hexdigest() == spy.digest.hexdigest() == session.summary()["plans"]
    assert spy.moves == alone.moves
    summary = session.summary()
    kv = {name: summary["kv"][name] for name in batch.usage()}
    assert batch.usage() == kv and batch.most_cells == summary["kv"]["most_cells"]
    assert (summary["evicted"] > 200) == (retention != "no-slide")


@pytest.mark.parametrize(("brackets", "frame"), [(False, None), (True, 64)])
def test_a_branch_gives_what_a_session_decodes_with(brackets: bool, frame: int | None) -> None:
    sessions = []
    for _ in range(STREAMS):
        model = model_of(1, brackets=brackets)
        sessions.append(
            (Session(model, budget=220, system="hello", frame=frame, max_tokens=8), model)
        )
    batch = StreamBatch(
        model_of(STREAMS, brackets=brackets),
        streams=STREAMS,
        budget=220,
        retention="omnipick",
        system="hello",
        frame=frame,
        longest=len(QUESTION) + 5,
    )
    question = ids_of(QUESTION)
    for index in range(25):
        units = media(index)
        batch.append(batch.encode(units))
        # Answers of different length, filled up on the right.
        branch = np.full((STREAMS, len(question) + 5), 96, np.int32)
        expected = []
        for stream, (session, model) in enumerate(sessions):
            session.append(units[stream])
            spy = Spy(model.backend)
            answer = session.ask(QUESTION, max_tokens=3 + stream, branch=True).split()
            said = [*question, *map(int, answer)]
            branch[stream, : len(said)] = said
            expected.append(np.concatenate([rows[0, -1:] for rows in spy.logits]))
        found = batch.branch(branch)
        assert found.shape == (STREAMS, len(question) + 5, TEXT.vocab)
        for stream, rows in enumerate(expected):
            assert len(rows) == 3 + stream
            part = found[stream, len(question) - 1 :][: len(rows)]
            np.testing.assert_allclose(part, rows, 1e-5, 1e-6)


@pytest.mark.parametrize("layout", ["page", "native"])
def test_a_branch_of_streams_leaves_no_trace(layout: str) -> None:
    def run(branch: bool) -> tuple[list[bytes], dict[str, int], str]:
        model = model_of(STREAMS, brackets=True)
        batch = StreamBatch(
            model, streams=STREAMS, budget=220, retention="omnipick", layout=layout, frame=64
        )
        tokens = np.tile(np.asarray(ids_of("is it there?"), np.int32), (STREAMS, 1))
        for index in range(30):
            batch.append(batch.encode(media(index)))
            if branch and index < 29:
                batch.branch(tokens)
        tables, view, mirror = batch._cache.tables, batch._cache.ledger.view(), model.backend.mirror
        state = [tables._live, tables._group, tables._kind, tables._frame, tables._opened]
        state += [view.order, view.cells, mirror.group, mirror.occupancy, mirror.frame]
        state.append(batch.branch(tokens))
        return [array.tobytes() for array in state], batch.usage(), batch.plans

    assert run(True) == run(False)


@pytest.mark.parametrize("brackets", [False, True])
def test_units_are_encoded_once_for_many_batches(brackets: bool) -> None:
    model = model_of(STREAMS, brackets=brackets)
    tokens = np.full((STREAMS, 2), 7, np.int32)

    def play(retention: str, units: list[Encoded] | None) -> tuple[list[Encoded], np.ndarray]:
        batch = StreamBatch(model, streams=STREAMS, budget=220, retention=retention, system="hello")
        given = []
        for index in range(20):
            given.append(units[index] if units else batch.encode(media(index)))
            batch.append(given[-1])
        return given, batch.branch(tokens)

    encoded, _ = play("omnipick", None)
    _, fresh = play("fifo", None)
    assert play("fifo", encoded)[1].tobytes() == fresh.tobytes()
    # All of them encoded before the first is taken in: each is laid out where it comes to stand.
    ahead = StreamBatch(model, streams=STREAMS, budget=220, retention="fifo", system="hello")
    units = [ahead.encode(media(index)) for index in range(20)]
    assert play("fifo", units)[1].tobytes() == fresh.tobytes()


def test_units_that_differ_in_layout_or_time_are_refused() -> None:
    model = model_of(2)
    batch = StreamBatch(model, streams=2, budget=220, retention="fifo", system="hello")
    with pytest.raises(MediaError, match="1 units came for 2 streams"):
        batch.encode([second(0)])
    with pytest.raises(MediaError, match="stream 1 has 0 to"):
        batch.encode([second(0), second(0, 0.4)])
    with pytest.raises(MediaError, match="stream 1 has 1 to 2 s"):
        batch.encode([second(0), second(1)])
    unit = batch.encode([second(3), second(3)])
    batch.append(unit)
    with pytest.raises(MediaError, match="follow each other"):
        batch.append(unit)
    batch.append(batch.encode([second(4), second(4)]))


def test_a_unit_that_fails_is_taken_back() -> None:
    def run(fail: bool) -> tuple[str, bytes]:
        model = model_of(2)
        batch = StreamBatch(model, streams=2, budget=220, retention="omnipick", system="hello")
        for index in range(20):
            unit = batch.encode([second(index), second(index, audio=np.ones(1))])
            if fail:
                model.backend.fail_in = 0
                with pytest.raises(RuntimeError):
                    batch.append(unit)
            batch.append(unit)
        return batch.plans, batch.branch(np.full((2, 3), 5, np.int32)).tobytes()

    assert run(True) == run(False)


def test_policies_by_attention_run_one_stream_at_a_time() -> None:
    with pytest.raises(OmniError, match="one at a time"):
        StreamBatch(model_of(2), streams=2, budget=220, retention="h2o")
    batch = StreamBatch(model_of(1), streams=1, budget=220, retention="h2o", system="hello")
    session = Session(model_of(1), budget=220, retention="h2o", system="hello", max_tokens=8)
    for index in range(30):
        batch.append(batch.encode([second(index)]))
        batch.branch(np.full((1, 4), 9, np.int32))
        session.append(second(index))
    ledgers = [each._cache.ledger.view() for each in (batch, session)]
    np.testing.assert_array_equal(ledgers[0].order, ledgers[1].order)
    np.testing.assert_array_equal(ledgers[0].mass, ledgers[1].mass)
    assert batch._cache.evicted > 200


def test_a_branch_that_does_not_fit_is_refused() -> None:
    batch = StreamBatch(model_of(2), streams=2, budget=220, retention="fifo", longest=9)
    with pytest.raises(BudgetError, match="longest=10"):
        batch.branch(np.zeros((2, 10), np.int32))
    for shape in [(3, 4), (2, 0), (8,)]:
        with pytest.raises(OmniError, match="branch of shape"):
            batch.branch(np.zeros(shape, np.int32))
    assert batch.branch(np.zeros((2, 9), np.int32)).shape == (2, 9, TEXT.vocab)


def test_a_later_batch_takes_the_arena_over() -> None:
    model = model_of(2)
    first = StreamBatch(model, streams=2, budget=220, retention="fifo")
    StreamBatch(model, streams=2, budget=440, retention="no-slide")
    with pytest.raises(PlanError, match="taken over"):
        first.branch(np.zeros((2, 3), np.int32))


@pytest.mark.parametrize("wrong", ["streams", "longest", "frame", "prefill_chunk"])
def test_settings_below_one_are_refused_by_name(wrong: str) -> None:
    with pytest.raises(OmniError, match=f"{wrong} is 0"):
        StreamBatch(model_of(1), **{"streams": 1, "budget": 220, "retention": "fifo", wrong: 0})


def test_a_budget_need_not_hold_more_than_prefix_and_unit_or_branch() -> None:
    # The prefix has 5 tokens, a unit at most 18; 7/8 of 72 are 63.
    shape: dict[str, Any] = {"streams": 2, "retention": "fifo", "system": "hello", "longest": 58}
    with pytest.raises(BudgetError, match="--budget"):
        StreamBatch(model_of(2), budget=71, **shape)
    batch = StreamBatch(model_of(2), budget=72, **shape)
    for index in range(20):
        batch.append(batch.encode([second(index), second(index)]))
        assert batch.branch(np.zeros((2, 58), np.int32)).shape[1] == 58
    assert batch.most_cells == 5 + 3 * 18


def test_after_a_branch_that_fails_decisions_are_told_again() -> None:
    def run(fail: bool) -> str:
        model = model_of(2)
        batch = StreamBatch(model, streams=2, budget=220, retention="fifo", system="hello")
        for index in range(9):
            batch.append(batch.encode([second(index), second(index)]))
            if fail and index == 3:
                model.backend.fail_in = 0
                with pytest.raises(RuntimeError):
                    batch.branch(np.full((2, 3), 5, np.int32))
        return batch.plans

    assert run(True) == run(False)
