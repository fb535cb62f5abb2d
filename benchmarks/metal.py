"""The MLX twin's kernels against MLX's fused attention, on a GPU of Apple's or NVIDIA's.

``python benchmarks/metal.py [--quick]`` measures decode and prefill over scattered pages in the
shapes of three models beside ``mx.fast.scaled_dot_product_attention`` on a contiguous copy of the
same cells, what free pages in between cost, what stores and moves reach, and what memory the whole
twin holds over many units. All that is timed is checked first.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import INTERRUPTED, LACKS, Report, as_process, out_folder, seed, table
from benchmarks.metal_claims import claims, note_floors
from benchmarks.metal_plots import draw

if TYPE_CHECKING:
    from benchmarks.metal_runs import Machine, Runs

PACKAGES = ("numpy", "mlx")
_TIMES = (
    *("ours_gpu_ms", "dense_gpu_ms", "gpu_ratio"),
    *("ours_ms", "dense_ms", "ratio", "ours_host_ms"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write, draw; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="under two minutes, one shape")
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file and the plot")
    parser.add_argument("--seed", type=seed, help="of all that is drawn; left out, a new one")
    options = parser.parse_args(arguments)
    # The reference is to be float32, not what tensor cores make of it.
    os.environ["MLX_ENABLE_TF32"] = "0"
    if lacking := _lacking():
        print(lacking, file=sys.stderr)
        return LACKS
    from benchmarks.metal_runs import Runs, Size

    machine, label = _machine()
    took = "two minutes" if options.quick else "ten minutes"
    print(f"kernels on {label}; takes up to {took}", file=sys.stderr, flush=True)
    drawn = secrets.randbits(31) if options.seed is None else options.seed
    runs = Runs(drawn, machine)
    measure(runs, Size.small() if options.quick else Size())
    report = Report("metal", runs.rows, claims(runs.rows), options.quick, PACKAGES, label, drawn)
    return tell(report, options)


def measure(runs: Runs, size: Any) -> None:
    """All rows, as far as nobody interrupts."""
    try:
        runs.all(size)
    except KeyboardInterrupt:
        print("interrupted: what ran is reported", file=sys.stderr)
        runs.rows.append({"part": "run", "failed": INTERRUPTED})
    note_floors(runs.rows)


def tell(report: Report, options: argparse.Namespace) -> int:
    """Print, write, draw; returns the exit code."""
    show(report.rows)
    path = report.write(options.out)
    print(f"\nwrote {path}")
    draw(report.rows, report.figures(options.out) / f"{path.stem}.png")
    return report.finish()


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print what was measured."""
    head = ["", "shape", "dtype", "new", "live", "layers", "ours, GPU ms", "MLX's", "ratio"]
    head += ["wall ms", "MLX's", "ratio", "host ms", "of reading", "TFLOP/s", "over full"]
    lines = [
        [
            row["part"],
            row["shape"],
            row["dtype"],
            f"{row['new']:,}",
            f"{row['live']:,}",
            f"{row['layers']}",
            *(f"{row[key]:.3f}" if key in row else "" for key in _TIMES),
            f"{row['read_share']:.0%}" if row["part"] == "decode" and "read_share" in row else "",
            f"{row['ours_tflop_per_s']:.2f}" if "ours_tflop_per_s" in row else "",
            f"{row['over_full']:.3f}" if "over_full" in row else "",
        ]
        for row in rows
        if row["part"] in ("decode", "prefill", "holes") and "layers" in row
    ]
    print(table(head, lines))
    print()
    head = ["", "shape", "new or cells", "layers", "ms", "GB/s"]
    lines = [
        [
            row["part"],
            row["shape"],
            f"{row.get('new', row.get('cells')):,}",
            f"{row['layers']}",
            f"{row['ours_ms']:.3f}",
            f"{row['gb_moved_per_s']:,.1f}",
        ]
        for row in rows
        if "gb_moved_per_s" in row
    ]
    print(table(head, lines))


def _machine() -> tuple[Machine, str]:
    """What MLX's GPU runs, and its name."""
    from benchmarks.metal_runs import Machine
    from metal_kernels.run import run
    from omni_core.checkpoints import open_checkpoint
    from omni_core.model_config import thinker_config
    from omni_mlx import load
    from omni_mlx.devices import choose_device, gpu
    from omnilive.models import EMBEDDED_FOLDER

    def open_model() -> tuple[Any, Any]:
        checkpoint = open_checkpoint(EMBEDDED_FOLDER)
        backend = load(checkpoint, device="gpu", weights="bf16")
        return backend, thinker_config(checkpoint.config).text

    device = choose_device("gpu")
    return Machine(run, gpu(), device.capacity, open_model), device.label


def _lacking() -> str | None:
    """What is missing here, in a line."""
    if importlib.util.find_spec("mlx") is None:
        return "needs MLX, which is not installed: pip install -e '.[mlx]' in the checkout"
    import mlx.core as mx

    if not mx.is_available(mx.gpu):
        return (
            "needs a GPU for MLX, and MLX finds none: an Apple Silicon Mac, or an NVIDIA card with "
            "pip install 'mlx[cuda13]'"
        )
    return None


if __name__ == "__main__":
    sys.exit(as_process(main))
