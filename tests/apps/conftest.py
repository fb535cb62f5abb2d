"""Lets tests of the app import the clip maker, and has them run a small untrained model."""

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
