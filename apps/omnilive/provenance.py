"""Where something was measured or recorded: the machine, versions, and the source's commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """The machine, in words and numbers."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return re.findall(r"model name\s*:\s*(.+)", words)[0].strip()
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Python's version and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
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
