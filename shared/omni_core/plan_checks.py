"""Whether a layout or a step is of the model that is asked to carry it out.

An index out of range reads foreign memory on one backend and ends the process's context on another,
so all are checked here, before any is used. Cells and pages are the table mirror's to check.
"""

from __future__ import annotations

from omni_core.backend import ArenaLayout, StepPlan
from omni_core.errors import PlanError
from omni_core.model_config import TextConfig


def check_layout(layout: ArenaLayout, text: TextConfig, streams: int) -> None:
    """Refuse an arena that is laid out for another model or number of streams.

    Raises:
        PlanError: naming both.
    """
    layers = layout.groups * layout.layers_per_group
    found = (layers, layout.kv_heads, layout.head_dim, layout.streams)
    expected = (text.layers, text.kv_heads, text.head_dim, streams)
    if found != expected or layout.groups < 1 or layout.pages < 1:
        raise PlanError(
            f"the layout has (layers, kv_heads, head_dim, streams) {found} in {layout.groups} "
            f"groups and {layout.pages} pages, but the model has {expected}: make the layout from "
            "its config"
        )


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
