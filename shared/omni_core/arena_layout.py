"""How an arena is laid out: pages of 64 cells, in a pool of 16 bits and one of sealed pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from omni_core.errors import OmniError

if TYPE_CHECKING:
    from omni_core.quantization.sealed_layout import SealedLayout

PAGE = 64
"""Cells in a page."""
SUBBLOCK = 32
"""Cells in a subblock."""
FREE = -1
"""The group of a page that no page table lists."""
_PLAIN = ("pages", "groups", "layers_per_group", "kv_heads", "head_dim", "streams")
"""Fields of a layout that tell all of one without sealed pages."""
_ALL = (*_PLAIN, "sealed_pages", "bits", "codec")


@dataclass(frozen=True)
class ArenaLayout:
    """The arena: a pool of 16-bit pages and, where asked for, one of sealed pages; allocated once.

    A page of a layer group holds the group's layers: keys and values are
    ``[layers_per_group, streams, pages, kv_heads, PAGE, head_dim]``, and layer ``l`` belongs to
    group ``l // layers_per_group`` at index ``l % layers_per_group``. All groups draw on the same
    pages.

    Sealed pages are ``uint8[layers_per_group, streams, sealed_pages, kv_heads, sealed.bytes]``.
    They are numbered on from the others: ids from ``pages`` to ``all_pages`` are sealed, in plans
    and page tables alike.

    Attributes:
        pages: of 16 bits.
        groups, layers_per_group, kv_heads, head_dim, streams: of the model, and what runs on it.
        sealed_pages: 0 where nothing is sealed.
        bits: of a code in a sealed page; 16 where there are none.
        codec: of sealed pages, a name of :data:`omni_core.quantization.CODECS`; empty where there
            are none.
    """

    pages: int
    groups: int
    layers_per_group: int
    kv_heads: int
    head_dim: int
    streams: int = 1
    sealed_pages: int = 0
    bits: int = 16
    codec: str = ""

    @property
    def all_pages(self) -> int:
        """Pages of both pools."""
        return self.pages + self.sealed_pages

    @property
    def sealed(self) -> SealedLayout:
        """Where everything lies in a sealed page of a key head.

        Raises:
            OmniError: there are none, or this ``head_dim`` cannot be sealed.
        """
        # The format is defined in this module's pages.
        from omni_core.quantization.sealed_layout import SealedLayout

        return SealedLayout(self.head_dim, self.bits)

    def bytes(self, element: int) -> int:
        """Bytes of keys and values at ``element`` bytes a number, sealed ones included."""
        cell = 2 * PAGE * self.head_dim * element
        sealed = self.sealed_pages * self.sealed.bytes if self.sealed_pages else 0
        return self.layers_per_group * self.streams * self.kv_heads * (self.pages * cell + sealed)

    def state(self) -> dict[str, Any]:
        """The layout as JSON values; without sealed pages, no word of them."""
        values = asdict(self)
        return values if self.sealed_pages else {name: values[name] for name in _PLAIN}

    @staticmethod
    def restored(state: Mapping[str, Any]) -> ArenaLayout:
        """The layout that :meth:`state` told of.

        Raises:
            ValueError: there is no such layout.
        """
        names = _ALL if "sealed_pages" in state else _PLAIN
        numbers = all(_counts(state.get(name)) for name in names if name != "codec")
        if state.keys() != set(names) or not numbers:
            raise ValueError(f"expected numbers for {', '.join(names)}")
        layout = ArenaLayout(**state)
        if layout.sealed_pages:
            _check_sealed(layout)
        return layout


def _counts(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _check_sealed(layout: ArenaLayout) -> None:
    from omni_core.quantization.codec import CODECS

    try:
        known = type(layout.codec) is str and layout.codec in CODECS and layout.sealed.bytes > 0
    except OmniError:
        known = False
    if not known:
        raise ValueError(
            f"expected a codec of {', '.join(CODECS)}, and bits and a head_dim that can be sealed"
        )
