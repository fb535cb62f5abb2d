"""Pointers to device, constant, threadgroup and thread memory are not mixed up.

Metal refuses a text where they are, and g++ knows of no such thing. Here clang reads the text with
address spaces as part of the types.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from metal_kernels import signature
from metal_kernels.launch import Launch
from metal_kernels.loader import Text, load
from tests.metal.launches import LAUNCHES

cindex = pytest.importorskip("clang.cindex", reason="libclang is not installed")

HERE = Path(__file__).parent
CONSTANT = 2
"""Its number in spaces.h."""


def _complaints(launch: Launch, text: Text) -> list[str]:
    """What clang finds wrong with the text that MLX would compile."""
    whole = (
        f"{text.header}\n#undef threadgroup\n"
        "#define threadgroup static __attribute__((address_space(3)))\n"
        f"{signature.function(launch, text.body)}\n"
        f"template decltype({signature.instance(launch)}) {signature.instance(launch)};\n"
    )
    flags = ["-std=c++17", "-include", str(HERE / "spaces.h"), "-Wno-unknown-attributes"]
    flags += ["-nostdinc", "-Wno-ignored-attributes", "-Wno-unknown-pragmas"]
    flags += ["-Werror=double-promotion"]  # Metal has no double.
    parsed = cindex.Index.create().parse("kernel.cpp", flags, [("kernel.cpp", whole)])
    found = [str(each) for each in parsed.diagnostics if each.severity >= cindex.Diagnostic.Error]
    return found + [
        f"{each.spelling} stands outside functions and is not constant"
        for each in parsed.cursor.get_children()
        if each.kind == cindex.CursorKind.VAR_DECL and each.type.get_address_space() != CONSTANT
    ]


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.variant)
def test_every_pointer_keeps_its_address_space(launch: Launch) -> None:
    assert _complaints(launch, load(launch.kernel.name)) == []


FAULTS = {
    "constant memory as device memory": (
        "store",
        "const constant int* numbers",
        "const device int* numbers",
    ),
    "device memory as a lane's own": ("store", "float sine, device T* to", "float sine, T* to"),
    "a number that lies nowhere": ("store", "constant constexpr int PAGE", "constexpr int PAGE"),
    "threadgroup memory as device memory": (
        "merge",
        "threadgroup float* pool",
        "device float* pool",
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_mixed_up_pointer_is_found(fault: tuple[str, str, str]) -> None:
    name, before, after = fault
    launch = next(launch for launch in LAUNCHES if launch.kernel.name == name)
    text = load(name)
    assert text.header.count(before) == 1
    assert _complaints(launch, Text(text.header.replace(before, after), text.body))
