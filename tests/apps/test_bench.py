"""``omnilive bench`` hands over to the scripts of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import LACKS
from omnilive import bench
from omnilive.cli import main


def test_each_name_is_a_script_of_the_checkout() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    assert folder == bench.CHECKOUT / "benchmarks"
    names = [*bench.BENCHMARKS, *bench.ATTENTION.values()]
    assert [name for name in names if not (folder / f"{name}.py").is_file()] == []


class Became(Exception):
    pass


@pytest.fixture(autouse=True)
def stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process does not become another."""

    def execve(program: str, words: list[str], environment: dict[str, str]) -> None:
        raise Became(program, words, environment)

    monkeypatch.setattr(os, "execve", execve)


def test_options_are_the_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this a machine with some libraries, of which some find a GPU."""

    def make(libraries: set[str], gpus: set[str]) -> None:
        monkeypatch.setattr(bench, "find_spec", lambda name: name in libraries)
        monkeypatch.setattr(bench.backends, "on_cpu", lambda backend, device: backend not in gpus)

    return make


@pytest.mark.parametrize(
    ("libraries", "gpus", "script"),
    [
        ({"torch", "mlx"}, {"cuda", "mlx"}, "attention.py"),
        ({"torch", "mlx"}, {"mlx"}, "metal.py"),
        ({"mlx"}, {"cuda", "mlx"}, "metal.py"),
        ({"torch"}, {"cuda"}, "attention.py"),
    ],
)
def test_attention_is_what_this_machines_gpu_runs(
    machine: Any, libraries: set[str], gpus: set[str], script: str
) -> None:
    machine(libraries, gpus)
    with pytest.raises(Became) as became:
        bench.run("attention", ["--quick"])
    _, words, _ = became.value.args
    assert Path(words[1]).name == script and words[2:] == ["--quick"]


@pytest.mark.parametrize("option", ["--help", "-h", "--draw", "--draw=FILE"])
def test_what_needs_no_gpu_is_asked_of_none(option: str, machine: Any) -> None:
    machine({"torch", "mlx"}, {"mlx"})
    with pytest.raises(Became) as became:
        bench.run("attention", [option])
    _, words, _ = became.value.args
    assert Path(words[1]).name == "attention.py" and words[2:] == [option]


def without_gpu(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", "omnilive", "bench", *words],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(sys.platform == "darwin", reason="MLX has a GPU on a Mac")
def test_without_a_gpu_attention_says_what_each_needs() -> None:
    done = without_gpu("attention", "--quick")
    assert done.returncode == LACKS and done.stdout == "" and done.stderr.count("\n") == 1
    assert "an Apple Silicon Mac has benchmarks/metal.py" in done.stderr and "mlx" in done.stderr


@pytest.mark.parametrize("name", ["layout", "attention", "metal"])
def test_the_scripts_exit_code_is_the_commands(name: str) -> None:
    done = without_gpu(name, "--nonsense")
    assert done.returncode == 2 and done.stdout == ""
    assert ".py: error: unrecognized arguments: --nonsense" in done.stderr


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
