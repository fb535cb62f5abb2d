"""Keys from bytes, and the line that is typed with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnilive.screen.controls import Actions, Controls
from omnilive.screen.decoding import Decoder, Key
from omnilive.screen.editing import Editor
from omnilive.terminal import printable


def keys(data: bytes) -> list[Key]:
    decoder = Decoder()
    return decoder.feed(data) + decoder.flush()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"q", [Key("text", "q")]),
        ("für 世界 👩\u200d🔬".encode(), [Key("text", "für 世界 👩\u200d🔬")]),
        (b"\r", [Key("enter")]),
        (
            b"\x7f\x08\x15\x17\x04",
            [Key(n) for n in ("backspace", "backspace", "clear", "word", "end")],
        ),
        (b"\x1b", [Key("escape")]),
        (b"\x1b\x1b", [Key("escape"), Key("escape")]),
        (b"\x1b[A\x1bOP\x1b[1;5C\x1bfx", [Key("text", "x")]),
        (b"\x1b\x7f", [Key("word")]),
        (b"\x1b[", []),
        (b"a\x01\x02b\tc", [Key("text", "ab c")]),
        (b"\xff\xfe", [Key("text", "\ufffd\ufffd")]),
        (b"\x1b[200~q\r\n\x1b[31mm\x1b[201~q", [Key("paste", "q\n[31mm"), Key("text", "q")]),
    ],
)
def test_bytes_become_keys(data: bytes, expected: list[Key]) -> None:
    assert [Key(key.name, key.text.replace("\r", "")) for key in keys(data)] == expected


@given(
    st.lists(st.sampled_from(["é", "世", "x", "\r", "\x7f", "\x1b[A", "\x1b[200~q\x1b[201~"])),
    st.data(),
)
def test_pieces_make_no_difference(words: list[str], data: st.DataObject) -> None:
    sent = "".join(words).encode()
    decoder = Decoder()
    got: list[Key] = []
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        got += decoder.feed(sent[:size])
        sent = sent[size:]

    def joined(found: list[Key]) -> list[tuple[str, str]]:
        parts: list[tuple[str, str]] = []
        for key in found:
            if parts and key.name == parts[-1][0] == "text":
                parts[-1] = ("text", parts[-1][1] + key.text)
            else:
                parts.append((key.name, key.text))
        return parts

    assert joined(got) == joined(keys("".join(words).encode()))
    assert not decoder.waiting


@given(st.binary(max_size=300))
def test_any_bytes_give_harmless_keys(data: bytes) -> None:
    for key in keys(data):
        assert printable(key.text) == key.text
        assert key.name == "paste" or not {"\n", "\t"} & set(key.text)


def test_a_paste_without_an_end_is_bounded() -> None:
    decoder = Decoder()
    got = decoder.feed(b"\x1b[200~" + b"x" * (1 << 17))
    assert [key.name for key in got] == ["paste"] and len(got[0].text) == 1 << 16
    assert decoder.feed(b"y") == [Key("text", "y")]


@pytest.mark.parametrize(
    ("before", "key", "after"),
    [
        ("ab", Key("text", "c"), "abc"),
        ("ab", Key("backspace"), "a"),
        ("", Key("backspace"), ""),
        ("a👩\u200d🔬", Key("backspace"), "a"),
        ("e\u0301", Key("backspace"), ""),
        ("👍🏽", Key("backspace"), ""),
        ("❤\ufe0f", Key("backspace"), ""),
        ("what is  ", Key("word"), "what "),
        ("what", Key("word"), ""),
        ("what is", Key("clear"), ""),
        ("a ", Key("paste", "b\r\nc"), "a b c"),
        ("x" * 1999, Key("text", "yz"), "x" * 1999 + "y"),
    ],
)
def test_a_line_is_edited(before: str, key: Key, after: str) -> None:
    editor = Editor(before)
    assert editor.press(key) is None
    assert editor.text == after


@pytest.mark.parametrize(
    ("text", "name", "done"),
    [
        ("what?", "enter", True),
        ("  ", "enter", False),
        ("what?", "escape", False),
        ("", "end", False),
    ],
)
def test_a_line_ends(text: str, name: str, done: bool) -> None:
    assert Editor(text).press(Key(name)) is done


def test_letters_are_commands_until_a_line_is_opened() -> None:
    done: list[str] = []
    typed: list[str | None] = []
    actions = Actions(
        done.append,
        lambda: done.append("quit"),
        lambda: done.append("mute"),
        lambda: done.append("camera"),
    )
    controls = Controls(actions, lambda: done.append("explain"), typed.append)
    for key in (Key("text", "mCx"), Key("escape"), Key("text", "e"), Key("enter")):
        controls.press(key)
    assert done == ["mute", "camera", "explain"]
    for key in (
        Key("text", "mq "),
        Key("enter"),
        Key("paste", "q\nm"),
        Key("escape"),
        Key("text", "q"),
    ):
        controls.press(key)
    assert done[3:] == ["mq", "quit"]
    assert typed == ["", "mq ", None, "q m", None]
