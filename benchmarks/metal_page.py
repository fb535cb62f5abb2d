"""Write docs/metal.md: from the launches themselves, and from results of benchmarks/metal.py.

``python benchmarks/metal_page.py [FILE.json ...]``; left out, the files are those of
``benchmarks/results``, which may be none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import metal_tables as tables
from benchmarks.harness import LACKS, ROOT
from benchmarks.metal_chips import CORE_MEMORY, CORE_REGISTERS, CORE_THREADS, MOST_MEMORY
from benchmarks.metal_fault import FAULTS, said
from benchmarks.metal_page_text import TEXT
from omnilive.evaluation.tables import markdown
from tests.metal.runner import compiler

PAGE = ROOT / "docs" / "metal.md"
FIGURES = PAGE.parent / "figures"
RESULTS = ROOT / "benchmarks" / "results"
NOT_YET = "not yet: no results file is there"
_SYSTEMS = ("CUDA", "Metal")


def page(documents: Sequence[dict[str, Any]], faults: str) -> str:
    """The page's text.

    Args:
        documents: what benchmarks/metal.py left; what none of them has is said to be missing.
        faults: what the CPU runner says of broken kernels, see :func:`broken`.
    """
    ran = {system: _ran(documents, system) for system in _SYSTEMS}
    measured = {
        "attention": tables.attention(documents),
        "writes": tables.writes(documents),
        "claims": tables.claimed(documents),
    }
    counted = {
        "resources": tables.resources(),
        "work": tables.work(),
        "decode": tables.expected_decode(),
        "prefill": tables.expected_prefill(),
    }
    # Of threadgroup memory.
    largest = max(int(line[2].replace(",", "")) for line in counted["resources"][1:])
    return TEXT.format(
        dtype=tables.DTYPE,
        cores=tables.GPU.cores,
        cuda=ran["CUDA"] or NOT_YET,
        metal=ran["Metal"] or "not by us; " + NOT_YET,
        machines="\n".join(map(_machine, documents)) or "No results file is there.",
        figures=_figures(),
        faults=faults,
        largest=f"{largest:,}",
        most_memory=f"{MOST_MEMORY:,}",
        core_registers=CORE_REGISTERS // 1024,
        core_memory=CORE_MEMORY // 1024,
        core_threads=f"{CORE_THREADS:,}",
        **{name: _table(lines) for name, lines in (measured | counted).items()},
    )


def broken() -> str:
    """A few kernels broken by hand, and what the CPU runner says of each."""
    parts = []
    for fault in FAULTS:
        lines = [f"-{line}" for line in fault.old.splitlines()]
        lines += [f"+{line}" for line in fault.new.splitlines()]
        change = "\n".join(lines)
        parts.append(
            f"`{fault.kernel}.metal`, {fault.what}:\n\n```diff\n{change}\n```\n\n"
            f"```text\n{said(fault)}\n```\n"
        )
    return "\n".join(parts)


def _ran(documents: Sequence[dict[str, Any]], system: str) -> str:
    devices = [one.get("device", "") for one in documents]
    return ", ".join(dict.fromkeys(name for name in devices if name.endswith(f"({system})")))


def _machine(document: dict[str, Any]) -> str:
    machine = document["machine"]
    versions = ", ".join(f"{name} {found}" for name, found in document["versions"].items())
    quick = ", a quick run" if document.get("quick") else ""
    quick += ", a part of a run" if document.get("partial") else ""
    return (
        f"- {document.get('device', 'a GPU unknown')}{quick} ({machine['processor']}, "
        f"{machine['cores']} cores, {machine['system']}); {versions}; commit {document['commit']}"
    )


def _figures() -> str:
    files = sorted(FIGURES.glob("metal-*.png"))
    return "".join(f"![{file.stem.replace('-', ' ')}](figures/{file.name})\n\n" for file in files)


def _table(lines: Sequence[Sequence[str]]) -> str:
    return markdown([list(line) for line in lines]) if len(lines) > 1 else "Not measured yet.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.json")
    files: list[Path] = parser.parse_args(arguments).files or sorted(RESULTS.glob("metal-*.json"))
    if compiler() is None:
        print("needs a C++ compiler, on Linux: install g++ 12 or clang 16", file=sys.stderr)
        return LACKS
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    PAGE.write_text(page(documents, broken()), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
