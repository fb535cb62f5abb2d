"""Saved sessions: they go on as if they had never stopped, and what is damaged is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy_backend import NumpyBackend, plain_model
from streams import follow, watched

from omni_core import saving
from omni_core.checkpoints import Checkpoint
from omni_core.errors import OmniError, PlanError, RecordingError
from omni_core.identity import identity
from omni_core.paging import LAYOUTS
from omni_core.recording import Recorder, Recording
from omni_core.replay import first_difference
from omni_core.retention import POLICIES, OmniPick
from omni_core.safetensors_header import read_header
from omni_core.saving import STATE, check_target, open_saved
from omni_core.session import Model, Session
from omni_core.tensor_file import read_tensor, write_tensors

UNITS, SAVED_AT = 40, 23
VARIED = [(False, 512, None, 1), (True, 512, 100, 2), (False, 7, 64, 1), (True, 11, 128, 2)]
MATRIX = [
    (retention, layout, *VARIED[(row + column) % len(VARIED)])
    for row, retention in enumerate(POLICIES)
    for column, layout in enumerate(LAYOUTS)
]


def saved(folder: Path, units: int = 8, **settings: Any) -> Session:
    session = Session(plain_model(), **{"budget": 256, "max_tokens": 6, **settings})
    follow(session, 0, units)
    session.save(folder)
    return session


def grown(folder: Path) -> Session:
    """A session that goes on from a saved one."""
    session = Session.resume(plain_model(), folder)
    follow(session, 8, 12)
    return session


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(("retention", "layout", "brackets", "chunk", "frame", "groups"), MATRIX)
def test_a_resumed_session_goes_on_as_if_uninterrupted(
    tmp_path: Path,
    retention: str,
    layout: str,
    brackets: bool,
    chunk: int,
    frame: int | None,
    groups: int,
) -> None:
    settings = {
        "budget": 1200 if retention == "no-slide" else 220,
        "retention": retention,
        "layout": layout,
        "max_tokens": 6,
        "temperature": 1.0,
        "seed": 3,
        "system": "hello",
        "prefill_chunk": chunk,
        "frame": frame,
        "groups": groups,
    }
    model = plain_model(brackets=brackets)
    whole = watched(model)
    one = Session(model, **settings)
    follow(one, 0, UNITS)
    model = plain_model(brackets=brackets)
    first = watched(model)
    two = Session(model, **settings)
    follow(two, 0, SAVED_AT)
    two.save(tmp_path / "s")
    model = plain_model(brackets=brackets)
    rest = watched(model)
    three = Session.resume(model, tmp_path / "s")
    assert three.time == SAVED_AT and three.settings == two.settings
    follow(three, SAVED_AT, UNITS)
    assert three.summary() == one.summary()
    assert (one.summary()["evicted"] > 300) == (retention != "no-slide")
    for expected, found in zip(whole, first + rest, strict=True):
        np.testing.assert_array_equal(expected, found)


def test_saving_changes_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    plain = Session(plain_model(), budget=256, max_tokens=6)
    follow(plain, 0, 30)
    session = Session(plain_model(), budget=256, max_tokens=6)
    for index in range(0, 30, 3):
        follow(session, index, index + 3)
        session.save(tmp_path / "s")
    assert session.summary() == plain.summary()
    assert len(list((tmp_path / "s").iterdir())) == 2
    assert Session.resume(plain_model(), tmp_path / "s").summary() == plain.summary()


def test_the_parameters_of_the_policy_come_back(tmp_path: Path) -> None:
    rule = OmniPick(vision=2, audio=0, text=3, share=0.25)
    saved(tmp_path / "s", retention=rule)
    assert Session.resume(plain_model(), tmp_path / "s").policy == rule


def test_the_cache_is_a_safetensors_file(tmp_path: Path) -> None:
    session = saved(tmp_path / "s")
    files = pytest.importorskip("safetensors.numpy")
    (file,) = (tmp_path / "s").glob("cache-*.safetensors")
    found = files.load_file(file)
    cells = session.summary()["kv"]["cells"]
    assert set(found) == {"keys.0", "values.0", "keys.1", "values.1"}
    assert all(part.shape == (1, cells, 2, 8) for part in found.values())
    backend = session.model.backend
    live = session._ledger.view().cells[0]
    np.testing.assert_array_equal(found["values.1"], backend.values[1][:, live])


def test_a_recording_may_begin_with_a_saved_session(tmp_path: Path) -> None:
    saved(tmp_path / "s", 12)
    for name in ("one", "two"):
        recorder = Recorder(tmp_path / name)
        session = Session.resume(plain_model(), tmp_path / "s", recorder=recorder)
        follow(session, 12, 20)
        session.close()
    assert contents(tmp_path / "one" / "start") == contents(tmp_path / "s")
    assert first_difference(Recording(tmp_path / "one"), Recording(tmp_path / "two")) is None


def test_a_session_is_saved_between_units_only(tmp_path: Path) -> None:
    said: list[str] = []

    def listen(event: dict) -> None:
        if event["event"] == "token":
            with pytest.raises(OmniError, match="between units and answers") as caught:
                session.save(tmp_path / "s")
            said.append(str(caught.value))

    session = Session(plain_model(), budget=256, max_tokens=6, on_event=listen)
    follow(session, 0, 5)
    assert said and not (tmp_path / "s").exists()


def test_an_arena_that_was_taken_over_is_not_saved(tmp_path: Path) -> None:
    model = plain_model()
    session = Session(model, budget=256, max_tokens=6)
    Session(model, budget=256, max_tokens=6)
    with pytest.raises(PlanError, match="taken over"):
        session.save(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("owner", "call", "number"),
    [
        *((saving.os, "fsync", number) for number in (0, 1)),
        *((Path, "replace", number) for number in (0, 1)),
        *((Path, "open", number) for number in (0, 1, 2)),
    ],
)
def test_an_older_session_stays_whole_if_saving_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    owner: Any,
    call: str,
    number: int,
) -> None:
    old = saved(tmp_path / "s").summary()
    before = contents(tmp_path / "s")
    session = grown(tmp_path / "s")
    real, outcomes = getattr(owner, call), iter([None] * number + [error])

    def failing(*args: Any, **options: Any) -> Any:
        outcome = next(outcomes, None)
        if outcome is not None:
            raise outcome
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, call, failing)
        with pytest.raises((RecordingError, KeyboardInterrupt)):
            session.save(tmp_path / "s")
    assert contents(tmp_path / "s") == before
    assert Session.resume(plain_model(), tmp_path / "s").summary() == old


def test_an_interrupt_after_the_last_move_leaves_the_new_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "s")
    session = grown(tmp_path / "s")
    real = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        moved = real(self, target)
        if Path(target).name == saving.STATE:
            raise KeyboardInterrupt
        return moved

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.save(tmp_path / "s")
    assert Session.resume(plain_model(), tmp_path / "s").summary() == session.summary()


def test_what_cannot_be_cleared_away_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "s")
    session = grown(tmp_path / "s")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        session.save(tmp_path / "s")
    assert Session.resume(plain_model(), tmp_path / "s").summary() == session.summary()


def test_a_first_save_that_fails_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(plain_model(), budget=256, max_tokens=6)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving.os, "fsync", full)
    with pytest.raises(RecordingError, match="No space left on device"):
        session.save(tmp_path / "s")
    assert list((tmp_path / "s").iterdir()) == []


def test_what_a_crash_left_is_cleared_by_the_next_save(tmp_path: Path) -> None:
    session = saved(tmp_path / "s")
    for name in ("cache.safetensors.partial", "cache-0123456789abcdef.safetensors"):
        (tmp_path / "s" / name).write_bytes(b"half")
    assert Session.resume(plain_model(), tmp_path / "s").summary() == session.summary()
    session.save(tmp_path / "s")
    assert len(list((tmp_path / "s").iterdir())) == 2


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    session = saved(tmp_path / "s")
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(RecordingError, match=r"letter\.txt"):
        session.save(other)
    assert contents(other) == {"letter.txt": b"dear"}
    file = tmp_path / "file"
    file.write_text("a file")
    for target in (file, file / "below"):
        with pytest.raises(RecordingError, match=r"another folder|Not a directory"):
            check_target(target)


def refused(folder: Path, model: Model | None = None) -> str:
    """The one line with which a session is refused; nothing in its folder has changed."""
    before = contents(folder)
    with pytest.raises(OmniError) as caught:
        Session.resume(model or plain_model(), folder)
    assert isinstance(caught.value, RecordingError)
    assert contents(folder) == before
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message
    return message


def test_a_missing_session_or_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no saved session there"):
        open_saved(tmp_path / "nothing")
    saved(tmp_path / "s")
    (file,) = (tmp_path / "s").glob("cache-*")
    file.unlink()
    assert "missing" in refused(tmp_path / "s")


@pytest.mark.parametrize("name", [STATE, "cache"])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "s")
    (file,) = (tmp_path / "s").glob(f"{name}*")
    whole = file.read_bytes()
    for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert "damaged" in refused(tmp_path / "s")


@pytest.mark.parametrize("name", [STATE, "cache"])
def test_a_bit_that_flipped_is_found(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "s", 3)
    (file,) = (tmp_path / "s").glob(f"{name}*")
    whole = file.read_bytes()
    draw = np.random.default_rng(0)
    places = {*range(40), *draw.integers(0, len(whole), 60).tolist(), len(whole) - 1}
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(draw.integers(8))
        file.write_bytes(flipped)
        refused(tmp_path / "s")
    file.write_bytes(whole)
    Session.resume(plain_model(), tmp_path / "s")


def test_another_format_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    file = tmp_path / "s" / STATE
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    assert "format 2, and this version reads 1" in refused(tmp_path / "s")


def test_a_foreign_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    other = plain_model()
    assert "another one" in refused(tmp_path / "s", replace(other, identity="other"))
    assert "weights in f64" in refused(tmp_path / "s", replace(other, weights="bf16"))
    exact = replace(other, backend=NumpyBackend())
    exact.backend.element = 4
    assert "8 bytes a number" in refused(tmp_path / "s", exact)


def test_an_arena_of_another_shape_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    # The same model, said to have larger units: its arena is laid out with more pages.
    assert "an arena of" in refused(tmp_path / "s", plain_model(vision=60))


def test_a_policy_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    class Own(OmniPick):
        pass

    saved(tmp_path / "s", retention=Own(name="mine"))
    assert "'mine'" in refused(tmp_path / "s")


def rewritten(folder: Path, change: Callable[[Any], None]) -> None:
    """Change the state as somebody would who makes the digest right again."""
    document = json.loads((folder / STATE).read_text())
    change(document["session"])
    document["sha256"] = saving._digest(document["session"])
    (folder / STATE).write_text(json.dumps(document))


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a document is; of a list, its first value alone."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from parts(value[key], (*path, key))
    if isinstance(value, list) and value:
        yield from parts(value[0], (*path, 0))


def test_values_of_a_wrong_type_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "s", 3, frame=64)
    original = (tmp_path / "s" / STATE).read_text()
    session = json.loads(original)["session"]
    paths = [path for path in parts(session) if path]
    assert len(paths) > 70
    for path in paths:

        def change(state: Any, path: tuple[Any, ...] = path) -> None:
            for key in path[:-1]:
                state = state[key]
            old = state[path[-1]]
            state[path[-1]] = 7 if isinstance(old, str) else "x"

        rewritten(tmp_path / "s", change)
        refused(tmp_path / "s")
        (tmp_path / "s" / STATE).write_text(original)


def _set(*path: Any) -> Callable[[Any], None]:
    *keys, value = path

    def change(state: Any) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("cache", "ledger", "cells", 0, 0, 10**6),
        _set("cache", "ledger", "cells", 0, 0, 1),
        _set("cache", "ledger", "cells", 0, 0, -1),
        _set("cache", "ledger", "cells", []),
        _set("cache", "ledger", "columns", "order", 0, 10**15),
        _set("cache", "ledger", "columns", "unit", 0, 999),
        _set("cache", "ledger", "columns", "modality", 0, 5),
        _set("cache", "ledger", "columns", "mass", 0, -1.0),
        _set("cache", "ledger", "columns", "role", 0, 10**30),
        _set("cache", "ledger", "next_order", 3),
        _set("cache", "tables", "pages", "group", 0, 1),
        _set("cache", "tables", "pages", "group", -1, 0),
        _set("cache", "tables", "pages", "frame", 0, 9),
        _set("cache", "tables", "pages", "opened", []),
        _set("cache", "tables", "untold", [10**6]),
        _set("cache", "frames", "current", 7),
        _set("cache", "frames", "starts", [[0, 10**12]]),
        _set("cache", "unit", 1),
        _set("cache", "arena", "pages", 10**9),
        _set("tensors", "file", "../../cache.safetensors"),
        _set("tensors", "file", "saved.json"),
        _set("model", "element", 3),
        _set("settings", "budget", 10),
        _set("settings", "max_tokens", 0),
        _set("settings", "temperature", float("nan")),
        _set("settings", "groups", 3),
        _set("settings", "retention", "share", 7.0),
        _set("settings", "retention", {"name": "omnipick"}),
        _set("settings", "layout", "name", "tiled"),
        _set("time", float("inf")),
        _set("cursor", "position", -1),
        _set("plans", "00"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, change: Callable[[Any], None]) -> None:
    saved(tmp_path / "s", 6)
    rewritten(tmp_path / "s", change)
    before = contents(tmp_path / "s")
    with pytest.raises(OmniError) as caught:
        Session.resume(plain_model(), tmp_path / "s")
    assert "\n" not in str(caught.value)
    assert contents(tmp_path / "s") == before


def checkpoint(
    folder: Path, config: dict[str, Any], weights: dict[str, np.ndarray], shards: int = 1
) -> Checkpoint:
    """Some tensors in so many files; nothing of a model that would run."""
    folder.mkdir()
    names = sorted(weights)
    for shard in range(shards):
        part = {name: weights[name] for name in names[shard::shards]}
        with (folder / f"{shard}.safetensors").open("wb") as stream:
            shapes = {name: array.shape for name, array in part.items()}
            write_tensors(stream, "F32", shapes, part.values())
    files = sorted(folder.glob("*.safetensors"))
    return Checkpoint(folder, config, {}, {k: v for f in files for k, v in read_header(f).items()})


def test_an_identity_is_of_the_weights_and_not_of_the_files(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    weights = {f"layer.{n}": draw.normal(size=(3, n + 1)).astype(np.float32) for n in range(5)}
    weights["empty"] = np.zeros((0, 4), np.float32)
    config: dict[str, Any] = {"layers": 5}
    spoken = weights["layer.0"]
    made = [
        identity(checkpoint(tmp_path / "one", config, weights)),
        identity(checkpoint(tmp_path / "elsewhere", config, weights)),
        identity(checkpoint(tmp_path / "three", config, weights, shards=3)),
        identity(checkpoint(tmp_path / "spoken", config, {**weights, "talker.x": spoken})),
    ]
    assert len(set(made)) == 1
    others = [
        ({"layers": 6}, weights),
        (config, {**weights, "layer.4": weights["layer.4"] + 1}),
        (config, {**weights, "layer.4": weights["layer.4"].T.copy()}),
        (config, {**weights, "layer.5": weights["layer.4"]}),
        (config, {("layer.9" if k == "layer.4" else k): v for k, v in weights.items()}),
    ]
    for number, (other, tensors) in enumerate(others):
        made.append(identity(checkpoint(tmp_path / str(number), other, tensors)))
    assert len(set(made)) == 1 + len(others)


def test_tensors_come_back_from_the_file(tmp_path: Path) -> None:
    bits = np.arange(7, dtype=np.uint16).reshape(7, 1)
    with (tmp_path / "t").open("wb") as stream:
        write_tensors(stream, "BF16", {"a": (7, 1), "b": (7, 1)}, iter([bits, bits + 7]))
    header = read_header(tmp_path / "t")
    assert header["a"].dtype == "BF16" and header["a"].offset % 8 == 0
    np.testing.assert_array_equal(read_tensor(header["b"]), bits + 7)
    with (tmp_path / "u").open("wb") as stream, pytest.raises(RecordingError, match="tensor a"):
        write_tensors(stream, "BF16", {"a": (1, 7)}, iter([bits]))
