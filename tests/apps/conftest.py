"""Lets tests of the app import the clip maker, and has them run a small untrained model."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def small_embedded(
    request: pytest.FixtureRequest, untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Has ``embedded`` mean the untrained model, but in tests marked ``shipped``."""
    if request.node.get_closest_marker("shipped") is None:
        monkeypatch.setattr("omnilive.models.EMBEDDED_FOLDER", untrained)


@pytest.fixture(autouse=True, scope="session")
def _hangups_are_heard() -> None:
    # Tests that run under nohup inherit an ignored SIGHUP, and so do the programs they start.
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
