"""What is measured: sealed pages beside the same cells in 16 bits, dense, and decoded first."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import attention_peers as peers
from benchmarks.attention_ceiling import read_bandwidth
from benchmarks.attention_contest import Contender, Outcome, best_of, contest, said, tidy
from benchmarks.live_cells import SHAPES, K, Shape
from benchmarks.sealed_attention_cases import SealedCase, build
from omni_cuda.kernels.merge import merge_shares
from omni_cuda.kernels.sealed_attention import attend_sealed

IN_16_BITS, DECODED = "16-bit pages", "decoded first"
_FEW_ROUNDS = 5
_LAYERS = 12
"""Layers of a case at most: more bytes than a card's caches hold, and room for 16-bit copies."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Attributes:
        shapes: models.
        decode: live cells.
        bits: of codes.
        prefill: queries and the sealed cells before them, on the first shape.
    """

    shapes: tuple[Shape, ...] = SHAPES
    decode: tuple[int, ...] = (8 * K, 64 * K, 128 * K)
    bits: tuple[int, ...] = (2, 3, 4)
    prefill: tuple[tuple[int, int], ...] = ((79, 8 * K), (700, 8 * K), (700, 64 * K))

    @staticmethod
    def small() -> Size:
        """For ``--quick``."""
        return Size(SHAPES[:1], (8 * K, 64 * K), (2,), ((700, 8 * K),))


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

    def all(self, size: Size) -> None:
        """Measure everything; what fails leaves a row that says so."""
        self._row({"part": "read bandwidth"}, self.ceiling)
        for shape in size.shapes:
            for bits in size.bits:
                for live in size.decode:
                    self._beside("decode", shape, 1, live, bits)
        for bits in size.bits:
            for new, live in size.prefill:
                self._beside("prefill", size.shapes[0], new, live, bits)

    def ceiling(self) -> dict[str, Any]:
        """The card's read bandwidth."""
        found, way = read_bandwidth(self.device)
        return {"gb_per_s": found / 1e9, "way": way}

    def beside(self, shape: Shape, new: int, cells: int, bits: int) -> dict[str, Any]:
        """Queries over sealed cells, all older than they are, a layer on average.

        Raises:
            NoRoom: the card does not hold the case and its copies.
        """
        layers = min(_LAYERS, shape.layers)
        # Pages and a dense copy of 16 bits, and one layer decoded in float32 with what that takes.
        needed = layers * shape.layer_bytes(cells) * 2.4 + 12 * shape.layer_bytes(cells) + 3e9
        free, _ = torch.cuda.mem_get_info(self.device)
        if needed > free:
            raise NoRoom(f"takes {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
        case = build(shape, cells, bits, layers, self.draw, self.device, self.processors, new=new)
        return row_of(*self.contested(case), case)

    def contested(self, case: SealedCase) -> tuple[Outcome, dict[str, Outcome]]:
        """The sealed kernel, and each peer by name."""
        plain = case.in_16_bits(self.processors, case.queries.dtype)
        ways = [pages_of_16_bits(plain)]
        if case.queries.shape[3] == 1:
            ways += peers.dense(plain)
        ours, found = contest(sealed(case), ways, case.layers, case.error)
        # Among the others it would be left out as too slow.
        slow = contest(sealed(case), [decoded_first(case)], case.layers, case.error, _FEW_ROUNDS)
        return ours, found | slow[1]

    def _beside(self, part: str, shape: Shape, new: int, live: int, bits: int) -> None:
        about = {"part": part, "shape": shape.name, "new": new, "live": live, "bits": bits}
        self._row(about, lambda: self.beside(shape, new, live, bits))

    def _row(self, about: dict[str, Any], measured: Callable[[], dict[str, Any]]) -> None:
        """A row; what is measured may fail without the others."""
        start = time.perf_counter()
        try:
            self.rows.append(about | measured())
        except NoRoom as lacking:
            self.rows.append({**about, "skipped": str(lacking)})
        except Exception as failure:  # All other rows are still worth having.
            self.rows.append({**about, "failed": said(failure)})
        row = self.rows[-1]
        how = row.get("failed") or row.get("skipped") or row.get("wrong")
        if how is None:
            how = ", ".join(f"{key} {row[key]:.3f}" for key in ("ours_ms", "ratio") if key in row)
        words, seconds = ", ".join(map(str, about.values())), time.perf_counter() - start
        print(f"{words}: {how} ({seconds:.1f} s)", file=sys.stderr, flush=True)
        try:
            tidy()
        except RuntimeError as failure:
            print(said(failure), file=sys.stderr)


class NoRoom(Exception):
    """A case is larger than the card's free memory."""


def sealed(case: SealedCase) -> Contender:
    """The kernels that read sealed pages."""

    def run(layer: int) -> torch.Tensor:
        queries = case.queries[layer]
        shape = (case.pages.programs * case.pages.shares, *queries.shape[1:4])
        found = torch.empty(*shape, queries.shape[4], dtype=torch.float32, device=queries.device)
        sums = torch.empty(shape, dtype=torch.float32, device=queries.device)
        given = case.sealed[layer], case.pages, case.layout, case.rotations, case.scale
        attend_sealed(queries, *given, found, sums)
        out = torch.empty_like(queries[0])
        dealt = case.pages.segments if case.pages.programs > 1 else None
        merge_shares(found, sums, dealt, out)
        return out

    return Contender("sealed", run, lambda out: out[0])


def pages_of_16_bits(plain: Any) -> Contender:
    """The kernel that reads pages of 16 bits."""
    ours = peers.ours(plain)
    return Contender(IN_16_BITS, ours.run, ours.shown)


def decoded_first(case: SealedCase) -> Contender:
    """PyTorch decodes a layer's cells, then attends to them as dense ones."""

    def run(layer: int) -> torch.Tensor:
        queries = case.queries[layer, 0].transpose(1, 2)
        keys, values = (part.to(queries.dtype) for part in case.decoded(layer))
        return scaled_dot_product_attention(
            queries, keys, values, scale=case.scale, enable_gqa=True
        )

    return Contender(DECODED, run, lambda out: out[0].transpose(0, 1))


def row_of(ours: Outcome, found: dict[str, Outcome], case: SealedCase) -> dict[str, Any]:
    """What a contest says, for JSON, a layer on average; no ratios where ours is wrong."""
    parts = case.layers
    row: dict[str, Any] = {"error": ours.error, "layers": parts, "bytes": case.bytes}
    times = {name: one.ms / parts for name, one in found.items() if one.ms is not None}
    row["peers_ms"] = times
    row["peers_left_out"] = {name: one.why for name, one in found.items() if one.why is not None}
    if ours.ms is None:
        return row | {"wrong": ours.why}
    row["ours_ms"] = ours.ms / parts
    if IN_16_BITS in times:
        row["ratio"] = times[IN_16_BITS] / row["ours_ms"]
    if DECODED in times:
        row["over_decoded"] = times[DECODED] / row["ours_ms"]
    dense = {name: one for name, one in found.items() if name not in (IN_16_BITS, DECODED)}
    if (best := best_of(dense)) is not None:
        row["dense"], row["dense_ms"] = best[0], best[1] / parts
        row["over_dense"] = row["dense_ms"] / row["ours_ms"]
    return row
