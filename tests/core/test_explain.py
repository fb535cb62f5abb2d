"""Reasons of every policy, page maps as text, and the explanation that a session writes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_backend import PlainFrontend, plain_model, second

from omni_core.errors import BudgetError
from omni_core.explain import BARS, PLAIN_BARS, Explainer, compact_map, page_map, stretches
from omni_core.frontend.base import Cursor
from omni_core.ledger import Ledger
from omni_core.paging import LAYOUTS, PageLayout, layout
from omni_core.paging.table import PageMap
from omni_core.retention import POLICIES, policy
from omni_core.retention.base import Policy, Reasons
from omni_core.session import Session
from omni_core.units import Modality, Role, Tier, TokenBlock

EVICTING = [name for name in POLICIES if name != "no-slide"]


def ledger(rule: Policy, sizes: list[tuple[int, int]], brackets: bool, seed: int) -> Ledger:
    """Units with that many vision and audio tokens after a prefix, and a question at the end."""
    found, cursor = Ledger(1), Cursor(10)

    def add(block: TokenBlock, unit: int) -> None:
        cells = np.arange(len(block), dtype=np.int32)[None] + found.next_order
        found.append(block, unit, np.zeros(len(block), np.int32), cells.astype(np.int32))

    add(TokenBlock.text([3] * 10, 0, Role.PREFIX), -1)
    for unit, (vision, audio) in enumerate(sizes):
        tokens, cursor = PlainFrontend(vision, audio, brackets).unit(second(unit), cursor)
        add(tokens.block, unit)
    add(TokenBlock.text([4] * 5, cursor.position, Role.PROMPT), len(sizes))
    mass = np.random.default_rng(seed).exponential(size=len(found)).astype(np.float32)
    found.add_mass((mass,))
    return found


def times_given(reasons: Reasons, size: int) -> np.ndarray:
    return sum((mask.astype(int) for mask in reasons.values()), np.zeros(size, int))


@pytest.mark.parametrize("name", EVICTING)
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=2, max_size=20),
    st.booleans(),
    st.integers(0, 99),
    st.floats(0, 1),
)
def test_each_token_has_one_reason(
    name: str, sizes: list[tuple[int, int]], brackets: bool, seed: int, where: float
) -> None:
    rule = policy(name)
    stream = ledger(rule, sizes, brackets, seed)
    view = stream.view()
    low = 70 + int(where * max(0, len(view) - 70))
    gone = rule.evict(view, low)
    dropped = rule.why_dropped(view, gone)
    assert (times_given(dropped, len(view)) == gone).all()
    kept = rule.why_kept(view)
    assert (times_given(kept, len(view)) == 1).all()
    stream.drop(gone[None])
    left = stream.view()
    after = rule.why_kept(left)
    assert (times_given(after, len(left)) == 1).all()
    assert after["pinned"].sum() == 10
    empty = Ledger(1).view()
    assert list(rule.why_kept(empty)) == list(kept) == list(after)
    assert list(rule.why_dropped(empty, np.zeros(0, np.bool_))) == list(dropped)


def test_omnipick_tells_whole_units_from_sinks() -> None:
    rule = policy("omnipick")
    stream = ledger(rule, [(9, 5)] * 20, False, 0)
    view = stream.view()
    gone = rule.evict(view, 200)
    why = rule.why_dropped(view, gone)
    assert (view.role[why["not recent"]] == Role.CONTENT).all() and why["not recent"].any()
    stream.drop(gone[None])
    left = stream.view()
    sink = rule.why_kept(left)["sink"]
    sizes = np.bincount(left.unit[left.unit >= 0], minlength=21)[:20]
    # Of a unit of 18, 4 delimiters, 4 vision and 2 audio tokens are sinks.
    assert set(sizes.tolist()) <= {0, 10, 18} and (sizes == 10).any()
    assert sorted(set(left.unit[sink].tolist())) == np.flatnonzero(sizes == 10).tolist()
    assert sink.sum() == 10 * (sizes == 10).sum()


def test_other_policies_name_what_they_look_at() -> None:
    rule = policy("streaming-llm")
    view = ledger(rule, [(9, 5)] * 5, False, 0).view()
    assert rule.why_kept(view)["sink"].sum() == 4
    rule = policy("h2o")
    view = ledger(rule, [(9, 5)] * 5, False, 0).view()
    newest = np.flatnonzero(rule.why_kept(view)["newest"])
    assert newest[-1] == len(view) - 1 and len(newest) > 20
    assert not rule.why_kept(view)["heavy hitter"][newest].any()
    assert rule.why_kept(view)["delimits"].sum() == 20


def pages(*rows: tuple[int, Tier, int, int, int], modality: Modality = Modality.TEXT) -> PageMap:
    """A map of ``(page, tier, frame, fill, fill)``."""
    number, tier, frame, *fill = (np.asarray(column) for column in zip(*rows, strict=True))
    return PageMap(
        number.astype(np.int64),
        (tier * 8 + modality).astype(np.int32),
        frame.astype(np.int32),
        np.stack(fill, axis=1).astype(np.int64),
    )


def test_a_map_has_a_mark_a_subblock() -> None:
    shown = pages(
        (0, Tier.PINNED, 0, 32, 1),
        (2, Tier.TRANSIENT, 3, 4, 5),
        (3, Tier.SINK, 3, 0, 31),
        (7, Tier.TRANSIENT, 3, 17, 0),
        (9, Tier.OPEN, 12, 28, 29),
        (11, Tier.SCORED, 12, 16, 9),
    )
    parts = stretches(shown, PageLayout())
    assert page_map(parts) == "0:P█▁ 3:S·█ T▁▂▅· 12:O▇█ X▄▃"
    assert page_map(parts, PLAIN_BARS) == "0:P81 3:S.8 T125. 12:O78 X43"
    assert page_map(parts, each=2) == "0:P▅ 3:S▄ T▂▃ 12:O█ X▄"


def test_a_layout_without_tiers_shows_none() -> None:
    flat = pages((0, Tier.PINNED, 0, 32, 3), (5, Tier.PINNED, 1, 1, 0))
    for name in ("native", "eager"):
        assert page_map(stretches(flat, layout(name))) == "0:M█▁ 1:M▁·"


def test_an_empty_map_is_empty() -> None:
    none = PageMap(
        np.zeros(0, np.int64),
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
        np.zeros((0, 2), np.int64),
    )
    assert page_map(stretches(none, PageLayout())) == ""
    assert compact_map(none, PageLayout())[1] == []


@pytest.mark.parametrize("count", [1, 40, 128, 1024, 5000])
def test_a_compact_map_fits_its_lines(count: int) -> None:
    generator = np.random.default_rng(count)
    fill = generator.integers(1, 33, size=(count, 2))
    shown = pages(*((n, Tier.SINK, 1, *fill[n].tolist()) for n in range(count)))
    legend, lines = compact_map(shown, PageLayout(), width=78, lines=8)
    assert 1 <= len(lines) <= 8 and all(len(line) <= 78 for line in lines)
    assert "S sink" in legend and "P pinned" not in legend
    cells = int(re.search(r"a mark is (\d+) cells", legend)[1])
    marks = sum(mark in BARS for mark in "".join(lines))
    assert marks == -(-count * 64 // cells)
    assert (cells == 32) == (2 * count <= 78 * 8 - 3)


def explained(name: str, place: str, units: int = 40) -> tuple[Session, list[str], list[dict]]:
    rule, places = policy(name), layout(place)
    parts: list[str] = []
    events: list[dict] = []
    session = Session(
        plain_model(vision=20),
        budget=400,
        max_tokens=6,
        retention=rule,
        layout=places,
        system="hello",
        on_event=events.append,
        watcher=Explainer(parts.append, rule, places, "a test"),
    )
    for index in range(units):
        session.append(second(index))
        if index % 9 == 4:
            session.ask("what?")
    return session, "".join(parts).splitlines(), events


def total(column: str) -> int:
    return sum(map(int, column.split("/"))) if column != "-" else 0


@pytest.mark.parametrize("place", LAYOUTS)
@pytest.mark.parametrize("name", EVICTING)
def test_lines_add_up(name: str, place: str) -> None:
    session, lines, events = explained(name, place)
    legend = [line for line in lines if line.startswith("#")]
    rows = [line for line in lines if not line.startswith("#")]
    assert lines[: len(legend)] == legend and legend[0] == "# a test"
    assert f"retention {name}, layout {place}" in legend[1]
    assert len(rows) == 40 + 4
    heads = [part.split() for part in legend[-1].lstrip("# ").split("|")]
    assert heads[0] == ["unit", "time", "arrived"]
    # Columns stand under their heads: every bar is where the head's is.
    assert (
        len({tuple(i for i, c in enumerate(row) if c == "|") for row in [*rows, legend[-1]]}) == 1
    )
    dropped = 0
    for number, row in enumerate(rows):
        stream, kept, gone, usage, shown = (part.split() for part in row.split(" | "))
        assert int(stream[0]) == number
        cells, pages_used, span = map(int, usage)
        assert sum(map(total, kept)) == cells <= 400
        assert pages_used <= span
        assert sum(mark in BARS for mark in "".join(shown)) == 2 * pages_used
        dropped += sum(map(total, gone))
    assert dropped == session.summary()["evicted"] > 0
    arrived = [row.split()[2] for row in rows]
    assert arrived[0] == "20/5/4" and arrived[5].startswith("0/0/")
    evicts = [event for event in events if event["event"] == "evict"]
    assert evicts
    for event in evicts:
        assert sum(event["reasons"].values()) == sum(event["tokens"].values())
        assert all(event["reasons"].values())


def test_looking_on_changes_nothing() -> None:
    watched, _, _ = explained("omnipick", "page")
    alone = Session(plain_model(vision=20), budget=400, max_tokens=6, system="hello")
    for index in range(40):
        alone.append(second(index))
        if index % 9 == 4:
            alone.ask("what?")
    assert alone.summary()["plans"] == watched.summary()["plans"]


def test_a_branch_is_not_explained() -> None:
    parts: list[str] = []
    rule, places = policy("fifo"), layout("page")
    explainer = Explainer(parts.append, rule, places, "a test")
    session = Session(
        plain_model(), budget=400, max_tokens=6, retention=rule, layout=places, watcher=explainer
    )
    before = len(parts)
    session.ask("what?", branch=True)
    assert len(parts) == before
    session.ask("what?")
    assert len(parts) == before + 1


def test_no_slide_explains_until_it_ends() -> None:
    parts: list[str] = []
    rule, places = policy("no-slide"), layout("page")
    explainer = Explainer(parts.append, rule, places, "a test")
    session = Session(
        plain_model(), budget=256, max_tokens=6, retention=rule, layout=places, watcher=explainer
    )
    with pytest.raises(BudgetError):
        for index in range(60):
            session.append(second(index))
    rows = [part for part in parts if not part.startswith("#")]
    assert len(rows) > 3 and "all stay" in parts[0]
