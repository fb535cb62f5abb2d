"""Options that several commands take: the same words, the same meanings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from omni_core.aggregation import Aggregation
from omni_core.layer_budgets import Blend
from omnilive import reading
from omnilive.options import BACKENDS, KV_BITS, LAYOUT, SEAL, WEIGHTS

_HELP_WIDTH = 96


class Noted(argparse.Action):
    """Stores a value, and adds the option to ``given``: some other options leave it no say."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        """Store and note."""
        setattr(namespace, self.dest, values)
        namespace.given = getattr(namespace, "given", frozenset()) | {self.option_strings[0]}


class NotedFlag(argparse.Action):
    """A flag that is noted likewise."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=False, help=help)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        """Set and note."""
        setattr(namespace, self.dest, True)
        namespace.given = getattr(namespace, "given", frozenset()) | {self.option_strings[0]}


def add_sinks_and_layout(group: Any) -> None:
    """What goes with a choice of policy: ``--sinks`` and ``--layout``."""
    group.add_argument(
        "--sinks",
        action=Noted,
        type=Path,
        metavar="FILE",
        help="how many tokens omnipick keeps of each old unit, from `omnilive calibrate retention`",
    )
    group.add_argument(
        "--layout",
        action=Noted,
        choices=LAYOUT,
        default="page",
        help="where tokens are placed; native and eager are there to compare with (default: "
        "%(default)s)",
    )


def add_clips(command: Any) -> None:
    """``--source``, of one command that takes several clips."""
    command.add_argument(
        "--source",
        type=Path,
        action="append",
        default=[],
        metavar="CLIP",
        help="video or sound file, may be given several times; the shipped demo clip if left out",
    )


def add_budget(group: Any) -> None:
    """``--budget``, of one session."""
    group.add_argument(
        "--budget",
        action=Noted,
        type=reading.budget,
        metavar="CELLS|BYTES",
        help="cells alive at a unit's end, as 8192, or bytes, as 2GB; if left out, a size that "
        "suits the machine",
    )


def add_sealing(group: Any) -> None:
    """``--kv-bits`` and ``--seal``."""
    group.add_argument(
        "--kv-bits",
        action=Noted,
        type=int,
        choices=KV_BITS,
        default=KV_BITS[0],
        help="bits of a key or value number: tokens that are no longer new are sealed to 4, 3 or "
        "2 (default: %(default)s, nothing is)",
    )
    group.add_argument(
        "--seal",
        action=Noted,
        choices=SEAL,
        help="what of such a cache is sealed: recent leaves the system prompt and the newest "
        "units in 16 bits, all leaves what has not ended (default: recent)",
    )


def add_aggregation(group: Any) -> None:
    """``--aggregate`` and its thresholds."""
    plain = Aggregation()
    group.add_argument(
        "--aggregate",
        action=NotedFlag,
        help="leave out of a picture what its place has shown already, and merge what repeats "
        "in it",
    )
    group.add_argument(
        "--theta-inter",
        action=Noted,
        type=reading.likeness,
        metavar="X",
        help="cosine similarity above which a token is left out for what its place has shown "
        f"(default: {plain.inter:g})",
    )
    group.add_argument(
        "--theta-intra",
        action=Noted,
        type=reading.likeness,
        metavar="X",
        help="cosine similarity above which two tokens of a frame are merged (default: "
        f"{plain.intra:g})",
    )


def add_layer_budgets(group: Any) -> None:
    """``--layer-budgets`` and ``--layer-blend``."""
    plain = Blend()
    group.add_argument(
        "--layer-budgets",
        action=Noted,
        type=Path,
        metavar="FILE",
        help="give layers more cells the more answers hang on them, and the budget on average, by "
        "a file from `omnilive calibrate layers`",
    )
    group.add_argument(
        "--layer-blend",
        action=Noted,
        type=reading.blend,
        metavar="S,E",
        help="weights of that file and of what the stream tells of its layers; the rest of 1 is "
        f"spread evenly (default: {plain.structural:g},{plain.dynamic:g})",
    )


def add_model(command: argparse.ArgumentParser, recorded: bool = False) -> None:
    """Which model runs where; with ``recorded``, left out means as it was recorded."""
    group = command.add_argument_group("model")
    group.add_argument(
        "--model",
        action=Noted,
        default=None if recorded else "embedded",
        metavar="PATH|HUB-ID",
        help="checkpoint folder, or a name on the Hugging Face hub "
        + ("(default: the recorded one)" if recorded else "(default: the embedded one)"),
    )
    group.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="what computes; auto takes MLX on a Mac and PyTorch elsewhere, or the one that is "
        "installed (default: %(default)s)",
    )
    group.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="cpu, or gpu (mlx), cuda or cuda:N (cuda) (default: %(default)s)",
    )
    group.add_argument(
        "--weights",
        action=Noted,
        choices=WEIGHTS,
        default=None if recorded else "auto",
        help="number format of the weights, or bits of the text layers' (default: "
        + ("as recorded)" if recorded else "f32 on a CPU, else bf16)"),
    )


def add_debug(group: Any) -> None:
    """``--debug``."""
    group.add_argument("--debug", action="store_true", help="show where an error was raised")


def formatter(prog: str) -> argparse.HelpFormatter:
    """Help of the same width everywhere."""
    return argparse.HelpFormatter(prog, max_help_position=30, width=_HELP_WIDTH)
