"""Sealed sessions that are saved, recorded, replayed, explained and run as a batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy_backend import SEALABLE, NumpyBackend, PlainFrontend, plain_model, second
from streams import follow, watched

from omni_core.backend import ArenaLayout, MovePlan
from omni_core.batch import StreamBatch
from omni_core.errors import BackendError, OmniError, RecordingError
from omni_core.explain import Explainer, compact_map
from omni_core.model import Model
from omni_core.paging import PageLayout
from omni_core.plans import differing_field
from omni_core.recording import Recorder, Recording
from omni_core.replay import first_difference, replay
from omni_core.retention import OmniPick
from omni_core.safetensors_header import read_header
from omni_core.session import Session
from omni_core.settings import Settings

SEALED: dict[str, Any] = {"budget": 300, "kv_bits": 2, "max_tokens": 6, "system": "hello"}


def model(**shape: Any) -> Model:
    return plain_model(SEALABLE, **shape)


@pytest.mark.parametrize(
    ("bits", "seal", "groups", "layout"),
    [(2, "recent", 1, "page"), (3, "all", 2, "eager"), (4, "all", 1, "native")],
)
def test_a_resumed_session_goes_on_as_if_uninterrupted(
    tmp_path: Path, bits: int, seal: str, groups: int, layout: str
) -> None:
    more = {"kv_bits": bits, "seal": seal, "groups": groups, "layout": layout, "frame": 90}
    settings = {**SEALED, **more}
    parts = []
    for start, stop in ((0, 40), (0, 23), (23, 40)):
        fresh = model()
        logits = watched(fresh)
        resumed = start > 0
        session = Session.resume(fresh, tmp_path / "s") if resumed else Session(fresh, **settings)
        follow(session, start, stop)
        if stop == 23:
            session.save(tmp_path / "s")
        parts.append((session, logits))
    (one, whole), (two, first), (three, rest) = parts
    assert three.settings == two.settings and three.summary() == one.summary()
    assert one.summary()["kv"]["sealed_cells"] > 50 and one.summary()["kv"]["bits"] == bits
    for expected, found in zip(whole, first + rest, strict=True):
        np.testing.assert_array_equal(expected, found)


def refusing(order: int) -> Model:
    """A model whose backend cannot seal one token."""
    made = model()
    move = made.backend.move

    def checked(plan: MovePlan) -> None:
        orders = made.backend.mirror.order.reshape(-1)
        if len(plan.seals) and (orders[plan.seals.cells[0]] == order).any():
            raise BackendError("layer 0: keys hold a number that is not finite")
        move(plan)

    made.backend.move = checked
    return made


@pytest.mark.parametrize("at", [8, 12])
def test_what_was_refused_stays_so_after_a_resume_and_is_forgotten(tmp_path: Path, at: int) -> None:
    settings = {**SEALED, "seal": "all", "retention": "fifo"}
    whole = Session(refusing(60), **settings)
    follow(whole, 0, 40)
    assert whole._cache.refused.size == 0
    first = Session(refusing(60), **settings)
    follow(first, 0, at)
    assert 60 in first._cache.refused
    first.save(tmp_path / "s")
    warned: list[Any] = []
    second = Session.resume(refusing(60), tmp_path / "s", on_event=warned.append)
    follow(second, at, 40)
    assert second.summary()["plans"] == whole.summary()["plans"]
    assert not [event for event in warned if event["event"] == "warning"]


def saved(folder: Path) -> Session:
    session = Session(model(), **SEALED)
    follow(session, 0, 25)
    session.save(folder)
    return session


def test_sealed_pages_are_saved_as_they_are(tmp_path: Path) -> None:
    session = saved(tmp_path / "s")
    (file,) = (tmp_path / "s").glob("*.safetensors")
    stored = read_header(file)
    usage, arena = session._cache.usage(), session._tables.arena
    plain = usage["cells"] - usage["sealed_cells"]
    assert stored["keys.1"].shape == (1, plain, 2, 16) and stored["keys.1"].dtype == "F64"
    shape = (1, usage["sealed_pages"], 2, arena.sealed.bytes)
    assert stored["sealed.1"].shape == shape and stored["sealed.1"].dtype == "U8"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bits": 3}, "an arena of"),
        ({"codec": "omnikvquant"}, "an arena of"),
        ({"sealed_pages": 5}, "an arena of"),
    ],
)
def test_another_arena_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    from omni_core import saving

    saved(tmp_path / "s")
    state = tmp_path / "s" / saving.STATE
    document = json.loads(state.read_text())
    document["session"]["cache"]["arena"] |= change
    document["sha256"] = saving._digest(document["session"])
    state.write_text(json.dumps(document))
    with pytest.raises(RecordingError, match=says):
        Session.resume(model(), tmp_path / "s")


def test_pages_are_not_read_by_other_tables(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    other = model()
    plain = other.backend.tables
    other.backend.tables = lambda layer: replace(plain(layer), rotations=-plain(layer).rotations)
    with pytest.raises(RecordingError, match=r"other tables of values .* values\.safetensors"):
        Session.resume(other, tmp_path / "s")


def test_kinds_of_sealed_pages_are_checked(tmp_path: Path) -> None:
    from omni_core import saving

    session = saved(tmp_path / "s")
    page = session._tables.arena.pages
    state = tmp_path / "s" / saving.STATE
    document = json.loads(state.read_text())
    for kind, says in ((3, "a modality"), (64, "kinds of sealed pages below 64")):
        document["session"]["cache"]["tables"]["pages"]["kind"][page] = kind
        document["sha256"] = saving._digest(document["session"])
        state.write_text(json.dumps(document))
        with pytest.raises(RecordingError, match=says):
            Session.resume(model(), tmp_path / "s")


def test_settings_from_before_there_were_sealed_pages_are_of_16_bits() -> None:
    state = Session(model(), **SEALED).settings.state()
    assert (state.pop("kv_bits"), state.pop("seal")) == (2, "recent")
    assert Settings.restored(state).sealing is None
    with pytest.raises(OmniError, match="codes of 5 bits"):
        Settings.restored({**state, "kv_bits": 5})
    with pytest.raises(ValueError, match="a text"):
        Settings.restored({**state, "seal": 1})


def record(folder: Path, **more: Any) -> Session:
    session = Session(model(), recorder=Recorder(folder), **{**SEALED, **more})
    for index in range(30):
        session.append(second(index))
        if index % 9 == 4:
            session.ask("what?")
    session.close()
    return session


def test_a_replay_seals_as_was_recorded(tmp_path: Path) -> None:
    session = record(tmp_path / "one")
    about = Recording(tmp_path / "one").meta
    assert (about["kv_bits"], about["seal"]) == (2, "recent")
    arena = ArenaLayout.restored(about["arena"])
    assert arena == session._tables.arena
    backend = NumpyBackend(text=SEALABLE)
    backend.allocate(arena)
    report = replay(Recording(tmp_path / "one"), backend, PlainFrontend())
    assert report.compared == report.agreed > 20 and report.worst < 1e-6
    moves = [p for p in Recording(tmp_path / "one").plans() if getattr(p, "seals", ())]
    assert len(moves) > 5
    assert all(differing_field(plan, plan) == "" for plan in moves)
    record(tmp_path / "two")
    record(tmp_path / "three", seal="all")
    assert first_difference(Recording(tmp_path / "one"), Recording(tmp_path / "two")) is None
    assert first_difference(Recording(tmp_path / "one"), Recording(tmp_path / "three"))


def test_what_is_sealed_is_explained_by_small_letters() -> None:
    lines: list[str] = []
    explainer = Explainer(lines.append, OmniPick(), PageLayout(), "a run")
    session = Session(model(), watcher=explainer, **{**SEALED, "budget": 500})
    for index in range(25):
        session.append(second(index))
    assert "a small one where they are sealed" in lines[0]
    pages = lines[-1].rsplit("|", 1)[1]
    assert "P" in pages and "T" in pages and " t" in pages and " s" in pages
    legend, _ = compact_map(session.page_maps()[0], session.layout)
    assert "S sink" in legend and "small letters are sealed" in legend
    plain = Session(model(), budget=300, max_tokens=6)
    assert "sealed" not in compact_map(plain.page_maps()[0], plain.layout)[0]


def test_a_batch_seals_as_a_session_does() -> None:
    streams = 2
    many = Model(NumpyBackend(text=SEALABLE, streams=streams), PlainFrontend(), SEALABLE, "plain")
    batch = StreamBatch(
        many, streams=streams, budget=300, retention="omnipick", system="hello", kv_bits=2
    )
    session = Session(model(), **{**SEALED, "max_tokens": 64})
    for index in range(30):
        batch.append(batch.encode([second(index)] * streams))
        session.append(second(index))
    usage = batch.usage()
    assert usage["sealed_cells"] > 40
    assert usage == session._cache.usage()
    logits = batch.branch(np.full((streams, 3), 5, np.int32))
    np.testing.assert_array_equal(logits[0], logits[1])
