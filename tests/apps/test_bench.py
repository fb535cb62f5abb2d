"""``omnilive bench`` hands over to the scripts of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omnilive import bench
from omnilive.cli import main


def test_each_name_is_a_script_of_the_checkout() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    assert folder == bench.CHECKOUT / "benchmarks"
    assert [name for name in bench.BENCHMARKS if not (folder / f"{name}.py").is_file()] == []


def test_options_are_the_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Became(Exception):
        pass

    def execve(program: str, words: list[str], environment: dict[str, str]) -> None:
        raise Became(program, words, environment)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv("PYTHONPATH", "mine")
    with pytest.raises(Became) as became:
        bench.run("layout", ["--quick", "--out", "there"])
    program, words, environment = became.value.args
    script = str(bench.CHECKOUT / "benchmarks" / "layout.py")
    assert (program, words) == (sys.executable, [program, script, "--quick", "--out", "there"])
    roots = environment["PYTHONPATH"].split(os.pathsep)
    assert roots[0] == str(bench.CHECKOUT) and roots[-1] == "mine"


@pytest.mark.parametrize("options", [[], ["--quick"], ["--help"], ["--out", "x", "more"]])
def test_what_follows_the_name_is_handed_on(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[Any] = []
    monkeypatch.setattr(bench, "run", lambda *words: handed.append(words))
    main(["bench", "attention", *options])
    assert handed == [("attention", options)]


def test_the_scripts_exit_code_is_the_commands() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "omnilive", "bench", "layout", "--nonsense"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "layout.py: error: unrecognized arguments: --nonsense" in done.stderr


def test_outside_a_checkout_a_line_says_where_benchmarks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    assert main(["bench", "soak", "--quick"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("omnilive: benchmarks come with the source checkout")
    assert "pip install -e ." in err


@pytest.mark.parametrize(("words", "says"), [([], "required: WHAT ("), (["nothing"], "'nothing'")])
def test_wrong_names(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.count("\n") == 1
    assert says in err
