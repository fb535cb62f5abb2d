"""The command's grammar: its words, their help and their reading."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from omni_core.calibration import COVER
from omni_core.mass_profile import RECENT
from omnilive import reading
from omnilive.bench import add_bench
from omnilive.grammar_eval import add_eval
from omnilive.grammar_layers import add_layers
from omnilive.grammar_parts import (
    Noted,
    add_aggregation,
    add_budget,
    add_clips,
    add_debug,
    add_layer_budgets,
    add_model,
    add_sealing,
    add_sinks_and_layout,
    formatter,
)
from omnilive.grammar_senses import add_devices, add_doctor, add_senses, add_watch
from omnilive.options import RETENTION
from omnilive.terminal import put, say

WRONG_USAGE = 2


def parser() -> argparse.ArgumentParser:
    """The command's grammar."""
    top = _Parser(
        prog="omnilive",
        usage="omnilive [-h] [--version] COMMAND ...",
        description="Run omni models (picture, sound and text in, text out) on a stream without "
        "end, in a fixed cache budget.",
        formatter_class=formatter,
    )
    top.add_argument("--version", action="version", version=f"omnilive {_version()}")
    commands = top.add_subparsers(
        prog="omnilive", title="commands", metavar="COMMAND", required=True
    )
    _add_live(commands)
    _add_replay(commands)
    _add_calibrate(commands)
    add_eval(commands)
    add_bench(commands)
    add_devices(commands)
    add_doctor(commands)
    return top


def subcommands() -> dict[str, argparse.ArgumentParser]:
    """The grammar of each command by its words, as ``live`` or ``calibrate retention``."""
    return dict(_leaves(parser()))


def _leaves(command: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, part in action.choices.items():
                deeper = list(_leaves(part))
                yield from ((f"{name} {rest}", leaf) for rest, leaf in deeper)
                if not deeper:
                    yield name, part


def _add_live(commands: Any) -> None:
    live = commands.add_parser(
        "live",
        help="follow a camera and a microphone, or a clip, and answer questions",
        usage="omnilive live [OPTIONS]",
        description="Follow a camera and a microphone, or a clip, unit by unit, and answer what is "
        "said, typed or asked at given times. Questions and answers go to stdout, everything else "
        "to stderr.",
        formatter_class=formatter,
    )
    clip = live.add_argument_group("clip")
    clip.add_argument(
        "--source",
        type=Path,
        metavar="CLIP",
        help="video or sound file; left out, camera and microphone, or, where there are none, the "
        "demo clip that ships",
    )
    clip.add_argument(
        "--fast",
        action="store_true",
        help="as fast as it goes, nothing dropped; otherwise in real time",
    )
    length = clip.add_mutually_exclusive_group()
    length.add_argument(
        "--loop", type=reading.count, default=1, metavar="N", help="play the clip N times"
    )
    length.add_argument(
        "--duration",
        type=reading.seconds,
        metavar="S",
        help="play S seconds, the clip repeating as needed",
    )
    add_senses(live)
    add_model(live)
    cache = live.add_argument_group("cache")
    cache.add_argument(
        "--retention",
        action=Noted,
        choices=RETENTION,
        default="omnipick",
        help="which tokens stay (default: %(default)s)",
    )
    add_sinks_and_layout(cache)
    add_budget(cache)
    add_sealing(cache)
    add_aggregation(cache)
    add_layer_budgets(cache)
    answers = live.add_argument_group("answers")
    answers.add_argument(
        "--ask",
        type=reading.ask,
        action="append",
        default=[],
        metavar="'SECONDS: QUESTION'",
        help="ask at a second of the stream; may be given several times",
    )
    answers.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help="more questions, from a JSON file; true answers in it are shown beside the model's",
    )
    add_watch(answers)
    answers.add_argument(
        "--system",
        action=Noted,
        type=reading.text,
        metavar="TEXT",
        help="system prompt, kept for ever",
    )
    answers.add_argument(
        "--max-tokens",
        action=Noted,
        type=reading.count,
        default=64,
        metavar="N",
        help="longest answer (default: %(default)s)",
    )
    answers.add_argument(
        "--temperature",
        action=Noted,
        type=reading.temperature,
        default=0.0,
        metavar="X",
        help="0 takes the likeliest token (default: %(default)s)",
    )
    answers.add_argument(
        "--seed",
        action=Noted,
        type=reading.seed,
        default=0,
        metavar="N",
        help="of the draws, with a temperature above 0 (default: %(default)s)",
    )
    session = live.add_argument_group("session")
    session.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help="keep the session in a new folder at its end: its cache, and all that decides",
    )
    session.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on where a saved session was, with its model and settings; seconds count on, and "
        "--save may name the same folder",
    )
    out = live.add_argument_group("output")
    out.add_argument("--jsonl", action="store_true", help="one JSON object a line on stdout")
    out.add_argument(
        "--record", type=Path, metavar="DIR", help="keep media, events and plans in a new folder"
    )
    out.add_argument(
        "--explain",
        type=Path,
        metavar="FILE",
        help="write a line for each unit: what was kept and dropped and why, and the page map",
    )
    out.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.json",
        help="write when what was computed, for chrome://tracing or Perfetto",
    )
    add_debug(out)
    live.set_defaults(command="live")


