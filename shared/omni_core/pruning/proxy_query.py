"""A proxy query: what stands for the queries to come when a layer chooses the cells to keep.

What will be asked is not known when a unit closes. Video-MemComp (section 3.2) lets one query stand
for it and leaves its formula open. Here it is, for each query head, the mean of the queries of some
tokens that have just run, taken before rotation and then rotated once, to the place where the next
token will stand: queries rotated to places of their own would cancel each other out in the fast
frequencies, and a question is never asked from the past. Two choices of tokens:

- :func:`newest`: the last tokens of the stream, whatever they are.
- :func:`last_text`: the last tokens of words, of the system prompt or of a turn, which are of the
  kind that will ask.

The newest are the default. They have seen the stream, and a question mostly asks for what tokens of
it look back to, while the words of a system prompt ran before there was anything to see: on streams
of the stream world more answers stay right by far with the newest. Too few of them look at their
own surroundings alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from omni_core.reference.rotary import rotate
from omni_core.retention.base import Bool
from omni_core.units import Int8, Role

TOKENS = 64
"""Tokens whose queries are averaged, unless told otherwise."""
_WORDS = (Role.PREFIX, Role.PROMPT, Role.GENERATED)

Float = npt.NDArray[np.float64]


def newest(tokens: int, count: int = TOKENS) -> Bool:
    """The last ``count`` of ``tokens``, or all if they are fewer: ``bool[tokens]``."""
    chosen = np.zeros(tokens, np.bool_)
    chosen[max(0, tokens - count) :] = True
    return chosen


def last_text(role: Int8, count: int = TOKENS) -> Bool:
    """The last ``count`` tokens of words, or all if they are fewer: ``bool[T]``.

    Args:
        role: ``int8[T]``, :class:`~omni_core.units.Role`; delimiters are no words.
        count: most of them.
    """
    chosen = np.zeros(role.size, np.bool_)
    chosen[np.flatnonzero(np.isin(role, _WORDS))[-count:]] = True
    return chosen


def proxy_query(
    queries: npt.NDArray[np.floating],
    chosen: Bool,
    cos: npt.NDArray[np.floating],
    sin: npt.NDArray[np.floating],
) -> Float:
    """The proxy query of a layer: ``float64[q_heads, head_dim]``, rotated.

    Args:
        queries: ``[T, q_heads, head_dim]``, not rotated.
        chosen: ``bool[T]``, whose mean it is; at least one.
        cos, sin: ``[1, head_dim / 2]``, of the place where the next token will stand.
    """
    mean: Float = np.mean(queries[chosen], axis=0, dtype=np.float64)
    found: Float = rotate(mean[None], cos, sin)[0]
    return found
