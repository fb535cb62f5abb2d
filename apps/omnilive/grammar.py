"""The command's grammar: its words, their help and their reading."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from omni_core.budget import parse_budget
from omni_core.errors import OmniError
from omnilive.options import BACKENDS, RETENTION, WEIGHTS, parse_ask
from omnilive.output import say

WRONG_USAGE = 2
_HELP_WIDTH = 96


def parser() -> argparse.ArgumentParser:
    """The command's grammar."""
    top = _Parser(
        prog="omnilive",
        usage="omnilive [-h] [--version] COMMAND ...",
        description="Run omni models (picture, sound and text in, text out) on a stream without "
        "end, in a fixed cache budget.",
        formatter_class=_formatter,
    )
    top.add_argument("--version", action="version", version=f"omnilive {_version()}")
    commands = top.add_subparsers(
        prog="omnilive", title="commands", metavar="COMMAND", required=True
    )
    _add_live(commands)
    _add_replay(commands)
    return top


def subcommands() -> dict[str, argparse.ArgumentParser]:
    """The grammar of each command by name."""
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _add_live(commands: Any) -> None:
    live = commands.add_parser(
        "live",
        help="follow a clip and answer questions about it",
        usage="omnilive live [OPTIONS]",
        description="Follow a clip unit by unit and answer questions about it. Questions and "
        "answers go to stdout, everything else to stderr.",
        formatter_class=_formatter,
    )
    clip = live.add_argument_group("clip")
    clip.add_argument(
        "--source",
        type=Path,
        metavar="CLIP",
        help="video or sound file; the shipped demo clip if left out",
    )
    clip.add_argument(
        "--fast",
        action="store_true",
        help="as fast as it goes, nothing dropped; otherwise in real time",
    )
    length = clip.add_mutually_exclusive_group()
    length.add_argument("--loop", type=_count, default=1, metavar="N", help="play the clip N times")
    length.add_argument(
        "--duration",
        type=_seconds,
        metavar="S",
        help="play S seconds, the clip repeating as needed",
    )
    _add_model(live)
    cache = live.add_argument_group("cache")
    cache.add_argument(
        "--retention",
        choices=RETENTION,
        default="omnipick",
        help="which tokens stay (default: %(default)s)",
    )
    cache.add_argument(
        "--budget",
        type=_budget,
        metavar="CELLS|BYTES",
        help="cells alive at a unit's end, as 8192, or bytes, as 2GB; if left out, a size that "
        "suits the machine",
    )
    answers = live.add_argument_group("answers")
    answers.add_argument(
        "--ask",
        type=_ask,
        action="append",
        default=[],
        metavar="'SECONDS: QUESTION'",
        help="ask at a second of the stream; may be given several times",
    )
    answers.add_argument("--system", metavar="TEXT", help="system prompt, kept for ever")
    answers.add_argument(
        "--max-tokens",
        type=_count,
        default=64,
        metavar="N",
        help="longest answer (default: %(default)s)",
    )
    answers.add_argument(
        "--temperature",
        type=_temperature,
        default=0.0,
        metavar="X",
        help="0 takes the likeliest token (default: %(default)s)",
    )
    answers.add_argument(
        "--seed",
        type=_seed,
        default=0,
        metavar="N",
        help="of the draws, with a temperature above 0 (default: %(default)s)",
    )
    out = live.add_argument_group("output")
    out.add_argument("--jsonl", action="store_true", help="one JSON object a line on stdout")
    out.add_argument(
        "--record", type=Path, metavar="DIR", help="keep media and plans in a new folder"
    )
    _add_debug(out)
    live.set_defaults(command="live")


def _add_replay(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="run a recording again and compare",
        usage="omnilive replay DIR [OPTIONS]",
        description="Carry out the plans of a recording again, here, and compare the logits with "
        "the recorded ones. Exit code 1 if they differ by more than the number format explains "
        "or, with --compare, if the plans differ.",
        formatter_class=_formatter,
    )
    replay.add_argument("recording", type=Path, metavar="DIR", help="a folder made by --record")
    replay.add_argument(
        "--compare",
        type=Path,
        metavar="OTHER",
        help="run nothing; say whether the plans of two recordings are equal, integer for integer",
    )
    _add_model(replay, recorded=True)
    out = replay.add_argument_group("output")
    out.add_argument("--jsonl", action="store_true", help="one JSON object on stdout")
    _add_debug(out)
    replay.set_defaults(command="replay")


def _add_model(command: argparse.ArgumentParser, recorded: bool = False) -> None:
    group = command.add_argument_group("model")
    group.add_argument(
        "--model",
        default=None if recorded else "embedded",
        metavar="PATH|HUB-ID",
        help="checkpoint folder, or a name on the Hugging Face hub "
        + ("(default: the recorded one)" if recorded else "(default: the embedded one)"),
    )
    group.add_argument(
        "--backend", choices=BACKENDS, default="auto", help="what computes (default: %(default)s)"
    )
    group.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="cpu, or gpu (mlx), cuda or cuda:N (cuda) (default: %(default)s)",
    )
    group.add_argument(
        "--weights",
        choices=WEIGHTS,
        default=None if recorded else "auto",
        help="number format or bits of the weights (default: "
        + ("as recorded)" if recorded else "f32 on a CPU, else bf16)"),
    )


def _add_debug(group: Any) -> None:
    group.add_argument("--debug", action="store_true", help="show where an error was raised")


class _Parser(argparse.ArgumentParser):
    """Wrong usage is told in one line."""

    def error(self, message: str) -> NoReturn:
        say(f"{' '.join(message.split())} (see `{self.prog} --help`)")
        raise SystemExit(WRONG_USAGE)


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=30, width=_HELP_WIDTH)


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse show the message of what could not be read."""

    def reader(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, OmniError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return reader


def _read_budget(text: str) -> str:
    parse_budget(text)
    return text


def _number(low: float, what: str, kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not low <= number < float("inf"):
            raise ValueError(f"{text!r} is not {what}")
        return number

    return _typed(read)


_ask = _typed(parse_ask)
_budget = _typed(_read_budget)
_count = _number(1, "a whole number from 1", int)
_seed = _number(0, "a whole number from 0", int)
_temperature = _number(0, "a number from 0", float)
_seconds = _number(0.001, "a number of seconds above 0", float)


def _version() -> str:
    try:
        return version("omnilive")
    except PackageNotFoundError:
        return "(not installed)"