def _add_replay(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="run a recording again and compare",
        usage="omnilive replay DIR [OPTIONS]",
        description="Carry out the plans of a recording again, here, and compare the logits with "
        "the recorded ones. Exit code 1 if they differ by more than the number format explains "
        "(each backend rounds weights to 8 or 4 bits in its own way) or, with --compare, if the "
        "plans differ.",
        formatter_class=formatter,
    )
    replay.add_argument("recording", type=Path, metavar="DIR", help="a folder made by --record")
    replay.add_argument(
        "--compare",
        type=Path,
        metavar="OTHER",
        help="run nothing; say whether the plans of two recordings are equal, integer for integer",
    )
    replay.add_argument(
        "--in-time",
        action="store_true",
        help="at the pace of the recorded units, with what was shown then; otherwise as fast as it "
        "goes",
    )
    add_model(replay, recorded=True)
    out = replay.add_argument_group("output")
    out.add_argument("--jsonl", action="store_true", help="one JSON object on stdout")
    add_debug(out)
    replay.set_defaults(command="replay")


def _add_calibrate(commands: Any) -> None:
    calibrate = commands.add_parser(
        "calibrate",
        help="measure a model for settings that depend on it",
        usage="omnilive calibrate WHAT ...",
        description="Measure a model for settings that depend on it.",
        formatter_class=formatter,
    )
    kinds = calibrate.add_subparsers(
        prog="omnilive calibrate", title="what", metavar="WHAT", required=True
    )
    retention = kinds.add_parser(
        "retention",
        help="count the sinks that --retention omnipick keeps of old units",
        usage="omnilive calibrate retention --out FILE [OPTIONS]",
        description="Let clips flow through a model with everything kept, measure how its "
        "attention on old units spreads over the tokens of each modality's span, and write how "
        "many first tokens cover a share of it, for `omnilive live --sinks FILE`. A clip is "
        "followed until the budget is full.",
        formatter_class=formatter,
    )
    add_clips(retention)
    retention.add_argument(
        "--cover",
        type=reading.share,
        default=COVER,
        metavar="X",
        help="share of a modality's mass that its sinks are to cover (default: %(default)s)",
    )
    retention.add_argument(
        "--recent",
        type=reading.count,
        default=RECENT,
        metavar="N",
        help="newest units that do not count as old (default: %(default)s)",
    )
    retention.add_argument("--system", type=reading.text, metavar="TEXT", help="system prompt")
    add_budget(retention)
    add_model(retention)
    out = retention.add_argument_group("output")
    out.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the JSON file to write"
    )
    out.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw attention by query unit and key offset",
    )
    add_debug(out)
    retention.set_defaults(command="calibrate retention")
    values = kinds.add_parser(
        "values",
        help="fit what pages of 2, 3 and 4 bits take of a model: rotations, error feedback",
        usage="omnilive calibrate values --out FILE [OPTIONS]",
        description="Let clips flow through a model, and fit to its values a rotation for each "
        "layer, key/value head and modality, so that fewer bits lose less. With PyTorch its "
        "queries are heard as well, for the error feedback of keys. A modality that never occurs "
        "keeps a Hadamard rotation. All goes into one safetensors file.",
        formatter_class=formatter,
    )
    add_clips(values)
    values.add_argument("--system", type=reading.text, metavar="TEXT", help="system prompt")
    add_budget(values)
    add_model(values)
    out = values.add_argument_group("output")
    out.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the safetensors file to write"
    )
    add_debug(out)
    values.set_defaults(command="calibrate values")
    add_layers(kinds)


class _Parser(argparse.ArgumentParser):
    """Wrong usage is told in one line."""

    def error(self, message: str) -> NoReturn:
        say(f"{message} (see `{self.prog} --help`)")
        raise SystemExit(WRONG_USAGE)

    def _print_message(self, message: str, file: Any = None) -> None:
        put(message)


def _version() -> str:
    try:
        return version("omnilive")
    except PackageNotFoundError:
        return "(not installed)"
