"""``--kv-bits`` and ``--seal``, from the words to what is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip

from benchmarks.null_backend import NullBackend
from omni_core import Recording
from omni_core.backend import ArenaLayout
from omni_core.budget import plan_arena
from omni_core.errors import BudgetError, OmniError
from omni_core.sealing import Sealing
from omnilive import backends
from omnilive.budget import settle
from omnilive.cli import main
from omnilive.models import Prepared, prepare

Events = list[dict[str, Any]]
ROOM = {"system": None, "max_tokens": 5}
SETTINGS = ("--budget", "640", "--max-tokens", "5")
SEALED = ("--kv-bits", "2", *SETTINGS)
LONG = ("--loop", "5")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", seconds=4.0)


@pytest.fixture(params=["null", "mlx", "cuda"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A twin, or what follows plans and computes nothing."""
    name = str(request.param)
    if name == "null":
        monkeypatch.setattr("omnilive.backends.load_backend", lambda *_: NullBackend())
        return "auto"
    return installed(name)


@pytest.fixture(params=["mlx", "cuda"])
def twin(request: pytest.FixtureRequest) -> str:
    return installed(str(request.param))


def installed(name: str) -> str:
    pytest.importorskip("mlx.core" if name == "mlx" else "torch")
    return name


def present(name: str) -> bool:
    return find_spec("mlx" if name == "mlx" else "torch") is not None


