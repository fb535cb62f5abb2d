"""Sealing by a kernel against the definition in NumPy, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from omni_core.backend import PAGE, SUBBLOCK
from omni_core.errors import BackendError
from omni_core.quantization import LayerTables, SealedLayout, codec, seal, store
from omni_core.quantization.key_feedback import feedback
from omni_core.units import Modality

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
sealed_store = pytest.importorskip("omni_cuda.kernels.sealed_store")


class Size(NamedTuple):
    """Shapes of what is sealed."""

    subblocks: int
    head_dim: int
    bits: int
    kv_heads: int = 2
    layers: int = 1
    streams: int = 1
    means: bool = False
    feedback: bool = False
    dtype: str = "float16"


SIZES = [
    Size(2, 128, 2, 1, layers=2, streams=2),
    Size(2, 64, 2, means=True, feedback=True),
    Size(2, 80, 2, 1, dtype="bfloat16"),
    Size(2, 96, 2, 1, means=True),
    Size(2, 64, 3, 1, feedback=True),
    Size(2, 80, 3, means=True),
    Size(2, 96, 3, 1, dtype="float32"),
    Size(2, 128, 3, 1),
    Size(2, 64, 4, 1),
    Size(2, 16, 3, 1, feedback=True),
    Size(2, 80, 4, 1, feedback=True),
    Size(2, 96, 4, 2),
    Size(2, 128, 4, 1, means=True),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bytes_are_the_definitions(size: Size, kernel_device: str) -> None:
    draw = np.random.default_rng(list(size[:6]))
    layout, chosen = SealedLayout(size.head_dim, size.bits), codec(bits=size.bits)
    pages, sealed_pages, d = 6, 4, size.head_dim
    shape = (size.layers, size.streams, pages, size.kv_heads, PAGE, d)
    stored = [torch.from_numpy(draw.standard_normal(shape, np.float32)) for _ in range(2)]
    # A sink, a large channel, a key and a value of 0.
    cells = draw.permutation(pages * PAGE)[: size.subblocks * SUBBLOCK].reshape(-1, SUBBLOCK)
    flat = [part.permute(0, 1, 2, 4, 3, 5).flatten(2, 3) for part in stored]
    flat[0][:, :, cells[0, 3]] *= 40
    flat[0][:, :, :, :, 5] += 60
    flat[0][:, :, cells[0, 7]] = 0
    flat[1][:, :, cells[0, 9]] = 0
    stored = [
        part.unflatten(2, (pages, PAGE)).permute(0, 1, 2, 4, 3, 5).contiguous() for part in flat
    ]
    dtype = getattr(torch, size.dtype)
    keys, values = (part.to(dtype) for part in stored)
    source = cells.astype(np.int32)
    source[-1, 11:] = -1
    target = draw.permutation(sealed_pages * 2)[: size.subblocks].astype(np.int32)
    kinds = draw.integers(0, len(Modality), size.subblocks).astype(np.int32)
    tables = []
    for layer in range(size.layers):
        plain = LayerTables.uncalibrated(layer, size.kv_heads, d)
        turns = np.linalg.qr(draw.standard_normal((size.kv_heads, len(Modality), d, d)))[0]
        means = draw.standard_normal((size.kv_heads, d)).astype(np.float32)
        about = replace(plain, rotations=turns.astype(np.float32))
        about = replace(about, key_means=means) if size.means else about
        if size.feedback:
            queries = draw.standard_normal((size.kv_heads, 3 * d, d)) * np.geomspace(1, 9, d)
            about = replace(about, feedback=feedback(queries.swapaxes(1, 2) @ queries))
        tables.append(about)
    empty = draw.integers(
        0, 256, (size.layers, size.streams, sealed_pages, size.kv_heads, layout.bytes), np.uint8
    )
    wanted = empty.copy()
    for layer, about in enumerate(tables):
        for stream in range(size.streams):
            for which, kind in enumerate(kinds):
                some = source[which][source[which] >= 0]
                k, v = (
                    part[layer, stream][some // PAGE, :, some % PAGE].float().numpy()
                    for part in (keys, values)
                )
                part = seal(k, v, Modality(kind), chosen, about)
                page, half = divmod(int(target[which]), 2)
                store(part, layout, wanted[layer, stream, page], half)

    def there(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(kernel_device)

    faults = torch.zeros(size.layers, dtype=torch.int32, device=kernel_device)
    found = there(empty)
    sealed_store.seal_cells(
        there(source),
        there(target),
        there(kinds),
        keys.to(kernel_device),
        values.to(kernel_device),
        found,
        layout,
        sealed_store.SealTables(
            there(np.stack([each.rotations for each in tables]).transpose(0, 2, 1, 4, 3)),
            there(np.stack([each.key_means for each in tables])) if size.means else None,
            there(np.stack([each.feedback for each in tables])) if size.feedback else None,
        ),
        faults,
    )
    assert not faults.any()
    assert np.array_equal(found.cpu().numpy(), wanted)


@pytest.mark.parametrize(
    ("where", "number", "fault"),
    [("keys", float("nan"), 1), ("values", float("inf"), 1), ("values", 2e5, 2), ("keys", 9e4, 0)],
)
def test_what_cannot_be_sealed_is_told(
    where: str, number: float, fault: int, kernel_device: str
) -> None:
    layout = SealedLayout(64, 2)
    stored = {name: torch.ones(2, 1, 1, 1, PAGE, 64) for name in ("keys", "values")}
    stored[where][1, 0, 0, 0, 5, 7:] = number
    faults = torch.zeros(2, dtype=torch.int32, device=kernel_device)
    turns = np.stack([LayerTables.uncalibrated(0, 1, 64).rotations.swapaxes(0, 1)] * 2)
    sealed_store.seal_cells(
        torch.arange(32, dtype=torch.int32, device=kernel_device)[None],
        torch.zeros(1, dtype=torch.int32, device=kernel_device),
        torch.zeros(1, dtype=torch.int32, device=kernel_device),
        stored["keys"].to(kernel_device),
        stored["values"].to(kernel_device),
        torch.zeros(2, 1, 1, 1, layout.bytes, dtype=torch.uint8, device=kernel_device),
        layout,
        sealed_store.SealTables(torch.from_numpy(turns).to(kernel_device)),
        faults,
    )
    assert faults.tolist() == [0, fault]


def test_other_codecs_are_refused() -> None:
    sealed_store.check_codec(codec("fitted", 3))
    with pytest.raises(BackendError, match="codec omnikvquant on a GPU, expected fitted: choose"):
        sealed_store.check_codec(codec("omnikvquant", 3))
