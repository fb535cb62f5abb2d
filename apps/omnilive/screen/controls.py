"""What keys do: commands, and a line that is typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omnilive.screen.decoding import Key
from omnilive.screen.editing import Editor


def _nothing() -> None:
    """A key that does nothing."""


@dataclass(frozen=True)
class Actions:
    """What a run does at a key; called on the keyboard's thread, so each must return at once.

    Attributes:
        line: takes a typed question.
        quit: ends the run.
        mute, camera: turn the microphone or the camera off and on; their states come back with the
            next snapshot.
    """

    line: Callable[[str], None]
    quit: Callable[[], None]
    mute: Callable[[], None] = _nothing
    camera: Callable[[], None] = _nothing


class Controls:
    """Takes keys: letters are commands until Enter, or pasted text, opens a line.

    Args:
        actions: what the run does.
        explain: shows the explanation, or the conversation again.
        typed: shows the line that is being typed; None once there is none.
    """

    def __init__(
        self, actions: Actions, explain: Callable[[], None], typed: Callable[[str | None], None]
    ) -> None:
        self._actions, self._typed = actions, typed
        self._editor: Editor | None = None
        self._commands = {
            "q": actions.quit,
            "m": actions.mute,
            "c": actions.camera,
            "e": explain,
        }

    def press(self, key: Key) -> None:
        """Do what the key says."""
        if self._editor is not None:
            self._edit(self._editor, key)
        elif key.name in ("enter", "paste"):
            self._editor = Editor(" ".join(key.text.splitlines()))
            self._typed(self._editor.text)
        elif key.name == "text":
            for character in key.text.lower():
                self._commands.get(character, _nothing)()

    def _edit(self, editor: Editor, key: Key) -> None:
        done = editor.press(key)
        if done is None:
            self._typed(editor.text)
            return
        self._editor = None
        self._typed(None)
        if done:
            self._actions.line(editor.text.strip())
