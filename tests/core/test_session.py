"""The stream loop over the NumPy oracle backend."""

from __future__ import annotations

import numpy as np
import pytest
from masked_dense import masked_dense, watched
from numpy_backend import TEXT, NumpyBackend, plain_model, second

from omni_core.backend import PAGE, StepPlan, StepResult
from omni_core.errors import BackendError, BudgetError, MediaError, OmniError, PlanError
from omni_core.paging import LAYOUTS
from omni_core.retention import POLICIES
from omni_core.session import Session
from omni_core.units import Role

# Each policy through each layout; what else varies goes round with them.
VARIED = [(False, 512, None), (True, 512, 100), (False, 7, 64), (True, 11, 128), (False, 512, 90)]
EVICTING = [name for name in POLICIES if name != "no-slide"]
MATRIX = [
    (retention, layout, *VARIED[(row + column) % len(VARIED)])
    for row, retention in enumerate(EVICTING)
    for column, layout in enumerate(LAYOUTS)
]


@pytest.mark.parametrize(("retention", "layout", "brackets", "chunk", "frame"), MATRIX)
def test_evicted_stream_equals_masked_dense_run(
    retention: str, layout: str, brackets: bool, chunk: int, frame: int | None
) -> None:
    model = plain_model(vision=11, brackets=brackets)
    steps = watched(model.backend)
    session = Session(
        model,
        budget=220,
        retention=retention,
        layout=layout,
        max_tokens=6,
        prefill_chunk=chunk,
        system="hello",
        frame=frame,
    )
    for index in range(40):
        session.append(second(index))
        if index % 7 == 3:
            session.ask("what?")
    assert session.summary()["evicted"] > 300
    assert layout != "eager" or session._tables.moved_cells > 100
    expected = masked_dense(steps, model.backend)
    compared = 0
    for step, reference in zip(steps, expected, strict=True):
        if reference.size:
            np.testing.assert_allclose(step["logits"][0], reference, rtol=1e-5, atol=1e-5)
            compared += 1
    assert compared >= 30


