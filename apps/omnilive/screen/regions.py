"""The regions of the screen, each as lines of an exact width."""

from __future__ import annotations

from rich.segment import Segment

from omni_core.frontend.base import SAMPLE_RATE
from omnilive.screen.gauges import cache, legend, meter, pages
from omnilive.screen.lines import (
    Line,
    Look,
    blank,
    centred,
    ends,
    filled,
    fit,
    fold,
    measure,
    part,
    tail,
)
from omnilive.screen.picture import drawn
from omnilive.screen.senses import ENDED, LOST, MUTED, NONE, OFF, ON, OPENING, SILENT
from omnilive.screen.state import ALERT, SPOKEN, TYPED, Counts, Turn, View

QUIET = "bright_black"
"""The style of what need not be looked at."""
_MARKS = {TYPED: "cyan", SPOKEN: "magenta", ALERT: "bold yellow"}
_STATES = {
    LOST: ("lost, trying again", "red"),
    MUTED: ("muted", "yellow"),
    OFF: ("off", "yellow"),
    OPENING: ("opening", QUIET),
    SILENT: ("only silence", "yellow"),
    ENDED: ("ended", QUIET),
    NONE: ("none", QUIET),
}
_TIME = 5
_NARROW, _AIRY = 40, 20
_LEGEND = 3
# Seconds of stream for which a warning stays in the log.
_WARNED = 60.0
KEYS = (("Enter", "type"), ("m", "mute"), ("c", "camera off"), ("e", "explain"), ("q", "quit"))
"""What the keys do."""
_FIRST = (0, 4, 1, 2, 3)


def header(view: View, width: int) -> Line:
    """The name, what runs, and what it does just now."""
    name = [part(" omnilive", "bold cyan"), part(f"  {view.title}", QUIET)]
    word, words = _doing(view)
    doing = [part(f" ● {word} ", words)]
    return (*fit(name, width - measure(doing)), *doing) if width >= _NARROW else fit(name, width)


def conversation(view: View, width: int, height: int) -> list[Line]:
    """Questions and answers, the newest at the bottom."""
    if not view.turns:
        said = "Press Enter to type a question."
        if view.senses is not None and view.senses.microphone_state == ON:
            said = "Ask something aloud, or press Enter to type."
        lines = [fit([part(f" {line}", QUIET)], width) for line in fold(said, width - 2)]
        return [*[blank(width)] * (height - len(lines)), *lines][:height]
    lines = []
    for turn in reversed(view.turns):
        drawn = _turn(turn, width)
        gap = [blank(width)] if lines and height >= _AIRY else []
        lines = drawn + gap + lines
        if len(lines) >= height:
            break
    return [*[blank(width)] * (height - len(lines)), *lines[-height:]] if height > 0 else []


def explanation(view: View, width: int, height: int, look: Look) -> list[Line]:
    """What stays and why, what went and why, and where everything lies."""
    lines = [fit([part(" What stays, and why", "bold")], width), blank(width)]
    column = 8 if width >= 44 else 6
    heads = "".join(f"{word:>{column}}" for word in ("picture", "sound", "text"))
    if column < 8:
        heads = "".join(f"{word:>{column}}" for word in ("pict.", "sound", "text"))
    for title, counts, words in (
        (" kept", view.kept, "green"),
        (" gone so far", view.dropped, "yellow"),
    ):
        lines.append(ends([part(title, words)], [part(f"{heads} ", QUIET)], width))
        for reason, by in counts.items():
            lines.append(ends([part(f"   {reason}")], [part(_columns(by, column))], width))
        lines.append(blank(width))
    if view.kv:
        text = f" {view.kv['pages']} pages, {view.kv['span']} cells from first to last"
        lines.append(fit([part(text)], width))
    if "bits" in view.kv:
        kv = view.kv
        text = (
            f" {kv['sealed_pages']} pages, {kv['sealed_cells']} cells sealed to {kv['bits']} bits"
        )
        lines.append(fit([part(text)], width))
    cells, rows = pages(view, width - 2, max(1, height - len(lines) - _LEGEND), look)
    rows = [*rows, *legend(view, cells, width - 2, look)]
    lines += [(part(" "), *line, part(" ")) for line in rows]
    return filled(lines, width, height)


