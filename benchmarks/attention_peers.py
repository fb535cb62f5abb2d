"""Others' attention on the same cells: PyTorch's dense kernels, FlexAttention, FlashInfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention_cases import Case
from benchmarks.attention_contest import Contender
from omni_core.backend import PAGE
from omni_cuda.devices import upload
from omni_cuda.kernels.attention import attend_pages

_BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_Dense = list[tuple[torch.Tensor, torch.Tensor]]


def ours(case: Case) -> Contender:
    """The kernel that reads pages."""

    def run(layer: int) -> torch.Tensor:
        return attend_pages(
            case.queries[layer], case.keys[layer], case.values[layer], case.pages, case.scale
        )

    return Contender("ours", run, lambda out: out[0])


def dense(case: Case) -> list[Contender]:
    """PyTorch's SDPA on a contiguous copy of the live cells, in each way that may be the best."""
    copies = [case.contiguous(layer) for layer in range(case.layers)]
    return _decoding(case, copies) if case.live.new == 0 else _prefilling(case, copies)


def _decoding(case: Case, copies: _Dense) -> list[Contender]:
    """One query a head: as grouped heads, folded into rows of queries, or as views of the keys."""
    shape = case.shape
    group, kv_heads = shape.group, shape.kv_heads
    # [layers, 1, q_heads, 1, head_dim]
    grouped = case.queries[:, 0].transpose(2, 3).contiguous()
    folded = grouped.view(case.layers, 1, kv_heads, group, shape.head_dim)
    apart = grouped.view(case.layers, kv_heads, group, 1, shape.head_dim)

    def flat(out: torch.Tensor) -> torch.Tensor:
        return out.reshape(1, shape.q_heads, shape.head_dim)

    def views(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (part[0, :, None].expand(-1, group, -1, -1) for part in copies[layer])
        return keys, values

    forms: dict[str, Callable[[int], torch.Tensor]] = {
        "grouped": lambda layer: scaled_dot_product_attention(
            grouped[layer], *copies[layer], scale=case.scale, enable_gqa=True
        ),
        "folded": lambda layer: scaled_dot_product_attention(
            folded[layer], *copies[layer], scale=case.scale
        ),
        "expanded": lambda layer: scaled_dot_product_attention(
            apart[layer], *views(layer), scale=case.scale
        ),
    }
    return [
        Contender(f"{backend}, {form}", _under(_BACKENDS[backend], run), flat)
        for backend in _BACKENDS
        for form, run in forms.items()
    ]


def _prefilling(case: Case, copies: _Dense) -> list[Contender]:
    """New tokens over all before them and themselves; a mask of numbers only for cuDNN."""
    from torch.nn.attention.bias import causal_lower_right

    shape, new = case.shape, case.live.new
    cells = case.live.cells
    corner = causal_lower_right(new, cells)
    grouped = case.queries[:, 0].transpose(2, 3).contiguous()
    apart = grouped.view(case.layers, shape.kv_heads, shape.group, new, shape.head_dim)
    seen = torch.ones(new, cells, dtype=torch.bool, device=grouped.device).tril(cells - new)
    mask = torch.zeros(1, 1, new, cells, dtype=grouped.dtype, device=grouped.device)
    mask.masked_fill_(~seen, float("-inf"))

    def rows(out: torch.Tensor) -> torch.Tensor:
        return out.reshape(shape.q_heads, new, shape.head_dim).transpose(0, 1)

    def over(layer: int, bias: torch.Tensor | None, causal: bool = False) -> torch.Tensor:
        return scaled_dot_product_attention(
            grouped[layer],
            *copies[layer],
            attn_mask=bias,
            is_causal=causal,
            scale=case.scale,
            enable_gqa=True,
        )

    def expanded(layer: int) -> torch.Tensor:
        keys, values = (part[0, :, None].expand(-1, shape.group, -1, -1) for part in copies[layer])
        return scaled_dot_product_attention(
            apart[layer], keys, values, attn_mask=corner, scale=case.scale
        )

    ways: list[tuple[str, str, Callable[[int], torch.Tensor]]] = [
        ("flash", "grouped", lambda layer: over(layer, corner)),
        ("efficient", "expanded", expanded),
        ("cuDNN", "causal", lambda layer: over(layer, None, causal=True)),
        ("cuDNN", "mask", lambda layer: over(layer, mask)),
    ]
    return [
        Contender(f"{backend}, {form}", _under(_BACKENDS[backend], run), rows)
        for backend, form, run in ways
    ]


def _under(
    backend: SDPBackend, run: Callable[[int], torch.Tensor]
) -> Callable[[int], torch.Tensor]:
    def alone(layer: int) -> torch.Tensor:
        with sdpa_kernel(backend):
            return run(layer)

    return alone


def flex(case: Case) -> Contender:
    """FlexAttention, by a mask of blocks, over live pages and as many others in arena order."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    device, live = case.keys.device, case.live
    others = np.setdiff1d(np.arange(live.arena, dtype=np.int32), live.pages)
    pages = np.sort(np.concatenate([live.pages, others[: live.pages.size]]))
    orders = np.full((live.arena, PAGE), np.iinfo(np.int32).max, np.int32)
    orders[live.pages] = np.where(live.alive, live.order, np.iinfo(np.int32).max)
    order = upload(orders[pages].reshape(-1), device)
    mine = upload(live.query_order.astype(np.int32), device)
    at = upload(pages, device, torch.int64)
    # What is masked is multiplied by 0 there: NaN would stay.
    sequences = [
        tuple(
            part[layer, 0][at].transpose(0, 1).flatten(1, 2)[None].nan_to_num()
            for part in (case.keys, case.values)
        )
        for layer in range(case.layers)
    ]
    grouped = case.queries[:, 0].transpose(2, 3).contiguous()

    def sees(b: Any, h: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return order[key] <= mine[query]

    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = create_block_mask(
        sees, None, None, mine.numel(), order.numel(), device=device, BLOCK_SIZE=(128, PAGE)
    )

    def run(layer: int) -> torch.Tensor:
        out: torch.Tensor = compiled(
            grouped[layer],
            *sequences[layer],
            block_mask=mask,
            scale=case.scale,
            enable_gqa=True,
            kernel_options={"BLOCK_M": 128, "BLOCK_N": PAGE},
        )
        return out

    return Contender("FlexAttention", run, lambda out: out[0].transpose(0, 1))


def flashinfer(case: Case) -> Contender:
    """FlashInfer's paged wrappers on the arena itself, whose layers have the layout it reads."""
    import flashinfer

    shape, live, device = case.shape, case.live, case.keys.device
    workspace = torch.zeros(256 << 20, dtype=torch.uint8, device=device)
    count = live.pages.size
    table = (
        torch.tensor([0, count], dtype=torch.int32, device=device),
        upload(live.pages, device),
        torch.tensor([int(live.alive[-1].sum())], dtype=torch.int32, device=device),
        shape.q_heads,
        shape.kv_heads,
        shape.head_dim,
        PAGE,
    )
    dtype = case.keys.dtype
    if live.new == 0:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "HND", use_tensor_cores=True
        )
        wrapper.plan(*table, q_data_type=dtype, kv_data_type=dtype, sm_scale=case.scale)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        own = torch.tensor([0, live.new], dtype=torch.int32, device=device)
        wrapper.plan(
            own, *table, causal=True, q_data_type=dtype, kv_data_type=dtype, sm_scale=case.scale
        )

    def run(layer: int) -> torch.Tensor:
        pages = (case.keys[layer, 0], case.values[layer, 0])
        out: torch.Tensor = wrapper.run(case.queries[layer, 0, 0], pages)
        return out

    return Contender("FlashInfer", run)
