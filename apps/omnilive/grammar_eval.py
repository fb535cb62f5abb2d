"""The grammar of ``omnilive eval``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omnilive import reading
from omnilive.grammar_parts import (
    add_aggregation,
    add_debug,
    add_layer_budgets,
    add_model,
    add_sealing,
    add_sinks_and_layout,
    formatter,
)
from omnilive.options import RETENTION


def add_eval(commands: Any) -> None:
    """``omnilive eval streamworld``."""
    evaluate = commands.add_parser(
        "eval",
        help="measure how well a model answers under a cache policy and budget",
        usage="omnilive eval WHAT ...",
        description="Measure how well a model answers under a cache policy and budget.",
        formatter_class=formatter,
    )
    kinds = evaluate.add_subparsers(
        prog="omnilive eval", title="what", metavar="WHAT", required=True
    )
    world = kinds.add_parser(
        "streamworld",
        help="on streams of a small seeded world, which the shipped model knows",
        usage="omnilive eval streamworld [OPTIONS]",
        description="Let streams of the stream world flow through a model that knows it, ask "
        "questions that leave no trace, and count the right answers by kind and by how long ago "
        "it was. Without --retention and --budget: everything kept, then fifo, streaming-llm and "
        "omnipick at 1/2, 1/4, 1/8 and 1/16 of the stream's cells. Exit code 1 if an accuracy "
        "that the checkpoint claims (claims.json in its folder) does not hold. Tables go to "
        "stdout, everything else to stderr.",
        formatter_class=formatter,
    )
    cache = world.add_argument_group("cache")
    cache.add_argument(
        "--retention",
        choices=RETENTION,
        action="append",
        default=[],
        help="which tokens stay; may be given several times",
    )
    add_sinks_and_layout(cache)
    cache.add_argument(
        "--budget",
        type=reading.part,
        action="append",
        default=[],
        metavar="SHARE|CELLS|BYTES",
        help="cells alive at a unit's end: a share of the stream's, as 1/8, cells, as 512, or "
        "bytes, as 2MB; may be given several times",
    )
    add_sealing(cache)
    add_aggregation(cache)
    add_layer_budgets(cache)
    size = world.add_argument_group("size")
    size.add_argument(
        "--units", type=reading.count, metavar="N", help="seconds of each stream (default: 64)"
    )
    size.add_argument(
        "--streams", type=reading.count, metavar="N", help="streams of each seed (default: 32)"
    )
    size.add_argument(
        "--questions", type=reading.count, metavar="N", help="questions a stream (default: 24)"
    )
    size.add_argument(
        "--seeds",
        type=reading.count,
        default=3,
        metavar="N",
        help="how many seeds of streams (default: %(default)s)",
    )
    size.add_argument(
        "--quick",
        action="store_true",
        help="under two minutes on two cores: few streams, policies and budgets",
    )
    size.add_argument(
        "--batch",
        type=reading.count,
        metavar="N",
        help="streams in step (default: 32 on a GPU, 8 on a CPU)",
    )
    size.add_argument(
        "--banks",
        type=Path,
        metavar="DIR",
        help="folder with the pictures and voices of another test.npz than the shipped one",
    )
    add_model(world)
    out = world.add_argument_group("output")
    out.add_argument("--out", type=Path, metavar="FILE", help="the JSON file to write")
    out.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw accuracy against budget, a line a policy",
    )
    add_debug(out)
    world.set_defaults(command="eval streamworld")
