"""Devices, weight formats and what they are called when they are not there."""

from __future__ import annotations

import gc
import sys

import pytest

import omni_cuda
from omni_core.checkpoints import Checkpoint
from omni_core.errors import BackendError

torch = pytest.importorskip("torch")
devices = pytest.importorskip("omni_cuda.devices")


def test_auto_is_the_card_where_there_is_one() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert devices.choose_device("auto").type == expected


def test_an_absent_card_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(BackendError, match=r"^cuda is not available: .*use --device cpu$"):
            devices.choose_device(name)


def test_a_card_too_many_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(BackendError, match="2 CUDA devices found"):
        devices.choose_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "metal", "cuda:x", "cpu:0", ""])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(BackendError, match="expected auto, cuda, cuda:N or cpu"):
        devices.choose_device(name)


def test_auto_weights_follow_the_device() -> None:
    assert devices.choose_weights("auto", torch.device("cpu")) == (torch.float32, None)
    assert devices.choose_weights("auto", torch.device("cuda", 0)) == (torch.bfloat16, None)
    assert devices.choose_weights("8", torch.device("cuda", 0)) == (torch.bfloat16, 8)


@pytest.mark.parametrize("name", ["3", "int8", "f16"])
def test_a_weight_format_that_is_not_there_names_those_that_are(name: str) -> None:
    with pytest.raises(BackendError, match=r"supported are auto, f32, bf16, 8, 4$"):
        devices.choose_weights(name, torch.device("cpu"))


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "omni_cuda.backend", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendError, match=r"pip install -e '\.\[cuda\]'"):
        omni_cuda.load(Checkpoint.__new__(Checkpoint))


@pytest.mark.parametrize("resting", [False, True])
def test_nothing_is_freed_for_a_while_and_then_as_before(resting: bool) -> None:
    if resting:
        gc.disable()
    try:
        with devices.nothing_freed():
            assert not gc.isenabled()
        assert gc.isenabled() is not resting
        with pytest.raises(RuntimeError, match="capture"), devices.nothing_freed():
            raise RuntimeError("capture")
        assert gc.isenabled() is not resting
    finally:
        gc.enable()
