"""The attention of one step by kernels, which write new tokens to their pages and read them there.

Nothing is gathered. The kernels write to the arena where it lies, which MLX does not know of: see
:mod:`metal_kernels.pages` for what that asks of who reads and of who waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from metal_kernels import attention, cutting, pages
from metal_kernels.cutting import Gpu
from metal_kernels.launch import CONSTANT_BELOW, Launch
from metal_kernels.mass import live_places, mass
from metal_kernels.sealed import sealed_programs
from metal_kernels.sealed_step import Run, SealedLayer, SealedStep
from omni_core.backend import PAGE, ArenaLayout, MovePlan, StepPlan
from omni_core.errors import PlanError
from omni_core.model_config import TextConfig
from omni_core.paging.listing import Lister, Listing
from omni_core.paging.mirror import ListedPages, TableMirror
from omni_core.units import Int32, Modality
from omni_mlx.arena import Arena
from omni_mlx.rotary import StepRotary
from omni_mlx.sealing import Sealer


class Kernels:
    """What the steps of an arena share.

    Args:
        text, layout: of the model and its arena.
        gpu: that runs them, see :func:`omni_mlx.devices.gpu`.
        run: carries out launches.
        sealer: of the arena's sealed pages, where it has any.
    """

    def __init__(
        self,
        text: TextConfig,
        layout: ArenaLayout,
        gpu: Gpu,
        run: Run,
        sealer: Sealer | None = None,
    ) -> None:
        self.text, self.layout, self.gpu, self.run = text, layout, gpu, run
        self.sealer = sealer
        self._listers: dict[tuple[int, ...], Lister] = {}
        self._zeros = mx.zeros((layout.pages, PAGE), mx.int64)
        self._no_bias = mx.array(attention.NO_BIAS)

    def listing(self, group: int, live: ListedPages, programs: int) -> Listing:
        """Rows of what is alive in a layer group, dealt out to programs."""
        kinds = live.shift[live.pages.size - live.sealed.size :].astype(np.int64)
        parts = np.unique(kinds * len(Modality) + live.sealed).size
        coded = sealed_programs(programs, parts)
        lister = self._listers.setdefault(
            (group, programs, coded), Lister(programs, sealed_programs=coded)
        )
        return lister.list(live)

    def known(self, mirror: TableMirror, count: int) -> tuple[mx.array, mx.array, mx.array | None]:
        """Of each cell ``order int64[pages, PAGE]`` and bias, and of the sealed ones their bias."""
        # A single query sees all that is listed and asks for no order.
        first = self.layout.pages
        order = mx.array(mirror.order[:first]) if count > 1 else self._zeros
        if not mirror.merged:
            return order, self._no_bias, None
        bias = np.log(mirror.counts).astype(np.float32)
        return order, mx.array(bias[:first]), mx.array(bias[first:])

    @property
    def sealing(self) -> Sealer:
        """What sealed pages are read by."""
        if self.sealer is None:
            raise PlanError("sealed pages are listed, but the arena has none; allocate some first")
        return self.sealer

    def sealed_step(
        self, plain: attention.Attention, listing: Listing, bias: mx.array | None
    ) -> SealedStep | None:
        """What reads the sealed rows of a listing, which may have none."""
        if not listing.modality.size:
            return None
        return SealedStep.of(plain, listing, self.layout, bias, self.sealing.book)

    def move(self, arena: Arena, plan: MovePlan) -> None:
        """Copy cells in all layers; a target may be another's source."""
        count, layout = plan.source.size, self.layout
        held = bool(np.isin(plan.target, plan.source).any())
        dtype = _name(arena.keys[0].dtype)
        shape = count, layout.streams, layout.kv_heads, layout.head_dim
        launch = pages.move(*shape, pages=layout.pages, dtype=dtype, held=held)
        sizes = pages.move_numbers(count, layout.kv_heads, pages=layout.pages, held=held)
        source = np.arange(count, dtype=np.int32) if held else plan.source
        given = {
            "source": _padded(source),
            "target": _padded(plan.target),
            "numbers": mx.array(np.asarray(sizes, np.int32)),
        }
        rows, done = arena.rows(plan.source) if held else None, []
        for layer, (keys, values) in enumerate(zip(arena.keys, arena.values, strict=True)):
            origin = keys, values
            if rows is not None:
                origin = arena.read(layer, rows)
                mx.eval(origin)
            there = {"keys": keys, "values": values}
            there |= {"from_keys": origin[0], "from_values": origin[1]}
            done += self.run(launch, given | there)
            if held:
                # What was read of a layer is let go before the next one's.
                mx.eval(done)
        mx.eval(done)
        mx.synchronize()


@dataclass(frozen=True)
class _Group:
    """Launches and inputs that all layers of a layer group share."""

    store: Launch
    attend: Launch
    merge: Launch | None
    mass: Launch | None
    inputs: dict[str, mx.array]
    stored: dict[str, mx.array]
    places: mx.array | None
    sealed: SealedStep | None


