"""Whether a layout or a step is of the model that is asked to carry it out.

An index out of range reads foreign memory on one backend and ends the process's context on another,
so all are checked here, before any is used. Cells and pages are the table mirror's to check, which
asks here about seals.
"""

from __future__ import annotations

import numpy as np

from omni_core.backend import FREE, PAGE, SUBBLOCK, ArenaLayout, MergePlan, MovePlan, StepPlan
from omni_core.errors import BackendError, PlanError
from omni_core.model_config import TextConfig
from omni_core.units import Modality


def check_layout(
    layout: ArenaLayout, text: TextConfig, streams: int, *, seals: bool = False
) -> None:
    """Refuse an arena that is laid out for another model or number of streams.

    Args:
        layout: what is asked for.
        text: the model's shapes.
        streams: that run.
        seals: whether the backend has sealed pages.

    Raises:
        PlanError: naming both.
        BackendError: sealed pages, of a backend that has none.
    """
    if layout.sealed_pages and not seals:
        raise BackendError(
            f"this backend cannot seal its cache, and {layout.bits} bits were asked for; choose "
            "another backend, or a cache of 16 bits"
        )
    layers = layout.groups * layout.layers_per_group
    found = (layers, layout.kv_heads, layout.head_dim, layout.streams)
    expected = (text.layers, text.kv_heads, text.head_dim, streams)
    if found != expected or layout.groups < 1 or layout.pages < 1:
        raise PlanError(
            f"the layout has (layers, kv_heads, head_dim, streams) {found} in {layout.groups} "
            f"groups and {layout.pages} pages, but the model has {expected}: make the layout from "
            "its config"
        )


def check_seals(plan: MovePlan, layout: ArenaLayout) -> None:
    """Refuse seals that do not fit the arena, each other, or the rest of the plan.

    Raises:
        PlanError: naming what was found and what was expected.
    """
    for what, cells in (("source", plan.source), ("target", plan.target)):
        if cells.size and cells.max() >= layout.pages * PAGE:
            raise PlanError(
                f"cell {cells.max()} is the {what} of a copy and lies in a sealed page: sealed "
                "subblocks never move"
            )
    if len(plan.seals) or plan.seals.source.size:
        _check_seal_arrays(plan, layout)
        _check_sealed_pages(plan)


def _check_seal_arrays(plan: MovePlan, layout: ArenaLayout) -> None:
    source, target = plan.seals.source, plan.seals.target
    if target.ndim != 1 or source.shape != (target.size, SUBBLOCK):
        raise PlanError(
            f"seals of {target.size} subblocks have source cells of shape {list(source.shape)}, "
            f"expected {[target.size, SUBBLOCK]}"
        )
    first, last = 2 * layout.pages, 2 * layout.all_pages
    if not first <= target.min() <= target.max() < last:
        raise PlanError(
            f"subblocks {target.min()} to {target.max()} are to be sealed, expected those of the "
            f"arena's {layout.sealed_pages} sealed pages, from {first} to below {last}"
        )
    if np.unique(target).size != target.size:
        raise PlanError("a subblock is to be sealed twice in one plan, expected each once")
    if not -1 <= source.min() <= source.max() < layout.pages * PAGE:
        raise PlanError(
            f"cells {source.min()} to {source.max()} are to be sealed, expected those of the "
            f"arena's {layout.pages} pages of 16 bits, or -1"
        )
    filled = source >= 0
    if not filled[:, 0].all() or (filled[:, 1:] & ~filled[:, :-1]).any():
        raise PlanError("a subblock is to be sealed with a gap before a token, expected none")
    cells = source[filled]
    if np.unique(cells).size != cells.size or np.isin(cells, plan.source).any():
        raise PlanError("a cell is to be sealed twice, or sealed and copied, expected one of them")


