"""What a stream must equal: one dense run over all of its tokens, each query with its own mask."""

from __future__ import annotations

import numpy as np
from numpy_backend import TEXT, NumpyBackend

from omni_core.reference.attention import masked_attention
from omni_core.reference.rotary import rotary_tables, rotate
from omni_core.units import EMBEDDED


def watched(backend: NumpyBackend) -> list[dict]:
    """Record each step's inputs and the orders that were live in it, beside running it."""
    steps: list[dict] = []
    forward = backend.forward

    def run(plan, embeddings=None):
        live = [(group.order.copy(), group.shift.copy()) for group in backend.mirror.preview(plan)]
        result = forward(plan, embeddings)
        steps.append(
            {"plan": plan, "embeddings": embeddings, "live": live, "logits": result.logits}
        )
        return result

    backend.forward = run
    return steps


def tables(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return rotary_tables(positions, TEXT.head_dim, TEXT.rope_theta, TEXT.mrope_section)


def masked_dense(steps: list[dict], backend: NumpyBackend) -> list[np.ndarray]:
    """Logits of a dense run over all tokens: each query at its virtual positions, with its mask.

    A layer's mask is of the tokens that its layer group holds.
    """
    orders = np.concatenate([s["plan"].order for s in steps])
    bias = np.log(np.concatenate([s["plan"].counts for s in steps]))
    rows = []
    for s in steps:
        x = backend.embedding[np.maximum(s["plan"].tokens[0], 0)]
        embedded = s["plan"].tokens[0] == EMBEDDED
        if embedded.any():
            x[embedded] = s["embeddings"][0, s["plan"].rows[embedded]]
        rows.append(x)
    x = np.concatenate(rows)
    positions = np.concatenate([s["plan"].positions for s in steps], axis=1)
    for number, weights in enumerate(backend.layers):
        group = number // backend.layout.layers_per_group
        heads = (len(x), -1, TEXT.head_dim)
        q = (x @ weights["q"]).reshape(heads)
        k = (x @ weights["k"]).reshape(heads)
        v = (x @ weights["v"]).reshape(heads)
        outs, at = [], 0
        for s in steps:
            count = s["plan"].order.size
            live, shift = s["live"][group]
            seen = np.isin(orders, live)
            # Where the keys are, seen from this step: exact arithmetic, whatever was stored.
            places = positions[:, seen] - shift
            outs.append(
                masked_attention(
                    rotate(q[at : at + count], *tables(s["plan"].positions)),
                    rotate(k[seen], *tables(places)),
                    v[seen],
                    s["plan"].order,
                    orders[seen],
                    bias[seen],
                    TEXT.head_dim**-0.5,
                )
            )
            at += count
        x = x + np.concatenate(outs).reshape(len(x), -1) @ weights["o"]
    logits, at = [], 0
    for s in steps:
        logits.append(x[at + s["plan"].logits] @ backend.head.T)
        at += s["plan"].order.size
    return logits
