"""Lets tests of the app import the clip maker, and gives them a small untrained model."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
MAKE = Path(__file__).parents[1] / "untrained" / "make.py"


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights: its answers mean nothing, and it is quick."""
    folder = tmp_path_factory.mktemp("untrained")
    subprocess.run([sys.executable, str(MAKE), str(folder)], check=True, timeout=120)
    return folder


@pytest.fixture(autouse=True)
def small_embedded(
    request: pytest.FixtureRequest, untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Has ``embedded`` mean the untrained model, but in tests marked ``shipped``."""
    if request.node.get_closest_marker("shipped") is None:
        monkeypatch.setattr("omnilive.models.EMBEDDED_FOLDER", untrained)
