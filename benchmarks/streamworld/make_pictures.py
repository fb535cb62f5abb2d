"""Digits, shapes, clothes and background photographs for the banks.

Debian: dataset-fashion-mnist, opencv-doc (5,000 handwritten digits, photographs) and packages of
fonts. PyPI: scikit-learn (1,797 handwritten digits, photographs) and pillow.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from streamworld.make_shapes import shape_mask
from streamworld.make_strokes import digit_mask
from streamworld.spec import SHAPES

GLYPH = 48
PHOTO = 144
SPLITS = ("train", "validation", "test")

Bytes = npt.NDArray[np.uint8]

_FONTS = Path("/usr/share/fonts")
_FASHION = Path("/usr/share/datasets/fashion-mnist")
_OPENCV = Path("/usr/share/doc/opencv-doc/examples/data")
# Families of which no cut is seen in training.
_HELD = {
    "validation": ("cantarell", "andika", "breip", "jura", "cabin", "inconsolata", "humor"),
    "test": (
        *("klee", "isabella", "lobster", "quicksand", "gentium", "ecolier", "bwht", "lato"),
        *("linux-libertine", "fantasque", "sjfonts", "crosextra", "femkeklaver"),
    ),
}
_NOT_DIGITS = (
    "d050000l",
    "symbol",
    "emoji",
    "dingbat",
    "wc_",
    "initials",
    "math",
    "biolinum_k",
    "hairline",
)
_PHOTOS = {
    "train": ("china.jpg", "home.jpg", "fruits.jpg", "building.jpg", "aero1.jpg", "stuff.jpg"),
    "validation": ("graf1.png",),
    "test": ("flower.jpg",),
}
_SHAPES_EACH = {"train": 240, "validation": 40, "test": 80}
_STROKES_EACH = {"train": 150, "validation": 30, "test": 60}
_CROPS_EACH = {"train": 3, "validation": 6, "test": 8}


def glyphs(split: str) -> tuple[Bytes, Bytes]:
    """Masks ``uint8[n, 48, 48]`` and labels: shapes 0-7, then digits 8-17."""
    rng = np.random.default_rng([31, SPLITS.index(split)])
    masks: list[Bytes] = []
    labels: list[int] = []
    for label in range(len(SHAPES)):
        for _ in range(_SHAPES_EACH[split]):
            masks.append(fitted(shape_mask(label, rng)))
            labels.append(label)
    for digit in range(10):
        drawn = [digit_mask(digit, rng) for _ in range(_STROKES_EACH[split])]
        written = [*_opencv_digits(split, digit), *_scikit_digits(split, digit)]
        for mask in (*_printed(split, digit), *drawn, *written):
            masks.append(fitted(mask))
            labels.append(len(SHAPES) + digit)
    return np.stack(masks), np.asarray(labels, np.uint8)


def fitted(mask: Bytes) -> Bytes:
    """A mask cut to what is drawn, scaled to 42 pixels and centred in 48x48."""
    rows, columns = (np.flatnonzero((mask > 40).any(axis)) for axis in (1, 0))
    image = Image.fromarray(mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
    scale = 42 / max(image.size)
    size = [max(3, round(side * scale)) for side in image.size]
    image = image.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    page = Image.new("L", (GLYPH, GLYPH))
    page.paste(image, ((GLYPH - size[0]) // 2, (GLYPH - size[1]) // 2))
    # Fewer levels compress better and look the same.
    return np.asarray(page, np.uint8) & 0xF0 | np.asarray(page, np.uint8) >> 4


def clothes(split: str) -> tuple[Bytes, Bytes]:
    """Fashion-MNIST, ``uint8[n, 28, 28]`` and labels: its test pictures are the test split."""
    name = "t10k" if split == "test" else "train"
    images = _idx(_FASHION / f"{name}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = _idx(_FASHION / f"{name}-labels-idx1-ubyte.gz", 8)
    keep = {
        "train": slice(0, 52_000),
        "validation": slice(57_000, 60_000),
        "test": slice(0, 6_000),
    }[split]
    order = np.argsort(labels[keep], kind="stable")
    coarse = images[keep][order]
    return coarse & 0xF8 | coarse >> 5, labels[keep][order]


def photos(split: str) -> Bytes:
    """Backgrounds, ``uint8[n, 144, 144, 3]``."""
    from sklearn.datasets import load_sample_images

    samples = load_sample_images()
    shipped = {Path(n).name: i for n, i in zip(samples.filenames, samples.images, strict=True)}
    rng = np.random.default_rng([32, SPLITS.index(split)])
    crops = []
    for name in _PHOTOS[split]:
        whole = Image.fromarray(shipped[name]) if name in shipped else Image.open(_OPENCV / name)
        for _ in range(_CROPS_EACH[split]):
            side = int(rng.integers(min(whole.size) // 3, min(whole.size)))
            left = int(rng.integers(whole.width - side + 1))
            top = int(rng.integers(whole.height - side + 1))
            crop = whole.convert("RGB").crop((left, top, left + side, top + side))
            pixels = np.asarray(crop.resize((PHOTO, PHOTO), Image.Resampling.LANCZOS), np.uint8)
            crops.append(pixels & 0xF8 | pixels >> 5)
    return np.stack(crops)


def fonts(split: str) -> list[Path]:
    """Font files of a split, one family in one split only."""
    files = sorted(p for p in _FONTS.rglob("*") if p.suffix.lower() in (".ttf", ".otf"))
    held = {name: which for which, names in _HELD.items() for name in names}
    chosen = []
    for file in files:
        path = str(file.relative_to(_FONTS)).lower()
        if any(word in file.name.lower() for word in _NOT_DIGITS):
            continue
        if next((which for name, which in held.items() if name in path), "train") == split:
            chosen.append(file)
    return chosen


def _printed(split: str, digit: int) -> list[Bytes]:
    return [drawn[digit] for file in fonts(split) if (drawn := _digits_of(file))]


@cache
def _digits_of(file: Path) -> list[Bytes]:
    """The font's ten digits; none where it lacks them and draws one box for all."""
    try:
        font = ImageFont.truetype(str(file), 96)
    except OSError:
        return []
    masks = []
    for digit in range(10):
        page = Image.new("L", (192, 192))
        ImageDraw.Draw(page).text((60, 30), str(digit), font=font, fill=255)
        masks.append(np.asarray(page, np.uint8))
    drawn = {mask.tobytes() for mask in masks if (mask > 40).sum() > 60}
    return masks if len(drawn) == 10 else []


def _opencv_digits(split: str, digit: int) -> list[Bytes]:
    page = np.asarray(Image.open(_OPENCV / "digits.png").convert("L"), np.uint8)
    cells = page.reshape(50, 20, 100, 20).swapaxes(1, 2).reshape(10, 500, 20, 20)[digit]
    keep = {"train": slice(0, 400), "validation": slice(400, 430), "test": slice(430, 500)}
    return [_smooth(cell, 60) for cell in cells[keep[split]]]


def _scikit_digits(split: str, digit: int) -> list[Bytes]:
    from sklearn.datasets import load_digits

    # The file runs writer after writer, so that its parts are different people.
    digits = load_digits()
    start, stop = {"train": (0, 1240), "validation": (1260, 1430), "test": (1450, 1797)}[split]
    chosen = digits.images[start:stop][digits.target[start:stop] == digit]
    few = chosen if split == "train" else chosen[:15]
    return [_smooth(np.pad(np.uint8(image * 15.9), 1), 60) for image in few]


def _smooth(cell: Bytes, size: int) -> Bytes:
    return np.asarray(Image.fromarray(cell).resize((size, size), Image.Resampling.BICUBIC))


def _idx(path: Path, header: int) -> Bytes:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)[header:]