def _check_sealed_pages(plan: MovePlan) -> None:
    """What is sealed must be alive afterwards in pages that can hold it, and not where it was."""
    delta, target = plan.delta, plan.seals.target
    missing = np.setdiff1d(np.append(target // 2, plan.seals.cells[0] // PAGE), delta.pages)
    if missing.size:
        raise PlanError(
            f"page {missing[0]} changes where cells are sealed, and the plan's delta does not list "
            "it"
        )
    at = np.searchsorted(delta.pages, target // 2)
    group, modality = delta.group[at], delta.modality[at]
    if (group == FREE).any() or not np.isin(modality, list(Modality)).all():
        raise PlanError(
            f"subblocks are to be sealed in pages of layer groups {group.tolist()} and modalities "
            f"{modality.tolist()}, expected a group and a modality that there is"
        )
    count = np.count_nonzero(plan.seals.source >= 0, axis=1)
    words = delta.occupancy[at, target % 2]
    if (words != (np.int64(1) << count) - 1).any():
        raise PlanError(
            "a subblock is to be sealed and holds other live cells than those that are sealed: "
            "nothing is sealed twice"
        )
    left = np.setdiff1d(plan.seals.cells[0], plan.target)
    at = np.searchsorted(delta.pages, left // PAGE)
    words = delta.occupancy[at, left % PAGE // SUBBLOCK]
    if ((words >> (left % SUBBLOCK).astype(np.uint32)) & 1).any():
        raise PlanError("a cell is to be sealed and stays alive where it was, expected it free")


def check_merge(plan: MergePlan, encoded: int) -> None:
    """Refuse a merge of rows that there are not, or whose targets leave a gap.

    Args:
        plan: the merge.
        encoded: rows of the embeddings.

    Raises:
        PlanError: naming what was found and what was expected.
    """
    source, target = plan.source, plan.target
    if source.shape != target.shape or source.ndim != 1:
        raise PlanError(
            f"a merge has sources {list(source.shape)} for targets {list(target.shape)}, expected "
            "one for each"
        )
    if source.size and not 0 <= source.min() <= source.max() < encoded:
        raise PlanError(
            f"rows {source.min()} to {source.max()} of {encoded} embeddings are to be merged; "
            "encode their unit first"
        )
    steps = np.diff(target, prepend=-1)
    if ((steps < 0) | (steps > 1)).any() or (target.size and target[0] != 0):
        raise PlanError("the targets of a merge do not count up from 0, expected no gap")


def check_step(plan: StepPlan, vocab: int, streams: int, encoded: int) -> None:
    """Refuse a step whose arrays do not fit each other, the model or the embeddings.

    Args:
        plan: the step.
        vocab: token ids that the model knows.
        streams: streams that it runs.
        encoded: rows of the embeddings that come with the plan, 0 without any.

    Raises:
        PlanError: naming what was found and what was expected.
    """
    count = plan.rows.size
    for field, found, expected in (
        ("tokens", plan.tokens.shape, (streams, count)),
        ("positions", plan.positions.shape, (3, count)),
        ("order", plan.order.shape, (count,)),
        ("counts", plan.counts.shape, (count,)),
        ("cells", plan.cells.shape[1:], (count,)),
    ):
        if found != expected or not count:
            raise PlanError(
                f"{field} of a step of {count} tokens and {streams} streams have shape "
                f"{list(found)}, expected {list(expected)} and at least one token"
            )
    text = plan.tokens[:, plan.rows < 0]
    if text.size and not 0 <= text.min() <= text.max() < vocab:
        raise PlanError(
            f"token ids {text.min()} to {text.max()} with a vocabulary of {vocab}: tokenizer and "
            "weights are of different models"
        )
    if plan.rows.max() >= encoded:
        raise PlanError(
            f"the plan reads embedding {plan.rows.max()} of {encoded}; encode its unit first"
        )
    if plan.logits.size and not 0 <= plan.logits.min() <= plan.logits.max() < count:
        raise PlanError(
            f"logits are asked of rows {plan.logits.min()} to {plan.logits.max()} of a step of "
            f"{count} tokens"
        )
