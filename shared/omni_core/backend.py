"""The narrow waist: all that crosses from the core to a backend, and what a backend must answer.

A backend decides nothing. It encodes media, runs a :class:`StepPlan` and returns logits, and
copies cells as a :class:`MovePlan` says. Plans are small integer arrays, so two backends that are
handed the same plans do the same work, and a recorded list of plans checks one machine against
another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from omni_core.arena_layout import FREE as FREE
from omni_core.arena_layout import PAGE as PAGE
from omni_core.arena_layout import SUBBLOCK as SUBBLOCK
from omni_core.arena_layout import ArenaLayout as ArenaLayout
from omni_core.frontend.base import VisionInput
from omni_core.units import Int8, Int32, Int64


@dataclass(frozen=True)
class TableDelta:
    """Page table entries that changed since the last plan, as absolute values.

    Sending an entry twice is harmless.

    Attributes:
        pages: ``int32[n]``, page ids, ascending.
        group: ``int32[n]``, layer group whose table lists the page, or ``FREE``.
        occupancy: ``uint32[n, 2]``, a bit a live cell, cell 0 the lowest bit of word 0.
        modality: ``int8[n]``, the modality of the page's tokens where its layout keeps them apart,
            as it does in each sealed page; else 0.
        frame: ``int32[n]``, the position frame of the page's keys.
    """

    pages: Int32
    group: Int32
    occupancy: npt.NDArray[np.uint32]
    modality: Int8
    frame: Int32


@dataclass(frozen=True)
class StepPlan:
    """One forward pass over ``T`` new tokens of ``streams`` streams that share a layout.

    A cell is numbered ``page * PAGE + slot``; new tokens go to 16-bit pages. Queries see the live
    cells at ``order <= their own``; the occupancy in ``delta`` includes the new tokens.

    Attributes:
        tokens: ``int32[streams, T]``, token id or ``EMBEDDED``.
        rows: ``int32[T]``, row of the embeddings for embedded tokens, else -1.
        positions: ``int32[3, T]``, counted from the start of the tokens' own position frame.
        order: ``int64[T]``, ascending.
        counts: ``int32[T]``, raw tokens merged into each (1 if none): the cell's bias is its log.
        cells: ``int32[groups, T]``, where each layer group keeps the token.
        shifts: ``int32[m, 2]``, ``(frame, shift)`` of each position frame with live cells: its keys
            are read by queries rotated to ``positions + shift``.
        logits: ``int32[k]``, the rows whose logits are wanted, of ``T``.
        mass: whether the attention mass of every live cell is wanted.
        delta: page table changes, to take effect with this step.
    """

    tokens: Int32
    rows: Int32
    positions: Int32
    order: Int64
    counts: Int32
    cells: Int32
    shifts: Int32
    logits: Int32
    mass: bool
    delta: TableDelta


@dataclass(frozen=True)
class StepResult:
    """What a step gives back.

    Attributes:
        given: ``float32[streams, k, vocab]``, or what waits for a device that computes on and then
            gives them: see :attr:`logits`.
        mass: where the plan asks for it, ``float32[n]`` a layer group: the attention that each live
            cell got, oldest token first, summed over the step's queries, query heads, layers of the
            group and streams; else None.
    """

    given: npt.NDArray[np.float32] | Callable[[], npt.NDArray[np.float32]]
    mass: tuple[npt.NDArray[np.float32], ...] | None = None

    @cached_property
    def logits(self) -> npt.NDArray[np.float32]:
        """Logits ``float32[streams, k, vocab]``; what can be done before is not held up by them."""
        return self.given() if callable(self.given) else self.given


@dataclass(frozen=True)
class Seals:
    """Cells of 16 bits to be sealed, subblock by subblock: each is read once, coded, and then free.

    The modality of a subblock's tokens, whose rotation its values take, is that of its page.

    Attributes:
        source: ``int32[n, SUBBLOCK]``, 16-bit cells of one subblock, oldest token first, to go to
            its slots 0, 1, 2 and so on; -1 behind the last where it is short.
        target: ``int32[n]``, the subblock ``page * 2 + half`` of a sealed page.
    """

    source: Int32
    target: Int32

    def __len__(self) -> int:
        return int(self.target.size)

    @cached_property
    def cells(self) -> tuple[Int32, Int32]:
        """Each cell that is sealed and the one that its token has then, ``int32[m]`` each."""
        row, slot = np.nonzero(self.source >= 0)
        sealed = self.target[row] * SUBBLOCK + slot
        return self.source[row, slot], sealed.astype(np.int32)


_NO_SEALS = Seals(np.zeros((0, SUBBLOCK), np.int32), np.zeros(0, np.int32))


@dataclass(frozen=True)
class MovePlan:
    """Copies of cells inside the arena; reads all happen before writes.

    Attributes:
        source, target: ``int32[n]`` cells of 16-bit pages. Sealed subblocks never move.
        delta: page table changes, to take effect after the copy.
        seals: copies from 16-bit pages to sealed ones.
    """

    source: Int32
    target: Int32
    delta: TableDelta
    seals: Seals = field(default=_NO_SEALS)


@dataclass(frozen=True)
class MergePlan:
    """How a unit's embeddings become those of its tokens: rows that are means of rows.

    Attributes:
        source: ``int32[m]``, rows of what was encoded; ascending for one target.
        target: ``int32[m]``, the row that each goes to: 0, 1, 2 and so on, ascending.
    """

    source: Int32
    target: Int32

    @staticmethod
    def of(rows: Int32, groups: Int32) -> MergePlan:
        """Rows ``int32[m]``, ascending, by the number of their group."""
        ranked = np.argsort(groups, kind="stable")
        return MergePlan(rows[ranked], groups[ranked])

    def __len__(self) -> int:
        return int(self.target[-1]) + 1 if self.target.size else 0

    @cached_property
    def counts(self) -> Int32:
        """How many rows each target is the mean of, ``int32[k]``."""
        return np.bincount(self.target, minlength=len(self)).astype(np.int32)

    def terms(self) -> list[tuple[Int32, Int32]]:
        """Rows of the result and the row that is added to each, term by term.

        Summed in this order in float32, then divided by the count, a mean is the same on all
        machines.
        """
        begins = np.flatnonzero(np.diff(self.target, prepend=-1))
        found = []
        for term in range(int(self.counts.max(initial=0))):
            at = np.flatnonzero(self.counts > term).astype(np.int32)
            found.append((at, self.source[begins[at] + term]))
        return found


@dataclass(frozen=True)
class RestorePlan:
    """The page tables of a saved session, for an arena that has just been allocated.

    Attributes:
        cells: ``int32[n]`` a layer group, its live cells, oldest token first.
        order: ``int64[n]`` a layer group, of the tokens in them.
        counts: ``int32[n]`` a layer group, raw tokens merged into each.
        delta: the pages that they lie in.
    """

    cells: tuple[Int32, ...]
    order: tuple[Int64, ...]
    counts: tuple[Int32, ...]
    delta: TableDelta


@dataclass(frozen=True)
class MemoryReport:
    """Bytes: what the backend's allocator reports beside what the plan accounts for.

    Attributes:
        measured: in use now, by the source's count.
        cached: held by the allocator for reuse.
        peak: the largest ``measured`` so far.
        accounted: weights and arena by their shapes.
        source: who measured: ``mlx``, ``cuda`` or ``process`` (resident memory of the process).
    """

    measured: int
    cached: int
    peak: int
    accounted: int
    source: str


class VisionMemory(Protocol):
    """Embeddings of live vision tokens of one stream, where the backend computes.

    It tells how alike tokens are, on the grid of :mod:`omni_core.aggregation.likeness`, and keeps
    what it is told to keep.
    """

    @property
    def bytes(self) -> int:
        """What it has allocated."""
        ...

    def compare(
        self, embeddings: Any, rows: Int32, at: Int32, slots: Int32
    ) -> tuple[npt.NDArray[np.bool_], Int32]:
        """Which rows hold nothing but numbers, and how alike some are to what is kept.

        Args:
            embeddings: what was encoded.
            rows: ``int32[T]``, rows of it.
            at: ``int32[m]``, indices into ``rows``.
            slots: ``int32[m]``, what each is compared with.

        Returns:
            ``bool[T]``, and ``int32[m]`` on the grid, 0 where something is no number.
        """
        ...

    def nearest(self, embeddings: Any, groups: MergePlan, ids: Int32) -> tuple[Int32, Int32]:
        """Each group's best match by :func:`omni_core.aggregation.likeness.keys`.

        Args:
            embeddings: what was encoded.
            groups: ``k`` of them, two at least, whose means are compared in float32.
            ids: ``int32[k]``.

        Returns:
            ``int32[k]``, another group, and ``int32[k]``, how alike they are, on the grid.
        """
        ...

    def keep(self, embeddings: Any, groups: MergePlan, slots: Int32) -> None:
        """Keep the mean of each group in a slot ``int32[k]``; there are as many as it takes."""
        ...

    def read(self, slots: Int32) -> npt.NDArray[Any]:
        """What slots hold, ``[n, hidden]``, in the numbers of :meth:`Backend.read`."""
        ...

    def write(self, slots: Int32, rows: npt.NDArray[Any]) -> None:
        """Keep what :meth:`read` gave."""
        ...


class Backend(Protocol):
    """What both twins implement."""

    @property
    def name(self) -> str:
        """``mlx`` or ``cuda``."""
        ...

    @property
    def device(self) -> str:
        """The device's name, for people."""
        ...

    @property
    def element(self) -> int:
        """Bytes of one key or value number in a 16-bit page (4 where computing in float32)."""
        ...

    @property
    def allocations(self) -> int:
        """How many arenas have been allocated so far: a session's plans fit its own alone."""
        ...

    def allocate(self, layout: ArenaLayout) -> None:
        """Allocate the arena, all pages free. Called once a session; a second call starts afresh.

        Raises:
            BudgetError: the device cannot hold it.
        """
        ...

    def encode(
        self, vision: Sequence[VisionInput], audio: Sequence[npt.NDArray[np.float32]]
    ) -> Any:
        """Embeddings ``[streams, rows, hidden]`` of a unit, vision first: opaque to the core."""
        ...

    def stack(self, units: Sequence[Any]) -> Any:
        """Embeddings whose stream ``s`` is that of ``units[s]``: what :meth:`encode` gave for each.

        All have the same number of rows.
        """
        ...

    def merge(self, embeddings: Any, plan: MergePlan) -> Any:
        """Embeddings ``[streams, k, hidden]``, the means of rows of others.

        Raises:
            PlanError: rows that there are not.
        """
        ...

    def vision_memory(self) -> VisionMemory:
        """An empty one; an earlier one is not used any more. Only asked of for one stream."""
        ...

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        """Run a step. If it raises, nothing has changed."""
        ...

    def move(self, plan: MovePlan) -> None:
        """Seal and copy cells, then change the page tables.

        Raises:
            BackendError: what is to be sealed holds a number that is not finite, naming the layer.
                No cell has changed.
        """
        ...

    def read(self, layer: int, cells: Int32) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Keys and values of 16-bit cells ``int32[n]``, ``[streams, n, kv_heads, head_dim]`` each.

        ``layer`` counts all layers of the model. Numbers come as they are stored: float32, or the
        bits of bfloat16 as uint16.
        """
        ...

    def write(
        self, layer: int, cells: Int32, keys: npt.NDArray[Any], values: npt.NDArray[Any]
    ) -> None:
        """Store what :meth:`read` gave; the page tables do not change."""
        ...

    def read_sealed(self, layer: int, pages: Int32) -> npt.NDArray[np.uint8]:
        """Sealed pages ``int32[n]`` as they are stored: ``uint8[streams, n, kv_heads, bytes]``.

        Only called where the arena has some. Pages have the ids that plans give them.
        """
        ...

    def write_sealed(self, layer: int, pages: Int32, stored: npt.NDArray[np.uint8]) -> None:
        """Store what :meth:`read_sealed` gave."""
        ...

    def sealed_by(self) -> str:
        """See :func:`omni_core.quantization.digest`.

        Only called where the arena has sealed pages.
        """
        ...

    def restore(self, plan: RestorePlan) -> None:
        """Take page tables over for cells and sealed pages that have been written."""
        ...

    def memory(self) -> MemoryReport:
        """Memory now."""
        ...


def as_floats(stored: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Numbers as :meth:`Backend.read` gives them, in float32."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
