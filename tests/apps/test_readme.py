"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clips import write_clip

from omnilive.grammar import subcommands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlx.core")
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 6
    write_clip(tmp_path / "clip.mp4", seconds=2.4)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.strip()


def test_every_option_it_names_exists() -> None:
    known = "".join(command.format_help() for command in subcommands().values())
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README))
    assert options and all(option in known for option in options)


def test_the_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
