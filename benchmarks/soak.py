"""Eight hours of stream through one session: does anything grow, leak, or slow down?

``python benchmarks/soak.py [--quick] [--minutes N]`` feeds the stream world as fast as it goes:
units that turns cut short, a question every half minute, typed or spoken, a watch every ten
seconds, a camera or a microphone that is off at times. It prints the first and the last hour side
by side. ``--real-time [N]`` follows a virtual microphone and a virtual camera for N minutes of the
clock instead, and checks that sound is complete and in step with the picture.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import soak_real_time
from benchmarks.harness import INTERRUPTED, LACKS, Claim, Report, as_process, out_folder, table
from benchmarks.soak_run import WARM_UP, Part, Soak
from benchmarks.soak_stream import SCENE, stream
from benchmarks.virtual_devices import Lacking
from omni_core.errors import OmniError
from omnilive.models import EMBEDDED, Prepared, prepare

EIGHT_HOURS = 8 * 60
REAL_TIME = 5.0
"""Minutes by the clock."""
PARTS = 8
LEAST = 6
"""Minutes of the shortest run: each part needs a question and a watch."""
BUDGET = 512
LEVEL = 1.02
"""The last part's memory over the first one's, at most."""
STEADY = 1.1
"""The last part's time over the first one's, at most."""
PACKAGES = ("numpy", "torch", "mlx", "opencv-python-headless", "sounddevice")
SHOWN = {
    "memory, backend, MB": ("most_memory", 1e6),
    "memory, process, MB": ("most_rss", 1e6),
    "cells, most": ("most_cells", 1),
    "pages, most": ("most_pages", 1),
    "span in cells, most": ("most_span", 1),
    "free pages, least": ("least_free_pages", 1),
    "pages leaked": ("most_leaked", 1),
    "distance of positions, most": ("most_furthest", 1),
    "position of the stream": ("position", 1),
    "a unit, ms, median": ("unit_ms_median", 1),
    "a unit, ms, 95 of 100": ("unit_ms_p95", 1),
    "a unit, ms, quickest stretch": ("unit_ms_quiet", 1),
    "deciding and planning, ms": ("plan_ms_median", 1),
    "first token, ms, median": ("first_token_ms_median", 1),
    "first token, ms, quickest stretch": ("first_token_ms_quiet", 1),
    "a look of the watch, ms": ("watch_ms_median", 1),
    "units": ("units", 1),
    "questions": ("questions", 1),
    "looks of the watch": ("watches", 1),
    "answers that could be right": ("scored", 1),
    "answers that were": ("right", 1),
}


def soak(prepared: Prepared, minutes: float, budget: int = BUDGET) -> list[dict[str, Any]]:
    """A row for each part of a stream of so many minutes, after a row about the run.

    Ctrl-C ends it early; the parts that had ended then are what ran, if there are two to compare.
    """
    frontend, seconds = prepared.frontend, minutes * 60
    model = prepared.load()
    backend, device = model.backend.name, model.backend.device
    about = {"part": "run", "model": prepared.name, "backend": backend, "device": device}
    about |= {"budget": budget, "reach": model.text.max_positions, "minutes": minutes}
    rows = [about]

    def done(part: Part) -> None:
        rows.append(part.row())
        print(f"{part.name} of {PARTS} is done", file=sys.stderr, flush=True)

    moments = stream(seconds + SCENE, frontend.seconds, frontend.fps)
    running = Soak(model, budget, prepared.watch)
    about["memory"] = model.backend.memory().source
    began = time.monotonic()
    try:
        running.run(moments, seconds, PARTS, done)
    except KeyboardInterrupt:
        if len(rows) < 3:
            raise
        print("interrupted: what ran is reported", file=sys.stderr)
        about["failed"] = INTERRUPTED
        ran = (WARM_UP + (len(rows) - 1) * (seconds - WARM_UP) / PARTS) / 60
        about["minutes"] = round(ran, 1)
    about["took_s"] = round(time.monotonic() - began)
    return rows


def counted(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """What is to hold whatever the machine does beside: memory, pages, cells, positions."""
    about, parts = rows[0], rows[1:]
    first, last = parts[0], parts[-1]
    which = f"{last['part']} over {first['part']}"

    def most(name: str) -> int:
        return max(part[name] for part in parts)

    return [
        Claim(f"memory by the backend: {which}", last["most_memory"] / first["most_memory"], LEVEL),
        Claim(f"memory of the process: {which}", last["most_rss"] / first["most_rss"], LEVEL),
        Claim("pages that are neither free nor hold a live cell", most("most_leaked"), 0),
        Claim("cells that the tables hold and the ledger not", most("most_astray"), 0),
        Claim("cells alive, most", most("most_cells"), about["budget"]),
        Claim("positions apart, most", most("most_furthest"), about["reach"] - 1),
    ]


def timed(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """What is to hold of the time that things take."""
    first, last = rows[1], rows[-1]
    which = f"{last['part']} over {first['part']}, quickest stretches"
    names = {"time of a unit": "unit_ms_quiet", "time to the first token": "first_token_ms_quiet"}
    return [
        Claim(f"{name}: {which}", last[key] / first[key], STEADY) for name, key in names.items()
    ]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the first and the last part side by side."""
    about, first, last = rows[0], rows[1], rows[-1]
    where = f"{about['model']} on {about['backend']} ({about['device']}), omnipick"
    ran = f"{about['minutes']:g} minutes of stream in {about['took_s']} s"
    print(f"{where}, {about['budget']} cells; {ran}")
    lines = [
        [name, *(f"{row[key] / by:,.1f}".removesuffix(".0") for row in (first, last))]
        for name, (key, by) in SHOWN.items()
    ]
    print(table(["", first["part"], last["part"]], lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="10 minutes of stream")
    parser.add_argument("--minutes", type=float, metavar="N", help="of stream; 480 by default")
    parser.add_argument("--model", default=EMBEDDED, metavar="NAME", help="folder, or `embedded`")
    parser.add_argument("--backend", default="auto", help="as for `omnilive live`")
    parser.add_argument("--device", default="auto", help="as for `omnilive live`")
    parser.add_argument(
        "--budget", type=int, default=BUDGET, metavar="CELLS", help="cells kept; 512 by default"
    )
    parser.add_argument(
        "--real-time",
        type=float,
        nargs="?",
        const=REAL_TIME,
        metavar="MINUTES",
        help="follow virtual devices instead; 5 by default",
    )
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file")
    options = parser.parse_args(arguments)
    if options.real_time is not None and not 0.2 <= options.real_time <= 60:
        parser.error(f"--real-time is {options.real_time:g}, expected 0.2 to 60 minutes")
    minutes = options.minutes
    if minutes is None:
        minutes = 10.0 if options.quick else EIGHT_HOURS
    if not LEAST <= minutes < float("inf"):
        parser.error(f"--minutes is {minutes:g}, expected {LEAST} or more")
    try:
        prepared = prepare(options.model, options.backend, options.device)
        if options.real_time is not None:
            report = _in_real_time(prepared, options)
        else:
            rows = soak(prepared, minutes, options.budget)
            if len(rows) < 3:
                print("fewer than two parts ran: nothing to compare", file=sys.stderr)
                return LACKS
            show(rows)
            quick = rows[0]["minutes"] < EIGHT_HOURS
            made = [*counted(rows), *timed(rows)]
            report = Report("soak", rows, made, quick, PACKAGES, changed=_changed(options))
    except OmniError as error:
        print(error, file=sys.stderr)
        return 2
    except Lacking as error:
        print(error, file=sys.stderr)
        return LACKS
    print(f"\nwrote {report.write(options.out)}")
    return report.finish()


def _in_real_time(prepared: Prepared, options: argparse.Namespace) -> Report:
    minutes = options.real_time
    print(f"takes {minutes:g} minutes", file=sys.stderr, flush=True)
    row = soak_real_time.measure(prepared, minutes, options.budget)
    soak_real_time.show(row)
    claims, quick = soak_real_time.claims(row), minutes < REAL_TIME
    return Report("soak-real-time", [row], claims, quick, PACKAGES, changed=_changed(options))


def _changed(options: argparse.Namespace) -> bool:
    chosen = options.model, options.backend, options.device, options.budget
    return chosen != (EMBEDDED, "auto", "auto", BUDGET)


if __name__ == "__main__":
    sys.exit(as_process(main))
