"""Reading a Hugging Face checkpoint folder: JSON and safetensors headers, no code, no pickles."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.errors import CheckpointError
from omni_core.fields import plain, shown
from omni_core.safetensors_header import TensorInfo, read_header

_CODE_KEYS = ("auto_map", "model_file", "custom_pipelines")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder that was looked through and found whole.

    Attributes:
        path: the folder.
        config: ``config.json``.
        preprocessor: ``preprocessor_config.json``, empty where there is none: weights can be
            loaded without it, media cannot be prepared.
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
    config = _without_code(path / "config.json")
    preprocessor = path / "preprocessor_config.json"
    others = [preprocessor, path / "tokenizer_config.json"]
    read = {file: _without_code(file) for file in others if file.exists()}
    tensors: dict[str, TensorInfo] = {}
    for shard in _shards(path):
        tensors |= read_header(shard)
    return Checkpoint(path, config, read.get(preprocessor, {}), tensors)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: missing, not JSON, or not an object.
    """
    require_file(file, "a checkpoint folder needs config.json, tokenizer.json and *.safetensors")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise CheckpointError(f"{file}: nested too deeply to be read; fetch it again") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not readable as JSON ({error}); fetch it again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: holds a {type(data).__name__}, expected an object")
    return data


def require_file(file: Path, why: str) -> None:
    """Refuse what is no regular file or link to one: a pipe would be waited on for ever.

    Raises:
        CheckpointError: missing, with ``why`` it should be there, or something else.
    """
    if file.is_file():
        return
    if file.exists():
        raise CheckpointError(f"{file}: is no regular file; put the checkpoint's own there")
    raise CheckpointError(f"{file}: not found; {why}")


def refuse_code(config: dict[str, Any], file: Path) -> None:
    """Refuse a config that names code to run on load, at any depth.

    Raises:
        CheckpointError: naming the key.
    """
    waiting: list[Any] = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for key in _CODE_KEYS:
                if key in value:
                    raise CheckpointError(
                        f"{file}: `{key}` names code to run on load, which omnilive never does; "
                        "use a checkpoint in plain safetensors format, or remove the key if you "
                        "trust the weights"
                    )
            waiting += value.values()


def _without_code(file: Path) -> dict[str, Any]:
    config = read_json(file)
    refuse_code(config, file)
    return config


def _shards(path: Path) -> list[Path]:
    index = path / _INDEX
    if index.exists():
        shards = [path / name for name in wanted_shards(read_json(index).get("weight_map"), index)]
        missing = [shard for shard in shards if not shard.exists()]
        if missing:
            raise CheckpointError(
                f"{path}: {len(missing)} of {len(shards)} shards are missing, the first is "
                f"{plain(missing[0].name)}: download the checkpoint again"
            )
        return shards
    single = path / "model.safetensors"
    if single.exists():
        return [single]
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{path}: weights only as {plain(pickles[0])}, a pickle, which can run code when "
            "loaded and is refused; convert it to safetensors"
        )
    raise CheckpointError(f"{path}: no model.safetensors and no {_INDEX}")


def wanted_shards(weight_map: Any, index: Path | str = _INDEX) -> list[str]:
    """Shards that hold part of the thinker; talker and token2wav speak, and are skipped.

    Args:
        weight_map: that of the index: file names by tensor.
        index: the file that it is from, for errors.

    Raises:
        CheckpointError: no such map, or names of files that cannot be in the folder.
    """
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: has no `weight_map`; download it again")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name:
            raise CheckpointError(
                f"{index}: `weight_map` has {shown(name)} for tensor {plain(tensor)}, expected a "
                "file's name; download it again"
            )
        if Path(name).name != name:
            raise CheckpointError(
                f"{index}: `weight_map` names the shard {shown(name)} outside of the folder, "
                "expected a file in it; download it again"
            )
    return sorted({file for name, file in weight_map.items() if is_wanted(name)})


def is_wanted(tensor: str) -> bool:
    """Whether a stored tensor belongs to the thinker."""
    return not tensor.startswith(("talker.", "token2wav."))
