"""The screen on a pseudo terminal: it shows and obeys, and the terminal is always given back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("the screen needs a POSIX terminal", allow_module_level=True)
pytest.importorskip("rich", reason="pip install -e '.[live]' in the checkout")

from rich.cells import cell_len
from screen_terminals import DRIVER, Terminal

ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"


def started(terminal: Terminal) -> None:
    terminal.until_shown("following")
    terminal.until_shown("front camera")


def test_it_is_shown_and_q_ends_it() -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        assert terminal.mode() != terminal.before
        terminal.until_shown("67")
        terminal.type("q")
        assert terminal.code == 0
        terminal.until_shown("the end")
        assert terminal.given_back()
        assert "desk mic" in terminal.text and "front camera" in terminal.text
        # What is worth keeping stays on the terminal.
        assert "the last warning" in terminal.text.rpartition(LEFT)[2]


def test_a_typed_question_is_answered_without_raw_escapes() -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        terminal.type("\r")
        terminal.until_shown("Esc leaves")
        terminal.type("what iz\x7fs q\x1b[A 世界")
        terminal.until_shown("what is q 世界")
        terminal.type("\x17")
        terminal.type("\x1b[200~at\nthe end\x1b[201~\r")
        terminal.until_shown("what is q at the end")
        terminal.until_shown("star")
        terminal.type("q")
        assert terminal.code == 0
        assert "a blue \ufffd[31mstar" in terminal.text
        left = terminal.text.rpartition(LEFT)[2]
        assert "what is q at the end\r\n> a blue \ufffd[31mstar" in left


def test_escape_leaves_the_line_and_letters_are_commands_again() -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        terminal.type("\rq")
        terminal.until_shown("Esc leaves")
        seen = len(terminal.shown)
        terminal.type("\x1b")
        terminal.until_shown("camera off", seen)
        terminal.type("e")
        terminal.until_shown("What stays, and why")
        terminal.type("q")
        assert terminal.code == 0


def test_an_exception_of_the_run() -> None:
    with Terminal("raises") as terminal:
        started(terminal)
        assert terminal.code == 1
        terminal.until_shown("RuntimeError: the run broke")
        assert terminal.given_back()
        assert "RuntimeError: the run broke" in terminal.text.rpartition(LEFT)[2]


@pytest.mark.parametrize(
    ("mode", "keys", "message"),
    [
        ("broken", "", "RuntimeError: the devices broke"),
        ("broken-line", "\rhello\r", "RuntimeError: nobody takes hello"),
    ],
)
def test_an_exception_of_a_thread_is_raised_in_the_run(mode: str, keys: str, message: str) -> None:
    with Terminal(mode) as terminal:
        terminal.until_shown(ENTERED)
        if keys:
            started(terminal)
            terminal.type(keys)
        assert terminal.code == 1
        terminal.until_shown(message)
        assert terminal.given_back()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_the_process(number: int) -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        terminal.send(number)
        assert terminal.code == -number
        terminal.until_shown(LEFT)
        assert terminal.given_back()


def test_a_signal_that_the_run_handles_is_left_to_it() -> None:
    with Terminal("orderly") as terminal:
        started(terminal)
        terminal.send(signal.SIGTERM)
        assert terminal.code == 0
        terminal.until_shown("the end")
        assert terminal.given_back()


def test_ctrl_c_once_ends_in_good_order() -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        terminal.type("\x03")
        assert terminal.code == 0
        terminal.until_shown("the end")
        assert terminal.given_back()


def test_ctrl_c_twice_ends_at_once() -> None:
    with Terminal("stubborn") as terminal:
        started(terminal)
        terminal.type("\x03")
        # Said on stderr, which the screen shows as a line of its log.
        terminal.until_shown("Ctrl-C again ends at once")
        terminal.type("\x03")
        assert terminal.code in (-signal.SIGINT, 130)
        terminal.until_shown("KeyboardInterrupt")
        assert terminal.given_back()


def test_ctrl_z_gives_the_terminal_back_until_it_is_brought_back() -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        seen = 0
        for turn in range(2):
            terminal.type("\x1a")
            stopped = terminal.await_told("stopped", turn)
            assert stopped == {"stopped": signal.SIGTSTP, "plain": True}
            terminal.until_shown(LEFT, seen)
            assert terminal.text.rindex(LEFT) > terminal.text.rindex(ENTERED)
            seen = len(terminal.shown)
            terminal.order("fg")
            terminal.until_shown(ENTERED, seen)
            terminal.until_shown("front camera", seen)
            seen = len(terminal.shown)
        terminal.type("q")
        assert terminal.code == 0
        terminal.until_shown("the end")
        assert terminal.given_back()


def test_in_the_background_it_goes_on_without_a_screen() -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        terminal.type("\x1a")
        terminal.await_told("stopped")
        seen = len(terminal.shown)
        terminal.order("bg")
        # A line for the shell is not taken away from it, and does not stop the job.
        terminal.type("m\n")
        terminal.send(signal.SIGTERM)
        assert terminal.code == -signal.SIGTERM
        assert ENTERED not in terminal.text[seen:]
        assert terminal.given_back()


def test_a_stop_that_cannot_be_seen_coming() -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        terminal.send(signal.SIGSTOP)
        assert terminal.await_told("stopped")["stopped"] == signal.SIGSTOP
        seen = len(terminal.shown)
        terminal.order("fg")
        terminal.until_shown("front camera", seen)
        terminal.type("q")
        assert terminal.code == 0
        terminal.until_shown("the end")
        assert terminal.given_back()


def test_a_terminal_that_is_gone_ends_the_run() -> None:
    with Terminal("deaf") as terminal:
        started(terminal)
        terminal.hang_up()
        assert terminal.code in (1, 120)


def test_lines_of_libraries_go_into_the_log() -> None:
    with Terminal("stderr") as terminal:
        terminal.until_shown("ALSA lib pcm.c: \ufffd[2J no such thing")
        terminal.type("q")
        assert terminal.code == 0
        terminal.until_shown("the end")
        assert terminal.given_back()


def test_a_busy_run_is_drawn_and_obeys() -> None:
    with Terminal("busy") as terminal:
        started(terminal)
        terminal.type("\rwhile busy")
        terminal.until_shown("while busy")
        seen = len(terminal.shown)
        terminal.type("\x1b")
        terminal.until_shown("camera off", seen)
        terminal.type("q")
        assert terminal.code == 0
        assert terminal.given_back()


def test_another_size_is_drawn_anew() -> None:
    with Terminal("normal") as terminal:
        started(terminal)
        for columns, lines in ((120, 40), (60, 16), (24, 6)):
            seen = len(terminal.shown)
            terminal.resize(columns, lines)
            terminal.until_shown(f"\x1b[{lines};1H", seen)
            rows = re.findall(r"\x1b\[(\d+);(\d+)H", terminal.shown[seen:].decode())
            assert max(int(row) for row, _ in rows) == lines
            assert max(int(column) for _, column in rows) <= columns
        terminal.type("q")
        assert terminal.code == 0
        assert terminal.given_back()


@pytest.mark.parametrize(
    ("environment", "wanted", "unwanted"),
    [
        ({"COLORTERM": "truecolor"}, "\x1b[38;2;200;40;40;48;2;200;40;40m▀", "\x1b[38;5;"),
        ({"COLORTERM": ""}, "\x1b[38;5;160;48;5;160m▀", "\x1b[38;2;"),
        ({"COLORTERM": "", "TERM": "xterm"}, "\x1b[1;36m omnilive", "▀"),
        ({"NO_COLOR": "1"}, "following", "36m"),
        ({"PYTHONIOENCODING": "ascii"}, "following", "▀"),
    ],
)
def test_as_many_colours_as_the_terminal_has(
    environment: dict[str, str], wanted: str, unwanted: str
) -> None:
    with Terminal("normal", environment=environment) as terminal:
        started(terminal)
        terminal.type("q")
        assert terminal.code == 0
        assert wanted in terminal.text and unwanted not in terminal.text


def test_the_frame_stands_straight_in_a_real_terminal(tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux: install it to try a terminal that people use")
    tmux = ["tmux", "-u", "-S", str(tmp_path / "socket"), "-f", os.devnull]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"}
    environment.pop("TMUX", None)

    def run(*words: str) -> str:
        return subprocess.run(
            [*tmux, *words], capture_output=True, text=True, env=environment, timeout=30, check=True
        ).stdout

    def rows_with(text: str) -> list[str]:
        end = time.monotonic() + 30
        while text not in (shown := run("capture-pane", "-p")):
            assert time.monotonic() < end, shown
            time.sleep(0.1)
        return shown.splitlines()

    command = f"{sys.executable} {DRIVER} normal; sleep 60"
    try:
        run("new-session", "-d", "-x", "80", "-y", "24", command)
        rows_with("front camera")
        run("send-keys", "Enter")
        run("send-keys", "-l", "世界 und die übrige lange Frage nach der 世界")
        run("send-keys", "Enter")
        rows = rows_with("star")
        assert sum("世" in row for row in rows) == 2
        places = {cell_len(re.split("[│├┬┴]", row)[0]) for row in rows[1:18]}
        assert places == {47}
        run("resize-window", "-x", "60", "-y", "16")
        rows = rows_with("token 80 ms")
        assert len(rows) == 16 and all(cell_len(row) <= 60 for row in rows)
        run("send-keys", "q")
        assert "star" in "".join(rows_with("the end"))
    finally:
        run("kill-server")


@pytest.mark.parametrize("name", ["dumb", ""])
def test_a_terminal_that_cannot_place_text_gets_no_screen(name: str) -> None:
    with Terminal("normal", environment={"TERM": name}) as terminal:
        assert terminal.code == 0
        terminal.until_shown(f"no screen: the terminal cannot place text (TERM={name})")
        assert ENTERED not in terminal.text


@pytest.mark.parametrize("redirect", ["</dev/null", "| cat"])
def test_no_terminal_no_screen(redirect: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirect}', "sh", sys.executable, str(DRIVER), "normal"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"no screen: (stdin|stdout) is no terminal\n", done.stdout)
