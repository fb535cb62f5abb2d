"""Banks: the pictures and clips that a script's dice choose from, one file a split."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamworld import spec

GLYPHS = len(spec.SHAPES) + len(spec.DIGITS)
CLIPS = len(spec.WORDS) + len(spec.SPOKEN_FORMS)
SHIPPED = Path(__file__).parent
"""The folder of the test split's bank, which ships with the world."""

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[Any]


@dataclass(frozen=True)
class Bank:
    """Pictures and clips of one split, each kind sorted by label.

    Attributes:
        glyphs: masks of shapes (labels 0-7) and digits (8-17), ``uint8[n, 48, 48]``.
        glyph_start, glyph_count: first row and number of rows of each label, ``int64[18]``.
        clothes: grey pictures, ``uint8[m, 28, 28]``, with ``clothes_start``, ``clothes_count``.
        photos: backgrounds, ``uint8[p, 144, 144, 3]``.
        sound: all clips in a row, mu-law at 16 kHz, ``uint8[total]``.
        clip_offset, clip_length: each clip's first sample and samples, ``int64[c]``.
        clip_voice: index into ``voices`` of who speaks, ``int64[c]``.
        clip_start, clip_count: clips of words (0-25) and spoken questions, ``int64[34]``.
        voices: names as ``engine:voice``.
    """

    glyphs: Bytes
    glyph_start: Ints
    glyph_count: Ints
    clothes: Bytes
    clothes_start: Ints
    clothes_count: Ints
    photos: Bytes
    sound: Bytes
    clip_offset: Ints
    clip_length: Ints
    clip_voice: Ints
    clip_start: Ints
    clip_count: Ints
    voices: tuple[str, ...]


def load(folder: Path | str, split: str, engines: Collection[str] | None = None) -> Bank:
    """A split's bank, where asked with the voices of some engines alone.

    ``human`` is the test split with recordings of people in place of its voices; they say
    some of the words only (``clip_count`` tells which).

    Raises:
        FileNotFoundError: the bank was not built.
        ValueError: an engine is not in the bank.
    """
    path = Path(folder) / f"{split}.npz"
    data = _read(path)
    if split == "human":
        data = {**_read(path.with_name("test.npz")), **data}
    voices = tuple(str(name) for name in data["voices"])
    label, length = data["clip_label"], data["clip_length"].astype(np.int64)
    offset = np.cumsum(length) - length
    voice = data["clip_voice"].astype(np.int64)
    if engines is not None:
        known = {name.split(":")[0] for name in voices}
        if unknown := set(engines) - known:
            has, lacks = (", ".join(sorted(names)) for names in (known, unknown))
            raise ValueError(f"{path} has no engine {lacks}; it has {has}")
        kept = np.asarray([name.split(":")[0] in engines for name in voices])[voice]
        label, length, offset, voice = label[kept], length[kept], offset[kept], voice[kept]
    glyph_start, glyph_count = _index(data["glyph_label"], GLYPHS)
    clothes_start, clothes_count = _index(data["clothes_label"], len(spec.CLOTHES))
    clip_start, clip_count = _index(label, CLIPS)
    _check(path, data, offset, length, voice, len(voices), glyph_count, clothes_count)
    return Bank(
        data["glyphs"],
        *(glyph_start, glyph_count, data["clothes"], clothes_start, clothes_count),
        *(data["photos"], data["sound"], offset, length, voice, clip_start, clip_count, voices),
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: build it with `python -m streamworld.make_banks {path.parent}`"
        )
    # Of a file that is none, NumPy leaves open what it opened itself.
    with path.open("rb") as raw, np.load(raw) as file:
        return {name: file[name] for name in file.files}


_PICTURES = {"glyphs": (48, 48), "clothes": (28, 28), "photos": (144, 144, 3)}


def _check(
    path: Path,
    data: dict[str, Any],
    offset: Ints,
    length: Ints,
    voice: Ints,
    voices: int,
    *counts: Ints,
) -> None:
    """Refuse what rendering would stumble over, or read past."""
    sound = data["sound"]
    good = sound.dtype == np.uint8 and sound.ndim == 1 and all((c > 0).all() for c in counts)
    for name, shape in _PICTURES.items():
        array = data[name]
        good = good and array.dtype == np.uint8 and array.shape[1:] == shape and len(array) > 0
    for name, count in zip(("glyphs", "clothes"), counts, strict=True):
        good = good and len(data[name]) == count.sum()
    good = good and bool((length > 0).all() and (offset + length <= sound.size).all())
    good = good and bool((voice < voices).all()) and len(voice) == len(length) > 0
    if not good:
        raise ValueError(
            f"{path}: pictures, labels or clips that do not belong together: build it again"
        )


def _index(label: Ints, labels: int) -> tuple[Ints, Ints]:
    if label.dtype.kind not in "ui" or (label < 0).any() or (label >= labels).any():
        raise ValueError(f"a bank's labels are not 0 to {labels - 1}: build it again")
    if (np.diff(label.astype(np.int64)) < 0).any():
        raise ValueError("a bank's labels are not in order: build it again")
    count = np.bincount(label, minlength=labels).astype(np.int64)
    return np.cumsum(count) - count, count
