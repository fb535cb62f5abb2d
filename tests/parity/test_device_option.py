"""``pytest --device``: the tests of one kind of device alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_one_kind_of_device_alone() -> None:
    words = ["tests/parity/test_frames.py", "tests/metal/test_move.py", "--device", "gpu"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert any("test_frames" in line for line in found)
    assert all("gpu" in line for line in found)
