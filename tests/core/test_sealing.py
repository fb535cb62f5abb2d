"""Sealed caches: what is sealed when, and that it is encoded once, whatever comes in what order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_backend import SEALABLE, TEXT, NumpyBackend, plain_model, second
from sealed_oracle import SealedOracle, check_cells

from omni_core.backend import PAGE, SUBBLOCK, ArenaLayout
from omni_core.budget import Budget, cell_bytes, least_budget, plan_arena
from omni_core.cache import Cache
from omni_core.errors import BudgetError, OmniError
from omni_core.paging import LAYOUTS
from omni_core.retention import POLICIES
from omni_core.sealing import ALL, RECENT, WAITING, WINDOW, Sealing, sealing
from omni_core.session import Session
from omni_core.units import Role, TokenBlock

EVICTING = [name for name, rule in POLICIES.items() if name != "no-slide" and not rule().scored]


def sealed_session(**wanted: Any) -> tuple[Session, SealedOracle]:
    shape = {name: wanted.pop(name) for name in ("vision", "brackets") if name in wanted}
    model = plain_model(SEALABLE, **shape)
    oracle = SealedOracle(model.backend)
    given_settings = {"budget": 600, "kv_bits": 2, "max_tokens": 6, "system": "hello", **wanted}
    session = Session(model, **given_settings)
    oracle.watch(session._cache)
    return session, oracle


def bare_cache(
    prefix: int = 5, budget: int = 600, unit: int = 1, **wanted: Any
) -> tuple[Cache, SealedOracle]:
    """A cache of text alone, its prefix read."""
    backend = NumpyBackend(text=SEALABLE)
    oracle = SealedOracle(backend)
    cache = Cache(
        backend,
        SEALABLE,
        budget=budget,
        **{"retention": "no-slide", "layout": "page", "sealing": Sealing(2), **wanted},
        prefix=prefix,
        unit=unit,
        answer=1,
        chunk=512,
        on_plan=lambda plan, logits: None,
    )
    cache.open(TokenBlock.text([3] * prefix, 0, Role.PREFIX))
    oracle.watch(cache)
    return cache, oracle


def take(cache: Cache, tokens: int, logits: bool = True) -> None:
    """One more unit of text."""
    position = cache.ledger.next_order
    block = TokenBlock.text([2 + position % 90] * tokens, position, Role.CONTENT)
    cache.make_room(tokens)
    cache.open_frame(position, block)
    cache.step(block, logits=[tokens - 1] if logits else [])
    cache.close_unit(cache.decide())


def plain_cells(cache: Cache) -> int:
    """Cells in 16 bits."""
    usage = cache.tables.usage()
    return usage.cells - usage.sealed_cells


steps = st.lists(
    st.sampled_from(["unit", "unit", "unit", "half", "ask", "branch", "fail"]),
    min_size=20,
    max_size=60,
)


@settings(max_examples=25, deadline=None)
@given(
    steps,
    st.sampled_from(EVICTING),
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from([(2, RECENT), (2, ALL), (3, RECENT), (4, ALL)]),
    st.sampled_from([(512, None, 1), (7, 64, 1), (11, 100, 2)]),
    st.booleans(),
)
def test_whatever_comes_each_token_is_encoded_once(
    kinds: list[str],
    retention: str,
    layout: str,
    sealed: tuple[int, str],
    cut: tuple[int, int | None, int],
    brackets: bool,
) -> None:
    (bits, what), (chunk, frame, groups) = sealed, cut
    session, oracle = sealed_session(
        budget=260,
        retention=retention,
        layout=layout,
        kv_bits=bits,
        seal=what,
        prefill_chunk=chunk,
        frame=frame,
        groups=groups,
        vision=17,
        brackets=brackets,
    )
    time = 0.0
    for kind in kinds:
        if kind == "ask":
            session.ask("what?")
        elif kind == "branch":
            session.ask("what else?", branch=True)
        else:
            length = 0.5 if kind == "half" else 1.0
            if kind == "fail":
                session.model.backend.fail_in = 0
                with pytest.raises(RuntimeError):
                    session.append(second(time))
            session.append(second(time, length))
            time += length
        check_cells(session._cache)
        assert len(session._ledger) <= 260
    session.ask("and?")
    assert oracle.sealed and oracle.compared


@pytest.mark.parametrize("retention", EVICTING)
def test_a_long_stream_goes_on(retention: str) -> None:
    session, oracle = sealed_session(retention=retention, frame=200, budget=400)
    for index in range(90):
        session.append(second(index))
        if index % 7 == 3:
            session.ask("what?")
    check_cells(session._cache)
    usage = session._cache.usage()
    assert session.summary()["evicted"] > 1000
    assert usage["sealed_cells"] > usage["cells"] // 3
    assert len(oracle.sealed) > 1000


@pytest.mark.parametrize(("what", "window"), [(RECENT, WINDOW), (ALL, 0)])
def test_single_tokens_leave_no_more_than_a_window_and_a_part_of_a_subblock(
    what: str, window: int
) -> None:
    cache, oracle = bare_cache(sealing=Sealing(2, what))
    prefix = 5 if what == RECENT else 0
    for count in range(1, 301):
        take(cache, 1, logits=count % 20 == 0)
        # With all sealed, the prefix is no more than the open frame's first cells.
        assert plain_cells(cache) <= prefix + window + SUBBLOCK - 1
    assert oracle.compared == 15
    assert set(oracle.subblocks) <= {SUBBLOCK, 5}
    assert len(oracle.sealed) == cache.tables.usage().sealed_cells
    check_cells(cache)


def test_what_waits_is_bounded_for_each_modality_and_tier() -> None:
    for what, held in ((ALL, 0), (RECENT, 5 + WINDOW)):
        session, _ = sealed_session(seal=what)
        for index in range(80):
            session.append(second(index))
            usage = session._cache.usage()
            assert usage["cells"] - usage["sealed_cells"] <= held + WAITING
        view, first = session._ledger.view(), session._tables.arena.pages
        cells = view.cells[0]
        waiting = (cells < first * PAGE) & Sealing(2, what).ripe(view)
        kinds = session._tables._kind[cells[waiting] // PAGE] // 8 * 8 + view.modality[waiting]
        assert np.bincount(kinds).max() < SUBBLOCK


def test_the_prefix_and_the_newest_units_stay_in_16_bits() -> None:
    session, oracle = sealed_session()
    for index in range(30):
        session.append(second(index))
        view, first = session._ledger.view(), session._tables.arena.pages
        plain = view.cells[0] < first * PAGE
        assert plain[view.role == Role.PREFIX].all()
        newest = view.unit > view.unit[-1] - WINDOW // 18
        assert plain[newest].all() and np.count_nonzero(newest) <= WINDOW
    assert min(oracle.sealed) == 5
    # A unit that alone is larger than the window stays whole.
    session, _ = sealed_session(vision=150, budget=1200)
    for index in range(4):
        session.append(second(index))
        view, first = session._ledger.view(), session._tables.arena.pages
        assert (view.cells[0][view.unit == view.unit[-1]] < first * PAGE).all()
        assert index == 0 or (view.cells[0] >= first * PAGE).any()


def test_a_frame_that_has_closed_leaves_no_rest_in_16_bits() -> None:
    session, oracle = sealed_session(frame=300, seal=ALL)
    for index in range(50):
        session.append(second(index))
        view, tables = session._ledger.view(), session._tables
        cells = view.cells[0]
        plain = cells[cells < tables.arena.pages * PAGE]
        assert (tables._frame[plain // PAGE] == session._cache.frames.current).all()
    short = [count for count in oracle.subblocks if count < SUBBLOCK]
    assert 3 <= len(short) < len(oracle.subblocks)


def test_an_empty_subblock_is_taken_again_and_an_empty_page_is_free() -> None:
    cache, oracle = bare_cache(retention="token-basic", budget=420)
    reused, seen, ever = 0, set(), set()
    for _ in range(900):
        take(cache, 1, logits=False)
        tables, first = cache.tables, cache.tables.arena.pages
        cells = cache.ledger.view().cells[0]
        now = set((cells[cells >= first * PAGE] // SUBBLOCK).tolist())
        listed = np.flatnonzero(tables._group[first:] >= 0) + first
        assert set(listed.tolist()) == {each // 2 for each in now}
        reused += len((now - seen) & ever)
        seen, ever = now, ever | now
    assert reused > 10 and oracle.subblocks.count(SUBBLOCK) > 20
    check_cells(cache)


def test_a_full_pool_of_sealed_pages_evicts_a_little_more_and_goes_on() -> None:
    cache, oracle = bare_cache(retention="token-basic", budget=2400, unit=50)
    # As if all subblocks but six were held by a token each.
    tables = cache.tables
    first = tables.arena.pages
    tables._group[first + 3 : tables.arena.all_pages] = 7
    for _ in range(60):
        take(cache, 50, logits=False)
        assert tables.free_pages() >= 0
    cells = cache.ledger.view().cells[0]
    assert 0 < np.count_nonzero(cells >= first * PAGE) <= 3 * PAGE
    # What the pools hold, a good deal below the budget.
    assert 600 < cells.size <= (first + 3) * PAGE < 2000
    assert oracle.sealed


def test_what_cannot_be_sealed_stays_and_is_told() -> None:
    warnings: list[dict] = []
    model = plain_model(SEALABLE)
    session = Session(
        model,
        budget=600,
        kv_bits=2,
        max_tokens=6,
        on_event=lambda event: warnings.append(event) if event["event"] == "warning" else None,
    )
    weights = model.backend.layers[1]
    weights["k"][:] = np.nan
    for index in range(16):
        session.append(second(index))
    assert session._cache.usage()["sealed_cells"] == 0
    assert all("layer 1: keys" in event["message"] for event in warnings) and warnings
    weights["k"][:] = 0.5
    for index in range(16, 30):
        session.append(second(index))
    told = len(warnings)
    assert told < 16
    for index in range(30, 40):
        session.append(second(index))
    # What was refused is not tried again, and keeps nothing else from it.
    assert session._cache.usage()["sealed_cells"] > 100 and len(warnings) == told


@pytest.mark.parametrize(("bits", "what"), [(16, "most"), (5, RECENT), (1, ALL), (8, RECENT)])
def test_other_bits_and_other_words_are_refused(bits: int, what: str) -> None:
    with pytest.raises(OmniError, match=r"codes of \d bits|seal is 'most', expected recent or all"):
        sealing(bits, what)
    with pytest.raises(OmniError):
        Session(plain_model(SEALABLE), budget=600, kv_bits=bits, seal=what)


def test_a_policy_that_drops_tokens_one_by_one_is_refused() -> None:
    with pytest.raises(OmniError, match="retention h2o lets tokens go one by one"):
        Session(plain_model(SEALABLE), budget=600, kv_bits=2, retention="h2o")


def test_heads_that_cannot_be_sealed_are_refused() -> None:
    with pytest.raises(OmniError, match="head_dim of 8 cannot be sealed"):
        Session(plain_model(TEXT), budget=600, kv_bits=2)


def test_16_bits_are_as_ever() -> None:
    assert sealing(16, RECENT) is None and sealing(16, ALL) is None
    one, two = (Session(plain_model(SEALABLE), budget=600, **more) for more in ({}, {"seal": ALL}))
    for session in (one, two):
        for index in range(40):
            session.append(second(index))
    assert one.summary() == two.summary()
    assert "bits" not in one.summary()["kv"]


SIZES: dict[str, Any] = {"prefix": 40, "unit": 90, "answer": 64, "element": 2}


@pytest.mark.parametrize("what", [RECENT, ALL])
def test_bytes_are_a_budget_that_both_pools_fit(what: str) -> None:
    def arena(cells: int) -> ArenaLayout:
        return plan_arena(SEALABLE, budget=cells, sealing=Sealing(2, what), **SIZES)

    least = least_budget(40, 90, 64)
    for room in (6 * 10**5, 10**6, 10**7):
        cells = Budget(bytes=room).resolve_sealed(arena, least, 2)
        assert arena(cells).bytes(2) <= room < arena(cells + 1).bytes(2)
        assert arena(cells).sealed_pages * PAGE > cells
    plain = plan_arena(SEALABLE, budget=cells, **SIZES)
    assert arena(cells).bytes(2) < plain.bytes(2) * (SEALED_SHARE + 0.1)
    assert Budget(cells=77).resolve_sealed(arena, least, 2) == 77
    kept = arena(least).pages * PAGE * cell_bytes(SEALABLE, 2) / 1e6
    small = rf"0.1 MB is too small: a cache of {least} cells.*{kept:.1f} MB of them .*--seal all"
    with pytest.raises(BudgetError, match=small):
        Budget(bytes=10**5).resolve_sealed(arena, least, 2)


SEALED_SHARE = ArenaLayout(1, 1, 1, 1, 16, sealed_pages=1, bits=2, codec="fitted").sealed.share


def test_with_all_sealed_a_long_cache_takes_a_sixth() -> None:
    text = replace(SEALABLE, head_dim=128, mrope_section=(16, 24, 24), max_positions=32768)
    sizes = {**SIZES, "unit": 79}
    for cells, bound in ((2**15, 0.2), (2**16, 0.18), (2**17, 0.165)):
        arena = plan_arena(text, budget=cells, sealing=Sealing(2, ALL), **sizes)
        assert arena.bytes(2) < bound * cells * cell_bytes(text, 2)


def test_16_bit_pages_hold_what_stays_and_what_comes() -> None:
    for unit in (20, 90, 700):
        sizes = {**SIZES, "unit": unit}
        recent, everything = (
            plan_arena(SEALABLE, budget=4000, sealing=Sealing(2, what), **sizes)
            for what in (RECENT, ALL)
        )
        turn = max(unit, 128 + 64)
        assert everything.pages * PAGE >= WAITING + turn
        assert recent.pages * PAGE >= 40 + max(WINDOW, turn) + WAITING + turn
        assert recent.pages < plan_arena(SEALABLE, budget=4000, **sizes).pages // 2
        assert recent.sealed_pages == everything.sealed_pages
