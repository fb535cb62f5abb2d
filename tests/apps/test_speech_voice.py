"""Speaking: whole sentences, as text and nothing else, and no process that stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omnilive.speech import SpeechError, voice
from omnilive.speech.programs import CHOICE, find_program
from omnilive.speech.sentences import LONGEST, Sentences
from omnilive.speech.voice import Voice

pytestmark = pytest.mark.skipif(os.name != "posix", reason="programs are shell scripts here")

# Each call adds its arguments and what it read, one a line in brackets, and says that it is done.
RECORDS = """
for word in "$@"; do printf '<%s>\\n' "$word" >>"$0.arguments"; done
cat >>"$0.text"
"""
# One that speaks for ever, with the help of another process, and leaves the numbers of both.
HANGS = """
cat >/dev/null
sleep 300 &
echo $$ $! >"$0.partial"
mv "$0.partial" "$0.numbers"
wait
"""


@pytest.fixture(name="programs")
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched first, with none of this machine's voices behind it."""
    for name in ("sh", "cat", "sleep", "mv"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def install(folder: Path, name: str, script: str) -> Path:
    program = folder / name
    program.write_text(f"#!{folder}/sh\n{script}")
    program.chmod(0o755)
    return program


def read(program: Path, what: str) -> str:
    path = program.with_name(f"{program.name}.{what}")
    return path.read_text() if path.exists() else ""


def until(come: Callable[[], bool]) -> None:
    for _ in range(2000):
        if come():
            return
        time.sleep(0.01)
    pytest.fail("it did not come within 20 s")


def alive(number: int) -> bool:
    state = Path(f"/proc/{number}/stat")
    if state.exists():
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return not Path("/proc").exists()


@pytest.fixture(name="warnings")
def _warnings() -> list[str]:
    return []


@pytest.fixture(name="spoken")
def _spoken(programs: Path, warnings: list[str]) -> Iterator[tuple[Voice, Path]]:
    program = install(programs, "espeak-ng", RECORDS)
    with Voice(warnings.append) as speaker:
        yield speaker, program


def test_a_sentence_is_spoken_while_the_next_is_written(spoken: tuple[Voice, Path]) -> None:
    speaker, program = spoken
    assert not speaker.speaking
    for token in ("It", " is", " red", ".", " It"):
        speaker.add(token)
    until(lambda: read(program, "text") == "It is red.\n")
    speaker.add(" was 3.5 s ago")
    assert speaker.speaking
    speaker.finish()
    assert speaker.wait(20)
    assert not speaker.speaking
    assert read(program, "text") == "It is red.\nIt was 3.5 s ago\n"
    assert read(program, "arguments") == "<--stdin>\n" * 2


@pytest.mark.parametrize("name", ["espeak-ng", "espeak", "say", "spd-say"])
def test_text_is_nothing_but_text(
    name: str, programs: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin" if name == "say" else "linux")
    program = install(programs, name, RECORDS)
    cruel = "--version -f /etc/passwd \"'`touch x`$(touch x);\x1b[31m\nnext\r\n[[[slnc 9]]\ud800\0x"
    with Voice(warnings.append) as speaker:
        speaker.add(cruel)
        speaker.finish()
        assert speaker.wait(20)
    said = ["--version -f /etc/passwd \"'`touch x`$(touch x); [31m", "next", "[ [ [slnc 9]] x"]
    options = {"espeak-ng": ["--stdin"], "espeak": ["--stdin"], "say": ["-f", "-"]}
    if name == "spd-say":
        arguments = [word for text in said for word in ("--wait", "--", text)]
    else:
        arguments = options[name] * len(said)
        assert read(program, "text").splitlines() == said
    assert read(program, "arguments").splitlines() == [f"<{word}>" for word in arguments]
    assert warnings == []


def test_nothing_without_a_word_is_spoken(spoken: tuple[Voice, Path]) -> None:
    speaker, program = spoken
    for token in ("...", " \n", "?!", " ", "\x1b", " ", ""):
        speaker.add(token)
    speaker.finish()
    assert speaker.wait(20) and not speaker.speaking
    assert read(program, "arguments") == ""


def test_stop_ends_its_own_processes_and_no_other(programs: Path, warnings: list[str]) -> None:
    program = install(programs, "espeak-ng", HANGS)
    other = subprocess.Popen([str(programs / "sleep"), "300"])
    try:
        with Voice(warnings.append) as speaker:
            speaker.add("One. Two. Three. Fo")
            until(lambda: read(program, "numbers") != "")
            speaker.stop()
            assert not speaker.speaking
            numbers = [int(word) for word in read(program, "numbers").split()]
            until(lambda: not any(alive(number) for number in numbers))
            assert other.poll() is None
            # What was waiting is forgotten, and the next answer is spoken.
            install(programs, "espeak-ng", RECORDS)
            speaker.add("ur.\nFive.")
            speaker.finish()
            assert speaker.wait(20)
            assert read(program, "text") == "ur.\nFive.\n"
    finally:
        other.kill()
        other.wait()
    assert warnings == []


def test_a_service_is_told_to_stop(programs: Path, warnings: list[str]) -> None:
    script = f'case "$1" in --stop) {RECORDS};; *) {HANGS};; esac'
    program = install(programs, "spd-say", script)
    with Voice(warnings.append) as speaker:
        speaker.add("One. ")
        until(lambda: read(program, "numbers") != "")
        speaker.stop()
        assert read(program, "arguments") == "<--stop>\n"
    assert warnings == []


def test_an_exception_leaves_no_process(programs: Path, warnings: list[str]) -> None:
    program = install(programs, "espeak-ng", HANGS)
    with pytest.raises(RuntimeError), Voice(warnings.append) as speaker:
        speaker.add("One. Two. ")
        until(lambda: read(program, "numbers") != "")
        raise RuntimeError
    numbers = [int(word) for word in read(program, "numbers").split()]
    until(lambda: not any(alive(number) for number in numbers))
    until(lambda: not any(thread.name.startswith("voice") for thread in threading.enumerate()))
    speaker.add("Nobody hears this. ")
    speaker.finish()
    assert not speaker.speaking


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "raise RuntimeError", "pass"])
def test_the_end_of_the_program_leaves_no_process(programs: Path, end: str) -> None:
    program = install(programs, "espeak-ng", HANGS)
    code = f"""
import pathlib, time
from omnilive.speech.voice import Voice
speaker = Voice(print)
speaker.add("One. ")
while not pathlib.Path({str(program)!r} + ".numbers").exists():
    time.sleep(0.01)
{end}
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == {"raise SystemExit(3)": 3, "raise RuntimeError": 1, "pass": 0}[end]
    numbers = [int(word) for word in read(program, "numbers").split()]
    assert len(numbers) == 2
    until(lambda: not any(alive(number) for number in numbers))


def test_a_missing_program_is_one_line(programs: Path, warnings: list[str]) -> None:
    with pytest.raises(SpeechError) as raised:
        Voice(warnings.append)
    assert "install espeak-ng" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("chosen", "found"),
    [("no-such-voice -v de", "'no-such-voice', which is no program"), ("a 'b", "is no command")],
)
def test_a_bad_choice_is_one_line(
    chosen: str, found: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs, "espeak-ng", RECORDS)
    monkeypatch.setenv(CHOICE, chosen)
    with pytest.raises(SpeechError) as raised:
        find_program()
    assert found in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("chosen", "arguments"),
    [
        ("reader -x 'a b'", ["-x", "a b"]),
        ("espeak-ng -v de", ["-v", "de", "--stdin"]),
        ("spd-say -l de", ["-l", "de", "--wait", "--", "Eins."]),
    ],
)
def test_the_voice_can_be_chosen(
    chosen: str,
    arguments: list[str],
    programs: Path,
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = install(programs, chosen.split()[0], RECORDS)
    monkeypatch.setenv(CHOICE, chosen)
    with Voice(warnings.append) as speaker:
        speaker.add("Eins.")
        speaker.finish()
        assert speaker.wait(20)
    assert read(program, "arguments").splitlines() == [f"<{word}>" for word in arguments]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("exit 3", "ended with 3"),
        ("kill -9 $$", "was ended by signal 9"),
        ("read line\nsleep 300", "did not end within"),
        (None, "cannot be started"),
    ],
)
def test_a_program_that_fails_is_told_once(
    script: str | None,
    found: str,
    programs: Path,
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(voice, "_PATIENCE", 0.3 if script and "sleep" in script else 60.0)
    monkeypatch.setattr(voice, "_SLOWEST", 100.0)
    program = install(programs, "espeak-ng", script or "")
    if script is None:
        program.write_bytes(b"\x7fELF no more")
    with Voice(warnings.append) as speaker:
        speaker.add("One. Two. Three. ")
        assert speaker.wait(20)
        assert not speaker.speaking
        speaker.add("Four. ")
        speaker.finish()
        assert speaker.wait(20) and not speaker.speaking
    assert len(warnings) == 1
    assert found in warnings[0] and "echo hello | espeak-ng --stdin" in warnings[0]


def test_what_a_slow_voice_leaves_out_is_counted_and_told_once(
    programs: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voice, "MOST_WAITING", 3)
    program = install(programs, "espeak-ng", HANGS)
    with Voice(warnings.append) as speaker:
        speaker.add("First. ")
        until(lambda: read(program, "numbers") != "")
        for number in range(10):
            speaker.add(f"Number {number}. ")
        assert speaker.left_out == 7
    assert len(warnings) == 1 and "too slow" in warnings[0]


def test_a_real_voice_can_be_heard(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed (apt-get install espeak-ng)")
    file = tmp_path / "said.wav"
    monkeypatch.setenv(CHOICE, f"espeak-ng -w '{file}'")
    with Voice(warnings.append) as speaker:
        speaker.add("- I saw a red square, twenty seconds ago.")
        speaker.finish()
        assert speaker.wait(60)
    assert warnings == []
    with wave.open(str(file)) as said:
        sound = np.frombuffer(said.readframes(said.getnframes()), "<i2")
        seconds = len(sound) / said.getframerate()
    assert 1 < seconds < 10
    assert np.abs(sound).max() > 1000


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Yes. No", ["Yes.", "No"]),
        ("It is 3.5 m. Really?! Yes", ["It is 3.5 m.", "Really?!", "Yes"]),
        ('He said "stop!" And then', ['He said "stop!"', "And then"]),
        ("one\ntwo\n\nthree", ["one", "two", "three"]),
        ("红色。蓝色！好", ["红色。", "蓝色！", "好"]),  # noqa: RUF001
        ("a" * 500, ["a" * 240, "a" * 240, "a" * 20]),
        ("word " * 60, ["word " * 47 + "word", "word " * 11 + "word"]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    found = Sentences()
    assert found.add(text) + found.finish() == sentences


WRITING = st.text(st.sampled_from("ab1 .!?…。！\n\"'”」)[\t"), max_size=400)  # noqa: RUF001


@given(text=WRITING, size=st.integers(1, 7))
@example(text="word " * 200, size=3)
@example(text="「红。」蓝。」」。", size=1)
def test_sentences_whatever_the_tokens(text: str, size: int) -> None:
    whole, cut = Sentences(), Sentences()
    expected = whole.add(text) + whole.finish()
    found = [line for at in range(0, len(text), size) for line in cut.add(text[at : at + size])]
    assert found + cut.finish() == expected
    assert all(len(line) <= 2 * LONGEST and "\n" not in line for line in expected)
    words = [char for char in text if char.isalnum()]
    assert [char for line in expected for char in line if char.isalnum()] == words
