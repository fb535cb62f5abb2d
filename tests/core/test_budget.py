"""Reading budgets and sizing the arena."""

from __future__ import annotations

import pytest
from numpy_backend import TEXT

from omni_core.backend import PAGE
from omni_core.budget import (
    Budget,
    cell_bytes,
    default_budget,
    low_watermark,
    parse_budget,
    plan_arena,
)
from omni_core.errors import BudgetError


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("8192", Budget(cells=8192)),
        ("2GB", Budget(bytes=2 * 10**9)),
        ("1.5 GiB", Budget(bytes=3 * 2**29)),
        ("512mb", Budget(bytes=512 * 10**6)),
        ("100B", Budget(bytes=100)),
        ("64KiB", Budget(bytes=2**16)),
    ],
)
def test_budgets_are_read(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "much", "-5", "8192 cells", "1.5", "2TB", "2G"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(BudgetError, match="budget"):
        parse_budget(text)


def test_bytes_become_cells() -> None:
    size = cell_bytes(TEXT, 2)
    assert size == 2 * 2 * 2 * 8 * 2
    assert Budget(bytes=1000 * size + 5).resolve(TEXT, 2) == 1000


def test_the_default_follows_the_machine() -> None:
    assert default_budget(TEXT, 2, 2**40) == 4096
    assert default_budget(TEXT, 2, 8 * 640 * cell_bytes(TEXT, 2)) == 640
    assert default_budget(TEXT, 2, 1) == PAGE


def test_the_smallest_budget_named_in_the_error_works() -> None:
    wanted = {"prefix": 40, "unit": 300, "answer": 64, "element": 2}
    with pytest.raises(BudgetError, match="--budget") as caught:
        plan_arena(TEXT, budget=200, **wanted)
    least = int(str(caught.value).rsplit(maxsplit=1)[-1])
    layout = plan_arena(TEXT, budget=least, **wanted)
    assert layout.pages * PAGE > least + 300 + 64
    assert low_watermark(least) >= 340
    with pytest.raises(BudgetError):
        plan_arena(TEXT, budget=least - 2, **wanted)


def test_a_budget_above_the_machine_is_refused() -> None:
    with pytest.raises(BudgetError, match="lower --budget"):
        plan_arena(TEXT, budget=10**6, prefix=1, unit=1, answer=1, element=2, memory=10**6)
