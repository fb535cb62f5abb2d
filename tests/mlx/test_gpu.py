"""What a GPU does otherwise than the CPU: fused attention in 16 bits, its own matrix products."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

import omni_mlx  # noqa: E402
from omni_core.backend import ArenaLayout  # noqa: E402
from omni_core.checkpoints import open_checkpoint  # noqa: E402
from omni_core.frontend.base import VisionInput  # noqa: E402
from omni_core.model_config import TextConfig  # noqa: E402
from omni_core.paging.mirror import LiveCells  # noqa: E402
from omni_core.reference.attention import (  # noqa: E402
    attention_shares,
    masked_attention,
    weighted_values,
)
from omni_core.reference.rotary import rotary_tables, rotate  # noqa: E402
from omni_mlx.attention import (  # noqa: E402
    Orders,
    sparse_page_attention,
    turned_attention,
    visibility,
)
from omni_mlx.rotary import StepRotary  # noqa: E402

pytestmark = pytest.mark.skipif(
    not mx.is_available(mx.gpu), reason="no GPU for MLX (Metal or CUDA)"
)


@pytest.mark.parametrize(
    ("group", "head_dim", "count", "queries"),
    [
        (7, 128, 1000, 1),
        (7, 128, 1000, 5),
        (7, 128, 700, 130),
        (4, 128, 65, 33),
        (4, 128, 33, 1),
        (8, 64, 63, 63),
        (1, 64, 1, 1),
        (3, 96, 500, 31),
        (1, 80, 300, 33),
        (2, 32, 65, 9),
    ],
)
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 1e-2), ("float16", 2e-3)])
def test_sixteen_bits_stay_close_to_the_oracle(group, head_dim, count, queries, dtype, bound):
    errors = {
        case: _error(group, head_dim, count, queries, getattr(mx, dtype), case)
        for case in ("tail", "gaps", "bias", "blind")
    }
    assert max(errors.values()) <= bound, errors


def _error(group, head_dim, count, queries, place, case):
    """The largest relative error of a head."""
    rng = np.random.default_rng(count)
    order = np.sort(rng.choice(5 * count, count, replace=False)).astype(np.int64)
    asked = order[-queries:] if case != "gaps" else order[-queries:] - 1
    if case == "blind":
        asked = np.concatenate([order[:1] - 1, asked[1:]])
    bias = np.log(rng.integers(1, 9, count)) if case == "bias" else np.zeros(count)

    def drawn(tokens, heads):
        return mx.array(rng.normal(size=(1, heads, tokens, head_dim)), mx.float32).astype(place)

    def plain(x):
        return np.array(x.astype(mx.float32))[0].swapaxes(0, 1)

    with mx.stream(mx.gpu):
        q, k, v = drawn(asked.size, 2 * group), drawn(count, 2), drawn(count, 2)
        here = np.zeros(count, np.int32)
        live = LiveCells(np.arange(count, dtype=np.int32), order, bias.astype(np.float32), here)
        sight = visibility(live, asked, place)
        found = plain(sparse_page_attention(q, k, v, sight, head_dim**-0.5))
        q, k, v = plain(q), plain(k), plain(v)
    wanted = masked_attention(q, k, v, asked, order, bias, head_dim**-0.5)
    if case == "blind":
        assert (found[0] == 0).all()
    size = np.linalg.norm(wanted, axis=(0, 2))
    return float((np.linalg.norm(found - wanted, axis=(0, 2)) / np.maximum(size, 1e-9)).max())


@pytest.mark.parametrize(("count", "queries"), [(1000, 1), (700, 130), (65, 33)])
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 1e-2), ("float16", 2e-3)])
def test_frames_in_sixteen_bits_stay_close_to_the_oracle(count, queries, dtype, bound):
    group, head_dim = 7, 128
    text = TextConfig(9, 9, 9, 1, 2 * group, 2, head_dim, 1e-6, 1e6, (), 9, True)
    rng = np.random.default_rng(count)
    order = np.arange(count, dtype=np.int64)
    positions = np.tile(np.arange(queries, dtype=np.int32), (3, 1))
    shift = np.sort(rng.choice([0, 50, 9000], count)).astype(np.int32)[::-1]
    bias = np.log(rng.integers(1, 9, count)).astype(np.float32)
    live = LiveCells(order.astype(np.int32), order, bias, shift)

    def drawn(tokens, heads):
        numbers = mx.array(rng.normal(size=(1, heads, tokens, head_dim)), mx.float32)
        return numbers.astype(getattr(mx, dtype))

    def plain(x):
        return np.array(x.astype(mx.float32))[0].swapaxes(0, 1).astype(np.float64)

    with mx.stream(mx.gpu):
        q, k, v = drawn(queries, 2 * group), drawn(count, 2), drawn(count, 2)
        turns = StepRotary(positions, text).turns(live.runs())
        orders = Orders.of(live, order[-queries:])
        out, mass = turned_attention(q, k, v, turns, orders, head_dim**-0.5)
        found, mass, q, k, v = plain(out), np.array(mass), plain(q), plain(k), plain(v)
    runs = [
        (rotate(q, *rotary_tables(positions + np.int32(shift), head_dim, 1e6, ())), k[start:stop])
        for start, stop, shift in live.runs()
    ]
    shares = attention_shares(runs, order[-queries:], order, bias, head_dim**-0.5)
    wanted = weighted_values(shares, v)
    error = np.linalg.norm(found - wanted, axis=(0, 2)) / np.linalg.norm(wanted, axis=(0, 2))
    assert error.max() <= bound
    expected = shares.sum(axis=(0, 1))
    assert np.linalg.norm(mass - expected) <= bound * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("weights", "bound"), [("f32", 5e-3), ("bf16", 5e-2), ("8", 1e-1), ("4", 0.5)]
)
def test_all_parts_equal_the_cpu(untrained, planner, weights, bound):
    if weights in ("8", "4") and not mx.metal.is_available():
        pytest.skip("no Apple GPU (Metal); for CUDA, MLX compiles such products for minutes")
    rng = np.random.default_rng(0)
    picture = VisionInput(rng.normal(size=(2 * 6 * 10, 1176)).astype(np.float32), (2, 6, 10))
    sounds = [rng.normal(size=(128, frames)).astype(np.float32) for frames in (237, 100, 3)]
    layout, answers = ArenaLayout(24, 2, 2, 2, 32), []
    for device, kind in [("cpu", "f32"), ("gpu", weights)]:
        backend = omni_mlx.load(open_checkpoint(untrained), device=device, weights=kind)
        backend.allocate(layout)
        plans = planner(layout)
        media = backend.encode([picture], sounds)
        found = [np.array(media.astype(mx.float32))[0]]
        rows = np.arange(media.shape[1])
        plan = plans.step(np.full(rows.size, -1), rows, rows, logits=[0, 50])
        found.append(backend.forward(plan, media).logits[0])
        backend.move(plans.drop(plans.cells[0][:, 10:60]))
        for token in range(3):
            found.append(backend.forward(plans.step([token], [200 + token])).logits[0])
        answers.append(found)
    errors = [
        float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
        for exact, found in zip(*answers, strict=True)
    ]
    assert max(errors) <= bound, errors
