"""How work is cut for a GPU, by its name."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from metal_kernels.cutting import Gpu  # noqa: E402
from omni_mlx import devices  # noqa: E402


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Apple M2", Gpu(10)),
        ("Apple M3 Max", Gpu(36)),
        ("Apple M1 Ultra", Gpu(72)),
        ("NVIDIA H200", Gpu(132, 2, True)),
        ("NVIDIA H100 PCIe", Gpu(114, 2, True)),
        ("NVIDIA L4", Gpu(58, 2, True)),
        ("NVIDIA L40S", Gpu(142, 2, True)),
        ("NVIDIA of tomorrow", Gpu(80, 2, True)),
    ],
)
def test_a_name_tells_the_cores(name: str, expected: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "device_info", lambda kind: {"device_name": name})
    assert devices.gpu() == expected
