"""What all benchmarks share: machine, claims, the file that is left, the exit code."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from omnilive import interrupts, provenance

ROOT = Path(__file__).resolve().parent.parent
HOLDS, FAILS, LACKS = 0, 1, 3
"""Exit codes: all claims hold, one does not, the machine lacks what the benchmark needs."""
BESIDE = ROOT / "build" / "benchmarks"
"""Where goes what takes no record's place."""
INTERRUPTED, TIME_UP = "interrupted", "the time is up"
"""What has ``failed`` by a row of a run that ended before its end."""
LEVEL = 1.001
"""What memory may be over what it was before, where it is not to grow."""


@dataclass(frozen=True)
class Claim:
    """A figure and the bound that it is to keep.

    Attributes:
        name: what is claimed, in words.
        value: what was measured.
        bound: what it may be.
        least: whether the bound is the least that it must be, rather than the most.
    """

    name: str
    value: float
    bound: float
    least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the value keeps the bound; NaN does not."""
        return bool(self.value >= self.bound if self.least else self.value <= self.bound)

    def row(self) -> dict[str, Any]:
        """For JSON, which has no words for NaN and infinity."""
        return {
            "name": self.name,
            "value": round(self.value, 6) if isfinite(self.value) else None,
            "bound": self.bound,
            "is": "at least" if self.least else "at most",
            "holds": self.holds,
        }


def shown(claim: dict[str, Any]) -> str:
    """The value of a claim's row in words: as few digits as tell what became of it, 3 or more."""
    value, bound, least = claim["value"], claim["bound"], claim["is"] == "at least"
    if value is None:
        return "-"
    for digits in range(3, 6):
        text = f"{value:.{digits}f}"
        if (float(text) >= bound if least else float(text) <= bound) == claim["holds"]:
            return text
    return f"{value:.6f}"


@dataclass(frozen=True)
class Report:
    """What a benchmark found. Rows are plain dicts of numbers and words.

    Attributes:
        name: of the benchmark.
        quick: whether it ran small, so that its figures are no record.
        packages: whose versions matter.
        device: the card that it ran on, if one: the file is then named after it.
        seed: of what was drawn, where a run can be repeated.
        part: which part of it, where it was run in parts: the file is named after it as well.
        changed: whether something was set otherwise than for a record.
    """

    name: str
    rows: Sequence[dict[str, Any]]
    claims: Sequence[Claim]
    quick: bool = False
    packages: tuple[str, ...] = ("numpy",)
    device: str = ""
    seed: int | None = None
    part: str = ""
    changed: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended it, by what its rows say."""
        return any(row.get("failed") == INTERRUPTED for row in self.rows)

    @property
    def partial(self) -> bool:
        """Whether it was interrupted, or its time was too short for all of it."""
        return self.interrupted or any(row.get("failed") == TIME_UP for row in self.rows)

    @property
    def record(self) -> bool:
        """Whether it may take the place of what the documents quote."""
        return not (self.quick or self.changed or self.partial)

    def folder(self, out: Path | None) -> Path:
        """Where files go: ``out``; a record's with the results, others out of the way."""
        return out or (ROOT / "benchmarks" / "results" if self.record else BESIDE)

    def figures(self, out: Path | None) -> Path:
        """Where plots go: ``out``; a record's with the documents, others beside their file."""
        return out or (ROOT / "docs" / "figures" if self.record else self.folder(None))

    def write(self, out: Path | None = None) -> Path:
        """Write ``<name>-<part>-<machine>.json``; returns its path."""
        document = {
            "benchmark": self.name,
            "quick": self.quick,
            "partial": self.partial,
            "machine": provenance.machine(),
            "versions": versions(self.packages),
            "commit": provenance.commit() or "unknown",
            "rows": list(self.rows),
            "claims": [claim.row() for claim in self.claims],
        }
        document |= {"device": self.device} if self.device else {}
        document |= {"seed": self.seed} if self.seed is not None else {}
        names = self.name, _slug(self.part), _slug(self.device) or machine_name()
        path = self.folder(out) / f"{'-'.join(filter(None, names))}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = json.dumps(_finite(document), indent=1, allow_nan=False) + "\n"
        # Whole or not at all: a record may be there already.
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(told, encoding="utf-8")
        unfinished.replace(path)
        return path

    def finish(self) -> int:
        """Print machine, versions and claims; returns the exit code."""
        about = provenance.machine()
        print(f"\n{about['processor']}, {about['cores']} cores, {about['system']}; ", end="")
        print(", ".join(f"{name} {found}" for name, found in versions(self.packages).items()))
        lines = [
            [
                "holds" if claim.holds else "FAILS",
                claim.name,
                shown(claim.row()),
                f"{'>=' if claim.least else '<='} {claim.bound:g}",
            ]
            for claim in self.claims
        ]
        print(table(["", "claim", "value", "bound"], lines))
        if self.partial:
            print("a part of a run: its file takes no record's place")
        return HOLDS if all(claim.holds for claim in self.claims) else FAILS


def out_folder(text: str) -> Path:
    """A folder to write to, for argparse: refused before a long run, not after it."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text} cannot be made ({error.strerror}); expected a folder"
        ) from None
    return path


def seed(text: str) -> int:
    """A seed that every library takes, for argparse."""
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text} is no seed; expected a number, 0 to 2^63 - 1")
    return int(text)


def results_of(name: str) -> Callable[[str], dict[str, Any]]:
    """What reads a results file of a benchmark, for argparse."""

    def read(text: str) -> dict[str, Any]:
        try:
            document = json.loads(Path(text).read_text(encoding="utf-8"))
            known = document["benchmark"] == name and isinstance(document["rows"], list)
        except OSError as error:
            raise argparse.ArgumentTypeError(f"{text} cannot be read ({error.strerror})") from None
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise argparse.ArgumentTypeError(f"{text} is no results file of {name}")
        return dict(document)

    return read


def as_process(main: Callable[[], int]) -> int:
    """A benchmark as a process; returns its exit code.

    SIGTERM and SIGHUP end it as a Ctrl-C does: a benchmark tells what it has by then, or lets it
    through to here.
    """
    with interrupts.at_once():
        try:
            return main()
        except KeyboardInterrupt as ended:
            print("interrupted: nothing more is written", file=sys.stderr)
            number = ended.number if isinstance(ended, interrupts.Terminated) else signal.SIGINT
            return 128 + number


def _finite(value: Any) -> Any:
    """With None for numbers that JSON has no words for."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def machine_name() -> str:
    """A short name of the machine for file names."""
    words = f"{provenance.processor()} {os.cpu_count()} cores".lower()
    return _slug(re.sub(r"\((r|tm)\)|@.*ghz", "", words))


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Python's version and those of packages, ``absent`` where one is not installed."""
    return dict.fromkeys(("python", *packages), "absent") | provenance.versions(packages)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Text in columns, the first two flush left, numbers flush right."""
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [head, rule, *lines]
    )


def pyplot() -> Any:
    """Matplotlib's pyplot without a screen, or None and a line that says what to install."""
    try:
        import matplotlib
    except ImportError:
        print("no plots: matplotlib is not installed; pip install -e '.[bench]' in the checkout")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plots

    return plots
