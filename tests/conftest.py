"""What every test has: one thread a process, no hub, and a summary that names what was absent."""

from __future__ import annotations

import os

# Before NumPy and torch are imported: the tests of all processes share the machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import settings

# Random examples where somebody looks, the same ones where a machine decides; no clock either way.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

UNTRAINED = Path(__file__).parent / "untrained" / "make.py"


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights: its answers mean nothing, and it is quick."""
    folder = tmp_path_factory.mktemp("untrained")
    subprocess.run([sys.executable, str(UNTRAINED), str(folder)], check=True, timeout=120)
    return folder


@cache
def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@cache
def mlx_gpu() -> bool:
    if not installed("mlx"):
        return False
    import mlx.core as mx

    return mx.is_available(mx.gpu)


@cache
def cuda() -> bool:
    if not installed("torch"):
        return False
    import torch

    return torch.cuda.is_available()


# Before Triton is first imported, which transformers does as well: from then on a process
# interprets all kernels or none.
if installed("torch") and not cuda():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What a machine may lack: a test for it, and the words by which a skip names it.
PARTS: dict[str, tuple[Callable[[], bool], tuple[str, ...]]] = {
    "MLX is not installed": (lambda: installed("mlx"), ("mlx",)),
    "torch is not installed": (lambda: installed("torch"), ("torch",)),
    "transformers is not installed": (lambda: installed("transformers"), ("transformers",)),
    "no GPU for MLX (Metal or CUDA)": (mlx_gpu, ("metal", "apple gpu")),
    "no NVIDIA GPU (CUDA)": (cuda, ("cuda", "nvidia")),
}
DEVICES = {"mlx_gpu": "no GPU for MLX (Metal or CUDA)", "cuda": "no NVIDIA GPU (CUDA)"}


def for_gpu(item: pytest.Item) -> bool:
    """Whether a test is for a GPU, by its markers or by the name of its parameters."""
    named = "gpu" in item.name.partition("[")[2].replace("]", "").split("-")
    return named or any(item.get_closest_marker(marker) for marker in DEVICES)


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "run the tests of one kind of device alone"
    parser.addoption("--device", choices=("cpu", "gpu"), help=about)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if device := config.getoption("--device"):
        others = [item for item in items if for_gpu(item) != (device == "gpu")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    for item in items:
        for marker, reason in DEVICES.items():
            if item.get_closest_marker(marker) and not PARTS[reason][0]():
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped: dict[str, list[str]] = {reason: [] for reason in PARTS}
    other: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        said = said.removeprefix("Skipped: ")
        names = (reason for reason in PARTS if reason in said)
        hints = (
            reason
            for reason, (present, words) in PARTS.items()
            if not present() and any(word in said.lower() for word in words)
        )
        reason = next(names, None) or next(hints, None)
        (skipped[reason] if reason else other.setdefault(said, [])).append(report.nodeid)
    absent = [reason for reason, (present, _) in PARTS.items() if not present()]
    write, verbose = terminalreporter.write_line, terminalreporter.verbosity > 0
    if absent or other or any(skipped.values()):
        terminalreporter.write_sep("!", "NOT EVERYTHING RAN", yellow=True, bold=True)
        write("each test by name: PYTEST_ARGS=-v")
    else:
        write("every backend and device is present; no test was skipped", green=True)
    for reason, tests in {**skipped, **other}.items():
        if tests or reason in absent:
            write(f"{reason}: {_count(tests)}", yellow=True)
        for line, count in sorted(Counter(map(_line, tests, repeat(verbose))).items()):
            write(f"    {line}" + (f": {count}" if not verbose else ""))


def _line(test: str, verbose: bool) -> str:
    return test if verbose else test.split("::")[0]


def _count(tests: list[str]) -> str:
    files = sum("::" not in test for test in tests)
    return f"tests skipped: {len(tests) - files}" + (f", whole files: {files}" if files else "")
