"""``--explain FILE``, and the page map that a run ends with."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from omni_core import Session
from omni_core.errors import OmniError
from omni_core.explain import BARS, PLAIN_BARS, Explainer, compact_map
from omni_core.paging import Layout
from omni_core.retention import Policy
from omnilive.options import LiveOptions
from omnilive.terminal import printable, say

_INDENT = "  "
_WIDTH = 80


@contextmanager
def explained(
    options: LiveOptions,
    source: str,
    rule: Policy,
    layout: Layout,
    size: str,
    *,
    by_group: bool = False,
) -> Iterator[Explainer | None]:
    """What writes the explanation, if one is wanted; each line is there as soon as it is known.

    Args:
        options: the run's.
        source: what is followed, for people.
        rule, layout: the session's.
        size: of its cache, for people.
        by_group: whether layer groups hold different tokens.

    Raises:
        OmniError: the file cannot be written.
    """
    if options.explain is None:
        yield None
        return
    try:
        file = options.explain.open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        raise OmniError(f"{options.explain}: cannot be written: {error.strerror}") from None
    failed = False

    def write(text: str) -> None:
        nonlocal failed
        if not failed:
            try:
                file.write(text)
            except OSError as error:
                failed = True
                say(f"warning: {options.explain}: the explanation has ended: {error.strerror}")

    name = printable(source).replace("\n", " ")
    title = f"omnilive live: {name}, model {options.model.model}, {size}"
    try:
        yield Explainer(write, rule, layout, title, aggregated=options.aggregate, by_group=by_group)
    finally:
        # What a full disk did not take at a write, it does not take now.
        with suppress(OSError):
            file.close()


def drawn_pages(session: Session) -> str:
    """A session's page maps in lines for stderr."""
    bars = BARS if _can_show(BARS) else PLAIN_BARS
    lines = []
    maps = session.page_maps()
    for number, pages in enumerate(maps):
        legend, rows = compact_map(pages, session.layout, bars, width=_WIDTH - len(_INDENT))
        of = f" of layer group {number + 1} of {len(maps)}" if len(maps) > 1 else ""
        lines += [f"pages{of}:", *(_INDENT + row for row in rows)]
        lines += textwrap.wrap(legend, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)


def _can_show(text: str) -> bool:
    try:
        text.encode(getattr(sys.stderr, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True
