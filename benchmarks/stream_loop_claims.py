"""What the stream loop is held to, read off its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from benchmarks.harness import LEVEL, Claim
from benchmarks.stream_loop_stream import PARTS

Row = dict[str, Any]
HELD = "Qwen2.5-Omni-7B"
"""The model whose figures are bounded; the others are told."""
MOST_OFF = 0.1
"""Beyond which logits are wrong, however far transformers' own ways are apart."""
PAUSE = 10
"""How many times a stream's median unit its slowest may take: what is beyond was a pause."""


def claims(rows: Sequence[Row], quick: bool) -> list[Claim]:
    """The claims that these rows can answer.

    Args:
        rows: of a run.
        quick: whether the streams were short: their ratios have no bounds but 1.
    """
    return [
        Claim("parts that failed or were left out", len(find(rows, part="failed")), 0),
        *_gates(rows),
        *_units(rows, quick),
        *_pauses(rows),
        *_core(rows),
        *_sealing(rows),
        *_decode(rows, quick),
        *_layouts(rows, quick),
        *_memory(rows),
    ]


def find(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def share_of_loop(row: Row, parts: Sequence[str], before: float = 0.0) -> float:
    """What these parts take of a whole session, 0 to 1; seconds ``before`` them are part of it."""
    seconds = row["seconds"]
    return sum(seconds[part] for part in parts) / (before + sum(seconds[part] for part in PARTS))


def _gates(rows: Sequence[Row]) -> Iterable[Claim]:
    for row in find(rows, part="gate"):
        yield Claim(f"gate, {row['what']}: logits off", row["off"], row["tolerance"])


def _units(rows: Sequence[Row], quick: bool) -> Iterable[Claim]:
    """The latency of a unit of 700 tokens at the end of the stream."""
    for kept in find(rows, part="stream", path="ours", policy="omnipick", unit=700):
        if kept["target"] > 32_768 or not (quick or kept["model"] == HELD):
            continue
        same = {key: kept[key] for key in ("part", "model", "unit", "target")}
        about = f"{kept['model']}, unit of 700 at {kept['target'] // 1024}K"
        for path, listening, speaking in (("ours", 2.4, None), ("transformers", 4.0, 5.0)):
            for other in find(rows, path=path, policy="no-slide", **same):
                ratio = other["last_listen_ms"] / kept["last_listen_ms"]
                bound = 1.0 if quick else listening
                yield Claim(f"{about}: {path} no-slide over omnipick", ratio, bound, least=True)
                if speaking is None:
                    continue
                ratio = _with_words(other) / _with_words(kept)
                bound = 1.0 if quick else speaking
                name = f"{about} and {kept['spoken']} words: {path} no-slide over omnipick"
                yield Claim(name, ratio, bound, least=True)


def slowest(row: Row) -> float:
    """A stream's slowest unit over its median one, the median of those of its stretches."""
    return float(row["slowest_ms"] / median(row["listen_ms"]))


def _pauses(rows: Sequence[Row]) -> Iterable[Claim]:
    for row in find(rows, part="stream"):
        about = f"{row['model']}, units of {row['unit']}, {row['target'] // 1024}K, {row['path']} "
        yield Claim(f"{about}{row['policy']}: slowest unit over the median", slowest(row), PAUSE)


def _with_words(row: Row) -> float:
    return float(row["last_listen_ms"] + row["last_speak_ms"])


def _core(rows: Sequence[Row]) -> Iterable[Claim]:
    for row in find(rows, part="stream", path="ours", policy="omnipick"):
        parts = ("retain", "plan", "move")
        name = f"{row['model']}, units of {row['unit']}, {row['target'] // 1024}K"
        name = f"{name}: retain, plan and move, % of the loop"
        yield Claim(name, 100 * share_of_loop(row, parts), 1.0)
        for encoded in find(rows, part="encode", model=row["model"], unit=row["unit"]):
            share = share_of_loop(row, parts, encoded["ms"] * row["units"] / 1e3)
            yield Claim(f"{name} with its encoders", 100 * share, 1.0)


def _sealing(rows: Sequence[Row]) -> Iterable[Claim]:
    for row in find(rows, part="stream", path="ours"):
        if row["policy"].endswith(" bits"):
            name = f"{row['model']}, units of {row['unit']}, {row['policy']}: sealing and moves, %"
            yield Claim(f"{name} of the loop", 100 * share_of_loop(row, ["move"]), 2.0)


def _decode(rows: Sequence[Row], quick: bool) -> Iterable[Claim]:
    for row in find(rows, part="decode step"):
        if quick or row["model"] == HELD:
            yield Claim(f"{row['model']}, decode step over its floor", row["ratio"], 1.4)


def _layouts(rows: Sequence[Row], quick: bool) -> Iterable[Claim]:
    """The page layout's attention, with its moves, beside the native one's walked span."""
    for page in find(rows, part="layout", layout="page"):
        same = {key: page[key] for key in ("part", "model", "policy", "unit", "budget")}
        for native in find(rows, layout="native", **same):
            about = f"{page['model']}, {page['policy']}, {page['budget']:,} cells, units of "
            name = f"{about}{page['unit']}: attention and moves below native's, %"
            yield Claim(name, 100 * saved(page, native), 0.0 if quick else 22.5, least=True)


def saved(row: Row, native: Row) -> float:
    """By how much a layout's attention, moves counted in, is below a walked native span's."""
    phases = ("prefill", "decode")
    taken = row["move_ms"] + sum(row["ms"][f"{row['read']} {phase}"] for phase in phases)
    return float(1 - taken / sum(native["ms"][f"walked {phase}"] for phase in phases))


def _memory(rows: Sequence[Row]) -> Iterable[Claim]:
    for row in find(rows, part="memory"):
        name = f"{row['model']}, {row['units']} units of varied lengths: reserved, last over early"
        yield Claim(name, row["growth"], LEVEL)
