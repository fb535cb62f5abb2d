"""A clip looped for ten minutes: the cache stays in its budget, memory stays level."""

from __future__ import annotations

import json

import pytest
from clips import write_clip

from omnilive.cli import main

BUDGET = 320


@pytest.mark.parametrize("backend", ["mlx", "cuda"])
def test_memory_is_level_after_the_first_minute(
    backend: str, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    pytest.importorskip({"mlx": "mlx.core", "cuda": "torch"}[backend])
    clip = write_clip(tmp_path / "clip.mp4", seconds=8.3)
    words = ["live", "--source", str(clip), "--backend", backend, "--device", "cpu", "--fast"]
    words += ["--budget", str(BUDGET), "--max-tokens", "8", "--duration", "600", "--jsonl"]
    for minute in range(1, 10):
        words += ["--ask", f"{60 * minute}: what is on screen?"]
    assert main(words) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    units = [event for event in events if event["event"] == "unit"]
    assert len(units) == 600 and events[-1]["answers"] == 9
    assert all(event["kv"]["cells"] <= BUDGET for event in units)
    assert sum(event["event"] == "evict" for event in events) > 100
    measured = [event["memory"] for event in units[60:]]
    # MLX counts its arrays, so level means level; a process's resident memory breathes a little.
    allowed = 0.005 if backend == "mlx" else 0.03
    assert max(measured) - min(measured) <= allowed * min(measured)
