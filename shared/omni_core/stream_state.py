"""What a stream is at, as JSON values and back: its cache, and where its next token goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from omni_core.aggregation.places import Places
from omni_core.backend import PAGE, Backend, RestorePlan
from omni_core.cache import Cache
from omni_core.errors import OmniError, RecordingError
from omni_core.frontend.base import Bracket, Cursor
from omni_core.ledger import Ledger
from omni_core.paging.table import PageTables
from omni_core.saving import SEALED
from omni_core.state import expect, flag, listed, number, whole
from omni_core.tensor_file import Array
from omni_core.units import Int32

Stored = Callable[[str, tuple[int, ...]], Array]
"""Gives a tensor by name, if it is of that shape."""
_EMBEDDINGS = "embeddings"
"""The tensor of what live tokens stand for places of the picture."""
_COUNTERS = ("turn", "unit", "evicted", "most_cells", "peak_cells", "peak_span")


def cache_state(cache: Cache) -> dict[str, Any]:
    """What decides in a cache.

    Raises:
        OmniError: a unit or an answer runs.
        PlanError: another session has taken the arena over.
    """
    cache.check_arena()
    if (cache.ledger.view().unit[-1:] >= cache.unit).any():
        raise OmniError("a session is saved between units and answers, and one is running")
    sealed = cache.tables.arena.sealed_pages > 0
    return {
        "arena": cache.tables.arena.state(),
        **({"sealed_by": cache.backend.sealed_by()} if sealed else {}),
        **({"refused": cache.refused.tolist()} if cache.refused.size else {}),
        "ledger": cache.ledger.state(),
        "tables": cache.tables.state(),
        "frames": cache.frames.state(),
        **({"highs": cache.highs.tolist()} if cache.layers else {}),
        **({"signals": cache.signals.state()} if cache.signals else {}),
        **({"places": _places(cache).state()} if cache.aggregator else {}),
        **{name: getattr(cache, name) for name in _COUNTERS},
    }


def shapes(ledger: Ledger, tables: PageTables) -> dict[str, tuple[int, ...]]:
    """The tensors of a cache by name: ``keys.0``, ``values.0`` and so on, layer by layer.

    Each is ``[streams, n, kv_heads, head_dim]``, the live tokens of 16 bits oldest first. With
    sealed pages, ``sealed.0`` follows, ``uint8[streams, n, kv_heads, bytes]``, by page.
    """
    found: dict[str, tuple[int, ...]] = {}
    arena = tables.arena
    for layer, (cells, pages) in enumerate(_held(ledger, tables)):
        for kind in ("keys", "values"):
            shape = (arena.streams, cells.size, arena.kv_heads, arena.head_dim)
            found[f"{kind}.{layer}"] = shape
        if arena.sealed_pages:
            shape = (arena.streams, pages.size, arena.kv_heads, arena.sealed.bytes)
            found[f"{SEALED}.{layer}"] = shape
    return found


def embedding_shapes(cache: Cache) -> dict[str, tuple[int, ...]]:
    """Behind those of :func:`shapes`, of a stream that is aggregated: ``[n, hidden]`` by slot."""
    slots = _places(cache).slots
    return {_EMBEDDINGS: (slots.size, cache.hidden)} if slots.size else {}


def arrays(cache: Cache) -> Iterator[Array]:
    """The tensors of :func:`shapes` and :func:`embedding_shapes`, one layer's at a time."""
    for layer, (cells, pages) in enumerate(_held(cache.ledger, cache.tables)):
        yield from cache.backend.read(layer, cells)
        if cache.tables.arena.sealed_pages:
            yield cache.backend.read_sealed(layer, pages)
    slots = _places(cache).slots
    if cache.aggregator and slots.size:
        yield cache.aggregator.memory.read(slots)


