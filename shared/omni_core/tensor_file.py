"""Writing and reading tensors of a safetensors file, one at a time.

Source: the format's description in the safetensors project's README.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from omni_core.errors import RecordingError
from omni_core.safetensors_header import TensorInfo

KINDS: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "BF16": np.uint16,
    "U8": np.uint8,
}
"""How arrays hold what the format names; NumPy has no bfloat16, so that its bits stand for it."""
_ALIGNED = 8

Array = npt.NDArray[Any]


def write_tensors(
    stream: BinaryIO,
    kind: str,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Iterable[Array],
    others: Mapping[str, str] | None = None,
) -> None:
    """Write tensors, in the order of their names; no more than one is held at a time.

    Args:
        stream: a new file.
        kind: of :data:`KINDS`.
        shapes: by name.
        arrays: as many, of these shapes.
        others: the kind of each tensor, by name, that is of another.
    """
    kinds = dict.fromkeys(shapes, kind) | dict(others or {})
    header, begin = {}, 0
    for name, shape in shapes.items():
        end = begin + np.dtype(KINDS[kinds[name]]).itemsize * int(np.prod(shape))
        header[name] = {"dtype": kinds[name], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    stream.write(struct.pack("<Q", len(text)) + text)
    for (name, shape), array in zip(shapes.items(), arrays, strict=True):
        if array.shape != shape or array.dtype != KINDS[kinds[name]]:
            raise RecordingError(
                f"tensor {name} came as {array.dtype} {list(array.shape)}, expected {kinds[name]} "
                f"{list(shape)}: a fault in the backend"
            )
        dtype = np.dtype(KINDS[kinds[name]]).newbyteorder("<")
        stream.write(np.ascontiguousarray(array, dtype).data)


def read_tensor(info: TensorInfo) -> Array:
    """One tensor of a file whose header was read.

    Raises:
        RecordingError: the file ends before it does.
    """
    dtype = np.dtype(KINDS[info.dtype])
    count = int(np.prod(info.shape))
    found = np.fromfile(info.file, dtype.newbyteorder("<"), count, offset=info.offset)
    if found.size != count:
        raise RecordingError(f"{info.file}: has been cut short; save the session again")
    return found.astype(dtype, copy=False).reshape(info.shape)
