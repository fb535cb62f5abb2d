"""The heat map of attention on old units: query units down, key offsets across, by modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from omni_core.mass_profile import QueryUnit
from omni_core.units import Modality

Image = npt.NDArray[np.uint8]
Float = npt.NDArray[np.float64]
_SENSES = (Modality.VISION, Modality.AUDIO, Modality.TEXT)
_COLUMNS, _ROWS, _LARGEST = 640, 480, 14
_LEFT, _TOP, _RIGHT, _BOTTOM, _GAP = 84, 84, 110, 56, 16
_INK, _WHITE, _NO_KEY = (40, 40, 40), (255, 255, 255), (215, 215, 215)
_FONT, _LARGE, _SMALL = cv2.FONT_HERSHEY_SIMPLEX, 0.55, 0.42


@dataclass(frozen=True)
class _Band:
    """Columns under one heading: mass and the share that even attention would give, ``[n, w]``."""

    heading: str
    mass: Float
    even: Float
    ticks: bool
    sinks: int = 0

    @property
    def across(self) -> int:
        """Columns that are drawn as one."""
        return -(-self.mass.shape[1] // _COLUMNS)

    @property
    def wide(self) -> int:
        """Pixels of a column drawn."""
        return max(1, min(_LARGEST, _COLUMNS // self.mass.shape[1]))


def draw(streams: Sequence[Sequence[QueryUnit]], sinks: Mapping[str, int], model: str) -> bytes:
    """The map as a PNG.

    The colour of a key is the mass that it got as a multiple of what the average old key got. White
    lines stand behind each modality's sinks and between streams; grey is where there was no key.

    Args:
        streams: what was measured, at least one unit.
        sinks: the chosen counts, by modality name.
        model: the model's name.
    """
    units = [unit for stream in streams for unit in stream]
    bands = _bands(units, sinks)
    down = -(-len(units) // _ROWS)
    high = max(1, min(_LARGEST, _ROWS // len(units)))
    maps = [_binned(band, down) for band in bands]
    low, top = _range(np.concatenate([part.reshape(-1) for part in maps]))
    slots = [
        max(part.shape[1] * band.wide, _text_width(band.heading, _SMALL))
        for band, part in zip(bands, maps, strict=True)
    ]
    height = maps[0].shape[0] * high
    image = np.full(
        (_TOP + height + _BOTTOM, _LEFT + sum(slots) + _GAP * len(slots) + _RIGHT, 3), 255, np.uint8
    )
    _write(image, f"Attention on old units: {model}", 10, 24, _LARGE)
    _write(image, "mass a key, as a multiple of the average old key's", 10, 44, _SMALL)
    starts = np.cumsum([len(stream) for stream in streams])[:-1]
    left = _LEFT
    for band, part, slot in zip(bands, maps, slots, strict=True):
        box = _painted(part, low, top).repeat(high, axis=0).repeat(band.wide, axis=1)
        for start in starts.tolist():
            box[min(start // down * high, height - 1)] = _WHITE
        if band.sinks:
            box[:, min(band.sinks * band.wide // band.across, box.shape[1] - 1)] = _WHITE
        image[_TOP : _TOP + height, left : left + box.shape[1]] = box
        _write(image, band.heading, left, _TOP - 10, _SMALL)
        if band.ticks:
            _offsets(image, band.mass.shape[1], left, _TOP + height + 16, band.wide / band.across)
        left += slot + _GAP
    _write(image, "offset of the key in its span", _LEFT, _TOP + height + 40, _SMALL)
    _query_units(image, units, high / down)
    _scale(image, left, height, low, top)
    return bytes(cv2.imencode(".png", image)[1])


def _bands(units: Sequence[QueryUnit], sinks: Mapping[str, int]) -> list[_Band]:
    width = max(unit.mass.shape[1] for unit in units)
    shape = (len(units), 2 * len(Modality), width)
    mass, even = np.zeros(shape), np.zeros(shape)
    for row, unit in enumerate(units):
        mass[row, :, : unit.mass.shape[1]] = unit.mass
        even[row, :, : unit.keys.shape[1]] = unit.keys / unit.keys.sum()
    bands = []
    for kind in _SENSES:
        columns = np.flatnonzero(even[:, kind].any(axis=0))
        if columns.size:
            part = slice(0, int(columns[-1]) + 1)
            name = kind.name.lower()
            count = sinks.get(name, 0)
            heading = f"{name}, {count} sink{'s' * (count != 1)}"
            bands.append(_Band(heading, mass[:, kind, part], even[:, kind, part], True, count))
    edges = [len(Modality) + kind for kind in _SENSES if even[:, len(Modality) + kind, 0].any()]
    if edges:
        names = "/".join(
            _SENSES[row].name[0] for row in range(3) if len(Modality) + _SENSES[row] in edges
        )
        bands.append(_Band(f"delimiters {names}", mass[:, edges, 0], even[:, edges, 0], False))
    return bands


def _binned(band: _Band, down: int) -> Float:
    """Mass against even attention, with rows and columns taken together; NaN without keys."""
    sums = [
        np.add.reduceat(
            np.add.reduceat(part, np.arange(0, part.shape[0], down), axis=0),
            np.arange(0, part.shape[1], band.across),
            axis=1,
        )
        for part in (band.mass, band.even)
    ]
    return np.divide(sums[0], sums[1], out=np.full(sums[0].shape, np.nan), where=sums[1] > 0)


def _range(values: Float) -> tuple[int, int]:
    """Powers of two that the colours run between: nearly all values, at least 1/2 to 2."""
    logs = np.log2(values[values > 0])
    low, top = np.percentile(logs, [1, 99.8])
    return max(-8, min(-1, int(np.floor(low)))), min(12, max(1, int(np.ceil(top))))


def _painted(values: Float, low: int, top: int) -> Image:
    with np.errstate(divide="ignore"):
        levels = (np.log2(values) - low) / (top - low)
    known = ~np.isnan(values)
    grey = (np.where(known, levels, 0.0).clip(0, 1) * 255).astype(np.uint8)
    colours: Image = cv2.applyColorMap(grey, cv2.COLORMAP_VIRIDIS).reshape(*values.shape, 3)
    colours[~known] = _NO_KEY
    return colours


def _offsets(image: Image, count: int, left: int, line: int, wide: float) -> None:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000) if s * wide >= 40)
    for offset in range(0, count, step):
        _write(image, str(offset), left + int(offset * wide), line, _SMALL)


def _query_units(image: Image, units: Sequence[QueryUnit], high: float) -> None:
    _write(image, "query unit", 6, _TOP - 10, _SMALL)
    step = max(1, int(-(-20 // high)))
    for row in range(0, len(units), step):
        label = str(units[row].unit)
        at = _LEFT - 8 - _text_width(label, _SMALL)
        _write(image, label, at, _TOP + int(row * high) + 10, _SMALL)


def _scale(image: Image, left: int, height: int, low: int, top: int) -> None:
    bar = _painted(2.0 ** np.linspace(top, low, height)[:, None], low, top)
    image[_TOP : _TOP + height, left : left + 16] = bar
    step = max(1, -(-(top - low) * 16 // max(height, 1)))
    for power in range(low, top + 1, step):
        line = _TOP + int((top - power) / (top - low) * (height - 1))
        text = f"x{2**power}" if power >= 0 else f"x1/{2**-power}"
        _write(image, text, left + 22, line + 5, _SMALL)


def _text_width(text: str, size: float) -> int:
    return int(cv2.getTextSize(text, _FONT, size, 1)[0][0])


def _write(image: Image, text: str, x: int, y: int, size: float) -> None:
    # OpenCV's fonts know ASCII alone.
    plain = text.encode("ascii", "replace").decode()
    cv2.putText(image, plain, (x, y), _FONT, size, _INK, 1, cv2.LINE_AA)
