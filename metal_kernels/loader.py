"""The text of a kernel: ``NAME.metal`` holds its functions, ``NAME.body.metal`` calls them.

MLX puts the signature between the two, see :mod:`metal_kernels.signature`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

_INCLUDE = re.compile(r'#include "([^"]+)"')


@dataclass(frozen=True)
class Text:
    """What MLX wants to be told of a kernel.

    Attributes:
        header: declarations, includes resolved, each once.
        body: of the kernel function.
    """

    header: str
    body: str


@cache
def load(name: str) -> Text:
    """The text of the kernel ``name``.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    return Text(_resolved(f"{name}.metal", set()), read(f"{name}.body.metal"))


def folder() -> Traversable:
    """Where the files are."""
    return resources.files(__package__)


def read(file: str) -> str:
    """A file of this folder."""
    return folder().joinpath(file).read_text(encoding="utf-8")


def _resolved(file: str, seen: set[str]) -> str:
    """A file with its includes, each once, and with directives that say where each line is from."""
    lines = [f'#line 1 "{file}"']
    for number, line in enumerate(read(file).splitlines(), 1):
        include = _INCLUDE.fullmatch(line)
        if include is None:
            lines.append("" if line == "#pragma once" else line)
            continue
        inner = include.group(1)
        if inner not in seen:
            seen.add(inner)
            lines.append(_resolved(inner, seen).rstrip("\n"))
        lines.append(f'#line {number + 1} "{file}"')
    return "\n".join(lines) + "\n"
