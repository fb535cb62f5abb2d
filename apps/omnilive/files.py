"""Files that a command writes beside its output: refused before the work, written after it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from omni_core.errors import OmniError


def check_target(path: Path, option: str, read: Iterable[Path | None] = ()) -> None:
    """Refuse a file that cannot be written, before anything is loaded for it.

    Raises:
        OmniError: its folder is not there or may not be written to, it is a folder itself, or one
            of the files that are ``read``, or also written to.
    """
    for other in read:
        if other is not None and path.resolve() == other.resolve():
            raise OmniError(f"{path}: is in use by this command; give another file for {option}")
    if path.is_dir():
        raise OmniError(f"{path}: is a folder; give a file for {option}")
    if not path.parent.is_dir():
        raise OmniError(f"{path}: there is no folder {path.parent}; make it, or give another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OmniError(f"{path}: may not be written to; change that, or give another file")


def write(path: Path, content: bytes) -> None:
    """Write a file.

    Raises:
        OmniError: with the system's reason.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise OmniError(f"{path}: cannot be written: {error.strerror}") from None
