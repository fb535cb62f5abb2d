"""Attention over sealed pages, by the text that ships, against the float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metal_kernels import sealed
from metal_kernels.launch import Array, Kernel, Launch
from metal_kernels.loader import Text, load
from omni_core.quantization import SealedLayout
from tests.attended import Float64, spread
from tests.metal.cases import Run
from tests.metal.runner import run
from tests.metal.sealed_cases import Case, Size, attend, make_case

TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}
SUMS = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 5e-3}

# Sealed cells, plain ones, queries, key heads, group, head_dim, bits, streams, tables, modalities.
SIZES = [
    Size(1, 1, 1, 1, 7, 128, 2),
    Size(31, 9, 1, 2, 4, 64, 2, 2, 2, 2, 2, False, "bfloat16"),
    Size(33, 40, 1, 1, 8, 96, 3, 1, 1, 3, 1, True, "float16", "omnikvquant"),
    Size(65, 33, 3, 2, 3, 80, 4, 1, 2, 2, 2, True, "float32"),
    Size(200, 65, 2, 2, 3, 128, 2, 1, 2, 3, 4, True, "bfloat16"),
    Size(65, 1, 1, 2, 1, 80, 2, 2, 1, 2, 2, True, "float32", "omnikvquant"),
    Size(170, 65, 4, 1, 7, 64, 3, 1, 1, 2, 3, True, "float32"),
]

MANY = [
    Size(65, 33, 9, 1, 2, 64, 2, 2, 2, 2, 2, True, "float16"),
    Size(130, 65, 17, 1, 7, 128, 2, 1, 1, 3, 1, False, "bfloat16"),
    Size(63, 9, 79, 1, 1, 80, 3, 1, 1, 2, 2, True, "float16"),
    Size(65, 33, 33, 1, 3, 96, 4, 1, 1, 1, 3, True, "bfloat16", "omnikvquant"),
    Size(33, 31, 9, 1, 4, 128, 4, 1, 1, 2, 2, True, "float32"),
]
"""Of more queries than all simdgroups share, but for float32."""


def check(case: Case, found: tuple[Float64, Float64]) -> None:
    out, sums = case.attended()
    assert spread(found[0], out) < TOLERANCE[case.size.dtype]
    np.testing.assert_allclose(found[1], sums, atol=SUMS[case.size.dtype], rtol=1e-3)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_few_queries_equal_the_oracle(size: Size, run_kernel: Run) -> None:
    case = make_case(size)
    check(case, attend(case, run=run_kernel))


@pytest.mark.parametrize("size", MANY, ids=str)
def test_many_queries_equal_the_oracle(size: Size, run_kernel: Run) -> None:
    case = make_case(size)
    assert case.attention().cut.few == (size.dtype == "float32")
    check(case, attend(case, run=run_kernel))


def test_sixteen_lines_a_simdgroup_equal_the_oracle(run_kernel: Run) -> None:
    case = make_case(MANY[1], tall=True)
    assert sealed.attend_sealed(case.attention()).template[-2:] == (2, 4)
    check(case, attend(case, run=run_kernel))


@pytest.mark.parametrize("run_kernel", ["gpu"], indirect=True)
@pytest.mark.parametrize("codec", ["fitted", "omnikvquant"])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 4, 100])
def test_large_cases_equal_the_oracle(count: int, bits: int, codec: str, run_kernel: Run) -> None:
    dtype = "float16" if bits == 3 else "bfloat16"
    size = Size(1000, 200, count, 4, 7, 128, bits, 1, 2, 3, 16, True, dtype, codec)
    case = make_case(size, tall=bits != 4)
    check(case, attend(case, run=run_kernel))


@pytest.mark.parametrize("count", [2, 17])
def test_what_sees_no_cell_of_16_bits_sees_the_sealed_ones(count: int, run_kernel: Run) -> None:
    case = make_case(Size(40, 20, count, 1, 4, 64, 2, 1, 1, 2), blind=count - 1)
    assert not np.isneginf(case.attended()[1]).any()
    check(case, attend(case, run=run_kernel))


@pytest.mark.parametrize("count", [1, 17])
def test_without_a_live_sealed_cell_the_others_are_seen(count: int, run_kernel: Run) -> None:
    case = make_case(Size(0, 20, count, 1, 4, 64, 2, 1, 1, 2, 4), blind=count - 1)
    out, sums = attend(case, run=run_kernel)
    assert (out[:, : count - 1] == 0).all() and np.isneginf(sums[:, : count - 1]).all()
    check(case, (out, sums))


def test_what_is_no_number_does_not_vanish() -> None:
    case = make_case(Size(40, 20, 1, 2, 3, 64, 2, 1, 1, 2))
    case.near.queries[:, :, :, 4, 7] = np.nan
    out, sums = attend(case)
    assert np.isnan(out[0, 0, 4]).all() and np.isnan(sums[0, 0, 4])
    assert np.isfinite(np.delete(out, 4, axis=2)).all()


def run_form(body: str, count: int) -> list[int]:
    """Numbers that a text gives which knows sealed pages."""
    kernel = Kernel("form", ("numbers",), ("out",), (), frozenset({"numbers"}))
    threads = (32, 1, 1)
    given, made = Array((6,), "int32"), Array((count,), "int64")
    launch = Launch(kernel, (), threads, threads, (given,), (made,))
    sizes = np.asarray([1, 8, 1, 5, 1 << 19, 0], np.int32)
    found: list[int] = run(launch, {"numbers": sizes}, Text(load("sealed_decode").header, body))[
        "out"
    ].tolist()
    return found


def test_pages_lie_as_they_are_defined() -> None:
    names = ("KEY_BYTES", "VALUE_BYTES", "VALUES_AT", "RANGES_AT", "KEY_SCALES_AT")
    names += ("VALUE_SCALES_AT", "EXPONENTS_AT", "BYTES")
    forms = [(head_dim, bits) for head_dim in range(16, 129, 16) for bits in (2, 3, 4)]
    body = "\n".join(
        f"out[{i * len(names) + j}] = Form<{head_dim}, {bits}>::{name};"
        for i, (head_dim, bits) in enumerate(forms)
        for j, name in enumerate(names)
    )
    found = run_form(body, len(forms) * len(names))
    expected = []
    for head_dim, bits in forms:
        of = SealedLayout(head_dim, bits)
        expected += [of.key_code_bytes, of.value_code_bytes, of.value_codes, of.ranges]
        expected += [of.key_scales, of.value_scales, of.exponents, of.bytes]
    assert found == expected


def test_an_arena_may_hold_more_bytes_than_31_bits_count() -> None:
    pages, kv_heads, size = 1 << 19, 8, SealedLayout(128, 2).bytes
    body = (
        "const Program of = program_of(numbers, uint3{0, 3 * 8 + 7, 0}, uint3{1, 4 * 8, 1});\n"
        "const device uchar* none = nullptr;\n"
        "const device uchar* head = sealed_head<128, 2>(none, of);\n"
        f"const Row row = {{0u, {2 * (pages + 4) + 1}u, 0u, 9u}};\n"
        "const Sealed at = sealed_at<128, 2>(head, row, true, 5u, of.sizes.kv_heads);\n"
        "out[0] = head - none;\nout[1] = at.page - head;\nout[2] = at.which;\nout[3] = at.alive;\n"
        "out[4] = at.known;\n"
    )
    found = run_form(body, 5)
    assert found == [
        (3 * pages * kv_heads + 7) * size,
        (pages - 1) * kv_heads * size,
        *(1, 9, pages * 64 - 32),
    ]
    assert min(found[:2]) > 1 << 31


def test_another_head_dim_than_the_layouts_is_refused() -> None:
    of = make_case(SIZES[0]).attention()
    with pytest.raises(ValueError, match="head_dim 64; 128 is expected"):
        replace(of, layout=SealedLayout(64, 2))
