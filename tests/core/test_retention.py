"""Retention policies on ledgers of random units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_backend import PlainFrontend, second

from omni_core.errors import BudgetError, OmniError
from omni_core.frontend.base import Cursor
from omni_core.ledger import Ledger, LedgerView
from omni_core.retention import (
    H2O,
    POLICIES,
    Fifo,
    NoSlide,
    OmniPick,
    StreamingLLM,
    TokenBasic,
    policy,
)
from omni_core.retention.base import Policy
from omni_core.units import Modality, Role, TokenBlock


def stream(
    rule: Policy, sizes: list[tuple[int, int]], brackets: bool = False, turns: int = 1
) -> Ledger:
    """A ledger of units with that many vision and audio tokens, after a prefix of ten."""
    ledger = Ledger(1)

    def add(block: TokenBlock, unit: int, turn: int) -> None:
        cells = np.arange(len(block), dtype=np.int32)[None] + ledger.next_order
        ledger.append(block, unit, np.full(len(block), turn, np.int32), cells.astype(np.int32))

    prefix = TokenBlock.text([3] * 10, 0, Role.PREFIX)
    add(prefix, -1, 0)
    cursor, unit = Cursor(10), 0
    for turn in range(turns):
        for vision, audio in sizes:
            tokens, cursor = PlainFrontend(vision, audio, brackets).unit(second(unit), cursor)
            add(tokens.block, unit, turn)
            unit += 1
        if turns > 1:
            add(TokenBlock.text([4] * 20, cursor.position, Role.PROMPT), unit, turn)
            cursor = Cursor(cursor.position + 20)
            unit += 1
    return ledger


sizes = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=2, max_size=30)


WHOLE_UNITS = ("fifo", "omnipick")
EVICTING = tuple(name for name in POLICIES if name != "no-slide")


def scored(ledger: Ledger, seed: int) -> LedgerView:
    """The ledger's view after every token got a random attention mass."""
    mass = np.random.default_rng(seed).exponential(size=len(ledger)).astype(np.float32)
    ledger.add_mass((mass,))
    return ledger.view()


@pytest.mark.parametrize("name", EVICTING)
@settings(max_examples=60, deadline=None)
@given(sizes, st.booleans(), st.integers(1, 3), st.floats(0, 1), st.integers(0, 99))
def test_low_watermark_prefix_newest_and_delimiters(
    name: str,
    sizes: list[tuple[int, int]],
    brackets: bool,
    turns: int,
    where: float,
    seed: int,
) -> None:
    rule = policy(name)
    view = scored(stream(rule, sizes, brackets, turns), seed)
    newest = int((view.unit == view.unit[-1]).sum()) + 2 * brackets
    newest += 12 if name == "streaming-llm" else 0  # sinks and their delimiters
    low = 10 + newest + int(where * max(0, len(view) - 10 - newest))
    gone = rule.evict(view, low)
    assert len(view) - gone.sum() <= low
    assert not gone[view.role == Role.PREFIX].any()
    content = np.flatnonzero(np.isin(view.role, (Role.CONTENT, Role.PROMPT)))
    assert not gone[content[-1]]
    if name in WHOLE_UNITS:
        assert not gone[view.unit == view.unit[-1]].any()
    else:
        # Nothing goes without need: the next token back would not fit with its delimiters.
        assert len(view) - gone.sum() >= low - 4 or not gone.any()
    # A delimiter stays exactly as long as something of its span does.
    for role, key in ((Role.DELIMITER, view.unit), (Role.BRACKET, view.turn)):
        for owner in np.unique(key[view.role == role]):
            ours = key == owner
            for sense in (Modality.VISION, Modality.AUDIO):
                edge = ours & (view.role == role) & (view.sense == sense)
                inside = ours & (view.role == Role.CONTENT)
                if role == Role.DELIMITER:
                    inside &= view.sense == sense
                assert (~gone[edge]).all() if (~gone[inside]).any() else gone[edge].all()


def test_token_basic_keeps_the_newest_tokens() -> None:
    rule = TokenBasic()
    view = stream(rule, [(9, 5)] * 20).view()
    gone = rule.evict(view, 100)
    kept = view.order[~gone & (view.role == Role.CONTENT)]
    assert kept.tolist() == view.order[view.role == Role.CONTENT][-kept.size :].tolist()
    assert len(view) - gone.sum() in range(97, 101)


def test_streaming_llm_keeps_the_first_tokens_too() -> None:
    rule = StreamingLLM(sinks=6)
    view = stream(rule, [(9, 5)] * 20).view()
    gone = rule.evict(view, 100)
    first = np.flatnonzero(view.role == Role.CONTENT)[:6]
    assert not gone[first].any() and gone[first[-1] + 1 : first[-1] + 40].sum() > 35


