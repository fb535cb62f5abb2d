"""Reading a Hugging Face checkpoint folder: JSON and safetensors headers, no code, no pickles."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.errors import CheckpointError

_ELEMENT_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_CODE_KEYS = ("auto_map", "model_file", "custom_pipelines")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: its shard, safetensors dtype name and shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder that was looked through and found whole.

    Attributes:
        path: the folder.
        config: ``config.json``.
        preprocessor: ``preprocessor_config.json``, empty where there is none.
        tensors: every tensor by its stored name.
    """

    path: Path
    config: dict[str, Any]
    preprocessor: dict[str, Any]
    tensors: dict[str, TensorInfo]

    def require(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The tensor ``name``, if it is there in ``shape``.

        Raises:
            CheckpointError: naming the tensor, what was found and what was expected.
        """
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(
                f"{self.path}: tensor {name} is missing; the config asks for it in shape "
                f"{list(shape)}: download the checkpoint again"
            )
        if info.shape != shape:
            raise CheckpointError(
                f"{info.file}: tensor {name} has shape {list(info.shape)}, but the config asks for "
                f"{list(shape)}: config and weights are of different models"
            )
        return info


def open_checkpoint(folder: Path | str) -> Checkpoint:
    """Look through a checkpoint folder without reading weights.

    Raises:
        CheckpointError: a file is missing, damaged or truncated, or code would have to run.
    """
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; give a checkpoint folder or a hub id")
    config = read_json(path / "config.json")
    refuse_code(config, path / "config.json")
    optional = path / "preprocessor_config.json"
    preprocessor = read_json(optional) if optional.exists() else {}
    refuse_code(preprocessor, optional)
    tensors: dict[str, TensorInfo] = {}
    for shard in _shards(path):
        tensors |= read_header(shard)
    return Checkpoint(path, config, preprocessor, tensors)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: missing, not JSON, or not an object.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{file}: not found; a checkpoint folder needs config.json, tokenizer.json and "
            "*.safetensors"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file}: not readable as JSON ({error}); fetch it again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: holds a {type(data).__name__}, expected an object")
    return data


def refuse_code(config: dict[str, Any], file: Path) -> None:
    """Refuse a config that names code to run on load.

    Raises:
        CheckpointError: naming the key.
    """
    for key, value in config.items():
        if key in _CODE_KEYS:
            raise CheckpointError(
                f"{file}: `{key}` names code to run on load, which omnilive never does; use a "
                "checkpoint in plain safetensors format, or remove the key if you trust the weights"
            )
        if isinstance(value, dict):
            refuse_code(value, file)


def _shards(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise CheckpointError(f"{index}: has no `weight_map`; download it again")
        shards = [path / name for name in wanted_shards(names)]
        for name in shards:
            if name.parent != path:
                raise CheckpointError(f"{index}: names the shard {name} outside of the folder")
        missing = [shard.name for shard in shards if not shard.exists()]
        if missing:
            raise CheckpointError(
                f"{path}: {len(missing)} of {len(shards)} shards are missing, the first is "
                f"{missing[0]}: download the checkpoint again"
            )
        return shards
    single = path / "model.safetensors"
    if single.exists():
        return [single]
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{path}: weights only as {pickles[0]}, a pickle, which can run code when loaded "
            "and is refused; convert it to safetensors"
        )
    raise CheckpointError(f"{path}: no model.safetensors and no model.safetensors.index.json")


def wanted_shards(weight_map: dict[str, str]) -> list[str]:
    """Shards that hold part of the thinker; talker and token2wav speak, and are skipped."""
    return sorted({file for name, file in weight_map.items() if is_wanted(name)})


def is_wanted(tensor: str) -> bool:
    """Whether a stored tensor belongs to the thinker."""
    return not tensor.startswith(("talker.", "token2wav."))


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Names, dtypes and shapes in a safetensors file, checked against its length.

    Raises:
        CheckpointError: truncated or damaged; names the first tensor that does not fit.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER + 1
            if length > min(_MAX_HEADER, size - 8):
                raise CheckpointError(
                    f"{file}: {size} bytes do not hold a safetensors header; the download is "
                    "incomplete or this is no safetensors file"
                )
            header = json.loads(stream.read(length))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file}: header not readable ({error}); fetch it again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: the header is no object; fetch it again")
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensors[name] = _tensor_info(file, name, entry, size - 8 - length)
    return tensors


def _tensor_info(file: Path, name: str, entry: Any, room: int) -> TensorInfo:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
        needed = _ELEMENT_BYTES[dtype] * math.prod(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: tensor {name} is described wrongly ({error!r})") from None
    if end - begin != needed or begin < 0:
        raise CheckpointError(
            f"{file}: tensor {name} spans {end - begin} bytes, but {dtype} {list(shape)} takes "
            f"{needed}; the file is damaged: fetch it again"
        )
    if end > room:
        raise CheckpointError(
            f"{file}: truncated: tensor {name} ends at byte {end} of {room}; fetch it again"
        )
    return TensorInfo(file, dtype, shape)
