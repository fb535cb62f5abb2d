"""Streams whose vision tokens are aggregated: what enters, what it weighs, what is told."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from masked_dense import masked_dense, watched
from numpy_backend import SEALABLE, TEXT, plain_model, second
from scenes import BAD, noise, scene_model, shot, still

from omni_core.aggregation import Aggregation, Counts
from omni_core.aggregation.interframe import shown
from omni_core.aggregation.places import Places
from omni_core.backend import MergePlan
from omni_core.batch import StreamBatch
from omni_core.errors import OmniError, PlanError, RecordingError
from omni_core.explain import Explainer
from omni_core.frontend.base import UnitMedia
from omni_core.paging import LAYOUTS, PageLayout
from omni_core.plan_checks import check_merge
from omni_core.recording import Recorder, Recording
from omni_core.replay import first_difference, replay
from omni_core.retention import POLICIES, OmniPick
from omni_core.session import Session
from omni_core.settings import Settings
from omni_core.units import Modality, Role

RULE = Aggregation()
STRICT = Aggregation(least=0)
"""As the paper has it: of a scene that stays, nothing enters."""


def opened(model: Any = None, **settings: Any) -> Session:
    given = {"budget": 512, "max_tokens": 6, "system": "hello", "aggregation": STRICT, **settings}
    return Session(model or scene_model(), **given)


def tallies(session: Session, media: list[UnitMedia]) -> list[tuple[int, ...]]:
    """Of each unit: seen, entered, shown, merged, invalid."""
    found: list[tuple[int, ...]] = []
    session._emit_to = lambda event: (
        found.append(tuple(event["aggregated"].values())) if event["event"] == "unit" else None
    )
    for unit in media:
        session.append(unit)
    return found


def wandering(index: int) -> UnitMedia:
    """Pictures that stay, change in part or whole, repeat in themselves, or are no numbers."""
    frame = noise(index // 4)
    frame[0] = noise(index)[0] if index % 2 else 7
    if index % 9 == 5:
        frame = still(index)
    if index % 9 == 7:
        frame[2, 2] = BAD
    return shot(index, frame)


def test_a_scene_that_stays_enters_once() -> None:
    session = opened()
    found = tallies(session, [shot(index, noise(0)) for index in range(5)])
    assert found == [(9, 9, 0, 0, 0), *[(9, 0, 9, 0, 0)] * 4]
    view = session._ledger.view()
    seen = view.unit[view.modality == Modality.VISION]
    assert seen.tolist() == [0] * 9
    # That there was a picture is told by its delimiters.
    later = (view.unit > 0) & (view.sense == Modality.VISION)
    assert (view.role[later] == Role.DELIMITER).all() and later.sum() == 4 * 2


def test_of_a_scene_that_stays_so_many_tokens_enter_as_is_said() -> None:
    for least in (1, 2, 30):
        model = scene_model(noise=0.02)
        session = opened(model, aggregation=Aggregation(least=least))
        found = tallies(session, [shot(index, noise(0)) for index in range(4)])
        entered = min(least, 9)
        assert found == [(9, 9, 0, 0, 0), *[(9, entered, 9 - entered, 0, 0)] * 3]
    # They are those that are least like what their places have shown.
    level = np.asarray([4000, 3900, 4096, 3900], np.int32)
    at, every = np.arange(4, dtype=np.int32), np.ones(4, np.bool_)
    for least, left in ((0, []), (1, [1]), (2, [1, 3]), (3, [0, 1, 3])):
        found = shown(every, at, level, Aggregation(least=least))
        assert np.flatnonzero(~found).tolist() == left
    # What is no number does not count.
    found = shown(at != 1, at, level, Aggregation(least=1))
    assert np.flatnonzero(~found).tolist() == [1, 3]


def test_what_changes_enters_where_it_changed() -> None:
    before, after = noise(0), noise(0)
    after[1, 2] = 100
    session = opened()
    found = tallies(session, [shot(0, before), shot(1, after), shot(2, before), shot(3, before)])
    # What comes back after something else is a change too.
    assert [row[1] for row in found] == [9, 1, 1, 0]
    view = session._ledger.view()
    changed = (view.unit == 1) & (view.modality == Modality.VISION)
    assert view.offset[changed].tolist() == [0]


def test_a_thing_that_moves_is_a_change_though_it_looks_the_same() -> None:
    frames = [np.full((3, 3), 1) for _ in range(2)]
    frames[0][0, 0], frames[1][2, 2] = 2, 2
    session = opened(aggregation=Aggregation(rounds=0))
    found = tallies(session, [shot(index, frame) for index, frame in enumerate(frames)])
    assert [row[1] for row in found] == [9, 2]


def test_a_frame_of_one_colour_merges_and_its_cells_count_for_all() -> None:
    session = opened()
    assert tallies(session, [shot(0, still(3, 4, 4))]) == [(16, 1, 0, 15, 0)]
    view = session._ledger.view()
    seen = view.modality == Modality.VISION
    assert view.count[seen].tolist() == [16] and (view.count[~seen] == 1).all()
    # What was merged away has its place all the same: nothing of it enters again.
    assert tallies(session, [shot(1, still(3, 4, 4))]) == [(16, 0, 16, 0, 0)]


def test_a_merged_token_keeps_the_place_of_the_first() -> None:
    model = scene_model()
    steps = watched(model.backend)
    session = opened(model)
    frame = noise(0)
    frame[1, 0] = frame[1, 1] = frame[1, 2]
    tallies(session, [shot(0, frame)])
    plan = steps[-1]["plan"]
    merged = plan.counts > 1
    # Fourth and fifth place, then the two that are left of the frame's nine.
    assert plan.counts[merged].tolist() == [3]
    first = int(np.flatnonzero(plan.rows >= 0)[0])
    assert plan.positions[0, merged].tolist() == [plan.positions[0, first] + 3]


@pytest.mark.parametrize("colours", [noise(0, 1, 1), still(4, 1, 1)])
def test_a_frame_of_one_token(colours: np.ndarray) -> None:
    found = tallies(opened(), [shot(index, colours) for index in range(3)])
    assert found == [(1, 1, 0, 0, 0), (1, 0, 1, 0, 0), (1, 0, 1, 0, 0)]


def test_tokens_that_are_no_numbers_are_left_out_and_counted() -> None:
    frame = noise(0)
    frame[0, :2] = BAD
    session = opened()
    assert tallies(session, [shot(0, frame), shot(1, frame), shot(2, noise(0))]) == [
        (9, 7, 0, 0, 2),
        (9, 0, 7, 0, 2),
        (9, 2, 7, 0, 0),
    ]
    assert tallies(session, [shot(3, np.full((3, 3), BAD))]) == [(9, 0, 0, 0, 9)]
    # The answer's logits are numbers, or it would be refused.
    assert session.ask("what?")


def test_a_picture_of_another_size_starts_anew() -> None:
    frames = [still(3, 2, 3), still(3, 3, 2), still(3, 3, 2), still(3, 2, 3)]
    found = tallies(opened(), [shot(index, frame) for index, frame in enumerate(frames)])
    assert [row[1:4] for row in found] == [(1, 0, 5), (1, 0, 5), (0, 6, 0), (1, 0, 5)]


def test_the_frames_of_one_unit_are_compared_with_each_other() -> None:
    after = noise(0)
    after[2, 1] = 100
    session = opened()
    found = tallies(session, [shot(0, noise(0), after, after), shot(1, after, noise(0))])
    assert found == [(27, 10, 17, 0, 0), (18, 1, 17, 0, 0)]


def test_a_unit_without_picture_changes_nothing() -> None:
    session = opened()
    media = [shot(0, noise(0)), shot(1), shot(2, noise(0))]
    assert tallies(session, media) == [(9, 9, 0, 0, 0), (0,) * 5, (9, 0, 9, 0, 0)]


def test_a_static_scene_enters_again_once_its_cells_have_gone() -> None:
    session = opened(budget=160, retention="fifo")
    entered = [row[1] for row in tallies(session, [shot(i, noise(0)) for i in range(120)])]
    assert entered[0] == 9 and set(entered) == {0, 9} and 3 <= entered.count(9) <= 20
    # Whenever a unit has ended, the picture is alive or was evicted by that very unit's end.
    session = opened(budget=160, retention="fifo")
    blind = 0
    for index in range(120):
        session.append(shot(index, noise(0)))
        seen = session._ledger.view().modality == Modality.VISION
        blind = 0 if seen.any() else blind + 1
        assert blind <= 1


def test_what_was_not_seen_by_every_layer_group_is_not_seen() -> None:
    session = opened(groups=2)
    session.append(shot(0, noise(0)))
    view = session._ledger.view()
    gone = np.zeros(view.cells.shape, np.bool_)
    gone[1, np.flatnonzero(view.modality == Modality.VISION)[:4]] = True
    session._ledger.drop(gone)
    assert tallies(session, [shot(1, noise(0))]) == [(9, 4, 5, 0, 0)]


EVICTING = [name for name in POLICIES if name != "no-slide"]
VARIED = [(False, 512, None), (True, 512, 100), (False, 7, 64), (True, 11, 128)]
MATRIX = [
    (retention, layout, *VARIED[(row + column) % len(VARIED)])
    for row, retention in enumerate(EVICTING)
    for column, layout in enumerate(LAYOUTS)
]


@pytest.mark.parametrize(("retention", "layout", "brackets", "chunk", "frame"), MATRIX)
def test_an_aggregated_stream_equals_the_masked_dense_run_of_what_entered(
    retention: str, layout: str, brackets: bool, chunk: int, frame: int | None
) -> None:
    model = scene_model(brackets=brackets)
    steps = watched(model.backend)
    session = opened(
        model,
        budget=160,
        retention=retention,
        layout=layout,
        prefill_chunk=chunk,
        frame=frame,
        aggregation=Aggregation(least=chunk % 2),
    )
    for index in range(60):
        session.append(wandering(index))
        if index % 7 == 3:
            session.ask("what?")
    summary = session.summary()
    assert summary["evicted"] > 100 and summary["kv"]["most_cells"] <= 160
    tally = summary["aggregated"]
    assert min(tally.values()) > 0 and tally["seen"] == 60 * 9
    assert tally["seen"] == sum(tally[name] for name in tally if name != "seen")
    entered = np.concatenate([step["plan"].counts for step in steps])
    rows = np.concatenate([step["plan"].rows >= 0 for step in steps])
    heard = 60 * 5
    assert entered[rows].sum() == tally["seen"] - tally["shown"] - tally["invalid"] + heard
    expected = masked_dense(steps, model.backend)
    for step, reference in zip(steps, expected, strict=True):
        np.testing.assert_allclose(step["logits"][0], reference, rtol=1e-5, atol=1e-5)


def test_merging_equal_tokens_at_one_place_changes_no_answer() -> None:
    """In a model of one layer, whose keys and values know nothing of the tokens before."""

    def logits(aggregation: Aggregation | None) -> np.ndarray:
        model = scene_model(text=replace(TEXT, layers=1))
        steps = watched(model.backend)
        frontend = model.frontend
        unit = frontend.unit

        def flat(media: UnitMedia, cursor: Any) -> Any:
            tokens, after = unit(media, cursor)
            seen = tokens.block.modality == Modality.VISION
            tokens.block.positions[:, seen] = tokens.block.positions[:, seen].min()
            return tokens, after

        frontend.unit = flat
        session = opened(model, aggregation=aggregation)
        session.append(shot(0, still(3, 4, 4)))
        session.ask("what?", branch=True)
        return next(step["logits"] for step in steps if step["logits"].size)

    np.testing.assert_allclose(logits(RULE), logits(None), rtol=1e-5, atol=1e-5)


def test_off_is_off() -> None:
    """Not one more call, and the plans that such a stream has always had."""
    session = opened(plain_model(), aggregation=None, budget=160)
    session.model.backend.merge = session.model.backend.vision_memory = None
    for index in range(40):
        session.append(second(index))
        if index % 7 == 3:
            session.ask("what?")
    summary = session.summary()
    assert summary["evicted"] == 649 and "aggregated" not in summary
    assert summary["plans"] == "d5237c0adb924b46"
    assert "aggregation" not in session.settings.state() | session.settings.named()


def test_nothing_to_aggregate_gives_the_plans_of_a_stream_without() -> None:
    def plans(aggregation: Aggregation | None) -> str:
        session = opened(aggregation=aggregation, budget=160)
        for index in range(30):
            session.append(shot(index, noise(index)))
        assert session.summary()["evicted"] > 100
        return str(session.summary()["plans"])

    assert plans(RULE) == plans(None)


@pytest.mark.parametrize("step", range(3))
def test_a_unit_that_fails_is_as_if_it_had_not_come(step: int) -> None:
    """Of a picture of another size, whose tokens would have taken the places of those before."""

    def run(fail: bool) -> tuple[str, dict[str, Any], str | None]:
        session = opened(budget=160, prefill_chunk=5)
        for index in range(40):
            if fail and index % 5 == 2:
                session.model.backend.fail_in = step
                with pytest.raises(RuntimeError):
                    session.append(shot(index, noise(index + 500, 4, 2 + index % 2)))
            elif index % 5 != 2:
                session.append(wandering(index))
        # Plans of steps that ran before the one that failed were told.
        plans = None if step else str(session.summary()["plans"])
        return session.ask("what?"), asdict(session._seen), plans

    assert run(True) == run(False)


@pytest.mark.parametrize(
    ("retention", "bits", "groups"), [("fifo", 16, 1), ("omnipick", 16, 2), ("omnipick", 2, 1)]
)
def test_a_saved_stream_goes_on_as_if_uninterrupted(
    tmp_path: Path, retention: str, bits: int, groups: int
) -> None:
    settings = {"budget": 200, "retention": retention, "kv_bits": bits, "groups": groups}
    settings |= {"seal": "all"}
    text = TEXT if bits == 16 else SEALABLE

    def follow(session: Session, start: int, stop: int) -> None:
        for index in range(start, stop):
            session.append(wandering(index))
            if index % 7 == 3:
                session.ask("what?")

    whole = opened(scene_model(text=text), **settings)
    follow(whole, 0, 40)
    assert bits == 16 or whole.summary()["kv"]["sealed_cells"] > 32
    for at in (0, 1, 13, 22):
        session = opened(scene_model(text=text), **settings)
        follow(session, 0, at)
        session.save(tmp_path / f"{at}")
        again = Session.resume(scene_model(text=text), tmp_path / f"{at}")
        assert again.settings.aggregation == STRICT
        follow(again, at, 40)
        assert again.summary() == whole.summary()


def test_a_saved_stream_brings_back_its_biases(tmp_path: Path) -> None:
    session = opened()
    session.append(shot(0, still(3, 4, 4)))
    answer = session.ask("what?", branch=True)
    session.save(tmp_path / "s")
    again = Session.resume(scene_model(), tmp_path / "s")
    assert again.model.backend.mirror.merged
    assert again.ask("what?", branch=True) == answer
    assert np.unique(again.model.backend.mirror.counts).tolist() == [1, 16]


def test_damaged_places_are_refused(tmp_path: Path) -> None:
    session = opened()
    session.append(shot(0, noise(0)))
    state = session._cache.aggregator.places.state()
    view = session._ledger.view()
    restored = Places.restored(state, view)
    assert restored.state() == state
    for field, value in (
        ("size", [3]),
        ("size", [1, 1]),
        ("order", [0] * 9),
        ("order", [-1] * 9),
        ("order", [-2] * 9),
        ("slot", [0] * 9),
        ("slot", list(range(2**30, 2**30 + 9))),
        ("slot", [0]),
    ):
        with pytest.raises(ValueError, match="expected"):
            Places.restored({**state, field: value}, view)


def test_a_replay_merges_as_was_recorded(tmp_path: Path) -> None:
    for name in ("one", "two"):
        session = opened(budget=160, recorder=Recorder(tmp_path / name))
        for index in range(20):
            session.append(wandering(index))
            if index % 7 == 3:
                session.ask("what?")
        session.close()
    one = Recording(tmp_path / "one")
    assert one.meta["aggregation"] == STRICT.state()
    assert first_difference(one, Recording(tmp_path / "two")) is None
    merges = [plan for plan in one.plans() if isinstance(plan, MergePlan)]
    assert merges
    model = scene_model()
    model.backend.allocate(session._tables.arena)
    report = replay(one, model.backend, model.frontend)
    assert report.worst < 1e-6 and report.agreed == report.compared > 10
    assert report.rows > report.merged > 0
    # A merge that is another is told.
    folder = tmp_path / "two" / "plans.jsonl"
    lines = folder.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"kind":"merge"' in line)
    for name in ("source", "target"):
        lines[at] = lines[at].replace(f'"{name}":[', f'"{name}":[0,')
    folder.write_text("\n".join(lines) + "\n")
    assert "MergePlan.source differs" in str(first_difference(one, Recording(tmp_path / "two")))


def test_a_replay_without_media_says_what_is_missing(tmp_path: Path) -> None:
    session = opened(budget=160, recorder=Recorder(tmp_path / "one"))
    session.append(wandering(0))
    session.close()
    file = tmp_path / "one" / "plans.jsonl"
    lines = file.read_text().splitlines()
    assert any('"kind":"merge"' in line for line in lines)
    kept = [line for line in lines if '"kind":"unit"' not in line]
    assert len(kept) == len(lines) - 1
    file.write_text("\n".join(kept) + "\n")
    model = scene_model()
    model.backend.allocate(session._tables.arena)
    with pytest.raises(RecordingError, match="no unit came before, expected its media"):
        replay(Recording(tmp_path / "one"), model.backend, model.frontend)


def test_the_explanation_tells_what_did_not_enter() -> None:
    lines: list[str] = []
    explainer = Explainer(lines.append, OmniPick(), PageLayout(), "t", aggregated=True)
    session = opened(watcher=explainer)
    frame = noise(0)
    frame[2, 2] = BAD
    frame[0] = 7
    for index in range(2):
        session.append(shot(index, frame))
    session.ask("what?")
    head = lines[0].splitlines()[-1]
    column = head.split(" | ").index("   seen   shown  merged invalid")
    told = [line.split(" | ")[column].split() for line in lines[1:]]
    assert told == [["9", "-", "2", "1"], ["9", "8", "-", "1"], ["-"] * 4]
    assert len({line.index(" | ") for line in [*lines[1:], head]}) == 1


def test_what_is_remembered_does_not_grow() -> None:
    session = opened(budget=160, retention="omnipick", aggregation=RULE)
    most = []
    for part in range(4):
        for index in range(60):
            session.append(wandering(60 * part + index))
        assert session._cache.aggregator is not None
        most.append(session._cache.aggregator.memory.bytes)
    frames = 2 * 9 * TEXT.hidden * 8
    assert 0 < most[0] <= frames and most[-1] <= frames


def test_streams_in_step_cannot_be_aggregated_and_one_can() -> None:
    model = scene_model()
    batch = StreamBatch(
        model, streams=1, budget=160, retention="omnipick", system="hello", aggregation=RULE
    )
    session = opened(budget=160, retention="omnipick", aggregation=RULE)
    for index in range(20):
        batch.append(batch.encode([wandering(index)]))
        session.append(wandering(index))
    assert asdict(batch.aggregated) == session.summary()["aggregated"]
    assert batch.usage()["cells"] == session.summary()["kv"]["cells"]
    with pytest.raises(OmniError, match="2 streams share one layout"):
        StreamBatch(model, streams=2, budget=160, retention="fifo", aggregation=RULE)


def test_settings_come_back_and_older_ones_have_none() -> None:
    state = opened(aggregation=RULE).settings.state()
    assert Settings.restored(state).aggregation == RULE
    del state["aggregation"]
    assert Settings.restored(state).aggregation is None
    with pytest.raises(ValueError, match="parameters of an aggregation"):
        Aggregation.restored({"inter": 0.5})


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ([0, 9], [0, 1], "rows 0 to 9 of 9"),
        ([-1], [0], "rows -1 to -1"),
        ([0, 1], [0, 2], "no gap"),
        ([0, 1], [1, 0], "no gap"),
        ([0, 1], [0], "one for each"),
    ],
)
def test_merges_that_do_not_fit_are_refused(
    source: list[int], target: list[int], told: str
) -> None:
    plan = MergePlan(np.asarray(source, np.int32), np.asarray(target, np.int32))
    with pytest.raises(PlanError, match=told):
        check_merge(plan, 9)


def test_counts_add_up() -> None:
    assert Counts(5, 2, 1, 1, 1) + Counts(3, 3) == Counts(8, 5, 1, 1, 1)
