"""Position frames: keys of another frame are read by queries rotated by the distance to it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.parity.exact import Exact, Watched
from tests.parity.oracle import Tokens, distance, logits, mixed, text
from tests.parity.planner import Planner
from tests.parity.playing import Piece, play, play_in_frames


def _spread(tokens: Tokens, jumps: dict[int, int]) -> Tokens:
    """Positions that jump ahead by so much before the tokens of these numbers."""
    steps = np.zeros(tokens.ids.size, np.int32)
    for token, jump in jumps.items():
        steps[token:] += jump
    return Tokens(tokens.ids, tokens.rows, tokens.positions + steps, tokens.embeddings)


def _assert_exact(watched: Watched, tiny: Any, first: int = 0, bound: float = 1e-5) -> int:
    """Logits, and mass where asked, against float64; gives how many masses were compared."""
    exact, compared = Exact(tiny.model, tiny.shape), 0
    for step in watched.steps[first:]:
        expected, mass = exact.step(step)
        if expected.size:
            assert distance(step.result.logits[0], expected) < bound
        if step.plan.mass:
            assert step.result.mass is not None
            for found, group in zip(step.result.mass, mass, strict=True):
                assert found.dtype == np.float32
                assert np.abs(found - group).max() < bound * group.max()
                compared += 1
        else:
            assert step.result.mass is None
    return compared


@pytest.mark.parametrize("name", ["6-2-32", "3-3-16"])
def test_the_float64_oracle_equals_transformers(twin: Any, tiny_of: Any, name: str) -> None:
    tiny = tiny_of(name)
    tokens = mixed(tiny.shape.hidden)
    planner = Planner(pages=1)
    watched = Watched(twin.load(tiny.folder), twin)
    watched.allocate(planner.layout(tiny.shape))
    play(watched, planner, tokens, [52], twin.embeddings(tokens.embeddings[None]))
    expected, _ = Exact(tiny.model, tiny.shape).step(watched.steps[0])
    assert distance(expected, logits(tiny.model, tokens)) < 1e-5


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mass", [False, True])
def test_true_distances_equal_one_frame(
    backend: Any, tiny: Any, twin: Any, groups: int, mass: bool
) -> None:
    tokens = _spread(mixed(tiny.shape.hidden, seed=1), {6: 400, 28: 3000, 43: 90})
    embeddings = twin.embeddings(tokens.embeddings[None])
    planner = Planner(pages=8, groups=groups, placement="reversed")
    backend.allocate(planner.layout(tiny.shape))
    single = play(backend, planner, tokens, [52], embeddings)
    planner = Planner(pages=8, groups=groups, placement="reversed")
    backend.allocate(planner.layout(tiny.shape))
    here = [int(tokens.positions[0, token]) for token in (6, 28, 43)]
    pieces = [
        Piece(6, 0, 0),
        Piece(15, 1, here[0], {0: here[0]}),
        Piece(7, 1, here[0], {0: here[0]}),
        Piece(15, 2, here[1], {0: here[1], 1: here[1] - here[0]}),
        Piece(1, 3, here[2], {0: here[2], 1: here[2] - here[0], 2: here[2] - here[1]}),
        Piece(8, 3, here[2], {0: here[2], 1: here[2] - here[0], 2: here[2] - here[1]}),
    ]
    found = play_in_frames(backend, planner, tokens, pieces, embeddings, mass=mass)
    assert distance(found, single) < 1e-5
    # All frames at distance 0 is another stream.
    planner = Planner(pages=8, groups=groups)
    backend.allocate(planner.layout(tiny.shape))
    flat = [Piece(p.length, p.frame, p.start, dict.fromkeys(p.shifts, 0)) for p in pieces]
    assert distance(play_in_frames(backend, planner, tokens, flat, embeddings), single) > 1e-2


def test_cells_of_one_other_frame_alone(backend: Any, tiny: Any) -> None:
    # The step's own cells are named dead, so that all it reads lies in one run of another shift.
    tokens = _spread(text(40, seed=2), {30: 500})
    runs = []
    for frames in (False, True):
        planner = Planner(pages=3)
        backend.allocate(planner.layout(tiny.shape))
        start = tokens.positions[0, 30]
        first = Tokens(
            tokens.ids[:30], tokens.rows[:30], tokens.positions[:, :30], np.zeros((0, 1))
        )
        play(backend, planner, first, [30])
        plan = planner.step(
            tokens.ids[None, 30:],
            tokens.rows[30:],
            tokens.positions[:, 30:] - (start if frames else 0),
            frame=int(frames),
            shifts={0: start} if frames else None,
        )
        planner.evict(range(30, 40))
        plan = dataclasses.replace(plan, delta=planner.move({}).delta)
        runs.append(backend.forward(plan).logits[0])
    assert distance(runs[1], runs[0]) < 1e-5


def test_a_held_shift_equals_transformers_at_virtual_positions(
    backend: Any, tiny: Any, twin: Any
) -> None:
    # Frame 0 is 9,000 positions away and read as if it were 700 away.
    tokens = _spread(mixed(tiny.shape.hidden, seed=3), {21: 9000})
    start, held = int(tokens.positions[0, 21]), 700
    embeddings = twin.embeddings(tokens.embeddings[None])
    planner = Planner(pages=4)
    backend.allocate(planner.layout(tiny.shape))
    pieces = [
        Piece(6, 0, 0),
        Piece(15, 0, 0),
        *(Piece(length, 1, start, {0: held}) for length in (10, 1, 11, 9)),
    ]

    def thin(planner: Planner) -> None:
        planner.evict([rank for rank in sorted(planner.where[0])[3:] if rank % 5 == 2])

    found = play_in_frames(backend, planner, tokens, pieces, embeddings, thin)
    virtual = tokens.positions.copy()
    virtual[:, 21:] += held - start
    seen = Tokens(tokens.ids, tokens.rows, virtual, tokens.embeddings)
    masks = [planner.masks()]
    assert not masks[0][-1, :21].all() and masks[0][-1, :21].any()
    assert distance(found, logits(tiny.model, seen, masks)) < 1e-4
    assert distance(found[21:], logits(tiny.model, tokens, masks)[21:]) > 1e-2


HELD = [
    Piece(6, 0, 0),
    Piece(15, 0, 0),
    Piece(12, 1, 30, {0: 30}),
    # What no single line of positions gives: each frame is closer than true, by its own measure.
    Piece(10, 2, 5000, {0: 600, 1: 600}),
    Piece(1, 2, 5000, {0: 600, 1: 600}),
    Piece(8, 3, 9000, {0: 600, 1: 600, 2: 550}),
]


@pytest.mark.parametrize("groups", [1, 2])
def test_held_shifts_evictions_and_moves_equal_float64(
    backend: Any, tiny: Any, twin: Any, groups: int
) -> None:
    tokens = _spread(mixed(tiny.shape.hidden, seed=4), {33: 4970, 44: 3990})
    planner = Planner(pages=8 * groups, groups=groups)
    watched = Watched(backend, twin)
    watched.allocate(planner.layout(tiny.shape))

    def thin_and_move(planner: Planner) -> None:
        for group in range(groups):
            alive = sorted(planner.where[group])
            planner.evict([rank for rank in alive[3:-4] if rank % 7 == group], group)
            ranks = [r for r in sorted(planner.where[group]) if r < 21]
            cells = [planner.where[group][rank] for rank in ranks]
            watched.move(planner.move(dict(zip(ranks, cells[2:] + cells[:2], strict=True)), group))

    embeddings = twin.embeddings(tokens.embeddings[None])
    play_in_frames(watched, planner, tokens, HELD, embeddings, thin_and_move, mass=True)
    assert watched.moved > 40
    assert len(planner.where[0]) < 50
    assert [len(live.runs()) for live in watched.steps[-1].live] == [3] * groups
    assert _assert_exact(watched, tiny) == len(HELD) * groups


@pytest.mark.parametrize("name", ["3-3-16", "6-2-32", "8-2-16"])
@pytest.mark.parametrize("lengths", [[52], [32, 8, 12], [6, *[1] * 46]], ids=["one", "chunks", "1"])
def test_mass_equals_float64(twin: Any, tiny_of: Any, name: str, lengths: list[int]) -> None:
    tiny = tiny_of(name)
    tokens = mixed(tiny.shape.hidden, seed=5)
    planner = Planner(pages=4, groups=2, placement="scattered")
    watched = Watched(twin.load(tiny.folder), twin)
    watched.allocate(planner.layout(tiny.shape))

    def thin(planner: Planner) -> None:
        planner.evict([r for r in sorted(planner.where[0])[4:-2] if r % 4 == 1], group=0)

    pieces = [Piece(length, 0, 0) for length in lengths]
    embeddings = twin.embeddings(tokens.embeddings[None])
    play_in_frames(watched, planner, tokens, pieces, embeddings, thin, mass=True)
    assert _assert_exact(watched, tiny) == 2 * len(lengths)
    # A query gives 1 in all, by each head and layer.
    each = tiny.shape.q_heads * tiny.shape.layers / 2
    for step, length in zip(watched.steps, lengths, strict=True):
        for mass in step.result.mass or ():
            assert mass.sum() == pytest.approx(length * each, rel=1e-5)


def test_mass_is_summed_over_streams(twin: Any, tiny: Any) -> None:
    streams = [mixed(tiny.shape.hidden, seed) for seed in (6, 7)]
    planner = Planner(pages=4)
    watched = Watched(twin.load(tiny.folder, streams=2), twin)
    watched.allocate(planner.layout(tiny.shape, streams=2))
    embeddings = twin.embeddings([tokens.embeddings for tokens in streams])
    ids = np.stack([tokens.ids for tokens in streams])
    first = streams[0]
    for part, frame, shifts in ((slice(0, 21), 0, {}), (slice(21, 52), 1, {0: 12})):
        positions = first.positions[:, part] - 12 * frame
        plan = planner.step(
            ids[:, part], first.rows[part], positions, frame=frame, shifts=shifts, mass=True
        )
        watched.forward(plan, embeddings)
    exact = [Exact(tiny.model, tiny.shape) for _ in streams]
    for step in watched.steps:
        answers = [each.step(step, stream) for stream, each in enumerate(exact)]
        for stream, (expected, _) in enumerate(answers):
            assert distance(step.result.logits[stream], expected) < 1e-5
        mass = answers[0][1][0] + answers[1][1][0]
        assert np.abs(step.result.mass[0] - mass).max() < 1e-5 * mass.max()


def test_asking_for_mass_changes_no_logit(backend: Any, tiny: Any) -> None:
    tokens = text(30, seed=8)
    runs = []
    for mass in (False, True):
        planner = Planner(pages=1)
        backend.allocate(planner.layout(tiny.shape))
        pieces = [Piece(length, 0, 0) for length in (20, 1, 9)]
        runs.append(play_in_frames(backend, planner, tokens, pieces, mass=mass))
    assert distance(runs[1], runs[0]) < 1e-5


def test_mass_without_a_wanted_row(backend: Any, tiny: Any, twin: Any) -> None:
    tokens = text(20, seed=9)
    planner = Planner(pages=1)
    watched = Watched(backend, twin)
    watched.allocate(planner.layout(tiny.shape))
    watched.forward(
        planner.step(tokens.ids[None], tokens.rows, tokens.positions, logits=[], mass=True)
    )
    assert watched.steps[0].result.logits.shape[1] == 0
    assert _assert_exact(watched, tiny) == 1


@pytest.mark.parametrize("mass", [False, True])
def test_dead_cells_full_of_nan_do_not_leak(backend: Any, tiny: Any, twin: Any, mass: bool) -> None:
    pieces = [Piece(6, 0, 0), Piece(30, 1, 6, {0: 6}), Piece(16, 2, 20, {0: 9, 1: 9})]
    planner = Planner(pages=4)
    watched = Watched(backend, twin)
    watched.allocate(planner.layout(tiny.shape))
    cells, hidden = 256, tiny.shape.hidden
    none = np.zeros(cells, np.int32)
    spoiled = Tokens(none - 1, none, np.zeros((3, cells), np.int32), np.zeros((1, 1), np.float32))
    nan = twin.embeddings(np.full((1, 1, hidden), np.nan))
    assert np.isnan(play(watched, planner, spoiled, [cells], nan)).all()
    planner.evict(range(cells))
    tokens = mixed(hidden, seed=10)

    def thin(planner: Planner) -> None:
        planner.evict([rank for rank in sorted(planner.where[0])[2:] if rank % 6 == 1])

    embeddings = twin.embeddings(tokens.embeddings[None])
    play_in_frames(watched, planner, tokens, pieces, embeddings, thin, mass=mass)
    assert _assert_exact(watched, tiny, first=1) == mass * len(pieces)
