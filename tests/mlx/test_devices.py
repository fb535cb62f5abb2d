"""How work is cut for a GPU, by its name, and what a CPU holds."""

from __future__ import annotations

import os
from pathlib import Path

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


def test_a_cpu_holds_what_is_free_where_the_system_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "meminfo"
    told.write_text(
        "MemTotal:       8000000 kB\nMemFree:          99 kB\nMemAvailable:   1234567 kB\n"
    )
    monkeypatch.setattr(devices, "_MEMORY", told)
    assert devices.choose_device("cpu").capacity == 1_234_567 * 1024
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    told.write_text("MemTotal:       8000000 kB\n")
    assert devices.choose_device("cpu").capacity == whole
    told.unlink()
    assert devices.choose_device("cpu").capacity == whole