def test_h2o_keeps_heavy_hitters_and_the_newest_token_of_mass_zero() -> None:
    rule = H2O(recent=0.25)
    ledger = stream(rule, [(9, 5)] * 20)
    mass = np.zeros(len(ledger), np.float32)
    heavy = np.flatnonzero(ledger.view().role == Role.CONTENT)[10:40:3]
    mass[heavy] = 5.0
    ledger.add_mass((mass,))
    view = ledger.view()
    gone = rule.evict(view, 60)
    assert not gone[heavy].any() and not gone[-1]
    assert gone.sum() == len(view) - 60 or len(view) - gone.sum() >= 56


def test_fifo_drops_oldest_units_whole_and_no_more_than_needed() -> None:
    rule = Fifo()
    view = stream(rule, [(9, 5)] * 20).view()
    gone = rule.evict(view, 100)
    kept = np.unique(view.unit[~gone & (view.unit >= 0)])
    assert kept.tolist() == [15, 16, 17, 18, 19]
    assert np.isin(view.unit[~gone & (view.unit >= 0)], kept).all()
    assert (np.bincount(view.unit[~gone & (view.unit >= 0)])[15:] == 18).all()


def test_omnipick_keeps_recent_units_whole_and_sinks_of_older_ones() -> None:
    rule = OmniPick(vision=3, audio=2, share=0.5)
    view = stream(rule, [(9, 5)] * 20).view()
    gone = rule.evict(view, 210)
    left = np.bincount(view.unit[~gone & (view.unit >= 0)], minlength=20)
    # Of 200 cells beside the prefix half is for sinks: 4 delimiters, 3 vision and 2 audio tokens
    # are 9 a unit, for 11 units; the other half holds 5 units of 18.
    assert left.tolist() == [0] * 4 + [9] * 11 + [18] * 5
    old = (view.unit == 6) & ~gone & (view.role == Role.CONTENT)
    assert view.offset[old & (view.sense == Modality.VISION)].tolist() == [0, 1, 2]
    assert view.offset[old & (view.sense == Modality.AUDIO)].tolist() == [0, 1]


def test_omnipick_trims_oldest_sinks_when_they_outgrow_their_share() -> None:
    rule = OmniPick(vision=3, audio=2, share=0.3)
    view = stream(rule, [(9, 5)] * 100).view()
    gone = rule.evict(view, 210)
    left = np.bincount(view.unit[~gone & (view.unit >= 0)], minlength=100)
    assert (np.diff(left) >= 0).all() and set(left.tolist()) == {0, 9, 18}
    assert (left == 9).sum() * 9 <= 0.3 * 200 and left.sum() >= 180


def test_a_modality_without_sinks_keeps_its_delimiters_alone() -> None:
    rule = OmniPick(vision=3, audio=0)
    view = stream(rule, [(9, 5)] * 20).view()
    gone = rule.evict(view, 200)
    old = (view.unit == 8) & ~gone & (view.sense == Modality.AUDIO)
    assert old.any() and (view.role[old] == Role.DELIMITER).all()


def test_what_cannot_be_kept_is_said() -> None:
    view = stream(Fifo(), [(30, 20)] * 4).view()
    for rule in (Fifo(), OmniPick()):
        with pytest.raises(BudgetError, match="prefix"):
            rule.evict(view, 40)
    with pytest.raises(BudgetError, match="no-slide"):
        NoSlide().evict(view, 4000)
    with pytest.raises(OmniError, match=r"omnipick.*fifo"):
        policy("lru")


@pytest.mark.parametrize("recent", [0.0, 0.01, 1.0])
def test_h2o_never_loses_the_newest_token(recent: float) -> None:
    rule = H2O(recent=recent)
    view = scored(stream(rule, [(9, 5)] * 20), 3)
    newest = np.flatnonzero(view.role == Role.CONTENT)[-1]
    assert not rule.evict(view, 100)[newest]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (H2O, {"recent": -1.0}),
        (OmniPick, {"share": 5.0}),
        (OmniPick, {"vision": -1}),
        (OmniPick, {"audio": 2**40}),
        (StreamingLLM, {"sinks": -4}),
    ],
)
def test_parameters_that_cannot_be_are_refused_by_name(kind: type, wrong: dict) -> None:
    with pytest.raises(OmniError, match=next(iter(wrong))):
        kind(**wrong)


def test_the_best_are_kept_to_the_last_cell() -> None:
    view = stream(TokenBasic(), [(9, 5)] * 20, brackets=True).view()
    for low in range(30, 60):
        gone = TokenBasic().evict(view, low)
        assert len(view) - gone.sum() == low