class PagedAttention:
    """One step over the arena by kernels; the twin of :class:`omni_mlx.step.StepAttention`.

    Attributes:
        mass: ``float32[n]`` a layer group, where the plan asks for it; else empty.
    """

    def __init__(
        self,
        plan: StepPlan,
        mirror: TableMirror,
        arena: Arena,
        kernels: Kernels,
    ) -> None:
        self._arena, self._kernels = arena, kernels
        self._rotary = StepRotary(plan.positions, kernels.text)
        self._last: mx.array | None = None
        live = mirror.preview(plan) if plan.mass else []
        self.mass = [mx.zeros(group.cells.size) for group in live]
        listed = mirror.preview_pages(plan)
        # The mirror knows the new tokens by now.
        self._known = kernels.known(mirror, plan.order.size)
        self._groups = [
            self._group(plan, index, pages, live[index].cells if live else None)
            for index, pages in enumerate(listed)
        ]

    def __call__(
        self, group: int, layer: int, queries: mx.array, keys: mx.array, values: mx.array
    ) -> mx.array:
        """Store keys and values of a group's layer, then attend; see ``backbone.Attend``."""
        of, run, arena = self._groups[group], self._kernels.run, self._arena
        dtype = arena.keys[layer].dtype
        new = {"queries": queries, "new_keys": keys, "new_values": values}
        new = {name: x.swapaxes(1, 2).astype(dtype) for name, x in new.items()}
        there = {"keys": arena.keys[layer], "values": arena.values[layer]}
        (turned,) = run(of.store, new | of.stored | there)
        self._last = turned
        given = of.inputs | there | {"queries": turned}
        out, sums = run(of.attend, given)
        if of.sealed is not None:
            out, sums = of.sealed(run, turned, self._read_by(group, layer), out, sums)
        elif of.merge is not None:
            out, sums = run(of.merge, {"found": out, "found_sums": sums})
        if of.mass is not None and of.places is not None:
            more = {"sums": _wide(sums.reshape(-1))}
            wanted = {name: (given | more)[name] for name in of.mass.kernel.inputs}
            (got,) = run(of.mass, wanted)
            self.mass[group] = self.mass[group] + got.sum(axis=(0, 1)).reshape(-1)[of.places]
        return out.swapaxes(1, 2).astype(queries.dtype)

    def pending(self) -> list[mx.array]:
        """What has to be evaluated for all that was asked for to be in the arena."""
        return [*self.mass, *([] if self._last is None else [self._last])]

    def temporary(self, group: int, streams: int, tokens: int) -> int:
        """Bytes that a layer of a group needs while it runs, beside activations, roughly."""
        of = self._groups[group]
        made = of.store.outputs + of.attend.outputs + (of.mass.outputs if of.mass else ())
        made += of.sealed.attend.outputs if of.sealed else ()
        return sum(4 * array.size for array in made)

    def _read_by(self, group: int, layer: int) -> SealedLayer:
        sealer, pages = self._kernels.sealing, self._arena.sealed[layer]
        number = group * self._kernels.layout.layers_per_group + layer
        return SealedLayer(pages, sealer.means[number], sealer.rotations[number])

    def _group(self, plan: StepPlan, index: int, live: ListedPages, cells: Int32 | None) -> _Group:
        kernels, arena = self._kernels, self._arena
        text, layout, count = kernels.text, kernels.layout, plan.order.size
        share = text.q_heads // text.kv_heads
        shifts = np.unique(live.shift).size
        heads = text.kv_heads * layout.streams
        programs = cutting.programs(count, share, heads, kernels.gpu, shifts)
        listing = kernels.listing(index, live, programs)
        order, bias, _ = self._known
        rows = attention.padded_listing(listing, plan.order)
        of = attention.Attention(
            tables=listing.shifts.size,
            streams=layout.streams,
            count=count,
            kv_heads=text.kv_heads,
            group=share,
            head_dim=text.head_dim,
            pages=layout.pages,
            dtype=_name(arena.keys[0].dtype),
            rows=len(rows["rows"]),
            segments=len(rows["segments"]),
            programs=programs,
            biased=bias is not kernels._no_bias,
            tall=kernels.gpu.tall,
        )
        inputs = {name: mx.array(array) for name, array in rows.items()}
        inputs |= {
            "order": order,
            "bias": bias,
            "numbers": mx.array(attention.numbers(of)),
            "scale": mx.array(attention.factor(text.head_dim**-0.5)),
        }
        places = None
        if cells is not None:
            inputs["listed_rows"] = mx.array([of.rows], mx.int32)
            places = mx.array(_places(listing, cells))
        tables = [self._rotary.tables(shift) for shift in (0, *listing.shifts.tolist())]
        cosines, sines = (mx.stack(each) for each in zip(*tables, strict=True))
        cut = {"tables": of.tables, "pages": layout.pages}
        numbers = pages.store_numbers(count, text.q_heads, text.kv_heads, **cut)
        stored = {
            "cosines": cosines,
            "sines": sines,
            "cells": _padded(plan.cells[index], -1),
            "numbers": mx.array(np.asarray(numbers, np.int32)),
        }
        sizes = layout.streams, count, text.q_heads, text.kv_heads, text.head_dim
        return _Group(
            store=pages.store(*sizes, dtype=of.dtype, **cut),
            attend=attention.attend(of),
            merge=attention.merge(of) if programs > 1 else None,
            mass=mass(of) if plan.mass else None,
            inputs=inputs,
            stored=stored,
            places=places,
            sealed=kernels.sealed_step(of, listing, self._known[2]),
        )


def _places(listing: Listing, cells: Int32) -> Int32:
    """Where in a head's ``[rows, PAGE]`` each of these cells stands."""
    found = live_places(listing)
    rank = np.argsort(found.cell)
    at: Int32 = found.place[rank][np.searchsorted(found.cell[rank], cells)]
    return at


def _padded(cells: Int32, rest: int = 0) -> mx.array:
    """With room for as many as a kernel wants at least."""
    short = max(0, CONSTANT_BELOW - cells.size)
    return mx.array(np.pad(cells.astype(np.int32), (0, short), constant_values=rest))


def _wide(flat: mx.array) -> mx.array:
    short = max(0, CONSTANT_BELOW - flat.size)
    return mx.pad(flat, (0, short)) if short else flat


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
