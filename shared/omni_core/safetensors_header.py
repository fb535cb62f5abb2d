"""The header of a safetensors file: what it says of each tensor, checked against the file's length.

Source: the format's description in the safetensors project's README: data follows the header
without holes, tensor after tensor.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from omni_core.errors import CheckpointError
from omni_core.fields import plain, shown

_ELEMENT_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_MAX_HEADER = 100_000_000
_LENGTH = 8
"""Bytes before the header, which say how long it is."""


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: its shard, safetensors dtype name, shape, and first byte in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def bytes(self) -> int:
        """How long its data are."""
        return _ELEMENT_BYTES[self.dtype] * math.prod(self.shape)


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Names, dtypes and shapes in a safetensors file.

    Raises:
        CheckpointError: truncated, damaged or no regular file; names the first tensor that does
            not fit.
    """
    if not file.is_file():
        raise CheckpointError(f"{file}: is no regular file; put the checkpoint's own there")
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(_LENGTH)
            length = struct.unpack("<Q", start)[0] if len(start) == _LENGTH else _MAX_HEADER + 1
            if length > min(_MAX_HEADER, size - _LENGTH):
                raise CheckpointError(
                    f"{file}: {size} bytes do not hold a safetensors header; the download is "
                    "incomplete or this is no safetensors file"
                )
            header = json.loads(stream.read(length))
    except RecursionError:
        raise CheckpointError(f"{file}: header nested too deeply; fetch it again") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: header not readable ({error}); fetch it again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: the header is no object; fetch it again")
    header.pop("__metadata__", None)
    spans = {name: _span(file, name, entry) for name, entry in header.items()}
    _check_spans(file, spans, size - _LENGTH - length)
    return {
        name: TensorInfo(
            file, entry["dtype"], tuple(entry["shape"]), _LENGTH + length + spans[name][0]
        )
        for name, entry in header.items()
    }


def _span(file: Path, name: str, entry: Any) -> tuple[int, int]:
    """First byte of a tensor's data and the one after its last."""
    if not isinstance(entry, dict):
        raise _wrong(file, name, "entry", entry, "an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _ELEMENT_BYTES:
        raise _wrong(file, name, "dtype", dtype, f"one of {', '.join(_ELEMENT_BYTES)}")
    if not _are_sizes(shape):
        raise _wrong(file, name, "shape", shape, "a list of whole numbers, 0 or above")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _wrong(file, name, "data_offsets", offsets, "first and last byte")
    begin, end = offsets
    needed = _ELEMENT_BYTES[dtype] * math.prod(shape)
    if end - begin != needed:
        raise CheckpointError(
            f"{file}: tensor {plain(name)} spans {end - begin} bytes, but {dtype} {shown(shape)} "
            f"takes {needed}; the file is damaged: fetch it again"
        )
    return begin, end


def _check_spans(file: Path, spans: dict[str, tuple[int, int]], room: int) -> None:
    """Tensors lie one after the other, and fill the file."""
    last = 0
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != last:
            how = "shares bytes with another" if begin < last else "leaves a hole before it"
            raise CheckpointError(
                f"{file}: tensor {plain(name)} begins at byte {begin}, expected {last}: it {how}; "
                "the file is damaged: fetch it again"
            )
        if end > room:
            raise CheckpointError(
                f"{file}: truncated: tensor {plain(name)} ends at byte {end} of {room}; fetch it "
                "again"
            )
        last = end
    if last != room:
        raise CheckpointError(
            f"{file}: {room - last} bytes follow the last tensor; the file is damaged: fetch it "
            "again"
        )


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 2**63 for n in values)


def _wrong(file: Path, name: str, field: str, found: Any, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: tensor {plain(name)} is described wrongly: {field} is {shown(found)}, expected "
        f"{expected}; fetch it again"
    )
