"""The JSON file that a run leaves: where it ran, with what, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from omni_core import Model
from omnilive.evaluation.claims import Claim
from omnilive.evaluation.rows import Row
from omnilive.provenance import commit, machine, versions

NAME = "streamworld"
_PACKAGES = ("omnilive", "numpy", "mlx", "torch", "transformers")


def document(
    model: Model,
    rows: Sequence[Row],
    claims: Sequence[Claim],
    about: dict[str, Any],
) -> dict[str, Any]:
    """All of it, for JSON.

    Args:
        model: what ran.
        rows: one a setting.
        claims: what was held against them.
        about: how the run was asked for.
    """
    backend = model.backend
    return {
        "benchmark": NAME,
        **about,
        "model": model.name,
        "backend": backend.name,
        "device": backend.device,
        "machine": machine(),
        "versions": versions(_PACKAGES),
        "commit": commit(),
        "rows": list(rows),
        "claims": [claim.row() for claim in claims],
    }


def text(document: dict[str, Any]) -> str:
    """As JSON, a line a row."""
    lists = {
        name: "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
        for name, value in document.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    entries = (
        f" {json.dumps(name)}: {lists.get(name) or json.dumps(value)}"
        for name, value in document.items()
    )
    return "{\n" + ",\n".join(entries) + "\n}\n"
