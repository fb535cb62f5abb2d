"""The tables of docs/performance.md, from rows that may be missing or have failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.harness import shown
from benchmarks.stream_loop_claims import PAUSE, find, saved, share_of_loop, slowest
from benchmarks.stream_loop_stream import PARTS

Row = dict[str, Any]
Table = list[list[str]]
OTHER_BYTES_A_SECOND = 1.008e12
"""What a GeForce RTX 4090 reads, by its data sheet."""


def floors(rows: Sequence[Row]) -> Table:
    """Decode steps beside what reading alone takes."""
    head = ["model", "live cells", "GB read", "TB/s", "floor ms", "step ms", "kernels ms", "ratio"]
    lines = [[*head, "token to token ms"]]
    for row in find(rows, part="decode step"):
        read = row["weight_bytes"] + row["cache_bytes"]
        lines.append(
            [
                row["model"],
                f"{row['cells']:,}",
                f"{read / 1e9:.2f}",
                f"{row['read_bytes_a_second'] / 1e12:.2f}",
                _number(row["floor_ms"], 2),
                _number(row["ms"], 2),
                _number(row["device_ms"], 2),
                _number(row["ratio"], 2),
                _number(row.get("with_core_ms"), 2),
            ]
        )
    return lines


def other_card(rows: Sequence[Row]) -> Table:
    """The floors of decode steps at another card's bandwidth: arithmetic."""
    lines = [["model", "live cells", "floor ms there", "tokens a second, at most"]]
    for row in find(rows, part="decode step"):
        ms = (row["weight_bytes"] + row["cache_bytes"]) / OTHER_BYTES_A_SECOND * 1e3
        lines.append([row["model"], f"{row['cells']:,}", f"{ms:.1f}", f"{1e3 / ms:.0f}"])
    return lines


def decode(rows: Sequence[Row]) -> Table:
    """Attention of a decode step."""
    head = ["model", "live cells", "ours ms", "dense ms", "dense over ours", "dense kernel"]
    lines = [[*head, "of the bandwidth", "plain read ms"]]
    for row in _timed(rows, "decode"):
        share = f"{100 * row['read_share']:.0f} %" if "read_share" in row else "-"
        read = _number(row.get("read_ms"), 3)
        lines.append([row["shape"], f"{row['live']:,}", *_beside(row, 3), share, read])
    return lines


def prefill(rows: Sequence[Row]) -> Table:
    """Attention of a unit, a layer."""
    head = ["model", "new", "live cells", "ours ms", "dense ms", "dense over ours", "dense kernel"]
    lines = [head]
    for row in _timed(rows, "prefill"):
        lines.append([row["shape"], f"{row['new']:,}", f"{row['live']:,}", *_beside(row, 3)])
    return lines


def history(rows: Sequence[Row]) -> Table:
    """Dense attention over a whole history against ours over a budget."""
    lines = [["model", "new", "live cells", "dense ms", "ours ms", "dense over ours"]]
    for row in _timed(rows, "over history"):
        numbers = [_number(row.get("dense_ms"), 3), _number(row["ours_ms"], 3)]
        ratio = _number(row.get("ratio"), 1)
        lines.append([row["shape"], f"{row['new']:,}", f"{row['live']:,}", *numbers, ratio])
    return lines


def holes(rows: Sequence[Row]) -> Table:
    """Decode with holes against decode without."""
    lines = [["live cells", "holes", "made of", "pages", "ns a cell", "over a full arena"]]
    for row in _timed(rows, "holes"):
        about = [f"{row['live']:,}", f"{100 * row['holes']:.0f} %", row["kind"]]
        pages = f"{row.get('pages', 0):,}"
        numbers = [_number(row.get("ns_per_cell"), 1), _number(row.get("over_full"), 2)]
        lines.append([*about, pages, *numbers])
    return lines


def latency(rows: Sequence[Row]) -> Table:
    """A unit at the end of the stream; ratios to what keeps everything."""
    head = ["model", "unit", "stream", "path, policy", "budget", "unit ms", "with words ms"]
    lines = [[*head, "times faster than own no-slide", "than transformers", "with words"]]
    for row in find(rows, part="stream"):
        own, theirs = _keeping_all(rows, row)
        lines.append(
            [
                row["model"],
                f"{row['unit']:,}",
                f"{row['target'] // 1024}K",
                f"{row['path']}, {row['policy']}",
                "-"
                if row["budget"] is None or row["policy"] == "no-slide"
                else f"{row['budget']:,}",
                _number(row["last_listen_ms"], 2),
                _number(_with_words(row), 2),
                _times(own, row, _listening),
                _times(theirs, row, _listening),
                _times(theirs, row, _with_words),
            ]
        )
    return lines


def sessions(rows: Sequence[Row]) -> Table:
    """Whole sessions: everything kept against OmniPick; a star where one paused."""
    head = ["model", "unit", "to", "transformers s", "no-slide s", "OmniPick s"]
    lines = [[*head, "transformers over", "no-slide over", "listening alone: no-slide over"]]
    for row in find(rows, part="stream", path="ours", policy="omnipick"):
        own, theirs = _keeping_all(rows, row)
        lines.append(
            [
                row["model"],
                f"{row['unit']:,}",
                f"{row['target'] // 1024}K",
                *(_session(one[0]) if one else "-" for one in (theirs, own)),
                _session(row),
                _times(theirs, row, lambda one: one["session_s"]),
                _times(own, row, lambda one: one["session_s"]),
                _times(own, row, lambda one: one["listening_s"]),
            ]
        )
    return lines


