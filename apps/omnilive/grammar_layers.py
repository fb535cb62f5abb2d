"""The grammar of ``omnilive calibrate layers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omnilive import reading
from omnilive.grammar_parts import add_clips, add_debug, add_model, formatter
from omnilive.options import QUESTION, UNITS


def add_layers(kinds: Any) -> None:
    """The words of the command."""
    layers = kinds.add_parser(
        "layers",
        help="measure how sensitive answers are to what each layer caches",
        usage="omnilive calibrate layers --out FILE [OPTIONS]",
        description="Have a model answer a question about stretches of clips, and measure by "
        "gradients how a change of what each layer caches would change the answers: where the "
        "cache is worth most. PyTorch does it, in float32, which takes four bytes a weight and "
        "more for each token of a stretch.",
        formatter_class=formatter,
    )
    add_clips(layers)
    layers.add_argument(
        "--units",
        type=reading.count,
        default=UNITS,
        metavar="N",
        help="units of a stretch (default: %(default)s)",
    )
    layers.add_argument(
        "--question",
        type=reading.text,
        default=QUESTION,
        metavar="TEXT",
        help="put at the end of each (default: %(default)s)",
    )
    layers.add_argument("--system", type=reading.text, metavar="TEXT", help="system prompt")
    add_model(layers)
    out = layers.add_argument_group("output")
    out.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the JSON file to write"
    )
    add_debug(out)
    layers.set_defaults(command="calibrate layers")
