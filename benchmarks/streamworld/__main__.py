"""Write clips of the stream world: ``python -m streamworld --seed 1 --out DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

from streamworld import banks, clips, questions, script


def main() -> None:
    """Write one mp4 and one JSON file a stream."""
    parser = argparse.ArgumentParser(
        prog="python -m streamworld", description="Write clips of the stream world."
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--units", type=int, default=64, help="seconds of each stream")
    parser.add_argument("--split", choices=script.SPLITS, default="test")
    parser.add_argument("--questions", type=int, default=24, help="questions a stream")
    parser.add_argument("--fps", type=int, default=5, help="frames a second of the clip")
    parser.add_argument("--banks", type=Path, required=True, help="folder of make_banks")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    bank = banks.load(options.banks, options.split)
    made = script.write(options.seed, options.streams, options.units, options.split)
    asked = questions.draw(made, options.seed, options.questions)
    for stream in range(options.streams):
        path = options.out / f"{options.split}-{options.seed}-{stream}.mp4"
        clips.write(path, made, stream, bank, fps=options.fps, questions=asked)
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB, {options.questions} questions")


if __name__ == "__main__":
    main()
