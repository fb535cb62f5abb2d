"""The virtual devices of the benchmarks, for tests: skipped where a part is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from benchmarks import virtual_devices
from benchmarks.virtual_devices import (
    RATE,
    VirtualCamera,
    VirtualMicrophone,
    found_in,
    noise,
    number_of,
    numbered,
)

__all__ = [
    "RATE",
    "VirtualCamera",
    "found_in",
    "noise",
    "number_of",
    "numbered",
    "virtual_microphone",
]


@contextmanager
def virtual_microphone() -> Iterator[VirtualMicrophone]:
    """A microphone of our own, or a skipped test that says what to install."""
    with ExitStack() as stack:
        try:
            microphone = stack.enter_context(virtual_devices.virtual_microphone())
        except virtual_devices.Lacking as lacking:
            pytest.skip(str(lacking))
        yield microphone
