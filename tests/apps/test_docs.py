"""docs/cli.md is the command's own help."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnilive.docs import main, page

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m omnilive.docs`"


def test_check_finds_an_old_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "docs" / "cli.md"
    assert main([str(file)]) == 0
    assert main(["--check", str(file)]) == 0
    file.write_text(page().replace("omnilive live", "omnilive watch"), encoding="utf-8")
    assert main(["--check", str(file)]) == 1
    assert "not up to date" in capsys.readouterr().err


def test_the_page_does_not_follow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page()
    monkeypatch.setenv("COLUMNS", "40")
    assert page() == before
