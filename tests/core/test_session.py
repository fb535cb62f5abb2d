"""The stream loop over the NumPy oracle backend."""

from __future__ import annotations

import numpy as np
import pytest
from numpy_backend import TEXT, NumpyBackend, plain_model, second

from omni_core.backend import PAGE
from omni_core.errors import BudgetError
from omni_core.reference.attention import masked_attention
from omni_core.reference.rotary import rotary_tables, rotate
from omni_core.retention import POLICIES
from omni_core.session import Session
from omni_core.units import EMBEDDED


def watched(backend: NumpyBackend) -> list[dict]:
    """Record each step's inputs and the orders that were live in it, beside running it."""
    steps: list[dict] = []
    forward = backend.forward

    def run(plan, embeddings=None):
        live = [group.order.copy() for group in backend.mirror.preview(plan)]
        logits = forward(plan, embeddings)
        steps.append({"plan": plan, "embeddings": embeddings, "live": live, "logits": logits})
        return logits

    backend.forward = run
    return steps


def masked_dense(steps: list[dict], backend: NumpyBackend) -> list[np.ndarray]:
    """Logits of a dense run over all tokens, each query masked to what was live at its step."""
    orders = np.concatenate([s["plan"].order for s in steps])
    rows = []
    for s in steps:
        x = backend.embedding[np.maximum(s["plan"].tokens[0], 0)]
        embedded = s["plan"].tokens[0] == EMBEDDED
        if embedded.any():
            x[embedded] = s["embeddings"][s["plan"].rows[embedded]]
        rows.append(x)
    x = np.concatenate(rows)
    positions = np.concatenate([s["plan"].positions for s in steps], axis=1)
    cos, sin = rotary_tables(positions, TEXT.head_dim, TEXT.rope_theta, TEXT.mrope_section)
    for weights in backend.layers:
        heads = (len(x), -1, TEXT.head_dim)
        q = rotate((x @ weights["q"]).reshape(heads), cos, sin)
        k = rotate((x @ weights["k"]).reshape(heads), cos, sin)
        v = (x @ weights["v"]).reshape(heads)
        outs, at = [], 0
        for s in steps:
            count = s["plan"].order.size
            seen = np.isin(orders, s["live"][0])
            outs.append(
                masked_attention(
                    q[at : at + count],
                    k[seen],
                    v[seen],
                    s["plan"].order,
                    orders[seen],
                    np.zeros(seen.sum()),
                    TEXT.head_dim**-0.5,
                )
            )
            at += count
        x = x + np.concatenate(outs).reshape(len(x), -1) @ weights["o"]
    logits, at = [], 0
    for s in steps:
        logits.append(x[at + s["plan"].logits] @ backend.head.T)
        at += s["plan"].order.size
    return logits


@pytest.mark.parametrize("brackets", [False, True])
@pytest.mark.parametrize("retention", ["fifo", "omnipick"])
@pytest.mark.parametrize("chunk", [5, 512])
def test_evicted_stream_equals_masked_dense_run(retention: str, brackets: bool, chunk: int) -> None:
    model = plain_model(vision=11, brackets=brackets)
    steps = watched(model.backend)
    session = Session(
        model, budget=220, retention=retention, max_tokens=6, prefill_chunk=chunk, system="hello"
    )
    for index in range(40):
        session.append(second(index))
        if index % 7 == 3:
            session.ask("what?")
    assert session.summary()["evicted"] > 300
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
    positions = np.concatenate([s["plan"].positions[0] for s in steps])
    orders = np.concatenate([s["plan"].order for s in steps])
    assert (np.diff(positions) > 0).all() and (np.diff(orders) == 1).all()


def test_no_slide_ends_with_a_clear_error_and_keeps_the_stream() -> None:
    session = Session(plain_model(), budget=256, retention="no-slide", max_tokens=8)
    with pytest.raises(BudgetError, match="no-slide"):
        for index in range(60):
            session.append(second(index))


@pytest.mark.parametrize("step", range(6))
def test_a_failing_step_leaves_no_trace(step: int) -> None:
    def run(fail: bool) -> tuple[str, str]:
        model = plain_model()
        session = Session(model, budget=256, max_tokens=6, prefill_chunk=4)
        for index in range(10):
            session.append(second(index))
        if fail:
            model.backend.fail_in = step
            with pytest.raises(RuntimeError):
                session.append(second(10)) if step < 4 else session.ask("what is it?")
        tables, ledger = session._tables, session._ledger
        state = (tables._live.tobytes(), tables._group.tobytes(), ledger.view().order.tobytes())
        session.append(second(10))
        return repr(state), session.ask("and now?")

    assert run(True) == run(False)


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
