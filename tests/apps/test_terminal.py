"""What leaves the command: harmless to a terminal, readable in any encoding, or one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip

from omnilive.cli import main
from omnilive.output import JsonLines, Text
from omnilive.terminal import printable

STEERING = "\x1b[31m\x07\x9b\r\x7f\u202e\udcff"


def omnilive(
    redirect: str, *words: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command with its streams sent elsewhere by a shell, as in ``>&-``."""
    pytest.importorskip("mlx.core")
    command = [sys.executable, "-m", "omnilive", *words]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", *command],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | (environment or {}),
        timeout=120,
        check=False,
    )


def live(tmp_path: Path, *words: str) -> list[str]:
    clip = write_clip(tmp_path / "clip.mp4", seconds=1.0)
    where = ["--backend", "mlx", "--device", "cpu", "--fast", "--max-tokens", "2"]
    return ["live", "--source", str(clip), *where, *words]


def test_what_steers_a_terminal_is_replaced_and_nothing_else() -> None:
    assert printable(STEERING) == "\ufffd[31m" + "\ufffd" * 6
    kept = "Grüße, 世界\u3000👩\u200d🔬\u00a0\n\tend"
    assert printable(kept) == kept


@pytest.mark.parametrize(
    "words",
    [
        ["live", "--source", f"/nowhere/{STEERING}"],
        ["live", "--model", f"/nowhere/{STEERING}"],
        ["live", STEERING],
        ["live", "--ask", f"{STEERING}: x"],
        ["replay", f"/nowhere/{STEERING}"],
    ],
)
def test_errors_do_not_steer_the_terminal(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert main(words) == 1
    except SystemExit as end:
        assert end.code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert printable(err) == err


def test_names_from_a_checkpoint_do_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"lm_head.weight": "\x1b[31m\nred.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert main(["live", "--model", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "red.safetensors" in err and err.count("\n") == 1 and printable(err) == err


def test_questions_and_answers_do_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Text()
    output.question(1.0, f"what {STEERING}?")
    output.event({"event": "token", "t": 1.0, "text": f"a {STEERING}"})
    output.event({"event": "answer", "t": 1.0, "text": f"a {STEERING}"})
    output.note(f"clip {STEERING}")
    for shown in capsys.readouterr():
        assert "\ufffd[31m" in shown and printable(shown) == shown


def test_an_incomplete_last_character_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output = Text()
    for tokens, answer in (([" The", " cat"], " The cat\ufffd"), ([], " \ufffd"), ([], "")):
        output.question(1.0, "what?")
        for token in tokens:
            output.event({"event": "token", "t": 1.0, "text": token})
        output.event({"event": "answer", "t": 1.0, "text": answer})
        assert capsys.readouterr().out == f"[1.0 s] what?\n> {answer.strip()}\n"


def test_json_lines_are_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    event: dict[str, Any] = {"event": "answer", "t": 1.0, "text": "Grüße \x1b \udcff 👩"}
    JsonLines().event(event)
    out = capsys.readouterr().out
    assert out.isascii() and json.loads(out) == event


@pytest.mark.parametrize("jsonl", [True, False])
def test_any_encoding_of_stdout_will_do(tmp_path: Path, jsonl: bool) -> None:
    words = live(tmp_path, "--ask", "1: ünï 你好 👩?", *(["--jsonl"] if jsonl else []))
    done = omnilive("", *words, environment={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    if jsonl:
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert "ünï 你好 👩?" in [answer.get("question") for answer in answers]
    else:
        assert "[1.0 s] ?n? ?? ??" in done.stdout


@pytest.mark.parametrize("option", [["--ask", "1: "], ["--system", ""]])
def test_bytes_that_are_no_text_are_wrong_usage(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("\udcff\udcfe", "\udcc3\udcbc"):
        with pytest.raises(SystemExit) as ended:
            main(["live", option[0], option[1] + text])
        assert ended.value.code == 2
        assert "is not text in the terminal's encoding" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("redirect", "says"),
    [(">&-", "stdout is closed"), (">/dev/full", "stdout cannot be written: No space left")],
)
@pytest.mark.parametrize("command", ["jsonl", "text", "help"])
def test_stdout_that_takes_nothing_is_one_line(
    tmp_path: Path, redirect: str, says: str, command: str
) -> None:
    if redirect == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    words = {
        "jsonl": live(tmp_path, "--jsonl"),
        "text": live(tmp_path, "--ask", "0: what?"),
        "help": ["live", "--help"],
    }
    done = omnilive(redirect, *words[command])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"omnilive: {says}")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_closed_stderr_gets_no_file_opened_in_its_place(tmp_path: Path) -> None:
    record = tmp_path / "recording"
    done = omnilive("2>&-", *live(tmp_path, "--record", str(record), "--ask", "1: what?"))
    assert done.returncode == 0
    assert done.stdout.startswith("[1.0 s] what?\n> ") and done.stdout.count("\n") == 2
    for line in (record / "plans.jsonl").read_text().splitlines():
        json.loads(line)
