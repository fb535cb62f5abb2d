"""Write docs/performance.md, and the stream loop's figures, from what the benchmarks measured.

``python benchmarks/performance_page.py [FILE.json ...]``; left out, the files are those of
``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import performance_tables as tables
from benchmarks.attention_claims import HISTORY, PAPERS, passed
from benchmarks.harness import ROOT
from benchmarks.performance_page_text import TEXT
from benchmarks.sealed_attention_tables import section
from benchmarks.stream_loop_claims import MOST_OFF, PAUSE, find
from benchmarks.stream_loop_plots import draw
from omnilive.evaluation.tables import markdown

PAGE = ROOT / "docs" / "performance.md"
FIGURES = PAGE.parent / "figures"
RESULTS = ROOT / "benchmarks" / "results"
NAMES = ("attention", "sealed-attention", "stream-loop", "stream-loop-long")
MISSING = "Not measured.\n"


def page(documents: Sequence[dict[str, Any]]) -> str:
    """The page's text from results files; what none of them has is said to be missing.

    Args:
        documents: what benchmarks left.
    """
    rows = {name: _rows(documents, name) for name in NAMES}
    attention, loop = rows["attention"], rows["stream-loop"]
    # What both ran is told from one of them.
    further = [row for row in rows["stream-loop-long"] if row.get("target", 0) > 32_768]
    sessions = loop + further
    parts = {
        "floors": tables.floors(loop),
        "decode": tables.decode(attention),
        "prefill": tables.prefill(attention),
        "history": tables.history(attention),
        "holes": tables.holes(attention),
        "latency": tables.latency(loop),
        "sessions": tables.sessions(sessions),
        "split": tables.split(loop),
        "encoders": tables.encoders(loop),
        "layouts": tables.layouts(loop),
        "memory": tables.memory(loop),
        "other_card": tables.other_card(loop),
        "claims": tables.claims(documents),
    }
    return TEXT.format(
        machines="\n".join(map(_machine, documents)),
        words=_words(loop),
        apart=_apart(loop),
        most_off=MOST_OFF,
        papers=PAPERS,
        passed="\n".join(f"- {line}" for line in passed(attention)) or MISSING.rstrip(),
        pause=PAUSE,
        reading=_reading(attention),
        commands="\n".join(map(_command, documents)),
        attention_figures=_figures("attention"),
        sealed=section(documents),
        loop_figures=_figures("stream-loop"),
        pauses=_table(
            tables.pauses(sessions), "None.\n" if find(sessions, part="stream") else MISSING
        ),
        **{name: _table(lines) for name, lines in parts.items()},
    )


def _rows(documents: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    # What is set against each other is of one run.
    return [
        row | {"run": number}
        for number, one in enumerate(documents)
        if one["benchmark"] == name
        for row in one["rows"]
    ]


def _words(rows: Sequence[dict[str, Any]]) -> str:
    told = dict.fromkeys(
        f"{row['spoken']} tokens after each "
        + (f"{row['every']}th " if row["every"] > 1 else "")
        + f"unit of {row['unit']:,} tokens"
        for row in rows
        if row.get("part") == "stream"
    )
    return ", ".join(told) or "nothing so far"


def _apart(rows: Sequence[dict[str, Any]]) -> str:
    told = [
        f"{row['what'].partition(',')[0]}: {row['peers_apart']:.3f}"
        for row in find(rows, part="gate")
        if "peers_apart" in row
    ]
    return ", ".join(told) or "not measured"


def _reading(rows: Sequence[dict[str, Any]]) -> str:
    """What of a decode step's attention is reading, by model, from a whole history on."""
    told = []
    for shape in dict.fromkeys(row["shape"] for row in rows if "shape" in row):
        shares = {
            row["live"]: f"{100 * row['read_share']:.0f} % at {row['live'] // 1024}K"
            for row in find(rows, part="decode", shape=shape)
            if row["live"] >= HISTORY and "read_share" in row
        }
        if shares:
            ends = dict.fromkeys([shares[min(shares)], shares[max(shares)]])
            told.append(f"{' and '.join(ends)} ({shape})")
    return ", ".join(told) or "what is not measured"


def _models(document: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in document["rows"] if "model" in row))


def _command(document: dict[str, Any]) -> str:
    script = document["benchmark"].removesuffix("-long")
    words = ["--long"] if script != document["benchmark"] else []
    words += [f"--model {name}" for name in _models(document)]
    return " ".join(["python", f"benchmarks/{script.replace('-', '_')}.py", *words])


def _table(lines: Sequence[Sequence[str]], otherwise: str = MISSING) -> str:
    return markdown([list(line) for line in lines]) if len(lines) > 1 else otherwise


def _figures(prefix: str) -> str:
    files = sorted(FIGURES.glob(f"{prefix}-*.png"))
    names = [path.stem.replace("-", " ") for path in files]
    return "".join(
        f"![{name}](figures/{path.name})\n\n" for name, path in zip(names, files, strict=True)
    )


def _machine(document: dict[str, Any]) -> str:
    machine = document["machine"]
    versions = ", ".join(f"{name} {found}" for name, found in document["versions"].items())
    about = [f"`{document['benchmark']}`", *_models(document)]
    about += ["a quick run"] if document.get("quick") else []
    about += ["a part of a run"] if document.get("partial") else []
    return (
        f"- {', '.join(about)}: {document.get('device', 'a card unknown')} "
        f"({machine['processor']}, {machine['cores']} cores, {machine['system']}); {versions}; "
        f"commit {document['commit']}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write page and figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.json")
    files: list[Path] = parser.parse_args(arguments).files
    files = files or sorted(path for name in NAMES[:3] for path in RESULTS.glob(f"{name}-*.json"))
    documents = []
    for file in files:
        try:
            documents.append(json.loads(file.read_text(encoding="utf-8")))
            known = documents[-1]["benchmark"] in NAMES
        except (OSError, ValueError, TypeError, KeyError):
            known = False
        if not known:
            parser.error(f"{file} is no results file of {', '.join(NAMES)}")
    if not documents:
        parser.error(f"no results in {RESULTS}: run benchmarks/attention.py and stream_loop.py")
    draw(_rows(documents, "stream-loop"), FIGURES)
    PAGE.write_text(page(documents), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
