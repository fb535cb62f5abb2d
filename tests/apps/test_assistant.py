"""The run that follows devices: what is typed before it has a session, and timed questions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from virtual_devices import VirtualCamera

from omnilive import assistant
from omnilive.cli import main
from omnilive.output import Text

GREY = np.full((112, 112, 3), 90, np.uint8)


class Screen(Text):
    """A screen at which somebody types as soon as it is there, on a thread as a keyboard's."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self._run = run

    def __enter__(self) -> Self:
        for text in ("what is it?", "and where?"):
            typing = threading.Thread(target=self._run.type, args=(text,))
            typing.start()
            typing.join()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hearing(self, speech: bool) -> None:
        pass

    def onlooker(self, layout: object, other: Any = None) -> Any:
        return other


def test_what_is_typed_while_a_session_begins_is_asked(
    untrained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(assistant, "_screen", lambda title, output, run: Screen(run))
    with VirtualCamera(lambda _: GREY) as camera:
        words = ["--camera", camera.address, "--mic", "none", "--duration", "2"]
        words += ["--backend", "cuda", "--device", "cpu", "--max-tokens", "2"]
        assert main(["live", *words, "--model", str(untrained)]) == 0
    out, err = capsys.readouterr()
    asked = [line.partition("s] ")[2] for line in out.splitlines() if line.startswith("[")]
    assert asked == ["what is it?", "and where?"], err
    assert "2 answers" in err
