"""The JSON file that a run leaves: where it ran, with what, and what came of it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omni_core import Model
from omnilive.evaluation.claims import Claim
from omnilive.evaluation.rows import Row

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
        "machine": _machine(),
        "versions": _versions(),
        "commit": _commit(),
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


def _machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return re.findall(r"model name\s*:\s*(.+)", words)[0].strip()
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The commit of the source tree that this file lies in, ``+`` behind it where it has changes.

    None where it is installed, even into a folder that some other repository holds.
    """
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=Path(__file__).parent, check=True, capture_output=True, text=True
    )
    return str(done.stdout).strip()
