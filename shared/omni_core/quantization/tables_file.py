"""A model's tables for sealing as one safetensors file, and what it was measured on.

Tensors are float32, a layer's own ending in its number:

| tensor | shape | |
|---|---|---|
| value_rotations.0 | ``[modalities, kv_heads, D, D]`` | Hadamard where a modality never occurred |
| key_feedback.0 | ``[kv_heads, D, D]`` | absent where no queries were seen |

The file's metadata say what it is, in JSON under ``omnilive``.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.checkpoints import Checkpoint
from omni_core.errors import CheckpointError, OmniError
from omni_core.fields import plain, shown
from omni_core.identity import identity
from omni_core.model_config import TextConfig
from omni_core.quantization.sealing import LayerTables
from omni_core.safetensors_header import TensorInfo, read_header
from omni_core.tensor_file import read_tensor, write_tensors
from omni_core.units import Modality

OWN = "values.safetensors"
"""Where a model's folder has its own."""
FORMAT = "omnilive value calibration"
VERSION = 1
AGAIN = "make it again with `omnilive calibrate values`"
_ABOUT = "omnilive"
_LENGTH = 8
_APART = 1e-3
"""How far a rotation times its transpose may be from 1: float32 leaves 1e-5."""

Float32 = npt.NDArray[np.float32]


def write_tables(tables: Sequence[LayerTables], about: Mapping[str, Any]) -> bytes:
    """The file of a model's layers.

    Args:
        tables: of each layer, all with feedback or none.
        about: ``model``, its ``identity``, and how it was measured; for JSON.
    """
    arrays: dict[str, Float32] = {}
    for own in tables:
        arrays[f"value_rotations.{own.layer}"] = own.rotations.swapaxes(0, 1)
        if own.feedback is not None:
            arrays[f"key_feedback.{own.layer}"] = own.feedback
    stream = io.BytesIO()
    write_tensors(stream, "F32", {name: a.shape for name, a in arrays.items()}, arrays.values())
    header, data = _parted(stream.getvalue())
    told = json.dumps({"format": FORMAT, "version": VERSION, **about}, ensure_ascii=False)
    text = json.dumps({"__metadata__": {_ABOUT: told}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    return struct.pack("<Q", len(text)) + text + data


def read_about(file: Path) -> dict[str, Any]:
    """What a file says of itself.

    Raises:
        OmniError: it is not there, cut short, damaged, or no such file.
    """
    return _opened(file)[0]


def uncalibrated(text: TextConfig) -> list[LayerTables]:
    """Hadamard for each layer."""
    return [LayerTables.uncalibrated(n, text.kv_heads, text.head_dim) for n in range(text.layers)]


def tables_of(checkpoint: Checkpoint, text: TextConfig) -> list[LayerTables]:
    """What sealing takes of each layer: the checkpoint's own, Hadamard where it has none.

    Raises:
        OmniError: as :func:`read_tables`, of a file or of what stands in its place.
    """
    if has_tables(checkpoint):
        name = checkpoint.path.name
        return read_tables(checkpoint.path / OWN, text, name, identity(checkpoint))
    return uncalibrated(text)


def has_tables(checkpoint: Checkpoint) -> bool:
    """Whether something stands where a checkpoint's own tables do."""
    file = checkpoint.path / OWN
    return file.exists() or file.is_symlink()


def read_tables(file: Path, text: TextConfig, name: str, own: str) -> list[LayerTables]:
    """The tables of each layer, for the model that they were measured on.

    Args:
        file: as :func:`write_tables` gave it.
        text: the model's shape.
        name, own: of the model, the second its :func:`omni_core.identity.identity`.

    Raises:
        OmniError: as :func:`read_about`; the file is of another model or of other shapes; a
            rotation is none.
    """
    about, tensors = _opened(file)
    size, square = text.head_dim, (text.kv_heads, text.head_dim, text.head_dim)
    shapes: dict[str, tuple[int, ...]] = {
        f"value_rotations.{n}": (len(Modality), *square) for n in range(text.layers)
    }
    if any(found.startswith("key_feedback.") for found in tensors):
        shapes |= {f"key_feedback.{n}": square for n in range(text.layers)}
    for tensor, shape in shapes.items():
        found = tensors.get(tensor)
        if found is None or (found.dtype, found.shape) != ("F32", shape):
            has = "is not there" if found is None else f"is {found.dtype} {list(found.shape)}"
            raise OmniError(
                f"{file}: tensor {tensor} {has}, expected F32 {list(shape)} for {name}, which has "
                f"{text.layers} layers of {text.kv_heads} key/value heads with {size} channels: "
                f"give the file of this model, or {AGAIN}"
            )
    if about.get("identity") != own:
        raise OmniError(
            f"{file}: measured on the model {plain(str(about.get('model')))}, and {name} is "
            f"another one or has other weights: give the file of this model, or {AGAIN}"
        )
    arrays = {tensor: _read(file, tensors[tensor]) for tensor in shapes}
    return [_layer(file, layer, arrays, text) for layer in range(text.layers)]


def _layer(file: Path, layer: int, tensors: Mapping[str, Float32], text: TextConfig) -> LayerTables:
    rotations = tensors[f"value_rotations.{layer}"]
    feedback = tensors.get(f"key_feedback.{layer}")
    apart = np.abs(rotations @ rotations.swapaxes(-1, -2) - np.eye(text.head_dim)).max()
    if not apart < _APART:
        raise OmniError(
            f"{file}: value_rotations.{layer} is no rotation ({apart:.3g} off); the file is "
            f"damaged: {AGAIN}"
        )
    if feedback is not None and not np.isfinite(feedback).all():
        raise OmniError(
            f"{file}: key_feedback.{layer} holds a number that is not finite; the file is "
            f"damaged: {AGAIN}"
        )
    means = np.zeros((text.kv_heads, text.head_dim), np.float32)
    return LayerTables(layer, np.ascontiguousarray(rotations.swapaxes(0, 1)), means, feedback)


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    if not file.is_file():
        raise OmniError(f"{file}: no such file; make one with `omnilive calibrate values`")
    try:
        tensors = read_header(file)
        header, _ = _parted(file.read_bytes())
        told = header.get("__metadata__", {}).get(_ABOUT)
        about = json.loads(told) if told else None
    except CheckpointError as error:
        raise OmniError(f"{error}; or {AGAIN}") from None
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise OmniError(f"{file}: is no calibration of values; {AGAIN}")
    if about.get("version") != VERSION:
        raise OmniError(
            f"{file}: has version {shown(about.get('version'))}, and version {VERSION} is read "
            f"here; {AGAIN}"
        )
    return about, tensors


def _read(file: Path, info: TensorInfo) -> Float32:
    try:
        found: Float32 = read_tensor(info)
    except (OSError, OmniError):
        raise OmniError(f"{file}: has been cut short; {AGAIN}") from None
    return found


def _parted(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:_LENGTH])
    header: dict[str, Any] = json.loads(content[_LENGTH : _LENGTH + length])
    return header, content[_LENGTH + length :]
