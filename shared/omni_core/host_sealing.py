"""Sealing on the host, by the code that defines the bytes, for any backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from omni_core.backend import PAGE, ArenaLayout, MovePlan
from omni_core.paging.mirror import TableMirror
from omni_core.quantization import LayerTables, codec, seal, store
from omni_core.units import Int32, Modality

Bytes = npt.NDArray[np.uint8]
Cells = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
"""Keys and values ``[n, streams, kv_heads, D]``."""


def coded(
    plan: MovePlan,
    mirror: TableMirror,
    layout: ArenaLayout,
    tables: Sequence[LayerTables],
    gather: Callable[[int, Int32], Cells],
    read: Callable[[int, Int32], Bytes],
) -> list[tuple[int, Int32, Bytes]]:
    """What a plan's seals make of sealed pages, in all layers and streams; nothing is written.

    Args:
        plan: has seals.
        mirror: page tables before it.
        layout: of the arena.
        tables: of each layer of the model.
        gather: gives 16-bit cells of a group's layer.
        read: gives pages of a group's layer, ``uint8[streams, n, kv_heads, bytes]``.

    Returns:
        A group's layer, pages ``int32[n]`` and their bytes, as often as there is any.

    Raises:
        BackendError: a number is not finite, or a value too large; it names the layer.
    """
    group = mirror.group[plan.seals.source[:, 0] // PAGE]
    modality, each, form = mirror.sealed_modality(plan), layout.layers_per_group, layout.sealed
    chosen_codec = codec(layout.codec, layout.bits)
    made = []
    for own in np.unique(group).tolist():
        chosen = group == own
        source, target = plan.seals.source[chosen], plan.seals.target[chosen]
        filled = source >= 0
        cuts = np.cumsum(filled.sum(axis=1))[:-1]
        pages, at = np.unique(target // 2, return_inverse=True)
        for layer in range(each):
            keys, values = (np.split(part, cuts) for part in gather(layer, source[filled]))
            stored = read(layer, pages).copy()
            for n, kind in enumerate(modality[chosen].tolist()):
                for stream in range(layout.streams):
                    pair = keys[n][:, stream], values[n][:, stream]
                    found = seal(*pair, Modality(kind), chosen_codec, tables[own * each + layer])
                    store(found, form, stored[stream, at[n]], int(target[n]) % 2)
            made.append((layer, pages, stored))
    return made
