"""Cases as PyTorch's tensors, and their listings on a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from omni_core.backend import SUBBLOCK
from omni_cuda.kernels.attention import PageList
from tests import attended
from tests.attended import LARGE, Size, spread

__all__ = ["CUTS", "LARGE", "SIZES", "Case", "Size", "make_case", "spread"]

# Interpreted, products of bfloat16 are wrong: on a GPU it has cases of its own.
SIZES = [
    size._replace(dtype="float16") if size.dtype == "bfloat16" else size for size in attended.SIZES
]
CUTS = [(size, size.count == 1) for size in SIZES] + [
    (size, True) for size in SIZES if size.count > 1 and size.programs >= 2 * size.tables > 1
]
"""Each, and whether its rows are dealt out: those of more queries where programs are enough."""


class Case(attended.Case):
    """Rows are dealt out to the size's programs."""

    @property
    def dealt(self) -> int:
        return self.size.programs

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.size.dtype)

    def tensors(self, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values."""
        queries, keys, values = (
            torch.from_numpy(x).to(self.dtype).to(device)
            for x in (self.queries, self.keys, self.values)
        )
        return queries, keys, values

    def with_table_to_spare(self) -> Case:
        """The same, with one more table of queries, all NaN, that no row names."""
        segments = self.listing.segments
        if self.dealt == 1:
            segments = np.concatenate([segments, np.zeros_like(segments[:1])])
        more = super().with_table_to_spare()
        return replace(more, listing=replace(self.listing, segments=segments))

    def page_list(self, device: str, spare: np.ndarray | None = None) -> PageList:
        """The listing on a device, and where no row is in use rows of live-looking dead cells.

        Args:
            spare: ``int64[2]``, a row to put behind the last instead.
        """
        listing = self.listing
        # Both halves of the pool's last page, in which nothing is alive.
        last = self.order.shape[0] * 2 - 1
        dead = np.asarray([(last - 1) + (last << 32), -1], np.int64)
        unused = np.ones(len(listing.rows), np.bool_)
        for first, _, end, _ in listing.segments.tolist():
            unused[first:end] = False
        rows = np.where(unused[:, None], dead, listing.rows)
        rows = np.concatenate([rows, (dead if spare is None else spare)[None]])

        def there(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        return PageList(
            there(rows),
            there(listing.bounds),
            there(listing.segments),
            self.dealt,
            there(self.order),
            None if self.bias is None else there(self.bias),
            there(self.query_order),
            self.size.programs // self.dealt,
        )


class CutCase(Case):
    """Rows are cut between the size's programs."""

    @property
    def dealt(self) -> int:
        return 1


def make_case(
    size: Size, dealt: bool | None = None, blind: int = 0, spare: int = 2, most: int = SUBBLOCK
) -> Case:
    """As :func:`tests.attended.make_case`.

    Args:
        size: of the case.
        dealt: whether rows are dealt out to programs, not cut between them; left out, those of a
            single query are.
        blind, spare, most: see there.
    """
    dealt = size.count == 1 if dealt is None else dealt
    kind, programs = (Case, size.programs) if dealt else (CutCase, 1)
    return attended.make_case(size, kind, dealt=programs, blind=blind, spare=spare, most=most)
