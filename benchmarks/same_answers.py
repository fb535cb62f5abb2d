"""The shipped model's answers through transformers' ``generate()``, ``omni_cuda`` and ``omni_mlx``.

``python benchmarks/same_answers.py [--quick] [--questions N]`` asks each of the three the same
questions about streams of the stream world's test split, in float32 on the CPU, and compares
answers token by token, with the logits that the tokens were drawn from. transformers gets what its
own tokenizer, feature extractor and image processor make of the same frames and samples.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import streamworld
from benchmarks.harness import LACKS, Claim, Report, as_process, out_folder, table
from benchmarks.same_answers_ways import LONGEST, Reference, Said, Twin
from omni_core import UnitMedia
from omnilive.models import EMBEDDED_FOLDER
from streamworld import banks, render, script, tokens
from streamworld.questions import draw

QUESTIONS, QUICK = 200, 20
UNITS, PER_STREAM = 16, 10
ASKED_AT = (-1, 5, 10)
"""Units after which questions are asked; the stream goes on after the earlier ones."""
MOST = 1e-3
"""How far a logit may lie from transformers'."""
TWINS = ("cuda", "mlx")
OURS = tuple(f"omni_{name}" for name in TWINS)
WAYS = ("transformers", *OURS)
BANKS = Path(streamworld.__file__).parent
"""Where the test split's voices and pictures ship."""
PACKAGES = ("numpy", "torch", "transformers", "mlx")
NEEDS = {"torch": "cuda", "transformers": "cuda", "mlx": "mlx", "PIL": "dev"}
"""Modules, and the extra that installs each."""


@dataclass
class Findings:
    """Rows as they come, a question each."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, said: dict[str, Said], truth: list[int], **about: Any) -> None:
        """Compare the answers to one question with transformers'."""
        reference = said["transformers"]
        row = {"part": "question", **about, "truth": _spelled(truth)}
        row |= {way: _spelled(answer.ids) for way, answer in said.items()}
        row |= {f"{way}_right": answer.ids == truth for way, answer in said.items()}
        row["first_equal"] = len({answer.ids[0] for answer in said.values()}) == 1
        row["largest_logit"] = float(np.abs(reference.logits).max())
        for way in OURS:
            row[f"{way}_equal"] = said[way].ids == reference.ids
            row[f"{way}_first_gap"] = _gap(said[way], reference, 1)
            row[f"{way}_gap"] = _gap(said[way], reference, LONGEST)
        self.rows.append(row)

    def claims(self) -> list[Claim]:
        """What is to hold of the twins beside transformers."""
        count = len(self.rows)
        first = sum(not row["first_equal"] for row in self.rows)
        made = [Claim(f"first tokens that differ, of {count}", first, 0)]
        for way in OURS:
            other = sum(not row[f"{way}_equal"] for row in self.rows)
            made += [
                Claim(f"{way}: whole answers that differ, of {count}", other, 0),
                Claim(f"{way}: first token's logits, furthest apart", self._most(way, 1), MOST),
                Claim(f"{way}: every token's logits, furthest apart", self._most(way), MOST),
            ]
        return made

    def show(self) -> None:
        """Print how many answers of each kind are right, and how near the logits are."""
        kinds = Counter(row["kind"] for row in self.rows)
        lines = [
            [kind, str(count), *(f"{self._right(way, kind):.3f}" for way in WAYS)]
            for kind, count in [*sorted(kinds.items()), ("all", len(self.rows))]
        ]
        print(table(["asked", "questions", *(f"right: {way}" for way in WAYS)], lines))
        largest = max(row["largest_logit"] for row in self.rows)
        gaps = ", ".join(f"{way} {self._most(way):.1e}" for way in OURS)
        print(f"\nlogits up to {largest:.1f}, at most this far from transformers': {gaps}")

    def _most(self, way: str, tokens: int = LONGEST) -> float:
        name = f"{way}_first_gap" if tokens == 1 else f"{way}_gap"
        return float(max(row[name] for row in self.rows))

    def _right(self, way: str, kind: str) -> float:
        rows = [row for row in self.rows if kind in ("all", row["kind"])]
        return sum(row[f"{way}_right"] for row in rows) / len(rows)


