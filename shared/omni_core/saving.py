"""Saved sessions: all that a session needs to go on where it was.

A saved session is a folder::

    saved.json                    format, and what decides: settings, ledger, page tables, totals
    cache-0123abcd.safetensors    keys and values of the live cells, or sealed pages, by layer

``saved.json`` names the cache that belongs to it and its digest, and takes the place of an older
one in a single step, once all is written: whatever happens before, the older session is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from omni_core.errors import CheckpointError, OmniError, RecordingError
from omni_core.safetensors_header import TensorInfo, read_header
from omni_core.settings import Settings
from omni_core.state import expect, number, text, whole
from omni_core.tensor_file import Array, read_tensor, write_tensors

FORMAT = 1
"""Of the folder; another is refused."""
STATE = "saved.json"
"""The file that makes a folder a saved session."""
SEALED = "sealed"
"""Begins the names of tensors that hold sealed pages as they are."""
_OURS = re.compile(
    r"cache-[0-9a-f]{16}\.safetensors|cache\.safetensors\.partial|saved\.json(\.partial)?"
)
_KIND = {8: "F64", 4: "F32", 2: "BF16"}
_ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a document may raise that is not what it should be."""


@dataclass(frozen=True)
class SavedModel:
    """Which model a session ran on.

    Attributes:
        name: as it was loaded.
        identity: see :func:`omni_core.identity.identity`.
        weights: number format or bits of the weights.
        element: bytes of a key or value number.
    """

    name: str
    identity: str
    weights: str
    element: int


