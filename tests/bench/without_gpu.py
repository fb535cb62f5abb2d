"""Scripts as processes of their own that see no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Python with these words, and more of an environment."""
    pytest.importorskip("triton", reason="triton is not installed")
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=os.environ | paths | more,
        timeout=200,
        check=False,
    )


def check_refusal(benchmark: Path, out: Path) -> None:
    """A benchmark says in a line that there is no GPU, and leaves nothing."""
    done = run(str(benchmark), "--quick", "--out", str(out))
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith("needs an NVIDIA GPU: ") and done.stderr.count("\n") == 1
    assert list(out.iterdir()) == []
