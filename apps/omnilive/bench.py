"""``omnilive bench``: the scripts of the checkout's ``benchmarks`` folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from omni_core.errors import OmniError
from omnilive import backends
from omnilive.grammar_parts import formatter

CHECKOUT = Path(__file__).resolve().parents[2]
BENCHMARKS = {
    "attention": "live pages against dense kernels, on an NVIDIA GPU with PyTorch, else on MLX's "
    "GPU, Apple's or NVIDIA's",
    "metal": "the same on MLX's GPU, whatever else there is",
    "stream_loop": "whole streams by policy and layout, on an NVIDIA GPU",
    "layout": "what placement costs, without a model",
    "first_token": "from the end of a spoken turn to the answer's first token",
    "soak": "hours of stream in a fixed budget",
    "same_answers": "both backends beside transformers' generate()",
}
ATTENTION = {"cuda": "attention", "mlx": "metal"}
"""The script of ``attention`` by the backend that has a GPU here; the first that has is taken."""


def add_bench(commands: Any) -> None:
    """``omnilive bench``."""
    bench = commands.add_parser(
        "bench",
        help="run a benchmark of the source checkout",
        usage="omnilive bench WHAT [OPTIONS]",
        description="Run a benchmark; benchmarks come with the source checkout. Options behind "
        "WHAT are the benchmark's own, as --quick; --help there lists them. Exit code 0 if all "
        "that it claims holds, 1 if something does not, 3 if the machine lacks what it needs.",
        formatter_class=formatter,
    )
    listed = "; ".join(f"{name} ({about})" for name, about in BENCHMARKS.items())
    bench.add_argument("what", choices=BENCHMARKS, metavar="WHAT", help=listed)
    rest = bench.add_argument(
        "options", nargs=argparse.REMAINDER, metavar="OPTIONS", help="its own"
    )
    rest.required = False
    bench.set_defaults(command="bench", debug=False)


def run(name: str, options: Sequence[str]) -> NoReturn:
    """Become the benchmark: its exit code and its way with a Ctrl-C are those of the command.

    Raises:
        OmniError: there is no such script here.
    """
    if name == "attention":
        name = _attention(options)
    script = CHECKOUT / "benchmarks" / f"{name}.py"
    if not script.is_file():
        raise OmniError(
            f"benchmarks come with the source checkout, and {script} is not there: "
            "run `pip install -e .` in a checkout and try again"
        )
    roots = [str(CHECKOUT / part) for part in ("", "shared", "apps", "benchmarks")]
    roots += filter(None, [os.environ.get("PYTHONPATH")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(roots)}
    os.execve(sys.executable, [sys.executable, str(script), *options], environment)


def _attention(options: Sequence[str]) -> str:
    """The script for what has a GPU here; without one, the first says what it lacks."""
    if not any(option.partition("=")[0] in ("-h", "--help", "--draw") for option in options):
        for backend, script in ATTENTION.items():
            library = backends.LIBRARIES[backend][0]
            if find_spec(library) and not backends.on_cpu(backend, "auto"):
                return script
    return ATTENTION["cuda"]
