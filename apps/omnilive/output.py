"""Showing a run: JSON lines for programs, or text for people."""

from __future__ import annotations

import json
from typing import Any, Protocol

from omnilive.aggregating import shown
from omnilive.terminal import draw, put, say, tell

Event = dict[str, Any]


class Output(Protocol):
    """Where events and remarks go."""

    def event(self, event: Event) -> None:
        """Show one event of the stream."""
        ...

    def question(self, time: float, text: str, spoken: bool = False) -> None:
        """Announce a question, a ``spoken`` one without words; its answer follows as events."""
        ...

    def note(self, text: str) -> None:
        """Tell people something that is no event."""
        ...

    def drawing(self, text: str) -> None:
        """Show people a drawing, with its colours."""
        ...


def open_output(jsonl: bool) -> Output:
    """The output that was asked for."""
    return JsonLines() if jsonl else Text()


class JsonLines:
    """One JSON object a line on stdout, in ASCII, and nothing else there; no remarks."""

    def event(self, event: Event) -> None:
        """Write the event; warnings go to stderr too."""
        if event["event"] == "warning":
            say(f"warning: {event['message']}")
        put(json.dumps(event) + "\n")

    def question(self, time: float, text: str, spoken: bool = False) -> None:
        """The answer's event brings the question."""

    def note(self, text: str) -> None:
        """Remarks are not for programs."""

    def drawing(self, text: str) -> None:
        """Nor are drawings."""


class Text:
    """Questions and answers on stdout, everything else on stderr."""

    def __init__(self) -> None:
        self._answering, self._shown = False, ""

    def event(self, event: Event) -> None:
        """Show an event in a line; an answer grows token by token."""
        kind = event["event"]
        if kind == "token":
            self._answer(event["text"])
        elif kind == "answer":
            # A character whose tokens did not all come in time is in none of the token events.
            self._answer(event["text"][len(self._shown) :])
            if "truth" in event:
                put(f"   (true: {event['truth']})")
            self._end_line()
        elif kind == "watch":
            self._end_line()
            put(f"[{event['t']:.1f} s] ! {event['watch']}\n> {event['text']}\n")
        else:
            self.note(_LINES[kind](event))

    def question(self, time: float, text: str, spoken: bool = False) -> None:
        """Show the question, and open the answer's line."""
        put(f"[{time:.1f} s] {'(spoken)' if spoken else text}\n> ")
        self._answering, self._shown = True, ""

    def note(self, text: str) -> None:
        """Show a line on stderr, after ending a line that an answer has begun."""
        self._end_line()
        tell(text)

    def drawing(self, text: str) -> None:
        """Show it on stderr."""
        self._end_line()
        draw(text)

    def _answer(self, text: str) -> None:
        put(text if self._shown.strip() else text.lstrip())
        self._shown += text

    def _end_line(self) -> None:
        if self._answering:
            put("\n")
        self._answering = False


def _unit(event: Event) -> str:
    tokens, kv = event["tokens"], event["kv"]
    parts = ", ".join(f"{count} {name}" for name, count in tokens.items() if count) or "no"
    line = (
        f"{event['t']:7.2f} s  {parts} tokens; "
        f"cache {kv['cells']}/{kv['budget']} cells, {kv['pages']} pages, {_bytes(kv['bytes'])}"
        + (f", {kv['sealed_cells']} sealed" if "bits" in kv else "")
    )
    if "aggregated" in event and event["aggregated"]["seen"]:
        line += f"; {shown(event['aggregated'])}"
    if event["lag_ms"] >= 500:
        line += f"; {event['lag_ms'] / 1000:.1f} s late"
    dropped = ", ".join(f"{count} {name}" for name, count in event["dropped"].items() if count)
    if dropped:
        line += f"; dropped {dropped}"
    return line


def _evict(event: Event) -> str:
    gone = sum(event["tokens"].values())
    line = f"{event['t']:7.2f} s  evicted {gone} tokens; {event['cells']} stay"
    if "by_group" in event:
        line += f" in a layer on average, {min(event['by_group'])} to {max(event['by_group'])}"
    return line


def _warning(event: Event) -> str:
    return f"omnilive: warning: {event['message']}"


def _summary(event: Event) -> str:
    tokens, kv, memory = event["tokens"], event["kv"], event["memory"]
    model = event["model"] + ("" if event["trained"] else " (untrained)")
    score = f", {event['right']} of {event['known']} right" if "known" in event else ""
    return "\n".join(
        [
            "",
            f"{event['t']:.2f} s of stream in {event['units']} units, {event['answers']} answers"
            f"{score}",
            f"  model    {model}, backend {event['backend']} on {event['device']}",
            f"  tokens   {tokens['vision']} vision, {tokens['audio']} audio, {tokens['text']} text",
            *_aggregated(event),
            f"  evicted  {event['evicted']} tokens by {event['retention']}",
            f"  cache    {kv['cells']} of {kv['budget']} cells, at most {kv['most_cells']} after a "
            f"unit, {kv['peak_cells']} within one; {kv['pages']} pages, {_bytes(kv['bytes'])}",
            *_by_group(kv),
            *_sealed(kv),
            f"  memory   {_bytes(memory['measured'])} measured ({memory['source']}), "
            f"{_bytes(memory['accounted'])} accounted for",
            f"  plans    {event['plans']}",
        ]
    )


def _aggregated(event: Event) -> list[str]:
    return [f"  picture  {shown(event['aggregated'])}"] if "aggregated" in event else []


def _by_group(kv: dict[str, Any]) -> list[str]:
    if "by_group" not in kv:
        return []
    each = zip(*(kv["by_group"][name] for name in ("cells", "budget")), strict=True)
    return ["  layers   " + ", ".join(f"{cells} of {budget}" for cells, budget in each)]


def _sealed(kv: dict[str, Any]) -> list[str]:
    if "bits" not in kv:
        return []
    cells, pages = kv["sealed_cells"], kv["sealed_pages"]
    return [f"  sealed   {cells} of these cells to {kv['bits']} bits, in {pages} of the pages"]


_LINES = {"unit": _unit, "evict": _evict, "warning": _warning, "summary": _summary}


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
