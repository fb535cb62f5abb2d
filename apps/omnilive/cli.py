"""The ``omnilive`` command: which part does the work, and how it ends.

Nothing heavy is imported before the words are read, so help works without a backend or codecs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from omni_core.errors import OmniError
from omnilive.grammar import WRONG_USAGE, parser
from omnilive.options import LiveOptions, ModelOptions, UsageError
from omnilive.output import say

DONE, FAILED, INTERRUPTED = 0, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    0 done, 1 failed with one line on stderr, 2 wrong usage, 130 ended by a second Ctrl-C.
    """
    arguments = parser().parse_args(argv)
    try:
        code = _COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
        return code
    except UsageError as error:
        say(_one_line(error))
        return WRONG_USAGE
    except BrokenPipeError:
        # Who read the output has left: nothing to report, and nobody to report it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except OmniError as error:
        if arguments.debug:
            raise
        say(_one_line(error))
        return FAILED
    except Exception as error:
        if arguments.debug:
            raise
        say(f"unexpected {type(error).__name__}: {_one_line(error)} (--debug shows where)")
        return FAILED


def _live(arguments: argparse.Namespace) -> int:
    options = LiveOptions(
        model=ModelOptions(arguments.model, arguments.backend, arguments.device, arguments.weights),
        source=arguments.source,
        retention=arguments.retention,
        budget=arguments.budget,
        system=arguments.system,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        asks=tuple(sorted(arguments.ask, key=lambda ask: ask.time)),
        fast=arguments.fast,
        loop=arguments.loop,
        duration=arguments.duration,
        jsonl=arguments.jsonl,
        record=arguments.record,
    )
    from omnilive.live import run

    run(options)
    return DONE


def _replay(arguments: argparse.Namespace) -> int:
    from omnilive.replay import compare, run

    if arguments.compare is not None:
        same = compare(arguments.recording, arguments.compare, jsonl=arguments.jsonl)
        return DONE if same else FAILED
    same = run(
        arguments.recording,
        model=arguments.model,
        backend=arguments.backend,
        device=arguments.device,
        weights=arguments.weights,
        jsonl=arguments.jsonl,
    )
    return DONE if same else FAILED


_COMMANDS = {"live": _live, "replay": _replay}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
