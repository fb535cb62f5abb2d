"""What the runner finds wrong."""

from __future__ import annotations

import numpy as np
import pytest

from metal_kernels.launch import Array, Kernel, Launch
from metal_kernels.loader import Text
from tests.metal import runner
from tests.metal.numbers import nan
from tests.metal.runner import KernelFault, run
from tests.metal.texts import run_text

NUMBERS = np.random.default_rng(0).standard_normal(64).astype(np.float32)

HEADER = """
inline float work(const device float* x, threadgroup float* tile, int n, uint i, uint lane) {
    tile[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = simd_sum(tile[(i + 1) % n]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    tile[i] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return tile[(i + 32) % n];
}
"""
BODY = """
threadgroup float tile[N];
const uint i = thread_index_in_threadgroup;
out[i] = work(x, tile, N, i, thread_index_in_simdgroup);
"""
FIRST = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    float sum"
SECOND = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    tile"
THIRD = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    return"
FAULTS = {
    "no barrier after a write": (FIRST, "    float sum", "`out` depends on the order of lanes"),
    "no barrier before a write": (SECOND, "    tile", "`out` depends on the order of lanes"),
    "no barrier at the end": (THIRD, "    return", "`out` depends on the order of lanes"),
    "unwritten memory": ("tile[i] = x[i]", "if (i) tile[i] = x[i]", "memory that nobody wrote"),
    "read behind": (
        "= x[i]",
        "= x[i + 1]",
        r"read beyond `x`, which has 256 bytes: at byte 256; .* lane 63; in tried.metal:3",
    ),
    "read before": ("= x[i]", "= x[int(i) - 1]", "read beyond `x`, .* at byte -4"),
    "far away": ("= x[i]", "= x[int(i + 1) << 31 >> 1]", "read beyond `x`"),
    "tile behind": (
        "tile[i] = s",
        "tile[i + 1] = s",
        "beyond `tile`, which has 256 bytes: at byte 256",
    ),
    "tile before": ("tile[i] = s", "tile[int(i) - 1] = s", "wrote beyond `tile`, .* byte -4"),
    "an input": ("tile[i] = s", "((device float*)x)[i] = s", "wrote to the input `x`; .*, lane 0"),
    "a lane left": (
        "    float sum",
        "    if (i == 35) return 0;\n    float sum",
        "lane 35 has ended",
    ),
    "half a barrier": (
        FIRST,
        "    if (i < 32) threadgroup_barrier(mem_flags::mem_threadgroup);\n    float sum",
        r"waits in tried.metal:6, and lane 0 in tried.metal:4",
    ),
    "two barriers": (
        SECOND,
        "    if (i < 32) threadgroup_barrier(mem_flags::mem_none);\n"
        "    else threadgroup_barrier(mem_flags::mem_threadgroup);\n    tile",
        r"waits in tried.metal:7, and lane 0 in tried.metal:6; threadgroup \(0, 0, 0\), lane 32",
    ),
    "a part of a simdgroup": (
        "simd_sum(",
        "lane == 3 ? 0.0f : simd_sum(",
        "but lane 3 waits at a barrier",
    ),
    "two sums": (
        "    float sum = simd_sum(tile[(i + 1) % n]);",
        "    float sum;\n    if (lane < 5) sum = simd_sum(1.0f);\n    else sum = simd_sum(2.0f);",
        "waits in tried.metal:7, and lane 0 in tried.metal:6",
    ),
    "no such lane": ("simd_sum(", "simd_shuffle(tile[i], 32) + simd_sum(", "no lane beyond 31"),
    "no end": (
        "    return",
        "    for (volatile int k = 1; k;) {}\n    return",
        "did not end in time",
    ),
    "a name": ("float sum", "float some", "does not compile:\n.*tried.metal:7.*sum"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(fault: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, said = fault
    assert HEADER.count(before) == 1
    if "time" in said:
        monkeypatch.setattr(runner, "SECONDS", 1)
    with pytest.raises(KernelFault, match=rf"(?s)tried.*{said}"):
        run_text(
            HEADER.replace(before, after),
            BODY,
            {"x": (NUMBERS, "float32")},
            Array((64,), "float32"),
        )


def test_without_a_fault_it_runs() -> None:
    made = run_text(HEADER, BODY, {"x": (NUMBERS, "float32")}, Array((64,), "float32"), 3)["out"]
    rolled = np.roll(NUMBERS, -1).reshape(2, 32).sum(1)
    np.testing.assert_allclose(made, np.repeat(rolled[::-1], 32), rtol=1e-5)


BODIES = {
    "the last number is one too far": ("out[i] =", "out[i + 1] =", "wrote beyond `out`"),
    "what lies behind is read": ("out[i] =", "out[i] = x[60 + i % 4] +", "depends on"),
    "too much memory": (
        "tile[N]",
        "tile[8193]",
        "32784 bytes of threadgroup memory; there are 32768",
    ),
    "a pointer": (
        "const uint i",
        "threadgroup float* p = tile; const uint i",
        "`threadgroup` elsewhere",
    ),
}


@pytest.mark.parametrize("fault", BODIES.values(), ids=BODIES)
def test_a_fault_of_a_body_is_found(fault: tuple[str, str, str]) -> None:
    header = HEADER.replace("= x[i]", "= x[i % 61]")
    before, after, said = fault
    assert BODY.count(before) == 1
    with pytest.raises(KernelFault, match=said):
        run_text(
            header,
            BODY.replace(before, after),
            {"x": (NUMBERS[:61], "float32")},
            Array((64,), "float32"),
        )


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (65, 1, 1)}, {"threadgroup": (48, 1, 1)}, {"grid": (64, 0, 1)},
        {"grid": (32, 2, 1), "threadgroup": (32, 2, 1)},
        {"grid": (2048, 1, 1), "threadgroup": (2048, 1, 1)}, {"template": (1, 2)}, {"outputs": ()},
        {"inputs": (Array((7,), "float32"),)}, {"inputs": (Array((), "float32"),)},
    ],
    ids=str,
)  # fmt: skip
def test_a_launch_that_would_not_be_the_same_everywhere_is_refused(change: dict) -> None:
    right = {
        "kernel": Kernel("tried", ("x",), ("out",), ("N",)),
        "template": (1,),
        "grid": (64, 1, 1),
        "threadgroup": (32, 1, 1),
        "inputs": (Array((8,), "float32"),),
        "outputs": (Array((8,), "float32"),),
    }
    assert Launch(**right).threadgroups == (2, 1, 1)
    with pytest.raises(ValueError, match="kernel tried: "):
        Launch(**right | change)


def test_arrays_that_a_launch_does_not_expect_are_refused() -> None:
    kernel = Kernel("tried", ("x",), ("out",))
    launch = Launch(
        kernel, (), (32, 1, 1), (32, 1, 1), (Array((9,), "float32"),), (Array((9,), "int8"),)
    )
    for given in ({"x": nan((8,), "float32")}, {"x": np.zeros(9)}, {"y": np.zeros(9, np.float32)}):
        with pytest.raises(ValueError, match="expected"):
            run(launch, given, Text("", "out[0] = 1;"))