@dataclass(frozen=True)
class SavedSession:
    """A saved session whose document was read, and whose cache was found whole.

    Attributes:
        folder: where it lies.
        model: what it ran on.
        settings: of the session.
        time: seconds of the stream.
        state: the rest of what decides.
        tensors: keys and values by name, ``keys.0`` those of the first layer.
    """

    folder: Path
    model: SavedModel
    settings: Settings
    time: float
    state: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def check(self, model: SavedModel) -> None:
        """Refuse to go on with another model or other numbers.

        Raises:
            RecordingError: naming both.
        """
        mine = self.model
        if model.identity != mine.identity:
            raise RecordingError(
                f"{self.folder}: saved with the model {mine.name}, and {model.name} is another one "
                "or has other weights: give --model the saved one's folder"
            )
        for found, expected, what in (
            (model.weights, mine.weights, f"weights in {mine.weights}"),
            (model.element, mine.element, f"{mine.element} bytes a number"),
        ):
            if found != expected:
                raise RecordingError(
                    f"{self.folder}: saved with {what}, and this model has {found}: give "
                    f"--weights {mine.weights}, and a device that computes alike"
                )

    def stored(self, name: str, shape: tuple[int, ...]) -> Array:
        """A tensor of the cache, as :func:`omni_core.stream_state.shapes` names it.

        Raises:
            KeyError, ValueError: missing, or of another kind or shape.
        """
        info, kind = self.tensors[name], _kind(name, self.model.element)
        expect((info.dtype, info.shape) == (kind, shape), f"{name} of {kind} {list(shape)}")
        return read_tensor(info)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Tell in one line what is wrong with the session's state.

        Raises:
            RecordingError: whatever was raised inside for want of sense.
        """
        with _told(self.folder):
            yield


def open_saved(folder: Path | str) -> SavedSession:
    """Read a saved session, all but its keys and values.

    Raises:
        RecordingError: none is there, or it is damaged or of another version.
    """
    folder = Path(folder)
    with _told(folder):
        document = _read(folder)
        found, state = document["format"], document["session"]
        if found != FORMAT:
            raise RecordingError(
                f"{folder}: a saved session of format {found}, and this version reads {FORMAT}"
            )
        if document["sha256"] != _digest(state):
            raise RecordingError(f"{folder}/{STATE}: damaged: its digest is another")
        model, cache = state["model"], text(state["tensors"]["file"])
        expect(
            whole(model["element"]) in _KIND, f"an element of {', '.join(map(str, _KIND))} bytes"
        )
        expect(_OURS.fullmatch(cache) is not None, "a cache file's name")
        return SavedSession(
            folder,
            SavedModel(
                text(model["name"]),
                text(model["identity"]),
                text(model["weights"]),
                whole(model["element"]),
            ),
            Settings.restored(state["settings"]),
            number(state["time"]),
            state,
            _tensors(folder / cache, text(state["tensors"]["sha256"])),
        )


def write_saved(
    folder: Path | str,
    model: SavedModel,
    state: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Iterable[Array],
) -> None:
    """Write a saved session; an older one in the folder goes once the new one is whole.

    Args:
        folder: made where it is not there.
        model: what the session runs on.
        state: ``settings``, ``time`` and the rest of what decides, as JSON values.
        shapes: of the cache's tensors.
        arrays: the tensors, one at a time.

    Raises:
        RecordingError: the folder holds something else, or cannot be written.
    """
    folder = Path(folder)
    check_target(folder)
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _undone(made, folder / STATE):
            cache = _write_cache(folder, model.element, shapes, arrays, made)
            session = {**state, "model": vars(model), "tensors": cache}
            document = {"format": FORMAT, "sha256": _digest(session), "session": session}
            lines = json.dumps(document, separators=(",", ":"))
            partial = folder / f"{STATE}.partial"
            _write(made, partial, lambda stream: stream.write(lines.encode()))
            partial.replace(folder / STATE)
    except OSError as error:
        raise RecordingError(
            f"{folder}: the session cannot be saved: {error.strerror}; make room, or give another "
            "folder"
        ) from None
    for old in folder.glob("cache*"):
        if old.name != cache["file"]:
            with suppress(OSError):
                old.unlink()


def check_target(folder: Path) -> None:
    """Refuse a folder that a session cannot be saved in.

    Raises:
        RecordingError: it holds something else than a saved session, or may not be written to.
    """
    try:
        if folder.exists():
            other = [item.name for item in folder.iterdir() if not _OURS.fullmatch(item.name)]
            if other:
                raise RecordingError(
                    f"{folder}: holds {min(other)!r}, which is no part of a saved session; give a "
                    "new folder"
                )
        above = next(part for part in (folder, *folder.absolute().parents) if part.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise RecordingError(f"{folder}: cannot be written; give another folder")
    except OSError as error:
        raise RecordingError(f"{folder}: no session can be saved there: {error.strerror}") from None


def _read(folder: Path) -> dict[str, Any]:
    file = folder / STATE
    if not file.is_file():
        raise RecordingError(f"{folder}: no saved session there ({STATE} is missing)")
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RecordingError(f"{file}: damaged, not readable as JSON ({error})") from None
    expect(type(document) is dict, "an object")
    return dict(document)


def _tensors(file: Path, sha256: str) -> dict[str, TensorInfo]:
    if not file.is_file():
        raise RecordingError(f"{file}: missing; the saved session is not whole")
    with file.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise RecordingError(f"{file}: damaged: its digest is another than {STATE} says")
    return read_header(file)


def _kind(name: str, element: int) -> str:
    """Of a tensor, by its name."""
    return "U8" if name.startswith(f"{SEALED}.") else _KIND[element]


def _digest(state: Any) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _write_cache(
    folder: Path,
    element: int,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Iterable[Array],
    made: list[Path],
) -> dict[str, str]:
    partial = folder / "cache.safetensors.partial"
    kinds = {name: _kind(name, element) for name in shapes}
    _write(
        made,
        partial,
        lambda stream: write_tensors(stream, _KIND[element], shapes, arrays, kinds),
    )
    with partial.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    cache = folder / f"cache-{sha256[:16]}.safetensors"
    if not cache.exists():
        made.append(cache)
    partial.replace(cache)
    return {"file": cache.name, "sha256": sha256}


def _write(made: list[Path], file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file, and have it on the disk before anything names it."""
    made.append(file)
    with file.open("wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _undone(made: list[Path], state: Path) -> Iterator[None]:
    """Remove the files that were made inside, if it raises, but for those that ``state`` names."""
    try:
        yield
    except BaseException:
        # An interrupt may come right after the state was put in place: then the session is whole.
        named = ""
        with suppress(OSError):
            named = state.read_text(encoding="utf-8")
        for file in made:
            if file.name not in named:
                with suppress(OSError):
                    file.unlink(missing_ok=True)
        raise


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise RecordingError(f"{folder}: damaged: {error}") from None
    except RecordingError:
        raise
    except OmniError as error:
        raise RecordingError(f"{folder}: {error}") from None
    except OSError as error:
        raise RecordingError(f"{folder}: cannot be read: {error.strerror}") from None
    except _ODD as error:
        reason = str(error) if type(error) is ValueError else repr(error)
        raise RecordingError(f"{folder}/{STATE}: damaged: {reason}") from None
