"""The signature that the runner compiles is the one that MLX writes, for every kernel."""

from __future__ import annotations

import re

import pytest

from metal_kernels import signature
from metal_kernels.launch import Array, Kernel, Launch
from metal_kernels.loader import Text, folder, load
from tests.metal.launches import LAUNCHES

mx = pytest.importorskip("mlx.core")
run = pytest.importorskip("metal_kernels.run")


def _by_mlx(launch: Launch) -> str:
    """The whole text that MLX would hand to Metal."""
    names = launch.kernel.inputs
    arrays = [mx.zeros(array.shape, getattr(mx, array.dtype)) for array in launch.inputs]
    told: list[dict] = []
    mx.export_function(
        told.append,
        lambda *given: run.run(launch, dict(zip(names, given, strict=True))),
        *arrays,
    )
    (kernel,) = (part for part in told if part.get("name") == "CustomKernel")
    return kernel["arguments"][1]


@pytest.mark.skipif(
    mx.is_available(mx.gpu) and not mx.metal.is_available(), reason="MLX writes CUDA's text here"
)
@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.variant)
def test_equals_what_mlx_writes(launch: Launch) -> None:
    text = load(launch.kernel.name)
    head, function, tail = _by_mlx(launch).partition(signature.function(launch, text.body))
    assert head == text.header
    assert function
    assert signature.instance(launch) in tail


def test_every_kernel_that_ships_is_among_them() -> None:
    shipped = {path.name for path in folder().iterdir() if path.name.endswith(".body.metal")}
    assert {f"{launch.kernel.name}.body.metal" for launch in LAUNCHES} == shipped


def test_what_a_body_asks_of_shapes_and_threads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel("asking", ("a", "few"), ("out",), ("T", "N", "B"), frozenset({"few"}))
    launch = Launch(
        kernel,
        ("float16", 3, True),
        (32, 1, 1),
        (32, 1, 1),
        (Array((4, 4), "float16"), Array((2,), "uint8")),
        (Array((4,), "float32"),),
    )
    body = (
        "uint i = thread_position_in_grid.x + thread_index_in_simdgroup;\n"
        "out[0] = a_shape[0] + a_strides[1] + a_ndim + few_ndim + i;"
    )
    monkeypatch.setattr(run, "load", lambda name: Text("// nothing\n", body))
    assert signature.function(launch, body) in _by_mlx(launch)


@pytest.mark.parametrize("change", [("cells", "int64"), ("keys", "float32"), ("sines", None)])
def test_arrays_that_a_launch_does_not_expect_are_refused(change: tuple[str, str | None]) -> None:
    launch, (name, dtype) = LAUNCHES[0], change
    arrays = {
        each: mx.zeros(array.shape, getattr(mx, array.dtype))
        for each, array in zip(launch.kernel.inputs, launch.inputs, strict=True)
    }
    arrays[name] = arrays[name].astype(getattr(mx, dtype)) if dtype else arrays[name][:1]
    with pytest.raises(ValueError, match=f"kernel store: {name} is .* is expected"):
        run.run(launch, arrays)


def test_every_barrier_of_a_threadgroup_orders_its_memory() -> None:
    # Runner and CUDA order all of it whatever a barrier says; Metal does not.
    texts = [file for file in folder().iterdir() if file.name.endswith((".metal", ".h"))]
    texts = [file for file in texts if not file.name.startswith("cuda_")]
    barriers = [
        flag
        for file in texts
        for flag in re.findall(r"threadgroup_barrier\(([^)]*)\)", file.read_text(encoding="utf-8"))
    ]
    assert len(barriers) > 7 and set(barriers) == {"mem_flags::mem_threadgroup"}
