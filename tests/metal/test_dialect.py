"""What the runner computes in Metal's stead: numbers, vectors, matrices, and lanes together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from metal_kernels.launch import Array, Kernel, Launch
from metal_kernels.loader import Text
from tests.metal.numbers import read, stored
from tests.metal.runner import run
from tests.metal.texts import run_text


def _each(header: str, expression: str, x: np.ndarray, dtype: str, made: str) -> np.ndarray:
    """What each lane of two simdgroups makes of its number."""
    body = (
        "const uint i = thread_index_in_threadgroup;\n"
        "const uint lane = thread_index_in_simdgroup;\n"
        f"out[i] = {expression};"
    )
    return run_text(header, body, {"x": (x, dtype)}, Array((64,), made))["out"]


NUMBERS = np.random.default_rng(0).standard_normal(64).astype(np.float32)
HALVES = NUMBERS.reshape(2, 32)

TOGETHER = {
    "simd_sum(x[i])": np.repeat(HALVES.sum(1), 32),
    "simd_max(x[i])": np.repeat(HALVES.max(1), 32),
    "simd_min(x[i])": np.repeat(HALVES.min(1), 32),
    "simd_broadcast(x[i], 5)": np.repeat(HALVES[:, 5], 32),
    "simd_broadcast_first(x[i])": np.repeat(HALVES[:, 0], 32),
    "simd_shuffle(x[i], 31 - lane)": HALVES[:, ::-1].ravel(),
    "simd_shuffle_xor(x[i], 4)": HALVES[:, np.arange(32) ^ 4].ravel(),
    "simd_shuffle_down(x[i], 3)": HALVES[:, np.minimum(np.arange(3, 35), 31)].ravel(),
    "simd_shuffle_up(x[i], 3)": HALVES[:, np.arange(32) - 3 * (np.arange(32) > 2)].ravel(),
    "simd_prefix_inclusive_sum(x[i])": np.cumsum(HALVES, 1).ravel(),
    "simd_any(x[i] > 2.0f) + 2 * simd_all(x[i] > -9.0f)": np.repeat(2 + (HALVES > 2).any(1), 32),
}
TOGETHER["simd_shuffle_down(x[i], 3)"][[29, 30, 61, 62]] = NUMBERS[[29, 30, 61, 62]]


@pytest.mark.parametrize("expression", TOGETHER)
def test_lanes_of_a_simdgroup_share(expression: str) -> None:
    made = _each("", expression, NUMBERS, "float32", "float32")
    np.testing.assert_allclose(made, TOGETHER[expression], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_numbers_are_read_and_rounded_as_numpy_does(dtype: str) -> None:
    every = np.arange(2**16, dtype=np.uint16)
    name = {"float16": "float16_t", "bfloat16": "bfloat16_t"}[dtype]
    # Each number, and what lies at and beside the middle between it and the next.
    body = (
        "const uint i = thread_position_in_grid.x;\n"
        f"const float wide = float(as_type<{name}>(x[i]));\n"
        "const uint bits = as_type<uint>(wide);\n"
        f"const uint step = {0x800 if dtype == 'float16' else 0x4000}u;\n"
        "out[i] = bits;\n"
        "for (uint k = 1; k < 4; ++k) {\n"
        "    const float between = as_type<float>(bits + k * step);\n"
        f"    out[i + k * 65536] = as_type<ushort>({name}(between));\n"
        "}"
    )
    made = run_text("", body, {"x": (every, "uint16")}, Array((4, 2**16), "uint32"), 1024)["out"]
    wide = read(every if dtype == "bfloat16" else every.view(np.float16), dtype)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(made[0].view(np.float32), wide.astype(np.float32))
    step = np.uint32(0x800 if dtype == "float16" else 0x4000)
    normal = np.isfinite(wide)
    for k in range(1, 4):
        between = (made[0] + np.uint32(k) * step).view(np.float32)[normal]
        with np.errstate(over="ignore"):
            expected = stored(between, dtype).view(np.uint16)
        finite = ~np.isnan(between)
        np.testing.assert_array_equal(made[k][normal][finite], expected[finite])


def test_short_numbers_round_after_each_operation() -> None:
    x = np.linspace(1, 2, 64, dtype=np.float32)
    expression = (
        "float(half(x[i]) * half(3) + half(x[i])) + 1000.0f * float(bfloat(x[i]) / bfloat(3))"
    )
    made = _each("", expression, x, "float32", "float32")
    half = x.astype(np.float16)
    coarse = read(stored(read(stored(x, "bfloat16"), "bfloat16") / 3, "bfloat16"), "bfloat16")
    expected = (half * np.float16(3) + half).astype(np.float64) + 1000 * coarse
    np.testing.assert_allclose(made, expected, rtol=1e-6)


def test_vectors_have_their_parts() -> None:
    header = """
