"""Rows as the stream loop's benchmark writes them."""

from __future__ import annotations

from typing import Any

from benchmarks.stream_loop_size import NAMES
from benchmarks.stream_loop_stream import PARTS, SPOKEN


def stream_row(path: str, policy: str, listen: float, speak: float) -> dict[str, Any]:
    spent = dict.fromkeys(PARTS, 0.0) | {"prefill": 0.9, "plan": 0.05, "retain": 0.05}
    return {
        "part": "stream",
        "model": NAMES[0],
        "path": path,
        "policy": policy,
        "unit": 700,
        "budget": 3072,
        "spoken": SPOKEN,
        "every": 1,
        "target": 32_768,
        "units": 46,
        "at": [2048, 4096],
        "listen_ms": [listen / 2, listen],
        "speak_ms": [None, speak],
        "last_listen_ms": listen,
        "last_speak_ms": speak,
        "slowest_ms": listen,
        "seconds": spent,
        "session_s": 1.0,
        "listening_s": 0.9,
        "cells": 3000,
        "most_cells": 3072,
        "moved_cells": 1,
    }


def layout_row(layout: str, prefill: float, decode: float, move: float) -> dict[str, Any]:
    reading = "listed" if layout == "page" else "walked"
    about = {"part": "layout", "model": "m", "policy": "omnipick", "unit": 700, "budget": 3072}
    times = {f"{reading} prefill": prefill, f"{reading} decode": decode}
    tiles = {f"{reading} decode": 1234}
    return about | {
        "layout": layout,
        "read": reading,
        "ms": times,
        "move_ms": move,
        "tiles": tiles,
    }
