"""Scripts as the pictures and sound that a camera and a microphone would have handed over."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

from omni_core import UnitMedia
from omni_core.errors import OmniError
from streamworld import banks, render
from streamworld.script import Script

_FEW_CORES = 4
_MOST_WORKERS = 16

Media = list[UnitMedia]


class Rendering(Protocol):
    """Media that are on their way."""

    def result(self) -> Media:
        """One stream's units; waits for them."""
        ...


def load(folder: Path | None, split: str) -> banks.Bank:
    """A split's bank; without a folder the one that ships.

    Raises:
        OmniError: there is none, or it cannot be read.
    """
    try:
        return banks.load(folder or banks.SHIPPED, split)
    except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile) as error:
        raise OmniError(f"the bank cannot be read: {error}") from None


def stream(script: Script, bank: banks.Bank) -> Media:
    """The units of a script's one stream."""
    units = script.flat()
    frames, sounds = render.frames(units, bank), render.sounds(units, bank)
    return [
        UnitMedia(float(at), at + 1.0, (frame,), sound)
        for at, (frame, sound) in enumerate(zip(frames, sounds, strict=True))
    ]


@contextmanager
def renderer(bank: banks.Bank) -> Iterator[Any]:
    """A function from a script to its streams' media, rendered by other processes if cores allow.

    What it returns can be waited for, so that one may ask for the next streams before they are
    needed.
    """
    cores = os.cpu_count() or 1
    if cores < _FEW_CORES:
        yield partial(_later, bank)
        return
    pool = ProcessPoolExecutor(
        min(_MOST_WORKERS, cores - 2),
        # A process that runs threads must not be forked.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(bank,),
    )
    try:
        yield partial(_submitted, pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Later:
    def __init__(self, script: Script, bank: banks.Bank) -> None:
        self._script, self._bank = script, bank

    def result(self) -> Media:
        return stream(self._script, self._bank)


_bank: banks.Bank


def _begin(bank: banks.Bank) -> None:
    global _bank
    # A Ctrl-C reaches all processes of the terminal; who began them ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _bank = bank


def _stream(script: Script) -> Media:
    return stream(script, _bank)


def _later(bank: banks.Bank, script: Script) -> Sequence[Rendering]:
    return [_Later(one, bank) for one in _each(script)]


def _submitted(pool: ProcessPoolExecutor, script: Script) -> Sequence[Future[Media]]:
    return [pool.submit(_stream, one) for one in _each(script)]


def _each(script: Script) -> Iterator[Script]:
    return (script.take(slice(row, row + 1)) for row in range(script.streams))
