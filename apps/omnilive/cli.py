"""The ``omnilive`` command: which part does the work, and how it ends.

Next to nothing is imported before ``main`` runs, so that a Ctrl-C ends it in good order from the
start; no backend and no codec before the words are read, so that help works without them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import NoReturn

    from omnilive.options import ModelOptions

DONE, FAILED = 0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    0 done, 1 failed with one line on stderr, 2 wrong usage, 130 ended by a Ctrl-C before the
    stream began, or by a second one, 143 by SIGTERM, 129 by SIGHUP: the terminal was closed.
    """
    code = _main(argv)
    if argv is None:
        _leave(code)
    return code


def _main(argv: Sequence[str] | None) -> int:
    try:
        from omnilive.interrupts import at_once

        with at_once():
            return _run(argv)
    except KeyboardInterrupt as end:
        _let_go(argv is None)
        from omnilive.terminal import say

        number = getattr(end, "number", signal.SIGINT)
        say({signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}.get(number, "hung up"))
        return 128 + number
    finally:
        _let_go(argv is None)


def _let_go(process: bool) -> None:
    """Nothing is left to do: where the process ends here, another Ctrl-C ends it without a word."""
    if process:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(code: int) -> None:
    """End the process here where a driver still holds a thread: Python's own end would abort."""
    if any(thread.name in ("camera", "microphone") for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                if stream is not None:
                    stream.flush()
        os._exit(code)


def _run(argv: Sequence[str] | None) -> int:
    from omni_core.errors import OmniError
    from omnilive import terminal
    from omnilive.grammar import WRONG_USAGE, parser
    from omnilive.options import UsageError

    debug = False
    try:
        terminal.claim()
        arguments = parser().parse_args(argv)
        debug = arguments.debug
        code = _COMMANDS[arguments.command](arguments)
        terminal.put("")
        return code
    except UsageError as error:
        terminal.say(str(error))
        return WRONG_USAGE
    except BrokenPipeError:
        # Who read the output has left: nothing to report, and nobody to report it to.
        terminal.abandon()
        return DONE
    except Exception as error:
        if isinstance(error, terminal.OutputError):
            terminal.abandon()
        if debug:
            raise
        if isinstance(error, OmniError):
            terminal.say(str(error))
        else:
            kind = type(error).__name__
            terminal.say(f"unexpected {kind}: {error} (--debug shows where)")
        return FAILED


def _live(arguments: argparse.Namespace) -> int:
    from omnilive.options import LiveOptions
    from omnilive.question_files import read_questions

    asks = list(arguments.ask)
    if arguments.questions is not None:
        asks += read_questions(arguments.questions)
    options = LiveOptions(
        model=_model(arguments),
        source=arguments.source,
        camera=arguments.camera,
        mic=arguments.mic,
        watches=tuple(arguments.watch),
        speak=arguments.speak,
        pause=arguments.pause,
        barge_in=arguments.barge_in,
        retention=arguments.retention,
        sinks=arguments.sinks,
        layout=arguments.layout,
        budget=arguments.budget,
        kv_bits=arguments.kv_bits,
        seal=arguments.seal,
        aggregate=arguments.aggregate,
        theta_inter=arguments.theta_inter,
        theta_intra=arguments.theta_intra,
        layer_budgets=arguments.layer_budgets,
        layer_blend=arguments.layer_blend,
        system=arguments.system,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        asks=tuple(sorted(asks, key=lambda ask: ask.time)),
        asked_from=arguments.questions,
        fast=arguments.fast,
        loop=arguments.loop,
        duration=arguments.duration,
        jsonl=arguments.jsonl,
        record=arguments.record,
        explain=arguments.explain,
        save=arguments.save,
        resume=arguments.resume,
        trace=arguments.trace,
        given=getattr(arguments, "given", frozenset()),
    )
    from omnilive.live import run

    return run(options)


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
        in_time=arguments.in_time,
    )
    return DONE if same else FAILED


def _calibrate_retention(arguments: argparse.Namespace) -> int:
    from omnilive.options import CalibrateOptions

    options = CalibrateOptions(
        model=_model(arguments),
        out=arguments.out,
        sources=tuple(arguments.source),
        plot=arguments.plot,
        cover=arguments.cover,
        recent=arguments.recent,
        budget=arguments.budget,
        system=arguments.system,
    )
    from omnilive.calibrate import run

    run(options)
    return DONE


def _calibrate_values(arguments: argparse.Namespace) -> int:
    from omnilive.options import CalibrateValuesOptions

    options = CalibrateValuesOptions(
        model=_model(arguments),
        out=arguments.out,
        sources=tuple(arguments.source),
        budget=arguments.budget,
        system=arguments.system,
    )
    from omnilive.calibrate_values import run

    run(options)
    return DONE


def _calibrate_layers(arguments: argparse.Namespace) -> int:
    from omnilive.options import CalibrateLayersOptions

    options = CalibrateLayersOptions(
        model=_model(arguments),
        out=arguments.out,
        sources=tuple(arguments.source),
        units=arguments.units,
        question=arguments.question,
        system=arguments.system,
    )
    from omnilive.calibrate_layers import run

    run(options)
    return DONE


def _eval_streamworld(arguments: argparse.Namespace) -> int:
    from omnilive.options import EvalOptions

    options = EvalOptions(
        model=_model(arguments),
        retention=tuple(arguments.retention),
        budgets=tuple(arguments.budget),
        sinks=arguments.sinks,
        layout=arguments.layout,
        kv_bits=arguments.kv_bits,
        seal=arguments.seal,
        aggregate=arguments.aggregate,
        theta_inter=arguments.theta_inter,
        theta_intra=arguments.theta_intra,
        layer_budgets=arguments.layer_budgets,
        layer_blend=arguments.layer_blend,
        units=arguments.units,
        streams=arguments.streams,
        questions=arguments.questions,
        seeds=arguments.seeds,
        quick=arguments.quick,
        batch=arguments.batch,
        banks=arguments.banks,
        out=arguments.out,
        plot=arguments.plot,
    )
    from omnilive.evaluate import run

    return DONE if run(options) else FAILED


def _bench(arguments: argparse.Namespace) -> NoReturn:
    from omnilive.bench import run

    run(arguments.what, arguments.options)


def _devices(arguments: argparse.Namespace) -> int:
    from omnilive.devices import run

    return DONE if run(jsonl=arguments.jsonl) else FAILED


def _doctor(arguments: argparse.Namespace) -> int:
    from omnilive.doctor import run

    return DONE if run(arguments.backend) else FAILED


def _model(arguments: argparse.Namespace) -> ModelOptions:
    from omnilive.options import ModelOptions

    return ModelOptions(arguments.model, arguments.backend, arguments.device, arguments.weights)


_COMMANDS = {
    "live": _live,
    "replay": _replay,
    "calibrate retention": _calibrate_retention,
    "calibrate values": _calibrate_values,
    "calibrate layers": _calibrate_layers,
    "eval streamworld": _eval_streamworld,
    "bench": _bench,
    "devices": _devices,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