def compare(folder: Path, bank: banks.Bank, count: int) -> Findings:
    """Ask ``count`` questions of all three.

    Args:
        folder: a model that the stream world trained.
        bank: voices and pictures of the test split.
        count: of questions, 10 a stream.
    """
    ways: dict[str, Reference | Twin] = {"transformers": Reference(folder)}
    ways |= {f"omni_{name}": Twin(name, folder) for name in TWINS}
    found = Findings()
    written = script.write(0, -(-count // PER_STREAM), UNITS, "test", spoken=0.5)
    questions = draw(written, 0, PER_STREAM, asked_at=ASKED_AT)
    _, _, answers, lengths = tokens.encode(questions)
    for stream in range(written.streams):
        for way in ways.values():
            way.restart()
        for unit, media in enumerate(units_of(written, stream, bank)):
            for way in ways.values():
                way.append(media)
            for slot in np.flatnonzero(questions.unit[stream] == unit).tolist():
                if len(found.rows) == count:
                    return found
                kind, topic = questions.kind(stream, slot)
                text = questions.text(stream, slot)
                found.add(
                    {name: way.ask(text) for name, way in ways.items()},
                    answers[stream, slot, : lengths[stream, slot]].tolist(),
                    stream=stream,
                    unit=unit,
                    kind=kind,
                    topic=topic,
                    question=text or "(spoken)",
                )
        print(f"{len(found.rows)} of {count} questions", file=sys.stderr, flush=True)
    return found


def units_of(written: script.Script, stream: int, bank: banks.Bank) -> Iterator[UnitMedia]:
    """One stream's units as the app would take them in."""
    units = written.take(slice(stream, stream + 1)).flat()
    pairs = zip(render.frames(units, bank), render.sounds(units, bank), strict=True)
    for unit, (frame, sound) in enumerate(pairs):
        yield UnitMedia(unit, unit + 1, (frame,), sound)


def _gap(one: Said, two: Said, most: int) -> float:
    """The largest difference of a logit up to the first token that differs."""
    same = [a == b for a, b in zip(one.ids, two.ids, strict=False)]
    until = min(most, same.index(False) + 1 if False in same else len(same))
    return float(np.abs(one.logits[:until] - two.logits[:until]).max())


def _marks(folder: Path) -> dict[str, Any]:
    """Which model was asked: digests of what decides its answers."""
    files = ("model.safetensors", "config.json", "preprocessor_config.json", "tokenizer.json")
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest()[:16] for name in files}
    return {"part": "model", **sums}


def _spelled(ids: list[int]) -> str:
    return str(tokens.tokenizer().decode(ids, skip_special_tokens=True))


def _lacking() -> list[str]:
    return [
        f"{module} is not installed: pip install -e '.[{extra}]' in the checkout"
        for module, extra in NEEDS.items()
        if importlib.util.find_spec(module) is None
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} questions, half a minute")
    parser.add_argument("--questions", type=int, metavar="N", help=f"{QUESTIONS} by default")
    parser.add_argument(
        "--model",
        type=Path,
        default=EMBEDDED_FOLDER,
        metavar="DIR",
        help="a model that the stream world trained, in place of the one that ships",
    )
    parser.add_argument(
        "--banks", type=Path, default=BANKS, metavar="DIR", help="folder that holds test.npz"
    )
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file")
    options = parser.parse_args(arguments)
    count = options.questions
    if count is None:
        count = QUICK if options.quick else QUESTIONS
    if count < 1:
        parser.error(f"--questions is {count}, expected 1 or more")
    if not (options.model / "config.json").is_file():
        parser.error(f"--model is {options.model}, expected a folder that holds config.json")
    if lacking := _lacking():
        print("\n".join(lacking), file=sys.stderr)
        return LACKS
    try:
        bank = banks.load(options.banks, "test")
    except FileNotFoundError as error:
        parser.error(str(error))
    found = compare(options.model, bank, count)
    found.show()
    rows = [_marks(options.model), *found.rows]
    changed = (count, options.model, options.banks) != (QUESTIONS, EMBEDDED_FOLDER, BANKS)
    report = Report("same-answers", rows, found.claims(), options.quick, PACKAGES, changed=changed)
    print(f"\nwrote {report.write(options.out)}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(as_process(main))
