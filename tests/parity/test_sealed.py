"""Sealed streams: bytes to the bit, logits as in float64 over what was decoded, on both twins."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.backend import ArenaLayout, MovePlan, Seals, TableDelta
from omni_core.batch import StreamBatch
from omni_core.checkpoints import open_checkpoint
from omni_core.errors import BackendError, OmniError, PlanError
from omni_core.frontend.base import UnitMedia
from omni_core.identity import identity
from omni_core.model_config import thinker_config
from omni_core.quantization import LayerTables
from omni_core.quantization.tables_file import write_tables
from omni_core.recording import Recorder, Recording
from omni_core.replay import replay
from omni_core.session import Model, Session
from omni_core.units import Modality
from tests.parity.conftest import NEEDS, Twin
from tests.parity.oracle import distance, mixed
from tests.parity.planner import Planner
from tests.parity.sealed import Followed
from tests.parity.test_batch import MediaFrontend
from tests.parity.test_saving import _follow, _model

UNITS, SAVED_AT = 30, 17


def _settings(**more: Any) -> dict[str, Any]:
    common = {"budget": 230, "max_tokens": 5, "system": "hello", "frame": 128, "kv_bits": 2}
    return {**common, "seal": "all", **more}


def _followed(twin: Twin, tiny: Any, folder: Path, **tables: Any) -> tuple[Model, Followed]:
    followed = Followed(twin.load(folder), twin, tiny, **tables)
    checkpoint = open_checkpoint(folder)
    text = thinker_config(checkpoint.config).text
    own = identity(checkpoint)
    return Model(followed, MediaFrontend(), text, "tiny", identity=own, weights="f32"), followed


@pytest.mark.parametrize(
    ("bits", "seal", "groups", "layout"),
    [(2, "all", 1, "page"), (3, "recent", 2, "eager"), (4, "all", 2, "native")],
)
def test_a_sealed_stream(
    twin: Twin, tiny_of: Any, bits: int, seal: str, groups: int, layout: str
) -> None:
    tiny = tiny_of("6-2-32")
    model, followed = _followed(twin, tiny, tiny.folder)
    more = {"kv_bits": bits, "seal": seal, "groups": groups, "layout": layout}
    session = Session(model, prefill_chunk=7, **_settings(budget=330, **more))
    _follow(session, 0, UNITS)
    assert followed.sealed > 150 and followed.compared > 10
    assert session.summary()["evicted"] > 100
    assert session.summary()["kv"]["sealed_cells"] > 40


def _tables(tiny: Any, folder: Path) -> list[LayerTables]:
    """Rotations and feedback, drawn, in the folder of a checkpoint."""
    draw, shape = np.random.default_rng(3), tiny.shape
    found = []
    square = (shape.head_dim, shape.head_dim)
    for layer in range(shape.layers):
        plain = LayerTables.uncalibrated(layer, shape.kv_heads, shape.head_dim)
        turns = np.linalg.qr(draw.standard_normal((shape.kv_heads, len(Modality), *square)))[0]
        above = np.triu(draw.standard_normal((shape.kv_heads, *square)) * 0.1, 1)
        rotations, feedback = turns.astype(np.float32), above.astype(np.float32)
        found.append(replace(plain, rotations=rotations, feedback=feedback))
    about = {"model": "tiny", "identity": identity(open_checkpoint(folder))}
    (folder / "values.safetensors").write_bytes(write_tables(found, about))
    return found


def test_a_checkpoint_tells_how_it_is_sealed(twin: Twin, tiny_of: Any, tmp_path: Path) -> None:
    tiny = tiny_of("6-2-32")
    folder = Path(shutil.copytree(tiny.folder, tmp_path / "tiny"))
    model, followed = _followed(twin, tiny, folder, tables=_tables(tiny, folder))
    _follow(Session(model, **_settings()), 0, 14)
    assert followed.sealed > 60 and followed.compared > 5
    stranger = Path(shutil.copytree(tiny_of("8-2-16").folder, tmp_path / "other"))
    shutil.copy(folder / "values.safetensors", stranger)
    layout = ArenaLayout(4, 1, 4, 2, 16, sealed_pages=2, bits=2, codec="fitted")
    with pytest.raises(OmniError, match=r"values\.safetensors"):
        twin.load(stranger).allocate(layout)
    # A link into a store that has lost it is no model without tables.
    (stranger / "values.safetensors").unlink()
    (stranger / "values.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(OmniError, match=r"values\.safetensors"):
        twin.load(stranger).allocate(layout)
    # Of no concern where nothing is sealed.
    twin.load(stranger).allocate(ArenaLayout(4, 1, 4, 2, 16))


def test_streams_in_step(twin: Twin, tiny_of: Any) -> None:
    tiny, streams = tiny_of("6-2-32"), 2
    followed = Followed(twin.load(tiny.folder, streams), twin, tiny, streams=streams)
    text = thinker_config(open_checkpoint(tiny.folder).config).text
    model = Model(followed, MediaFrontend(), text, "tiny", trained=False)
    batch = StreamBatch(
        model, streams=streams, budget=300, retention="omnipick", system="hello", kv_bits=2
    )
    for index in range(26):
        sound = [np.full(1, stream, np.float32) for stream in range(streams)]
        media = [UnitMedia(float(index), index + 1.0, audio=each) for each in sound]
        batch.append(batch.encode(media))
        batch.branch(np.full((streams, 3), 5, np.int32))
    assert followed.sealed > 60 and followed.compared > 10 and batch.usage()["sealed_cells"] > 20
    assert distance(followed.logits[-1][0], followed.logits[-1][1]) > 1e-2


@pytest.mark.parametrize("weights", ["f32", "bf16"])
def test_a_saved_session_goes_on(twin: Twin, tiny_of: Any, tmp_path: Path, weights: str) -> None:
    tiny = tiny_of("6-2-32")

    def load() -> tuple[Model, list[np.ndarray]]:
        module = importlib.import_module(f"omni_{twin.name}")
        checkpoint = open_checkpoint(tiny.folder)
        loaded = module.load(checkpoint, device=twin.device, weights=weights)
        return _model(loaded, tiny.folder)

    model, whole = load()
    one = Session(model, **_settings())
    _follow(one, 0, UNITS)
    model, first = load()
    two = Session(model, **_settings())
    _follow(two, 0, SAVED_AT)
    two.save(tmp_path / "saved")
    model, rest = load()
    three = Session.resume(model, tmp_path / "saved")
    _follow(three, SAVED_AT, UNITS)
    assert one.summary()["kv"] == three.summary()["kv"]
    assert one.summary()["plans"] == three.summary()["plans"]
    assert one.summary()["kv"]["sealed_cells"] > 40
    for expected, found in zip(whole, first + rest, strict=True):
        np.testing.assert_array_equal(expected, found)


def test_the_other_twin_reads_the_same_bytes(twin: Twin, tiny_of: Any, tmp_path: Path) -> None:
    tiny = tiny_of("6-2-32")
    other = Twin(next(name for name in NEEDS if name != twin.name), "cpu")
    if importlib.util.find_spec(NEEDS[other.name]) is None:
        pytest.skip("MLX is not installed" if other.name == "mlx" else "torch is not installed")
    model, logits = _model(twin.load(tiny.folder), tiny.folder)
    session = Session(model, **_settings())
    _follow(session, 0, SAVED_AT)
    session.save(tmp_path / "saved")
    stranger, found = _model(other.load(tiny.folder), tiny.folder)
    resumed = Session.resume(stranger, tmp_path / "saved")
    layout = session._tables.arena
    pages = np.arange(layout.pages, layout.all_pages, dtype=np.int32)
    for layer in range(tiny.shape.layers):
        read = stranger.backend.read_sealed(layer, pages)
        # Pages that nothing lives in are not saved.
        kept = read.any(axis=(0, 2, 3))
        assert np.count_nonzero(kept) > 2
        stored = model.backend.read_sealed(layer, pages[kept])
        np.testing.assert_array_equal(read[:, kept], stored)
    before = len(logits)
    assert session.ask("what?", branch=True) == resumed.ask("what?", branch=True)
    assert len(logits) - before == len(found) > 1
    for expected, given in zip(logits[before:], found, strict=True):
        assert distance(given, expected) < 1e-4


def test_a_replay_answers_the_same(twin: Twin, tiny_of: Any, tmp_path: Path) -> None:
    tiny = tiny_of("6-2-32")
    model, _ = _model(twin.load(tiny.folder), tiny.folder)
    session = Session(model, recorder=Recorder(tmp_path), **_settings())
    _follow(session, 0, 16)
    session.close()
    recording = Recording(tmp_path)
    backend = twin.load(tiny.folder)
    backend.allocate(ArenaLayout.restored(recording.meta["arena"]))
    report = replay(recording, backend, MediaFrontend())
    assert report.compared == report.agreed > 5 and report.worst < 1e-6
    assert sum(len(getattr(plan, "seals", ())) for plan in recording.plans()) > 3


def _arena(shape: Any) -> tuple[ArenaLayout, Planner]:
    planner = Planner(pages=2)
    plain = planner.layout(shape)
    return replace(plain, sealed_pages=2, bits=2, codec="fitted"), planner


def _seal(cells: np.ndarray, page: int) -> MovePlan:
    """The first 32 of the 52 cells of page 0 go to a page's first half."""
    left = np.uint32((1 << (52 - 32)) - 1)
    occupancy = np.array([[0, left], [0xFFFFFFFF, 0]], np.uint32)
    delta = TableDelta(
        np.array([0, page], np.int32),
        np.zeros(2, np.int32),
        occupancy,
        np.array([0, Modality.AUDIO], np.int8),
        np.zeros(2, np.int32),
    )
    none = np.zeros(0, np.int32)
    seals = Seals(cells[None].astype(np.int32), np.array([2 * page], np.int32))
    return MovePlan(none, none, delta, seals)