inline float parts(float a) {
    float4 v(a, 2.0f * a, 3.0f, 4.0f);
    v.zw += v.xy;
    float2 halves = v.hi * 0.5f + float2(1.0f, 0.0f);
    half4 narrow = half4(v);
    uint4 words = uint4(1u, 2u, 3u, 4u) << 4u;
    return dot(v, float4(1.0f, 10.0f, 100.0f, 1000.0f)) + halves.x + float(narrow[3]) * 1e5f +
        float(words.w & 0xf0u);
}
"""
    x = np.arange(64, dtype=np.float32)
    expected = x + 20 * x + 100 * (3 + x) + 1000 * (4 + 2 * x) + (3 + x) / 2 + 1 + (4 + 2 * x) * 1e5
    made = _each(header, "parts(x[i])", x, "float32", "float32")
    np.testing.assert_allclose(made, expected + 64, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_matrices_multiply_by_simdgroups(dtype: str) -> None:
    name = {"float32": "float", "float16": "half", "bfloat16": "bfloat"}[dtype]
    draw = np.random.default_rng(1)
    a, b = (stored(draw.standard_normal((24, 24)), dtype) for _ in range(2))
    body = (
        f"simdgroup_matrix<{name}, 8, 8> a, b, turned;\n"
        "simdgroup_float8x8 c = make_filled_simdgroup_matrix<float, 8, 8>(0.5f);\n"
        "simdgroup_load(a, x, 24, ulong2(8, 16));\n"
        "simdgroup_load(b, y + 3, 24);\n"
        "simdgroup_load(turned, y + 3, 24, ulong2(0, 0), true);\n"
        "simdgroup_multiply_accumulate(c, a, b, c);\n"
        "c.thread_elements()[0] *= 2.0f;\n"
        "const uint half_group = simdgroup_index_in_threadgroup;\n"
        "if (half_group == 1) simdgroup_multiply(c, turned, simdgroup_matrix<float, 8, 8>(1.0f));\n"
        "simdgroup_store(c, out + half_group * 64, 8, ulong2(0, 0), half_group == 1);"
    )
    made = run_text("", body, {"x": (a, dtype), "y": (b, dtype)}, Array((2, 8, 8), "float32"))[
        "out"
    ]
    a, b = read(a, dtype)[16:, 8:16], read(b, dtype)
    right = np.stack([b.ravel()[3 + 24 * i :][:8] for i in range(8)])
    expected = a @ right + 0.5
    expected[:, ::2] *= 2
    np.testing.assert_allclose(made[0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made[1], right, rtol=1e-6)


def test_threads_know_where_they_are() -> None:
    kernel = Kernel("where", ("x",), ("out",))
    grid, group = (192, 3, 2), (64, 1, 1)
    count = math.prod(grid)
    launch = Launch(
        kernel, (), grid, group, (Array((8,), "int32"),), (Array((count, 8), "uint32"),)
    )
    body = """
const uint3 at = thread_position_in_grid;
const uint3 all = threads_per_grid;
device uint* to = out + ((at.z * all.y + at.y) * all.x + at.x) * 8;
const uint3 group = threadgroup_position_in_grid;
to[0] = thread_position_in_threadgroup.x + group.x * threads_per_threadgroup.x;
to[1] = group.y;
to[2] = group.z;
to[3] = thread_index_in_threadgroup;
to[4] = simdgroup_index_in_threadgroup * 32 + thread_index_in_simdgroup;
to[5] = simdgroups_per_threadgroup;
to[6] = threadgroups_per_grid.x * 100 + threadgroups_per_grid.y * 10 + threadgroups_per_grid.z;
to[7] = x_shape[0] + uint(x_strides[0]) + x_ndim + uint(x[0]);
"""
    made = run(launch, {"x": np.full(8, 5, np.int32)}, Text("", body))["out"]
    z, y, x = np.unravel_index(np.arange(count), grid[::-1])
    np.testing.assert_array_equal(made[:, :5], np.stack([x, y, z, x % 64, x % 64], 1))
    np.testing.assert_array_equal(made[:, 5:], [[2, 332, 15]] * count)


def test_atomics_add_across_threadgroups() -> None:
    body = (
        "atomic_fetch_add_explicit((device atomic_uint*)counts, 1u, memory_order_relaxed);\n"
        "out[0] = 1;"
    )
    counts = np.zeros(8, np.uint32)
    made = run_text(
        "", body, {"counts": (counts, "uint32")}, Array((8,), "int32"), 3, 64, frozenset({"counts"})
    )
    assert made["counts"][0] == 192


def test_what_no_lane_writes_is_no_number() -> None:
    made = run_text(
        "",
        "if (x[0] > 0) out[1] = 2;",
        {"x": (NUMBERS[:8] ** 2, "float32")},
        Array((3,), "float32"),
    )
    np.testing.assert_array_equal(made["out"], [np.nan, 2, np.nan])