@pytest.fixture
def never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_backend(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("omnilive.backends.load_backend", load_backend)


def live(capsys: pytest.CaptureFixture[str], clip: Path, backend: str, *words: str) -> Events:
    where = ("--backend", backend, "--device", "cpu")
    code = main(["live", "--source", str(clip), "--fast", "--jsonl", *where, *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def kv_of(events: Events) -> list[dict[str, int]]:
    return [event["kv"] for event in events if event["event"] == "unit"]


@pytest.mark.parametrize("command", [("live", "--fast"), ("eval", "streamworld")])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seal", "all"], "--seal all is for a cache of 4, 3 or 2 bits"),
        (["--kv-bits", "16", "--seal", "recent"], "give --kv-bits, or leave --seal out"),
        (["--kv-bits", "3", "--retention", "h2o"], "--retention h2o lets tokens go one by one"),
    ],
)
@pytest.mark.usefixtures("never_loaded")
@pytest.mark.shipped
def test_words_that_do_not_fit_together(
    command: tuple[str, str], words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--device", "cpu", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and says in err


@pytest.mark.parametrize("words", [["--kv-bits", "5"], ["--kv-bits", "2", "--seal", "some"]])
def test_other_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["live", *words])
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"argument {words[-2]}: invalid choice" in err


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.shipped
@pytest.mark.parametrize("command", ["live --fast", "eval streamworld --quick"])
def test_a_backend_that_cannot_seal_is_refused_before_it_loads(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = backends.choose("auto")
    lacking = f"omni_{name}.sealing"
    monkeypatch.setattr(backends, "find_spec", lambda of: None if of == lacking else find_spec(of))
    assert main([*command.split(), "--device", "cpu", "--kv-bits", "2"]) == 1
    err = capsys.readouterr().err
    assert f"the {name} backend cannot seal its cache; choose another --backend" in err


def _unmeasured(events: Events) -> list[str]:
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    return [message for message in warnings if "values.safetensors" in message]


def test_a_model_that_was_not_measured_is_told(
    clip: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnilive.backends.load_backend", lambda *_: NullBackend())
    (message,) = _unmeasured(live(capsys, clip, "auto", *SEALED))
    assert message.endswith("measure the model by omnilive calibrate values")
    assert not _unmeasured(live(capsys, clip, "auto", *SETTINGS))


@pytest.mark.shipped
def test_the_model_that_ships_was_measured(
    clip: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnilive.backends.load_backend", lambda *_: NullBackend())
    assert not _unmeasured(live(capsys, clip, "auto", *SEALED))


def arena(prepared: Prepared, budget: int, sealing: Sealing | None) -> ArenaLayout:
    prefix, _ = prepared.frontend.open("You see.")
    unit = prepared.frontend.largest_unit
    return plan_arena(
        prepared.config.text,
        budget=budget,
        prefix=len(prefix),
        unit=unit,
        answer=5,
        element=4,
        sealing=sealing,
    )


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("seal", ["recent", "all"])
def test_a_budget_in_bytes_is_that_of_both_pools(bits: int, seal: str) -> None:
    prepared, sealing = prepare(), Sealing(bits, seal)
    room = {**ROOM, "system": "You see.", "sealing": sealing}
    cells = settle(prepared, 4, budget="12MB", **room)
    assert arena(prepared, cells, sealing).bytes(4) <= 12e6
    assert arena(prepared, cells + 1, sealing).bytes(4) > 12e6
    assert cells > 2 * settle(prepared, 4, budget="12MB", **{**room, "sealing": None})
    assert settle(prepared, 4, budget="700", **room) == 700
    with pytest.raises(BudgetError, match=r"a budget of 0\.1 MB is too small: a cache of \d+"):
        settle(prepared, 4, budget="100kB", **room)


def test_heads_that_cannot_be_sealed_are_refused() -> None:
    prepared = prepare()
    text = replace(prepared.config.text, head_dim=24)
    odd = replace(prepared, config=replace(prepared.config, text=text))
    with pytest.raises(OmniError, match="head_dim"):
        settle(odd, 4, budget=None, **ROOM, sealing=Sealing(2))
    assert settle(odd, 4, budget="700", **ROOM) == 700


def test_events_tell_what_is_sealed(
    capsys: pytest.CaptureFixture[str], clip: Path, backend: str
) -> None:
    plain = kv_of(live(capsys, clip, backend, *SETTINGS, *LONG))
    assert all("bits" not in kv for kv in plain)
    ask = ("--ask", "3: what is it?", "--ask", "20: and now?")
    for bits, seal in ((2, "recent"), (4, "all")):
        words = ("--kv-bits", str(bits), "--seal", seal, *SETTINGS, *LONG)
        events = live(capsys, clip, backend, *words, *ask)
        sealed = kv_of(events)
        assert {kv["bits"] for kv in sealed} == {bits} and events[-1]["evicted"] > 0
        assert events[-1]["kv"].items() >= {"bits": bits, "budget": 640}.items()
        assert all(0 <= kv["sealed_cells"] <= kv["cells"] <= 640 for kv in sealed)
        assert all(kv["sealed_cells"] <= 64 * kv["sealed_pages"] for kv in sealed)
        assert all(kv["sealed_pages"] <= kv["pages"] for kv in sealed)
        assert sealed[-1]["sealed_cells"] > 200
        # The newest 128 cells and what waits are as they were; a page of the rest is far smaller.
        assert sealed[-1]["bytes"] < 0.7 * plain[-1]["bytes"]


def test_people_are_told_what_is_sealed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, backend: str
) -> None:
    why = tmp_path / "why.txt"
    where = ("--source", str(clip), "--backend", backend, "--device", "cpu")
    words = ("live", *where, "--fast", "--explain", str(why), *LONG)
    assert main([*words, *SEALED, "--seal", "all"]) == 0
    err = capsys.readouterr().err
    assert "layout page, all of it sealed to 2 bits\n" in err
    assert " kB, " in err and err.split("19.00 s")[1].split("\n")[0].endswith(" sealed")
    (line,) = (row for row in err.splitlines() if row.startswith("  sealed   "))
    assert "of these cells to 2 bits, in" in line
    assert "small letters are sealed" in " ".join(err.split())
    text = why.read_text(encoding="utf-8")
    assert "640 cells, all of it sealed to 2 bits\n" in text
    assert " t█" in text.splitlines()[-1]
    assert main([*words, *SETTINGS]) == 0
    err = capsys.readouterr().err
    assert "layout page\n" in err and "sealed" not in err


@pytest.mark.parametrize("layout", ["native", "eager"])
def test_other_layouts_are_sealed_as_well(
    capsys: pytest.CaptureFixture[str], clip: Path, backend: str, layout: str
) -> None:
    events = live(capsys, clip, backend, *SEALED, *LONG, "--layout", layout)
    assert events[-1]["kv"]["sealed_cells"] > 200


def test_a_sealed_session_goes_on_as_it_was(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, twin: str
) -> None:
    folder, words = str(tmp_path / "s"), (*SEALED, "--seal", "all", "--ask", "3: what?")
    whole = live(capsys, clip, twin, *words, "--loop", "5")
    live(capsys, clip, twin, *words, "--loop", "2", "--save", folder)
    for option in (("--kv-bits", "2"), ("--seal", "all")):
        code = main(["live", "--source", str(clip), "--fast", "--resume", folder, *option])
        err = capsys.readouterr().err
        assert code == 2 and f"{option[0]} cannot be given with --resume" in err
    rest = live(capsys, clip, twin, "--resume", folder, "--loop", "3")
    assert rest[-1]["kv"] == whole[-1]["kv"] and rest[-1]["plans"] == whole[-1]["plans"]


def test_a_sealed_run_is_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, clip: Path, twin: str
) -> None:
    folder = tmp_path / "r"
    live(capsys, clip, twin, *SEALED, *LONG, "--ask", "19: what?", "--record", str(folder))
    meta = Recording(folder).meta
    assert (meta["kv_bits"], meta["seal"]) == (2, "recent") and meta["arena"]["bits"] == 2
    words = ["replay", str(folder), "--device", "cpu", "--jsonl"]
    other = {"mlx": "cuda", "cuda": "mlx"}[twin]
    # A number half way between two codes may be another backend's as either.
    for backend, tolerance in [(twin, 1e-3), *[(other, 0.05)] * present(other)]:
        assert main([*words, "--backend", backend]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["compared"] == report["agreed"] > 20
        assert report["tolerance"] == tolerance


@pytest.mark.usefixtures("never_loaded")
def test_a_sealed_run_is_not_replayed_by_a_backend_that_cannot_seal(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = prepare()
    layout = arena(prepared, 640, Sealing(2))
    meta = {"format": 1, "model": "embedded", "weights": "auto", "backend": "mlx", "element": 4}
    file = tmp_path / "session.json"
    seen = refusing(monkeypatch)
    for told, expected in ((layout, [prepared.backend]), (replace(layout, sealed_pages=0), [])):
        file.write_text(json.dumps(meta | {"arena": told.state()}))
        if expected:
            assert main(["replay", str(tmp_path), "--device", "cpu"]) == 1
            assert "refused here" in capsys.readouterr().err
        else:
            with pytest.raises(AssertionError, match="weights were loaded"):
                main(["replay", str(tmp_path), "--device", "cpu", "--debug"])
        assert seen == expected
        seen.clear()


def refusing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    def check(name: str) -> None:
        seen.append(name)
        raise OmniError("refused here")

    monkeypatch.setattr("omnilive.backends.check_sealing", check)
    return seen
