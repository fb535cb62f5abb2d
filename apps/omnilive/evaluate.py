"""``omnilive eval streamworld``: how well a model answers under cache policies and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omni_core.budget import machine_bytes
from omni_core.errors import OmniError
from omni_core.retention import Policy
from omnilive import aggregating, layering
from omnilive.evaluation import claims, exam, record, scenes, tables
from omnilive.evaluation import settings as compared
from omnilive.evaluation.claims import Claim, Floor
from omnilive.evaluation.rows import Row, row
from omnilive.evaluation.running import measure
from omnilive.evaluation.size import check_room, choose_model, choose_size
from omnilive.evaluation.world import check_model, extent
from omnilive.files import check_target, write
from omnilive.models import EMBEDDED, UNTRAINED, Prepared, prepare
from omnilive.options import EvalOptions, UsageError
from omnilive.sealing import chosen, told
from omnilive.sinks import choose_policy, model_label
from omnilive.terminal import put, say


def run(options: EvalOptions) -> bool:
    """Measure, print the tables, write what is wanted; whether all that is claimed holds.

    What can be refused is refused before weights are loaded.

    Raises:
        UsageError: words that do not fit together.
        OmniError: what a part says; a model that does not know the world.
    """
    _check_files(options)
    model_options = choose_model(options.model)
    size = choose_size(options, model_options.backend)
    check_room(size, options.seeds, machine_bytes())
    prepared = prepare(**asdict(model_options))
    rules = _policies(options, size.retention, prepared.checkpoint.path)
    sealing = chosen(options.kv_bits, options.seal, size.retention)
    aggregation = aggregating.chosen(options.aggregate, options.theta_inter, options.theta_intra)
    layering.check(options.layer_budgets, options.layer_blend, size.retention)
    check_model(prepared)
    layers = layering.chosen(options.layer_budgets, options.layer_blend, prepared)
    floors = claims.read_floors(prepared.checkpoint.path)
    seeds = range(1, options.seeds + 1)
    exams = [exam.draw(seed, size.streams, size.units, size.questions) for seed in seeds]
    room = extent(prepared, size.units, max(one.longest for one in exams))
    shapes = prepared.config.text, prepared.element
    plan = compared.settings(rules, size.budgets, room, *shapes, sealing, aggregation, layers)
    bank = scenes.load(options.banks, exam.SPLIT)
    prepared.check(sealed=sealing is not None)
    load = cache(prepared.load)
    model = load(size.batch)
    say(
        f"model {model.name} on {model.backend.name} ({model.backend.device}): {len(seeds)} x "
        f"{size.streams} streams of {size.units} units, {size.questions} questions each; policies "
        f"with budgets: {len(plan)}{told(sealing)}{aggregating.told(aggregation)}"
        f"{layering.told(layers)}"
    )
    if not model.trained:
        say(f"warning: {UNTRAINED}")
    outcomes = measure(plan, exams, bank, load, batch=size.batch, layout=options.layout, note=say)
    rows = [
        row(setting, size.units, size.streams * len(seeds), outcome.marks, outcome.sittings)
        for setting, outcome in zip(plan, outcomes, strict=True)
    ]
    checked = [floor.check(rows) for floor in floors]
    of_world = claims.of_policies(rows)
    about = {
        "quick": options.quick,
        "seeds": list(seeds),
        "streams": size.streams,
        "units": size.units,
        "questions": size.questions,
        "batch": size.batch,
        "layout": options.layout,
        **plan[0].cache,
        "weights": prepared.weights,
    }
    found = record.document(model, rows, [*checked, *of_world], about)
    try:
        # Before the tables: who reads them may leave early.
        _write(options, found)
    finally:
        _show(rows, checked, of_world)
    return _verdict(options, prepared, floors, checked, of_world)


def _check_files(options: EvalOptions) -> None:
    read = [
        options.sinks,
        options.layer_budgets,
        *((options.banks / "test.npz",) if options.banks else ()),
    ]
    if options.out is not None:
        check_target(options.out, "--out", read)
    if options.plot is None:
        return
    if options.plot.suffix.lower() != ".png":
        raise UsageError(f"{options.plot}: --plot draws PNG; give a name that ends in .png")
    check_target(options.plot, "--plot", [options.out, *read])
    if find_spec("matplotlib") is None:
        raise OmniError(
            '--plot needs matplotlib, which is not installed; run `pip install -e ".[bench]"` in '
            "the checkout, or leave --plot out"
        )


def _policies(options: EvalOptions, names: Sequence[str], folder: Path) -> list[Policy]:
    if options.sinks is not None and "omnipick" not in names:
        raise UsageError(
            f"--sinks is for --retention omnipick, not for {', '.join(names)}; leave one out"
        )
    rules = []
    for name in names:
        file = options.sinks if name == "omnipick" else None
        rule, measured = choose_policy(name, file, folder)
        if measured is not None and measured != model_label(options.model.model):
            say(
                f"warning: {options.sinks} was measured on {measured}, not on "
                f"{model_label(options.model.model)}"
            )
        rules.append(rule)
    return rules


def _write(options: EvalOptions, found: dict[str, Any]) -> None:
    if options.out is not None:
        write(options.out, record.text(found).encode())
    if options.plot is not None:
        from omnilive.evaluation.plot import draw

        write(options.plot, draw(found))


def _show(rows: Sequence[Row], checked: Sequence[Claim], of_world: Sequence[Claim]) -> None:
    put("Right answers in percent, by kind of question.\n\n")
    put(tables.text(tables.by_kind(rows)))
    put("\nOf what is recalled from one moment, by seconds since then.\n\n")
    put(tables.text(tables.by_lag(rows)))
    put("\nCells and bytes of one stream at most, at a unit's end; units of all streams.\n\n")
    put(tables.text(tables.by_cost(rows)))
    told = [claim for claim in (*checked, *of_world) if claim.holds is not None]
    if told:
        put("\n" + tables.text(tables.of_claims(told)))


def _verdict(
    options: EvalOptions,
    prepared: Prepared,
    floors: Sequence[Floor],
    checked: Sequence[Claim],
    of_world: Sequence[Claim],
) -> bool:
    """Say what does not hold; whether all does. What the world claims counts in its own table."""
    if not floors:
        say(f"{prepared.name} claims nothing: its folder has no {claims.FILE}, or an empty one")
    unchecked = sum(claim.holds is None for claim in checked)
    if unchecked:
        lengths = " and ".join(str(units) for units in sorted({floor.units for floor in floors}))
        say(
            f"{unchecked} of {len(checked)} claims are unchecked: they are of streams of {lengths} "
            "units with everything kept in 16 bits, and a run checks those of its own length"
        )
    counted = [*checked, *(of_world if _is_default(options) else ())]
    failed = [claim for claim in counted if claim.holds is False]
    for claim in failed:
        bound = f"{claim.comparison} {claim.bound:g}"
        say(f"does not hold: {claim.name} {claim.value:.1f}, claimed {bound}")
    return not failed


def _is_default(options: EvalOptions) -> bool:
    """Whether the run is the default table: all but where it runs and what it writes left open."""
    free = ("model", "batch", "out", "plot")
    plain = EvalOptions(options.model)
    return options.model.model == EMBEDDED and all(
        getattr(options, field.name) == getattr(plain, field.name)
        for field in fields(options)
        if field.name not in free
    )
