"""What is measured: decode, prefill, holes, each row gated and beside its peers."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import attention_peers as peers
from benchmarks.attention_cases import BOUND, Case, build
from benchmarks.attention_ceiling import layered_read, read_bandwidth
from benchmarks.attention_claims import OTHERS
from benchmarks.attention_contest import (
    ROUNDS,
    Contender,
    Outcome,
    alternated,
    best_of,
    captured,
    contest,
    said,
    tidy,
)
from benchmarks.live_cells import KINDS, SHAPES, K, Live, Shape, holed, scattered
from omni_core.backend import PAGE

_LARGE = 32 * K
"""Live cells from which on a plain read of as many bytes is timed too."""
_COLD = 240e6
"""Bytes of caches that a graph reads, so that no layer's are still on the chip the next time."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Attributes:
        shapes: models.
        decode: live cells.
        prefill: new tokens and the live cells before them.
        flex: those of them that FlexAttention, which is compiled anew for each, runs too, on the
            first shape.
        holes: live cells, on the first shape.
        shares: of holes.
    """

    shapes: tuple[Shape, ...] = SHAPES
    decode: tuple[int, ...] = tuple(n * K for n in (1, 2, 3, 4, 8, 32, 64, 128))
    prefill: tuple[tuple[int, int], ...] = (
        *((79, n * K) for n in (3, 8, 32)),
        *((700, n * K) for n in (1, 2, 3, 4, 8, 32)),
        *((2300, n * K) for n in (3, 8, 32)),
    )
    flex: tuple[tuple[int, int], ...] = ((79, 3 * K), (700, 3 * K), (700, 32 * K), (2300, 3 * K))
    holes: tuple[int, ...] = (3 * K, 8 * K, 32 * K)
    shares: tuple[float, ...] = (0.25, 0.5, 0.75)

    @staticmethod
    def small() -> Size:
        """For ``--quick``."""
        some = ((79, 3 * K), (700, 3 * K), (700, 32 * K), (2300, 3 * K))
        return Size(SHAPES[:1], (3 * K, 32 * K), some, ((700, 3 * K),), (8 * K,), (0.5,))


class Runs:
    """Rows as they come, from one card.

    Attributes:
        rows: what was found, or why it was not.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.rows: list[dict[str, Any]] = []
        self.device = device
        self.draw = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        self.flashinfer = importlib.util.find_spec("flashinfer") is not None

    def all(self, size: Size) -> None:
        """Measure everything; what fails leaves a row that says so."""
        if not self.flashinfer:
            print("FlashInfer is not installed: it does not take part", file=sys.stderr)
        self._row({"part": "read bandwidth"}, self.ceiling)
        for shape in size.shapes:
            for live in size.decode:
                about = {"part": "decode", "shape": shape.name, "new": 1, "live": live}
                self._row(about, lambda shape=shape, live=live: self.decode(shape, live))
        for shape in size.shapes:
            for new, live in size.prefill:
                about = {"part": "prefill", "shape": shape.name, "new": new, "live": live}
                flex = shape is size.shapes[0] and (new, live) in size.flex
                self._row(
                    about,
                    lambda shape=shape, new=new, live=live, flex=flex: self.prefill(
                        shape, new, live, flex
                    ),
                )
        shape = size.shapes[0]
        for live in size.holes:
            for kind in KINDS:
                for share in size.shares:
                    about = {"part": "holes", "shape": shape.name, "live": live}
                    self._row(
                        {**about, "kind": kind, "holes": share},
                        lambda live=live, kind=kind, share=share: self.holes(
                            shape, live, kind, share
                        ),
                    )

    def ceiling(self) -> dict[str, Any]:
        """The card's read bandwidth."""
        found, way = read_bandwidth(self.device)
        return {"gb_per_s": found / 1e9, "way": way}

    def decode(self, shape: Shape, cells: int) -> dict[str, Any]:
        """One token through all layers, on pages scattered over an arena a quarter larger."""
        live = scattered(self.draw, cells, cells * 5 // 4 // PAGE)
        case = self._case(shape, live, shape.layers)
        size = shape.layer_bytes(cells)
        row = self._beside(case) | {"bytes": shape.layers * size}
        if cells >= _LARGE:
            with suppress(torch.OutOfMemoryError):
                row["read_ms"] = layered_read(shape.layers, size, self.device)
        return row

    def prefill(self, shape: Shape, new: int, cells: int, flex: bool = False) -> dict[str, Any]:
        """New tokens over live cells and themselves, a layer, on half of an arena's pages."""
        pages = -(-cells // PAGE) + -(-new // PAGE)
        live = scattered(self.draw, cells, 2 * pages, new)
        layers = min(shape.layers, math.ceil(_COLD / shape.layer_bytes(live.cells)))
        row = self._beside(self._case(shape, live, layers), flex, layers)
        if "ours_ms" in row:
            row["ours_tflop_per_s"] = shape.flops(cells, new) / row["ours_ms"] / 1e9
        return row | {"layers": layers, "flops": shape.flops(cells, new)}

    def holes(self, shape: Shape, cells: int, kind: str, share: float) -> dict[str, Any]:
        """Decode with holes against the same number of cells in an arena without."""
        lives = {
            "full": scattered(self.draw, cells, cells // PAGE),
            "holed": holed(self.draw, cells, share, kind),
        }
        # Graphs read the caches of their cases, which therefore stay until the end.
        cases = {
            name: self._case(shape, live, shape.layers, copies=0) for name, live in lives.items()
        }
        graphs, errors = {}, []
        for name, case in cases.items():
            way = peers.ours(case)
            graphs[name], out = captured(way, case.layers)
            graphs[name].replay()
            errors.append(case.error(case.layers - 1, way.shown(out)))
        if max(errors) > BOUND:
            return {"error": max(errors), "wrong": f"error {max(errors):.3g}"}
        times = alternated(graphs, ROUNDS)
        return {
            "pages": int(lives["holed"].pages.size),
            "error": max(errors),
            "ours_ms": times["holed"],
            "full_ms": times["full"],
            "ns_per_cell": times["holed"] * 1e6 / lives["holed"].cells,
            "over_full": times["holed"] / lives["holed"].cells / (times["full"] / cells),
        }

    def _case(self, shape: Shape, live: Live, layers: int, copies: int = 1) -> Case:
        """A case, if the card holds it.

        Raises:
            NoRoom: it does not.
        """
        cells = live.arena * PAGE + copies * live.cells
        needed = layers * shape.layer_bytes(cells) * 1.1 + 3e9
        free, _ = torch.cuda.mem_get_info(self.device)
        if needed > free:
            raise NoRoom(f"takes {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
        return build(shape, live, layers, self.device, self.processors)

    def _beside(self, case: Case, flex: bool = False, parts: int = 1) -> dict[str, Any]:
        """Ours beside all that can be had; times of one of so many parts."""
        ways: dict[str, Callable[[Case], Contender | list[Contender]]] = {"dense": peers.dense}
        if flex:
            ways["FlexAttention"] = peers.flex
        if self.flashinfer:
            ways["FlashInfer"] = peers.flashinfer
        others: list[Contender] = []
        left: dict[str, Outcome] = {}
        for name, way in ways.items():
            try:
                made = way(case)
                others += made if isinstance(made, list) else [made]
            except Exception as failure:  # Whatever it is, ours is to be measured.
                left[name] = Outcome(why=said(failure))
        ours, found = contest(peers.ours(case), others, case.layers, case.error)
        return _beside_row(ours, left | found, parts)

    def _row(self, about: dict[str, Any], measured: Callable[[], dict[str, Any]]) -> None:
        """A row; what is measured may fail without the others."""
        words = [str(word) for word in about.values()]
        start = time.perf_counter()
        try:
            self.rows.append(about | _rounded(measured()))
        except NoRoom as lacking:
            self.rows.append({**about, "skipped": str(lacking)})
        except Exception as failure:  # All other rows are still worth having.
            self.rows.append({**about, "failed": said(failure)})
        row = self.rows[-1]
        how = row.get("failed") or row.get("skipped") or row.get("wrong") or _short(row)
        seconds = time.perf_counter() - start
        print(f"{', '.join(words)}: {how} ({seconds:.1f} s)", file=sys.stderr, flush=True)
        try:
            tidy()
        except RuntimeError as failure:
            print(said(failure), file=sys.stderr)


class NoRoom(Exception):
    """A case is larger than the card's free memory."""


def _beside_row(ours: Outcome, found: dict[str, Outcome], parts: int) -> dict[str, Any]:
    """What a contest says, for JSON; no ratio where ours is wrong."""
    row: dict[str, Any] = {"error": ours.error}
    if ours.ms is None:
        row["wrong"] = ours.why
    else:
        row["ours_ms"] = ours.ms / parts
    best = best_of({name: one for name, one in found.items() if name not in OTHERS})
    if best is not None:
        row["dense"], row["dense_ms"] = best[0], best[1] / parts
        if ours.ms is not None:
            row["ratio"] = best[1] / ours.ms
    row["peers_ms"] = {name: one.ms / parts for name, one in found.items() if one.ms is not None}
    row["peers_left_out"] = {name: one.why for name, one in found.items() if one.why is not None}
    return row


def _rounded(value: Any) -> Any:
    """Floats to six decimals, at any depth."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def _short(row: dict[str, Any]) -> str:
    """A row in a few words."""
    if "gb_per_s" in row:
        return f"{row['gb_per_s']:,.0f} GB/s by {row['way']}"
    if "over_full" in row:
        return f"{row['ours_ms']:.3f} ms, {row['over_full']:.3f} x full pages a cell"
    if "ratio" not in row:
        return f"ours {row['ours_ms']:.3f} ms, no dense kernel ran"
    return (
        f"ours {row['ours_ms']:.3f} ms, {row['dense']} {row['dense_ms']:.3f} ms, "
        f"{row['ratio']:.2f} x"
    )
