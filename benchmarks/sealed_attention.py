"""Attention over sealed pages against the same cells in 16 bits, on an NVIDIA GPU.

``python benchmarks/sealed_attention.py [--quick]`` measures decode in the shapes of three models
at 2, 3 and 4 bits, and prefill over sealed cells, beside the kernel that reads pages of 16 bits,
PyTorch's SDPA on a contiguous copy, and PyTorch that decodes first and attends then. All that is
timed is checked against a float32 reference first.
"""

from __future__ import annotations

import argparse
import gc
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import LACKS, ROOT, Report, as_process, out_folder, seed, table
from benchmarks.nvidia import lacking
from benchmarks.sealed_attention_claims import claims
from benchmarks.sealed_attention_plots import draw

PACKAGES = ("numpy", "torch", "triton")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="under two minutes, one shape, 2 bits")
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file")
    parser.add_argument("--seed", type=seed, help="of all that is drawn; left out, a new one")
    options = parser.parse_args(arguments)
    if missing := lacking():
        print(missing, file=sys.stderr)
        return LACKS
    import torch

    from benchmarks.sealed_attention_runs import Runs, Size

    gpu = torch.cuda.get_device_name()
    took = "two minutes" if options.quick else "eight minutes"
    print(f"sealed attention on {gpu}; takes up to {took}", file=sys.stderr, flush=True)
    drawn = secrets.randbits(31) if options.seed is None else options.seed
    runs = Runs(drawn, torch.device("cuda", torch.cuda.current_device()))
    # Each capture of a graph collects garbage: what is loaded by now is none.
    gc.freeze()
    try:
        runs.all(Size.small() if options.quick else Size())
    except KeyboardInterrupt:
        print("interrupted: what ran is reported", file=sys.stderr)
        runs.rows.append({"part": "run", "failed": "interrupted"})
    gc.unfreeze()
    show(runs.rows)
    report = Report(
        "sealed-attention", runs.rows, claims(runs.rows), options.quick, PACKAGES, gpu, drawn
    )
    path = report.write(options.out)
    print(f"\nwrote {path}")
    kept = options.out or (ROOT / "docs" / "figures" if report.record else path.parent)
    draw(runs.rows, kept / "sealed-attention.png")
    return report.finish()


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print what was measured, milliseconds of a layer."""
    ceiling = next((row["gb_per_s"] for row in rows if "gb_per_s" in row), None)
    head = ["", "shape", "new", "sealed", "bits", "ours ms", "over 16 bits", "over dense"]
    head += ["over decoded first", "of reading"]
    lines = []
    for row in rows:
        if "bits" not in row:
            continue
        numbers = [
            f"{row[key]:.3f}" if key in row else ""
            for key in ("ours_ms", "ratio", "over_dense", "over_decoded")
        ]
        if ceiling is not None and "ours_ms" in row and row["part"] == "decode":
            numbers.append(f"{row['bytes'] / row['ours_ms'] / 1e6 / ceiling:.0%}")
        about = [row["part"], row["shape"], f"{row['new']:,}", f"{row['live']:,}"]
        lines.append([*about, str(row["bits"]), *numbers, *[""] * (5 - len(numbers))])
    print(table(head, lines))


if __name__ == "__main__":
    sys.exit(as_process(main))
