"""Staging: what is written arrives whole, and is not overtaken by what is written next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

staging = pytest.importorskip("omni_cuda.staging")

SHAPES = {
    "one": (np.int32, (3, 7)),
    "none": (np.int64, (0,)),
    "order": (np.int64, (33,)),
    "flat": (np.float32, (2, 0, 5)),
    "bias": (np.float32, (1,)),
    "last": (np.int64, (2, 65, 2)),
}


def _numbers(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {
        name: (1e6 * draw.standard_normal(shape)).astype(dtype)
        for name, (dtype, shape) in SHAPES.items()
    }


def _write(made: Any, numbers: dict[str, np.ndarray]) -> None:
    host = made.host()
    assert host.keys() == SHAPES.keys()
    for name, array in numbers.items():
        assert (host[name].shape, host[name].dtype) == (array.shape, array.dtype)
        host[name][...] = array
    made.send()


def test_arrays_arrive_as_they_were_written(device: str) -> None:
    made = staging.Staging(SHAPES, torch.device(device))
    places = {name: tensor.data_ptr() for name, tensor in made.device.items()}
    for turn in range(5):
        _write(made, _numbers(turn))
        for name, expected in _numbers(turn).items():
            found = made.device[name].cpu().numpy()
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
            assert made.device[name].data_ptr() == places[name]


def test_arrays_begin_where_kernels_read_fast(device: str) -> None:
    made = staging.Staging(SHAPES, torch.device(device))
    assert all(tensor.data_ptr() % 16 == 0 for tensor in made.device.values() if tensor.numel())


def test_writing_the_next_does_not_change_what_was_sent(device: str) -> None:
    made = staging.Staging(SHAPES, torch.device(device))
    _write(made, _numbers(0))
    for array in made.host().values():
        array[...] = 77
    for name, expected in _numbers(0).items():
        np.testing.assert_array_equal(made.device[name].cpu().numpy(), expected)


def test_a_block_comes_back_with_what_it_held_two_turns_ago(device: str) -> None:
    made = staging.Staging(SHAPES, torch.device(device))
    for turn in range(3):
        _write(made, _numbers(turn))
    np.testing.assert_array_equal(made.host()["last"], _numbers(1)["last"])


@pytest.mark.cuda
def test_a_card_that_lags_reads_each_turn_as_it_was_sent() -> None:
    made = staging.Staging({"x": (np.int32, (1 << 20,))}, torch.device("cuda"))
    found = []
    for turn in range(12):
        # The card is kept busy, so that copies wait while the next turns are written.
        torch.cuda._sleep(20_000_000)
        made.host()["x"][:] = turn
        made.send()
        found.append(made.device["x"].clone())
    for turn, tensor in enumerate(found):
        assert (tensor == turn).all().item()
