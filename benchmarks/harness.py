"""What all benchmarks share: machine, claims, the file that is left, the exit code."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnilive import provenance

ROOT = Path(__file__).resolve().parent.parent
HOLDS, FAILS, LACKS = 0, 1, 3
"""Exit codes: all claims hold, one does not, the machine lacks what the benchmark needs."""


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
        """For JSON."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "bound": self.bound,
            "is": "at least" if self.least else "at most",
            "holds": self.holds,
        }


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
    """

    name: str
    rows: Sequence[dict[str, Any]]
    claims: Sequence[Claim]
    quick: bool = False
    packages: tuple[str, ...] = ("numpy",)
    device: str = ""
    seed: int | None = None
    part: str = ""

    def folder(self, out: Path | None) -> Path:
        """Where files go: ``out``; a quick run's out of the way, a full run's with the results."""
        kept = "build/benchmarks" if self.quick else "benchmarks/results"
        return out or ROOT / kept

    def write(self, out: Path | None = None) -> Path:
        """Write ``<name>-<part>-<machine>.json``; returns its path."""
        document = {
            "benchmark": self.name,
            "quick": self.quick,
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
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
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
                f"{claim.value:.3f}",
                f"{'>=' if claim.least else '<='} {claim.bound:g}",
            ]
            for claim in self.claims
        ]
        print(table(["", "claim", "value", "bound"], lines))
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
