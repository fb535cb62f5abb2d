"""Text layers in 4 and 8 bits: what is kept of the weights, of the logits and of the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_cuda
from omni_core.checkpoints import open_checkpoint
from omni_core.errors import BackendError
from omnilive.models import prepare
from tests.parity.oracle import distance, text, torch
from tests.parity.planner import Planner
from tests.parity.playing import play

devices = pytest.importorskip("omni_cuda.devices")
int4 = pytest.importorskip("omni_cuda.int4")
weights = pytest.importorskip("omni_cuda.weights")

# inputs, outputs, weights that share a scale
SIZES = [(128, 8, 128), (384, 24, 128), (192, 40, 64), (96, 16, 32)]


def _linear(inputs: int, outputs: int, device: str, dtype: torch.dtype) -> torch.nn.Linear:
    draw = torch.Generator().manual_seed(inputs)
    linear = torch.nn.Linear(inputs, outputs, device=device, dtype=dtype)
    weight = torch.randn(outputs, inputs, generator=draw) * inputs**-0.5
    weight[0] = 0.0
    weight[1] = 0.25
    weight[2] += 0.5
    bias = torch.randn(outputs, generator=draw)
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    return linear.requires_grad_(False)


def _rows(count: int, inputs: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    draw = torch.Generator().manual_seed(count)
    return torch.randn(count, inputs, generator=draw).to(device, dtype)


def _kept(linear: torch.nn.Linear) -> torch.Tensor:
    """The weights that 4 bits leave, read out with unit vectors."""
    bare = torch.nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    bare.weight = linear.weight
    # In float32, wherever the layer itself is used.
    unit = torch.eye(linear.in_features, device=linear.weight.device)
    return int4.Int4Linear(bare)(unit).T


def _load(folder: Path, device: str, name: str) -> Any:
    return omni_cuda.load(open_checkpoint(folder), device=device, weights=name)


def _logits(backend: Any, lengths: list[int]) -> np.ndarray:
    planner = Planner(pages=2)
    backend.allocate(planner.layout(backend.config.text))
    return play(backend, planner, text(sum(lengths)), lengths)


@pytest.mark.parametrize(("inputs", "outputs", "group"), SIZES)
def test_weights_in_4_bits_are_off_by_half_a_step(
    device: str, inputs: int, outputs: int, group: int
) -> None:
    linear = _linear(inputs, outputs, device, torch.float32)
    small = int4.Int4Linear(linear)
    assert small.scales.shape == (inputs // group, outputs, 2)
    spread = linear.weight.unflatten(1, (-1, group))
    step = (spread.amax(2) - spread.amin(2)) / 15
    gap = (_kept(linear) - linear.weight).unflatten(1, (-1, group)).abs().amax(2)
    # Offsets have 8 bits; the rest is what scales of 8 bits leave of the ends.
    rounded = spread.abs().amax(2) * 2**-8
    assert (gap <= 0.54 * step + rounded).all()
    assert (gap[3:] > 0.3 * step[3:]).all()
    np.testing.assert_array_equal(_kept(linear)[:2].cpu(), linear.weight[:2].cpu())


@pytest.mark.parametrize(("inputs", "outputs", "group"), SIZES)
def test_codes_lie_where_the_kernel_reads_them(inputs: int, outputs: int, group: int) -> None:
    codes = np.random.default_rng(group).integers(0, 16, (outputs, inputs)).astype(np.uint8)
    packed = int4._pack(torch.from_numpy(codes), group).numpy().view(np.uint32)
    assert packed.shape == (outputs // 8, inputs // group, 32, group // 32)
    row, column = np.indices(codes.shape)
    lane, half = np.divmod(column % 8, 2)
    word = packed[row // 8, column // group, row % 8 * 4 + lane, column % group // 32]
    place = column % 32 // 8 * 4 + half * 16
    np.testing.assert_array_equal(word >> place.astype(np.uint32) & 15, codes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [0, 1, 16, 63, 65, 300])
@pytest.mark.parametrize(("inputs", "outputs", "group"), SIZES)
def test_a_layer_in_4_bits_multiplies_with_what_is_kept(
    device: str, inputs: int, outputs: int, group: int, count: int, dtype: torch.dtype
) -> None:
    linear = _linear(inputs, outputs, device, dtype)
    x = _rows(count, inputs, device, dtype)
    found = int4.Int4Linear(linear)(x[None])
    assert found.dtype == dtype
    assert found.shape == (1, count, outputs)
    exact = torch.nn.functional.linear(x.double(), _kept(linear).double(), linear.bias.double())
    # A rounding of the weights, one of the offsets less eight steps, one of the product, one with
    # the bias.
    bound = 4 * torch.finfo(dtype).eps
    reach = x.double().norm(dim=1)[:, None] * linear.weight.double().norm(dim=1) + exact.abs()
    assert ((found[0] - exact).abs() <= bound * reach).all()


@pytest.mark.cuda
@pytest.mark.parametrize("count", [5, 300])
def test_a_layer_in_4_bits_runs_in_a_graph(count: int) -> None:
    small = int4.Int4Linear(_linear(384, 24, "cuda", torch.bfloat16))
    given = torch.zeros(count, 384, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        small(given)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = small(given)
    x = _rows(count, 384, "cuda", torch.bfloat16)
    given.copy_(x)
    graph.replay()
    assert distance(found.float().cpu().numpy(), small(x).float().cpu().numpy()) < 0.01


@pytest.mark.parametrize("lengths", [[100], [30, *[1] * 5, 65]])
def test_logits_in_4_bits_are_those_of_what_is_kept(
    untrained: Path, device: str, lengths: list[int]
) -> None:
    small = _load(untrained, device, "4")
    assert small.element == (4 if device == "cpu" else 2)
    whole = _logits(_keeping(_load(untrained, device, "f32")), lengths)
    # A card computes in bfloat16, which random layers blow up.
    rounded = _logits(_keeping(_load(untrained, device, "bf16")), lengths)
    bound = 1e-3 if device == "cpu" else 2 * distance(rounded, whole)
    assert distance(_logits(small, lengths), whole) < bound


def _keeping(backend: Any) -> Any:
    """A backend whose layers have the weights that 4 bits keep."""
    for part in backend.backbone.model.layers.modules():
        if isinstance(part, torch.nn.Linear):
            part.weight.copy_(_kept(part))
    return backend


@pytest.mark.shipped
@pytest.mark.parametrize("lengths", [[100], [30, *[1] * 5, 65]])
def test_logits_in_4_bits_stay_close(device: str, lengths: list[int]) -> None:
    # Normal weights span 5.4 deviations in groups of 128. Steps of a 15th of that are off by
    # 0.36 / sqrt(12), a tenth of a deviation, and so is each product: four in turn in six layers.
    whole, small = (
        _logits(prepare(backend="cuda", device=device, weights=name).load().backend, lengths)
        for name in ("f32", "4")
    )
    assert 0.05 < distance(small, whole) < 0.6
    assert (small.argmax(1) == whole.argmax(1)).mean() > 0.9


@pytest.mark.parametrize(("name", "bits"), [("8", 8), ("4", 4.25)])
def test_bytes_of_quantised_weights_are_told_before_and_after(
    untrained: Path, monkeypatch: pytest.MonkeyPatch, name: str, bits: float
) -> None:
    told: list[int] = []
    monkeypatch.setattr(devices, "require_room", lambda needed, *_: told.append(needed))
    whole, small = _load(untrained, "cpu", "f32"), _load(untrained, "cpu", name)
    layers = [
        part for part in whole.backbone.model.layers.modules() if hasattr(part, "in_features")
    ]
    numbers = sum(part.weight.numel() for part in layers)
    saved = whole.memory().accounted - small.memory().accounted
    scales = 4 * sum(part.out_features for part in layers) if name == "8" else 0
    assert saved == numbers * (32 - bits) / 8 - scales
    assert told[0] - told[1] == saved


def test_layers_of_odd_sizes_are_refused_before_weights_are_read(
    thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "safe_open", None)
    with pytest.raises(BackendError, match=r"with 120 inputs and 96 .* 32 and 8; use --weights 8"):
        _load(thinker[1], "cpu", "4")
    with pytest.raises(BackendError, match="with 128 inputs and 12 outputs"):
        int4.Int4Linear(torch.nn.Linear(128, 12))


def test_4_bits_need_a_card_that_the_kernel_is_compiled_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert devices.choose_weights("4", card) == (torch.bfloat16, 4)
    assert devices.choose_weights("4", torch.device("cpu")) == (torch.float32, 4)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(BackendError, match=r"8\.0 or newer, but cuda:0 has 7\.5; use --weights 8"):
        devices.choose_weights("4", card)
