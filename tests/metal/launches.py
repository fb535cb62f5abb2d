"""A launch of every kernel, for tests of the text alone."""

from __future__ import annotations

from metal_kernels import attention, mass, pages, seal, sealed
from omni_core.quantization import SealedLayout


def _attention(
    count: int, programs: int, dtype: str, biased: bool, tall: bool = False
) -> attention.Attention:
    return attention.Attention(
        tables=2,
        streams=1,
        count=count,
        kv_heads=2,
        group=3,
        head_dim=80,
        pages=5,
        dtype=dtype,
        rows=7,
        segments=3,
        programs=programs,
        biased=biased,
        tall=tall,
    )


def _sealed(
    count: int, bits: int, dtype: str, table: bool, programs: int = 1
) -> sealed.SealedAttention:
    return sealed.SealedAttention(
        plain=_attention(count, programs, dtype, False),
        layout=SealedLayout(80, bits),
        first=5,
        pages=3,
        rows=6,
        programs=4,
        table=table,
        biased=count == 1,
    )


LAUNCHES = [
    pages.store(1, 3, 6, 2, 80, tables=2, pages=5, dtype="bfloat16"),
    pages.store(2, 31, 2, 2, 64, tables=1, pages=5, dtype="float32"),
    pages.move(9, 1, 2, 128, pages=5, dtype="float16"),
    pages.move(9, 1, 2, 128, pages=5, dtype="float32", held=True),
    attention.attend(_attention(1, 1, "float16", False)),
    attention.attend(_attention(1, 3, "bfloat16", True)),
    attention.attend(_attention(65, 1, "bfloat16", True)),
    attention.attend(_attention(65, 1, "bfloat16", False, tall=True)),
    attention.attend(_attention(65, 2, "float32", False)),
    attention.merge(_attention(1, 3, "bfloat16", True)),
    mass.mass(_attention(3, 1, "float16", False)),
    mass.mass(_attention(65, 2, "float32", True)),
    sealed.attend_sealed(_sealed(1, 2, "bfloat16", False)),
    sealed.attend_sealed(_sealed(65, 3, "float32", True)),
    sealed.attend_sealed(_sealed(65, 3, "float16", True)),
    sealed.attend_sealed(_sealed(65, 4, "bfloat16", False)),
    sealed.merge_sealed(_sealed(1, 2, "bfloat16", False)),
    sealed.merge_sealed(_sealed(1, 2, "float16", False, 3)),
    seal.store_sealed(seal.Sealing(SealedLayout(80, 3), 1, 2, 5, 2, True, "bfloat16")),
    seal.store_sealed(seal.Sealing(SealedLayout(64, 2), 1, 2, 5, 6, False, "float16")),
]