@pytest.mark.parametrize("retention", ["fifo", "omnipick"])
def test_budget_holds_after_every_unit_and_positions_go_on(retention: str) -> None:
    events: list[dict] = []
    session = Session(
        plain_model(), budget=256, retention=retention, max_tokens=8, on_event=events.append
    )
    for index in range(60):
        session.append(second(index))
    units = [e for e in events if e["event"] == "unit"]
    evicts = [e for e in events if e["event"] == "evict"]
    assert len(units) == 60
    assert all(e["kv"]["cells"] <= 256 for e in units)
    assert evicts and all(e["cells"] <= 256 * 7 // 8 for e in evicts)
    # 300 tokens in a budget of 128: what is kept does not count, what has been does.
    prefix = 73
    assert session.summary()["position"] == prefix + 60 * 18


def test_positions_never_go_backwards_after_a_slide() -> None:
    model = plain_model()
    steps = watched(model.backend)
    session = Session(model, budget=256, retention="fifo", max_tokens=8)
    for index in range(20):
        session.append(second(index))
    orders = np.concatenate([s["plan"].order for s in steps])
    assert (np.diff(orders) == 1).all()
    # Of positions, counted from their frame's start, those of one frame never run backwards.
    frames = np.concatenate([np.full(s["plan"].order.size, s["plan"].shifts[-1, 0]) for s in steps])
    positions = np.concatenate([s["plan"].positions[0] for s in steps])
    for frame in np.unique(frames):
        assert (np.diff(positions[frames == frame]) > 0).all()


def test_no_slide_ends_with_a_clear_error_and_keeps_the_stream() -> None:
    session = Session(plain_model(), budget=256, retention="no-slide", max_tokens=8)
    taken = 0
    with pytest.raises(BudgetError, match="no-slide"):
        for taken in range(60):
            session.append(second(taken))
    cells = len(session._ledger)
    assert cells <= 256 and session.summary()["units"] == taken
    with pytest.raises(BudgetError, match="no-slide"):
        session.append(second(taken))
    assert len(session._ledger) == cells and session.ask("still there?", branch=True)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", range(6))
def test_a_failing_step_leaves_no_trace(step: int, late: bool) -> None:
    """Whether it fails at once or, its device having gone on alone, when its logits are read."""

    def run(fail: bool) -> tuple[str, str]:
        model = plain_model(brackets=True)
        session = Session(model, budget=256, max_tokens=6, prefill_chunk=4, frame=30)
        for index in range(10):
            session.append(second(index))
        if fail:
            if late:
                fail_late(model.backend, step)
            else:
                model.backend.fail_in = step
            with pytest.raises(RuntimeError):
                # A gap, so that the unit opens another bracket.
                session.append(second(12)) if step < 4 else session.ask("what is it?")
        tables, ledger = session._tables, session._ledger
        state = (tables._live.tobytes(), tables._group.tobytes(), ledger.view().order.tobytes())
        state += (session._cache.turn, session._cache.frames, session._cursor)
        session.append(second(10))
        return repr(state), session.ask("and now?")

    assert run(True) == run(False)


def fail_late(backend: NumpyBackend, step: int) -> None:
    """Have the step after so many fail once it has been carried out."""
    run, count = backend.forward, 0

    def read() -> np.ndarray:
        raise RuntimeError("the device is gone")

    def forward(plan: StepPlan, embeddings: object = None) -> StepResult:
        nonlocal count
        count += 1
        result = run(plan, embeddings)
        if count <= step:
            return result
        backend.forward = run
        return StepResult(read, result.mass)

    backend.forward = forward


def test_what_no_logits_are_needed_for_is_done_before_they_are_read() -> None:
    model = plain_model()
    session = Session(model, budget=256, max_tokens=3)
    run, known = model.backend.forward, []

    def forward(plan: StepPlan, embeddings: object = None) -> StepResult:
        result = run(plan, embeddings)

        def read() -> np.ndarray:
            known.append(int(session._ledger.view().order[-1]) == int(plan.order[-1]))
            return result.logits

        return StepResult(read, result.mass)

    model.backend.forward = forward
    session.append(second(0))
    assert session.ask("what?") and len(known) > 3 and all(known)


def test_a_branch_leaves_no_trace() -> None:
    def run(branch: bool) -> tuple[str, dict]:
        model = plain_model()
        session = Session(model, budget=256, max_tokens=6, temperature=0.7)
        for index in range(30):
            session.append(second(index))
            if branch:
                session.ask("is it there?", branch=True)
        answer = session.ask("what was it?")
        summary = session.summary()
        return answer, {key: summary[key] for key in ("position", "evicted", "kv")}

    assert run(True) == run(False)


def test_chunked_prefill_equals_one_shot() -> None:
    answers, logits = [], []
    for chunk in (40, 32, 1):
        model = plain_model(vision=26, audio=10)
        steps = watched(model.backend)
        session = Session(model, budget=512, max_tokens=4, prefill_chunk=chunk)
        session.append(second(0))
        answers.append(session.ask("x"))
        logits.append(next(s["logits"] for s in steps if s["plan"].logits.size))
    assert answers[0] == answers[1] == answers[2]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(logits[2], logits[0], rtol=1e-6, atol=1e-6)


def test_prefix_longer_than_the_budget_is_refused_before_the_backend_is_asked() -> None:
    model = plain_model()
    with pytest.raises(BudgetError, match="--budget"):
        Session(model, budget=256, system="long " * 200)
    assert model.backend.forwards == 0 and not hasattr(model.backend, "keys")


def test_sampling_is_seeded_and_layer_groups_agree_with_one_group() -> None:
    def run(seed: int, groups: int) -> str:
        session = Session(
            plain_model(), budget=256, max_tokens=8, temperature=1.5, seed=seed, groups=groups
        )
        for index in range(30):
            session.append(second(index))
        return session.ask("what?")

    assert run(1, 1) == run(1, 1) == run(1, 2)
    assert run(1, 1) != run(2, 1)


def test_interrupt_ends_the_answer_and_the_stream_goes_on() -> None:
    model = plain_model()
    seen: list[dict] = []

    def listen(event: dict) -> None:
        seen.append(event)
        if event["event"] == "token" and sum(e["event"] == "token" for e in seen) == 2:
            session.interrupt()

    session = Session(model, budget=512, max_tokens=50, on_event=listen)
    session.append(second(0))
    answer = session.ask("count to fifty")
    assert len(answer.split()) == 2
    session.append(second(1))
    assert session.summary()["units"] == 2


def test_every_policy_is_reachable_by_name() -> None:
    for name in POLICIES:
        assert Session(plain_model(), budget=256, max_tokens=8, retention=name).policy.name == name


def test_pages_follow_cells_and_the_arena_suffices_for_hours() -> None:
    session = Session(plain_model(vision=7, audio=6), budget=300, max_tokens=8)
    worst = 0
    for index in range(1500):
        length = 1.0 if index % 5 else 0.4
        session.append(second(index, length))
        if index % 50 == 7:
            session.ask("?" * (1 + index % 40))
        usage = session._tables.usage()
        worst = max(worst, usage.pages - -(-usage.cells // PAGE))
    assert worst <= 9
    assert len(session._ledger) <= 300


def test_gaps_in_a_turn_do_not_pile_up_brackets() -> None:
    session = Session(plain_model(brackets=True), budget=256, max_tokens=8, retention="fifo")
    for index in range(0, 600, 2):
        session.append(second(index))
    view = session._ledger.view()
    content = np.unique(view.turn[view.role == Role.CONTENT])
    assert np.unique(view.turn[view.role == Role.BRACKET]).tolist() == content.tolist()
    assert session.summary()["units"] == 300


def test_eviction_starts_above_the_budget_and_not_before() -> None:
    events: list[dict] = []
    session = Session(plain_model(), budget=91 + 18 * 9, max_tokens=8, on_event=events.append)
    prefix = len(session._ledger)
    room = 91 + 18 * 9 - prefix
    assert room % 18 == 0
    for index in range(room // 18):
        session.append(second(index))
    assert len(session._ledger) == session.budget
    assert not [e for e in events if e["event"] == "evict"]
    session.append(second(99))
    (evict,) = [e for e in events if e["event"] == "evict"]
    assert evict["cells"] == len(session._ledger) <= session.budget * 7 // 8
    assert evict["units"][0] == 0 and sum(evict["tokens"].values()) > 0


def test_a_move_that_fails_is_told_and_costs_nothing() -> None:
    def run(fails: bool) -> tuple[list[str], str]:
        model, warnings = plain_model(), []

        def listen(event: dict) -> None:
            if event["event"] == "warning":
                warnings.append(event["message"])

        def refuse(plan: object) -> None:
            raise RuntimeError("no copy engine")

        if fails:
            model.backend.move = refuse
        session = Session(model, budget=256, max_tokens=8, on_event=listen)
        for index in range(40):
            session.append(second(index))
        assert (session._tables.moved_cells == 0) == fails
        return warnings, session.ask("what was it?")

    warnings, answer = run(True)
    assert warnings and all("no copy engine" in message for message in warnings)
    assert run(False) == ([], answer)


def test_a_move_that_fails_over_its_own_cells_is_no_small_matter() -> None:
    model = plain_model()

    def refuse(plan: object) -> None:
        raise RuntimeError("no copy engine")

    model.backend.move = refuse
    session = Session(model, budget=256, max_tokens=8, layout="eager")
    with pytest.raises(RuntimeError, match="copy engine"):
        for index in range(40):
            session.append(second(index))


def test_logits_that_are_not_finite_are_refused_and_the_stream_goes_on() -> None:
    model = plain_model()
    session = Session(model, budget=256, max_tokens=8)
    session.append(second(0))
    head, model.backend.head = model.backend.head, model.backend.head * np.nan
    with pytest.raises(BackendError, match="not finite"):
        session.ask("what?")
    model.backend.head = head
    session.append(second(1))
    assert session.ask("what?")


def test_an_interrupt_during_the_prompt_ends_the_answer_before_it_begins() -> None:
    model = plain_model()
    session = Session(model, budget=512, max_tokens=50)
    session.append(second(0))
    forward = model.backend.forward

    def interrupted(plan: object, embeddings: object = None) -> object:
        session.interrupt()
        model.backend.forward = forward
        return forward(plan, embeddings)

    model.backend.forward = interrupted
    assert session.ask("count to fifty") == ""
    assert len(session.ask("and now?").split()) > 2


@pytest.mark.parametrize("step", [3, 20, 33])
def test_a_step_that_the_backend_took_over_and_nobody_else_is_healed(step: int) -> None:
    """As when Ctrl-C comes between the backend's commit and the core's."""
    model = plain_model()
    steps = watched(model.backend)
    session = Session(model, budget=220, max_tokens=4, system="hello", prefill_chunk=7)
    run, count = model.backend.forward, 0

    def forward(plan: object, embeddings: object = None) -> object:
        nonlocal count
        count += 1
        result = run(plan, embeddings)
        if count == step:
            del steps[-1]
            raise KeyboardInterrupt
        return result

    model.backend.forward = forward
    index = 0
    while index < 30:
        before = len(steps)
        try:
            session.append(second(index))
            index += 1
        except KeyboardInterrupt:
            del steps[before:]
    session.ask("what?")
    for each, reference in zip(steps, masked_dense(steps, model.backend), strict=True):
        np.testing.assert_allclose(each["logits"][0], reference, rtol=1e-5, atol=1e-5)


def test_one_model_runs_one_session() -> None:
    model = plain_model()
    first = Session(model, budget=256, max_tokens=8)
    first.append(second(0))
    other = Session(model, budget=256, max_tokens=8)
    with pytest.raises(PlanError, match="another session"):
        first.append(second(1))
    other.append(second(0))


def test_a_question_that_cannot_fit_is_refused_before_it_is_asked() -> None:
    model = plain_model()
    session = Session(model, budget=256, max_tokens=8)
    session.append(second(0))
    forwards = model.backend.forwards
    with pytest.raises(BudgetError, match="fewer words"):
        session.ask("why? " * 100)
    assert model.backend.forwards == forwards
    assert session.ask("why?")


def test_units_follow_each_other_in_time() -> None:
    session = Session(plain_model(), budget=256, max_tokens=8)
    session.append(second(5))
    for wrong in (second(5), second(0), second(7, 0.0), second(7, -1.0), second(7, float("nan"))):
        with pytest.raises(MediaError, match="time"):
            session.append(wrong)
    session.append(second(7))


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefill_chunk": 0},
        {"groups": 0},
        {"max_tokens": 0},
        {"temperature": float("nan")},
        {"frame": -5000},
        {"frame": 0},
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(wrong: dict) -> None:
    with pytest.raises(OmniError, match=next(iter(wrong))):
        Session(plain_model(), **{"budget": 256, "max_tokens": 8, **wrong})


def test_a_budget_of_nothing_is_refused_and_not_taken_for_the_default() -> None:
    with pytest.raises(BudgetError, match="budget of 0"):
        Session(plain_model(), budget=0)


def test_branches_leave_the_attention_mass_as_it_was() -> None:
    def run(branch: bool) -> tuple[str, bytes]:
        session = Session(plain_model(), budget=256, max_tokens=6, retention="h2o")
        for index in range(30):
            session.append(second(index))
            if branch:
                session.ask("is it there?", branch=True)
        return session.ask("what was it?"), session._ledger.view().mass.tobytes()

    assert run(True) == run(False)


def test_mass_is_what_the_tokens_got() -> None:
    session = Session(plain_model(), budget=512, max_tokens=6, retention="h2o")
    for index in range(8):
        session.append(second(index))
    # Each query gives 1 a head and layer, all of it to live tokens, and nothing was evicted.
    queries = session._ledger.next_order
    assert session._ledger.view().mass.sum() == pytest.approx(
        queries * TEXT.q_heads * TEXT.layers, rel=1e-5
    )


def test_generated_text_is_numbered_and_its_markup_stays_in_its_unit() -> None:
    session = Session(plain_model(), budget=512, max_tokens=6)
    session.append(second(0))
    session.ask("hm")
    view = session._ledger.view()
    assert view.offset[view.role == Role.GENERATED].tolist() == list(range(6))
    assert np.unique(view.unit[np.isin(view.role, (Role.PROMPT, Role.GENERATED))]).tolist() == [1]


def test_a_full_pool_is_refused_and_the_stream_goes_on_when_there_is_room() -> None:
    session = Session(plain_model(), budget=256, max_tokens=8)
    for index in range(30):
        session.append(second(index))
    tables = session._tables
    held = np.flatnonzero(tables._group == -1)[1:]
    tables._group[held] = 99
    with pytest.raises(BudgetError, match="do not fit"):
        session.append(second(30))
    tables._group[held] = -1
    session.append(second(30))
    assert session.summary()["units"] == 31
