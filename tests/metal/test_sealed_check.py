"""A GPU is asked whether it reads sealed pages as they are meant; here their text answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from metal_kernels.cutting import Gpu  # noqa: E402
from metal_kernels.launch import Launch  # noqa: E402
from metal_kernels.sealed_check import fault, seal_fault  # noqa: E402
from omni_core.backend import ArenaLayout  # noqa: E402
from tests.metal.on_mlx import run_as_text  # noqa: E402

LAYOUT = ArenaLayout(7, 1, 3, 2, 32, 2, sealed_pages=9, bits=2, codec="fitted")


def of_one_rotation(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
    """As if all values were of one modality."""
    given = dict(inputs)
    if "kinds" in given:
        given["kinds"] = mx.zeros_like(given["kinds"])
    return run_as_text(launch, given)


def of_other_bytes(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
    """As if values were sealed as they lie."""
    given = dict(inputs)
    if "feedback" in given:
        given["rotations"] = mx.broadcast_to(mx.eye(32), given["rotations"].shape)
    return run_as_text(launch, given)


def failing(launch: Launch, inputs: Mapping[str, Any]) -> list[Any]:
    raise RuntimeError("[metal::Device] Unable to build metal library\nfrom source")


def test_the_shipped_text_has_no_fault() -> None:
    assert fault(LAYOUT, 6, "bfloat16", Gpu(9), run_as_text) is None
    assert seal_fault(LAYOUT, "bfloat16", run_as_text) is None


@pytest.mark.parametrize(
    ("run", "said"), [(of_one_rotation, "off"), (failing, "Unable to build metal library from")]
)
def test_what_goes_wrong_is_told(run: Callable[..., list[Any]], said: str) -> None:
    found = fault(LAYOUT, 6, "float16", Gpu(2), run)
    assert found is not None and said in found


@pytest.mark.parametrize(
    ("run", "said"), [(of_other_bytes, "of the bytes are others"), (failing, "Unable to build")]
)
def test_what_goes_wrong_in_sealing_is_told(run: Callable[..., list[Any]], said: str) -> None:
    found = seal_fault(LAYOUT, "float16", run)
    assert found is not None and said in found
    # A codec that no kernel has is the host's, which is no fault.
    assert seal_fault(replace(LAYOUT, codec="omnikvquant"), "float16", run) is None