def test_what_is_not_finite_is_refused(twin: Twin, tiny: Any) -> None:
    backend, (layout, planner) = twin.load(tiny.folder), _arena(tiny.shape)
    backend.allocate(layout)
    tokens = mixed(tiny.shape.hidden)
    given = twin.embeddings(tokens.embeddings[None])
    count = tokens.ids.size
    backend.forward(planner.step(tokens.ids[None], tokens.rows, tokens.positions), given)
    cells, page = np.arange(32, dtype=np.int32), np.array([3], np.int32)
    assert count == 52
    keys, values = (part.copy() for part in backend.read(2, cells))
    broken = values.copy()
    broken[0, 5, 1, 3] = np.nan
    backend.write(2, cells, keys, broken)
    with pytest.raises(BackendError, match="layer 2: values hold a number that is not finite"):
        backend.move(_seal(cells, 3))
    assert not any(backend.read_sealed(layer, page).any() for layer in range(tiny.shape.layers))
    np.testing.assert_array_equal(backend.read(2, cells)[1], broken)
    backend.write(2, cells, keys, values)
    backend.move(_seal(cells, 3))
    assert all(backend.read_sealed(layer, page).any() for layer in range(tiny.shape.layers))
    stored = backend.read_sealed(1, page)
    backend.write_sealed(1, np.array([2], np.int32), stored)
    np.testing.assert_array_equal(backend.read_sealed(1, np.array([2], np.int32)), stored)