def pauses(rows: Sequence[Row]) -> Table:
    """The streams in which a unit took too long for what it did."""
    lines = [["model", "unit", "to", "path, policy", "median unit ms", "slowest unit ms", "over"]]
    for row in find(rows, part="stream"):
        times = slowest(row)
        if times > PAUSE:
            about = [row["model"], f"{row['unit']:,}", f"{row['target'] // 1024}K"]
            median = _number(row["slowest_ms"] / times, 2)
            numbers = [median, _number(row["slowest_ms"], 2), _number(times, 1)]
            lines.append([*about, f"{row['path']}, {row['policy']}", *numbers])
    return lines


def split(rows: Sequence[Row]) -> Table:
    """Percent of each session by part."""
    lines = [["model", "unit", "path, policy", *PARTS, "ms a unit"]]
    for row in find(rows, part="stream"):
        shares = [f"{100 * share_of_loop(row, [part]):.2f}" for part in PARTS]
        mean = row["session_s"] * 1e3 / row["units"]
        about = [row["model"], f"{row['unit']:,}", f"{row['path']}, {row['policy']}"]
        lines.append([*about, *shares, f"{mean:.2f}"])
    return lines


def encoders(rows: Sequence[Row]) -> Table:
    """Encoding a unit."""
    lines = [["encoders of", "unit", "vision tokens", "seconds of sound", "ms a unit"]]
    for row in find(rows, part="encode"):
        about = [row["model"], f"{row['unit']:,}", f"{row['vision_tokens']:,}"]
        lines.append([*about, f"{row['audio_seconds']:g}", _number(row["ms"], 2)])
    return lines


def layouts(rows: Sequence[Row]) -> Table:
    """Attention by layout, moves counted in."""
    head = ["model", "unit", "budget", "layout", "prefill ms", "decode ms", "moves ms"]
    lines = [[*head, "tiles of decode", "below native"]]
    for row in find(rows, part="layout"):
        same = {key: row[key] for key in ("part", "model", "policy", "unit", "budget")}
        native = find(rows, layout="native", **same)
        read = row["read"]
        less = f"{100 * saved(row, native[0]):.1f}" if native and row is not native[0] else "-"
        lines.append(
            [
                row["model"],
                f"{row['unit']:,}",
                f"{row['budget']:,}",
                f"{row['layout']}, {read}",
                *(_number(row["ms"][f"{read} {phase}"], 1) for phase in ("prefill", "decode")),
                _number(row["move_ms"], 1),
                f"{row['tiles'][f'{read} decode']:,}",
                less,
            ]
        )
    return lines


def memory(rows: Sequence[Row]) -> Table:
    """What the allocator holds, early and late."""
    lines = [["model", "units of varied lengths", "tokens", "GB reserved early", "GB at the end"]]
    for row in find(rows, part="memory"):
        sizes = [f"{row[key] / 1e9:.3f}" for key in ("early_bytes", "last_bytes")]
        lines.append([row["model"], f"{row['units']:,}", f"{row['tokens']:,}", *sizes])
    return lines


def claims(documents: Iterable[dict[str, Any]]) -> Table:
    """Every claim of every file."""
    lines = [["claim", "", "value", "bound"]]
    for document in documents:
        for claim in document["claims"]:
            verdict = "holds" if claim["holds"] else "**fails**"
            bound = f"{claim['is']} {claim['bound']:g}"
            lines.append([claim["name"], verdict, shown(claim), bound])
    return lines


def _timed(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in find(rows, part=part) if row.get("ours_ms") is not None]


def _keeping_all(rows: Sequence[Row], row: Row) -> tuple[list[Row], list[Row]]:
    """The same stream with everything kept: through this loop, and through transformers."""
    same = {key: row.get(key) for key in ("part", "model", "unit", "target", "run")}
    own, theirs = (
        find(rows, path=path, policy="no-slide", **same) for path in ("ours", "transformers")
    )
    return own, theirs


def _beside(row: Row, digits: int) -> list[str]:
    numbers = [_number(row.get(key), digits) for key in ("ours_ms", "dense_ms")]
    return [*numbers, _number(row.get("ratio"), 2), str(row.get("dense", "-"))]


def _session(row: Row) -> str:
    return _number(row["session_s"], 2) + ("*" if slowest(row) > PAUSE else "")


def _listening(row: Row) -> float:
    return float(row["last_listen_ms"])


def _with_words(row: Row) -> float | None:
    spoken = row["last_speak_ms"]
    return None if spoken is None else float(row["last_listen_ms"] + spoken)


def _times(others: Sequence[Row], row: Row, of: Any) -> str:
    if not others or others[0] is row:
        return "-"
    above, below = of(others[0]), of(row)
    return "-" if above is None or not below else f"{above / below:.2f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
