"""Write the demo clip and its questions: half a minute of the stream world's test split.

Usage: ``python scripts/make_demo_clip.py BANKS [FOLDER]``, with the folder of banks that
``python -m streamworld.make_banks`` builds. Voices, hands and pictures are none that the
embedded model was trained on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from streamworld import banks, clips, questions, script

ASSETS = Path(__file__).parents[1] / "apps/omnilive/assets"
SEED, SECONDS = 2, 30
ASKED_AT = (7, 14, 21, 29)
KINDS = [
    ("now", "thing"),
    ("before", "thing"),
    ("when", "thing"),
    ("did", "word"),
    ("now", "word"),
    ("after", "word"),
    ("first", "word"),
    ("count", "beep"),
]


def main() -> None:
    """Write ``demo.mp4`` and ``demo.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("banks", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=ASSETS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    made = script.write(SEED, 1, SECONDS, "test")
    asked = questions.draw(made, SEED, len(KINDS), asked_at=ASKED_AT, kinds=KINDS)
    clip = options.folder / "demo.mp4"
    clips.write(clip, made, 0, banks.load(options.banks, "test"), questions=asked)
    told = json.loads(clip.with_suffix(".json").read_text(encoding="utf-8"))
    told["questions"].sort(key=lambda question: question["seconds"])
    clip.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