def restore_cache(cache: Cache, state: Mapping[str, Any], stored: Stored) -> None:
    """Have a cache with the same settings on the same model hold what was saved.

    Args:
        cache: whose arena has just been allocated.
        state: what :func:`cache_state` gave.
        stored: gives a tensor by name, if it is of that shape.

    Raises:
        ValueError, KeyError, TypeError: no such state fits.
        RecordingError: what was sealed would be read by other tables.
    """
    for name in _COUNTERS:
        setattr(cache, name, whole(state[name]))
    if cache.layers:
        highs = listed(state["highs"], np.int64, cache.highs.size)
        expect(int(highs.sum()) == int(cache.highs.sum()), "budgets of layers of the same sum")
        cache.highs = highs
    if cache.signals:
        cache.signals = cache.signals.restored(state["signals"])
    restore_arena(cache.backend, cache.ledger, cache.tables, state, stored)
    units = cache.ledger.view().unit
    expect(bool((units < cache.unit).all()), "tokens of units before the next one")
    cache.refused = listed(state.get("refused", []), np.int64, None)
    cache.frames = cache.frames.restored(state["frames"], cache.tables.frames())
    if cache.aggregator:
        places = Places.restored(state["places"], cache.ledger.view())
        if places.slots.size:
            rows = stored(_EMBEDDINGS, (places.slots.size, cache.hidden))
            cache.aggregator.memory.write(places.slots, rows)
        cache.aggregator.places = places


def restore_arena(
    backend: Backend,
    ledger: Ledger,
    tables: PageTables,
    state: Mapping[str, Any],
    stored: Stored,
) -> None:
    """The part of :func:`restore_cache` that concerns an arena, and what is known of its cells."""
    arena = tables.arena.state()
    expect(state["arena"] == arena, f"an arena of {arena}, as this version lays it out")
    if tables.arena.sealed_pages and state["sealed_by"] != backend.sealed_by():
        raise RecordingError(
            "its pages were sealed with other tables of values than this model's folder has now: "
            "give the folder the values.safetensors that it had then"
        )
    ledger.restore(state["ledger"])
    view = ledger.view()
    alive = view.cells >= 0
    cells = tuple(row[held] for row, held in zip(view.cells, alive, strict=True))
    delta = tables.restore(state["tables"], cells)
    wanted = shapes(ledger, tables)
    for layer, (held, pages) in enumerate(_held(ledger, tables)):
        keys, values = (stored(n, wanted[n]) for n in (f"keys.{layer}", f"values.{layer}"))
        backend.write(layer, held, keys, values)
        if tables.arena.sealed_pages:
            name = f"{SEALED}.{layer}"
            backend.write_sealed(layer, pages, stored(name, wanted[name]))
    order, counts = (tuple(column[held] for held in alive) for column in (view.order, view.count))
    backend.restore(RestorePlan(cells, order, counts, delta))


def restored_cursor(state: Mapping[str, Any]) -> Cursor:
    """The cursor whose fields are given.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    position, bracket = whole(state["position"]), state["bracket"]
    if bracket is None:
        return Cursor(position)
    return Cursor(
        position,
        Bracket(
            whole(bracket["base"]),
            flag(bracket["vision"]),
            flag(bracket["audio"]),
            whole(bracket["frames"]),
            whole(bracket["heard"]),
            whole(bracket["last"], least=-1),
            flag(bracket["short"]),
            number(bracket["stop"]),
        ),
    )


def _places(cache: Cache) -> Places:
    """What live tokens stand for in the picture."""
    return cache.aggregator.places.among(cache.ledger.view()) if cache.aggregator else Places()


def _held(ledger: Ledger, tables: PageTables) -> Iterator[tuple[Int32, Int32]]:
    """The live cells of 16 bits, and the sealed pages, of each layer of the model."""
    arena = tables.arena
    for group in range(arena.groups):
        cells = ledger.view().cells[group]
        plain = cells[(cells >= 0) & (cells < arena.pages * PAGE)]
        pages = np.unique(cells[cells >= arena.pages * PAGE] // PAGE)
        for _ in range(arena.layers_per_group):
            yield plain, pages
