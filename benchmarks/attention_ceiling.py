"""How fast this card reads: the ceiling of a decode step, the best of a few plain readers."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
import triton
import triton.language as tl

from omni_cuda.devices import nothing_freed

_BYTES = 4 << 30


def read_bandwidth(device: torch.device) -> tuple[float, str]:
    """Bytes a second, and which reader had them.

    Raises:
        RuntimeError: a reader's sum is wrong.
    """
    free, _ = torch.cuda.mem_get_info(device)
    numbers = min(_BYTES, free // 4) // 4 // 16384 * 16384
    source = torch.randint(0, 128, (numbers,), dtype=torch.int32, device=device)
    total = int(source.sum())
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "torch.sum": lambda: source.sum(dtype=torch.int32),
        "torch.amax": source.amax,
    }
    for block in (4096, 8192, 16384):
        for warps in (4, 8):
            ways[f"Triton, {block} numbers, {warps} warps"] = _reader(source, block, warps)
    found: list[tuple[float, str]] = []
    for name, way in ways.items():
        out = way()
        if name.startswith("Triton") and int(out.sum(dtype=torch.int64)) != total:
            raise RuntimeError(f"{name}: the sum is {int(out.sum())}, expected {total}")
        found.append((numbers * 4 / _seconds(way), name))
    return max(found)


def layered_read(layers: int, size: int, device: torch.device) -> float:
    """Milliseconds for a plain read of ``size`` bytes a layer, a launch each, in one graph.

    What attention that read as fast as can be would take: each launch has to start and to drain.
    """
    numbers = size // 4 // 16384 * 16384
    source = torch.zeros(layers, numbers, dtype=torch.int32, device=device)
    taken = []
    for block in (4096, 8192, 16384):
        readers = [_reader(layer, block, 8) for layer in source]
        readers[0]()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with nothing_freed(), torch.cuda.graph(graph):
            for read in readers:
                read()
        taken.append(_seconds(graph.replay) * 1e3)
    return min(taken) * size / (numbers * 4)


def _reader(source: torch.Tensor, block: int, warps: int) -> Callable[[], torch.Tensor]:
    blocks = source.numel() // block
    out = torch.empty(blocks, dtype=torch.int32, device=source.device)

    def read() -> torch.Tensor:
        _sum_block[(blocks,)](source, out, BLOCK=block, num_warps=warps)
        return out

    return read


@triton.jit
def _sum_block(source, out, BLOCK: tl.constexpr):  # noqa: N803
    block = tl.program_id(0).to(tl.int64)
    numbers = tl.load(source + block * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + block, tl.sum(numbers, axis=0))


def _seconds(way: Callable[[], object], rounds: int = 12) -> float:
    marks = []
    for _ in range(rounds + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        way()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in marks[2:]) / 1e3
