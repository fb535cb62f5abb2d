"""Train the embedded model: ``python training/embedded.py --banks FOLDER --out FOLDER``.

One GPU, minutes, in any number of runs: a run ends at ``--minutes`` with a checkpoint in files of
at most 15 MiB, and the next one goes on from it. ``--smoke`` takes a few steps of a
tiny model on a CPU, with blots and tones where there are no banks. ``training/export.py`` makes the
checkpoint that the app loads.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "shared"), str(ROOT / "benchmarks")]

import torch

from streamworld import banks
from training import shape as shapes
from training import synthetic
from training.bank import DeviceBank
from training.feeder import makers
from training.log import Log
from training.model import Model
from training.schedule import Length
from training.stages import Stage
from training.trainer import Settings, Stopped, Trainer
from training.validate import measure, test_plans
from training.voices import measure_voices

SMOKE_STAGES = (Stage(2, 3, 0.5), Stage(4, 4, 1.01))


def main() -> int:
    """Train, or go on with a training; gives the exit code."""
    options = _options().parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.smoke else "cpu")
    torch.backends.cuda.enable_cudnn_sdp(False)
    dtype = torch.float32 if options.smoke else torch.bfloat16
    shape = shapes.SMALL if options.smoke else shapes.Shape()
    log = Log(options.out)
    pool = makers(0 if options.smoke else options.workers)
    graphs = device.type == "cuda" and not options.eager
    model = Model.build(shape, device, options.seed, options.rows if graphs else None)
    settings = Settings(
        options.out,
        options.seed,
        options.rows,
        Length(options.steps, options.tower_minutes),
        Length(options.steps, options.text_minutes),
        options.minutes,
        check=options.check,
        graphs=graphs,
    )
    if options.smoke:
        settings = Settings(options.out, 1, 8, Length(4), Length(6), check=6, stages=SMOKE_STAGES)
    both = _bank(options, "train", device), _bank(options, "validation", device)
    parameters = sum(weight.numel() for weight in model.thinker.parameters())
    log.write("start", parameters=parameters, device=_name(device), torch=torch.__version__)
    trainer = Trainer(model, shape, both, settings, log, dtype, pool)
    try:
        trainer.run()
    except Stopped:
        return 0
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    if not options.smoke:
        _test(options, model, device, log)
    log.write("done", step=trainer.step)
    return 0


def _test(options: argparse.Namespace, model: Model, device: torch.device, log: Log) -> None:
    """The final table: streams of the test split, and single words by engines and by people."""
    test = _bank(options, "test", device)
    for plan in test_plans(options.rows, 64):
        seeds = range(9_000, 9_000 + options.tests * max(1, plan.units // 64))
        log.write("test", **measure(model, test, plan, seeds))
    right: dict[str, Any] = {}
    for split in ("test", "human"):
        if (options.banks / f"{split}.npz").exists():
            right |= measure_voices(model, banks.load(options.banks, split), 9_000)
    log.write("voices", right=right)


def _bank(options: argparse.Namespace, split: str, device: torch.device) -> DeviceBank:
    if options.banks is None and options.smoke:
        return DeviceBank.of(synthetic.bank(), device)
    return DeviceBank.of(banks.load(options.banks, split), device)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--banks", type=Path, help="folder of streamworld.make_banks")
    parser.add_argument(
        "--out", type=Path, required=True, help="checkpoint and log, also to resume"
    )
    parser.add_argument("--smoke", action="store_true", help="a few steps of a tiny model on a CPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop this run after")
    parser.add_argument("--tower-minutes", type=float, default=1.5, help="of the towers alone")
    parser.add_argument("--text-minutes", type=float, default=12.0, help="of the whole model")
    parser.add_argument("--steps", type=int, default=1_000_000, help="most steps of a phase")
    parser.add_argument("--rows", type=int, default=640, help="units a step, over all streams")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", type=int, default=500, help="steps between validations")
    parser.add_argument("--tests", type=int, default=8, help="batches of each length in the test")
    parser.add_argument("--workers", type=int, default=0, help="processes that make batches")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs, nothing compiled")
    return parser


if __name__ == "__main__":
    sys.exit(main())