def test_an_arena_without_sealed_pages(twin: Twin, tiny: Any) -> None:
    backend = twin.load(tiny.folder)
    layout, _ = _arena(tiny.shape)
    backend.allocate(replace(layout, sealed_pages=0, bits=16, codec=""))
    for call in (
        lambda: backend.read_sealed(0, np.zeros(1, np.int32)),
        lambda: backend.write_sealed(0, np.zeros(1, np.int32), np.zeros(1, np.uint8)),
    ):
        with pytest.raises(PlanError, match="no sealed pages"):
            call()


def test_bytes_are_as_accounted(twin: Twin, tiny: Any) -> None:
    backend = twin.load(tiny.folder)
    layout, _ = _arena(tiny.shape)
    without = backend.memory().accounted
    backend.allocate(layout)
    held = backend._arena if twin.name == "mlx" else backend.arena
    pools = (held.keys, held.values, held.sealed)
    arrays = [each for pool in pools for each in (pool if isinstance(pool, list) else [pool])]
    assert sum(each.nbytes for each in arrays) == layout.bytes(4)
    tables = backend.memory().accounted - without - layout.bytes(4)
    # A rotation for each layer, head and modality, and little else.
    shape = tiny.shape
    rotations = 4 * shape.layers * shape.kv_heads * len(Modality) * shape.head_dim**2
    assert rotations <= tables < 1.25 * rotations
    sealed = layout.bytes(4) - replace(layout, sealed_pages=0).bytes(4)
    assert sealed == 2 * layout.sealed.bytes * tiny.shape.kv_heads * tiny.shape.layers
    assert 4 * sealed < layout.bytes(4) - sealed
