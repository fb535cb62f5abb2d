"""Page tables: where the kept tokens live. One layout a file; :func:`layout` finds them by name."""

from __future__ import annotations

from collections.abc import Callable

from omni_core.errors import OmniError
from omni_core.paging.eager import EagerLayout
from omni_core.paging.layout import Layout
from omni_core.paging.native import NativeLayout
from omni_core.paging.page import PageLayout

LAYOUTS: dict[str, Callable[[], Layout]] = {
    "page": PageLayout,
    "native": NativeLayout,
    "eager": EagerLayout,
}
"""Layouts by the name that ``--layout`` takes."""


def layout(name: str) -> Layout:
    """The layout of that name with its default parameters.

    Raises:
        OmniError: no such layout.
    """
    if name not in LAYOUTS:
        raise OmniError(f"no layout {name!r}; there are {', '.join(LAYOUTS)}")
    return LAYOUTS[name]()


__all__ = ["LAYOUTS", "EagerLayout", "Layout", "NativeLayout", "PageLayout", "layout"]
