"""Drawing an answer token by token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from omni_core.errors import BackendError
from omni_core.frontend.base import Cursor, Frontend
from omni_core.sampling import draw
from omni_core.units import TokenBlock

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Answer:
    """An answer, where the stream goes on after it, and what of it is still to be run.

    Attributes:
        text: all of it.
        shown: as much of it as was told while it grew.
        cursor: after the tokens that were drawn.
        left: the last token of an answer that was as long as allowed; nobody needed its logits.
        first: ``time.perf_counter`` when the first token was drawn.
    """

    text: str
    shown: str
    cursor: Cursor
    left: list[TokenBlock]
    first: float


def answer(
    frontend: Frontend,
    logits: Logits,
    cursor: Cursor,
    *,
    run: Callable[[TokenBlock], Logits],
    limit: int,
    temperature: float,
    generator: np.random.Generator,
    stopped: Callable[[], bool],
    on_text: Callable[[str], None],
) -> Answer:
    """Draw tokens until the model ends its answer, ``limit`` is reached, or it is stopped.

    Args:
        frontend: turns tokens into text.
        logits: ``float32[1, 1, vocab]``, what comes after the question.
        cursor: where the answer begins.
        run: runs a token; gives what comes after it.
        limit: most tokens.
        temperature: as :func:`omni_core.sampling.draw` takes it, and the ``generator``.
        generator: of the draws.
        stopped: asked before each token.
        on_text: told of each piece of text as soon as its characters are whole.

    Raises:
        BackendError: logits that are no numbers.
    """
    ids: list[int] = []
    shown, first = "", 0.0
    left: list[TokenBlock] = []
    while len(ids) < limit and not stopped():
        check_finite(logits)
        token = draw(logits[0, 0], temperature, generator)
        first = first or time.perf_counter()
        if token in frontend.stop_tokens:
            break
        ids.append(token)
        text = frontend.text(ids)
        # A character may be spread over tokens: show it once it is whole.
        if not text.endswith("\ufffd") and text != shown:
            on_text(text[len(shown) :])
            shown = text
        block, cursor = frontend.answer(token, cursor)
        block = replace(block, offset=np.full_like(block.offset, len(ids) - 1))
        if len(ids) == limit:
            left.append(block)
        else:
            logits = run(block)
    return Answer(frontend.text(ids), shown, cursor, left, first)


def check_finite(logits: Logits) -> None:
    """Refuse logits that nothing can be drawn from.

    Raises:
        BackendError: some are not finite.
    """
    if not np.isfinite(logits).all():
        raise BackendError(
            "the model's logits are not finite; the weights are damaged, or overflow in this "
            "number format: try --weights f32 or bf16"
        )