def sight(view: View, width: int, height: int, look: Look) -> list[Line]:
    """The newest frame, or in words why there is none."""
    senses = view.senses
    state = NONE if senses is None else senses.camera_state
    if state == ON and senses is not None and senses.frame is not None:
        view.picture = drawn(view.picture, senses.frame, width, height, look)
        return view.picture.lines
    said, words = _STATES.get(state, (state, QUIET))
    text = "no camera" if state == NONE else f"camera {said}"
    if state == ON:
        text, words = "waiting for a picture", QUIET
    middle = [centred([part(text, words)], width)]
    return filled([*[blank(width)] * ((height - 1) // 2), *middle], width, height)


def devices(view: View, width: int, look: Look) -> list[Line]:
    """A line for the camera and one for the microphone, which has its level beside the name."""
    senses = view.senses
    if senses is None:
        return [blank(width)] * 2
    camera = [part("sees  ", QUIET), part(senses.camera)]
    if senses.camera_state != ON:
        camera = [part("sees  ", QUIET), *_state(senses.camera, senses.camera_state)]
    if senses.microphone_state != ON:
        hears = _state(senses.microphone, senses.microphone_state)
        return [fit(camera, width), fit([part("hears ", QUIET), *hears], width)]
    room = max(6, (width - 6) // 2)
    name = fit([part("hears ", QUIET), part(senses.microphone)], width - room - 1)
    return [fit(camera, width), (*name, part(" "), *meter(view.level, view.peak, room, look))]


def memory(view: View, width: int, lines: int, look: Look) -> list[Line]:
    """The cache: used of budget, a bar, and the page map in what is left of ``lines``."""
    drawn = cache(view, width, look)
    _, rows = pages(view, width, lines - len(drawn), look)
    return filled([*drawn, *rows], width, lines)


def numbers(view: View, width: int) -> Line:
    """Time, latency, lag and losses, in as many words as there is room for."""
    late = "yellow" if view.lag >= 1 else ""
    lost = "yellow" if view.dropped_frames or view.dropped_samples else ""
    seconds = view.dropped_samples / SAMPLE_RATE
    gone = f"{view.dropped_frames} frames, {seconds:.1f} s" if lost else "nothing"
    sound = " sound" if lost else ""
    first = middle = "-"
    if view.latency is not None:
        first, middle = f"{view.latency[0]:.0f} ms", f"{view.latency[1]:.0f}"
    parts: list[Segment] = []
    for gap, names, median, after in (
        ("   ", ("time ", "first token ", "lag ", "dropped "), "median ", sound),
        ("   ", ("", "first token ", "lag ", "lost "), "median ", sound),
        ("  ", ("", "token ", "lag ", "lost "), "", ""),
    ):
        values = (
            [part(clock(view.time))],
            [part(first), part(f" ({median}{middle})", QUIET)],
            [part(f"{view.lag:.1f} s", late)],
            [part(gone + after, lost)],
        )
        parts = [part(" ")]
        for name, value in zip(names, values, strict=True):
            parts += [part(name, QUIET), *value, part(gap)]
        if measure(parts[:-1]) <= width:
            break
    return fit(parts[:-1], width)


def log(view: View, width: int, height: int) -> list[Line]:
    """The newest remarks; a warning of the last minute stays in sight."""
    shown = list(view.log)[-height:] if height > 0 else []
    if len(view.log) > height > 0 and not any(remark.warning for remark in shown):
        recent = [r for r in view.log if r.warning and view.time - r.time < _WARNED]
        shown[:1] = recent[-1:] or shown[:1]
    lines = []
    for remark in shown:
        words = "yellow" if remark.warning else QUIET
        lines.append(fit([part(f" {clock(remark.time):>{_TIME}}  {remark.text}", words)], width))
    return filled(lines, width, height)


def footer(view: View, width: int) -> Line:
    """The keys, as far as they fit."""
    senses = view.senses
    back = {
        "m": senses is not None and senses.microphone_state == MUTED,
        "c": senses is not None and senses.camera_state == OFF,
        "e": view.explaining,
    }
    words = {"m": "unmute", "c": "camera on", "e": "conversation"}
    items = []
    for key, does in KEYS:
        does = words[key] if back.get(key) else does
        items.append([part(" "), part(key, "bold cyan"), part(f" {does} ", QUIET)])
    shown: set[int] = set()
    for at in _FIRST:
        if sum(measure(items[one]) for one in (*shown, at)) <= width:
            shown.add(at)
    return fit([piece for at in sorted(shown) for piece in items[at]], width)


def entry(typed: str, width: int) -> tuple[Line, int]:
    """The line that is being typed, its end in sight, and the column of the cursor."""
    hint = [part(" Enter asks, Esc leaves ", QUIET)]
    room = width - 4 - (measure(hint) if width >= 2 * _NARROW else 0)
    shown = part(typed).text
    parts = [part(f" {TYPED} ", "bold cyan"), part(tail(shown, room))]
    column = min(width - 1, measure(parts))
    return ends(parts, hint if width >= 2 * _NARROW else [], width), column


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours once there are some."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def _turn(turn: Turn, width: int) -> list[Line]:
    stamp = f" {clock(turn.time):>{_TIME}} " if width >= _NARROW else " "
    inset = len(stamp) + 2
    room = width - inset - 1
    colour = _MARKS[turn.mark]
    lines = []
    for at, line in enumerate(fold(turn.text, room)):
        before = [part(stamp, QUIET), part(f"{turn.mark} ", colour)]
        parts = before if at == 0 else [part(" " * inset)]
        lines.append(fit([*parts, part(line, colour if turn.mark == ALERT else "cyan")], width))
    answer = turn.answer.strip()
    if not answer and turn.done:
        return lines
    folded = fold(answer or "…", room)
    for at, line in enumerate(folded):
        parts = [part(" " * inset), part(line, "" if answer else QUIET)]
        if at == len(folded) - 1 and not turn.done and answer:
            parts.append(part("▌", "cyan"))
        elif at == len(folded) - 1 and turn.truth is not None:
            parts.append(part(f"   (true: {turn.truth})", QUIET))
        lines.append(fit(parts, width))
    return lines


def _doing(view: View) -> tuple[str, str]:
    if view.ended:
        return "ended", QUIET
    if view.answering:
        return "answering", "yellow"
    if view.hearing:
        return "hearing you", "magenta"
    return "following", "green"


def _state(name: str, state: str) -> list[Segment]:
    said, words = _STATES.get(state, (state, QUIET))
    return [part(f"{said}", words), *([part(f"  {name}", QUIET)] if name else [])]


def _columns(counts: Counts, column: int) -> str:
    return "".join(f"{count or '-':>{column}}" for count in counts) + " "
