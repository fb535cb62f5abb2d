"""How much is run: what the options leave open, by backend and device."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

from omni_core.errors import OmniError
from omni_core.frontend.base import SAMPLE_RATE
from omnilive import backends
from omnilive.options import EvalOptions, ModelOptions
from omnilive.terminal import say
from streamworld import script, spec

# Bytes of a unit's picture and sound, of what its script says, and of a question, ids included.
_MEDIA = 3 * spec.FRAME**2 + 4 * SAMPLE_RATE
_SCRIPT = 2 * (script.LOOKS + script.SHOTS + script.VOICES)
_QUESTION = 128
_GPU_BATCH, _CPU_BATCH = 32, 8


@dataclass(frozen=True)
class Size:
    """Streams and questions, and what they run under.

    Attributes:
        units: seconds of each stream.
        streams: of each seed.
        questions: to each stream.
        batch: most streams in step.
        retention: policies.
        budgets: shares of the stream, cells or bytes.
    """

    units: int = 64
    streams: int = 32
    questions: int = 24
    batch: int = _GPU_BATCH
    retention: tuple[str, ...] = ("no-slide", "fifo", "streaming-llm", "omnipick")
    budgets: tuple[str, ...] = ("1/2", "1/4", "1/8", "1/16")


DEFAULT = Size()
"""The default table."""
_QUICK = replace(
    DEFAULT, streams=3, retention=("no-slide", "fifo", "omnipick"), budgets=("1/4", "1/16")
)
_QUICK_WHERE_SLOW = replace(_QUICK, units=32, streams=1, questions=12, budgets=("1/8",))


def choose_model(model: ModelOptions) -> ModelOptions:
    """The backend that ``auto`` means here, with a word where it will be slow."""
    chosen = backends.choose(model.backend)
    if model.backend == "auto" and _slow(chosen, model.device):
        say(
            "MLX computes slowly on this CPU; with PyTorch it goes ten times faster: "
            '`pip install -e ".[cuda]"` in the checkout'
        )
    return replace(model, backend=chosen)


def choose_size(options: EvalOptions, backend: str) -> Size:
    """What was asked for, and for the rest what fits."""
    size = DEFAULT
    if options.quick:
        size = _QUICK_WHERE_SLOW if _slow(backend, options.model.device) else _QUICK
    on_cpu = backends.on_cpu(backend, options.model.device)
    streams = options.streams or size.streams
    most = options.batch or (_CPU_BATCH if on_cpu else _GPU_BATCH)
    batches = -(-streams // most)
    return Size(
        options.units or size.units,
        streams,
        options.questions or size.questions,
        -(-streams // batches),
        tuple(dict.fromkeys(options.retention or size.retention)),
        options.budgets or size.budgets,
    )


def check_room(size: Size, seeds: int, memory: int) -> None:
    """Refuse what no machine of ``memory`` bytes can hold, whatever else the run takes.

    Scripts and questions of all streams are held, and media of two batches: the next one is
    rendered ahead.

    Raises:
        OmniError: it takes more.
    """
    streams = seeds * size.streams
    each = size.units * _SCRIPT + size.questions * _QUESTION
    needed = streams * each + min(streams, 2 * size.batch) * size.units * _MEDIA
    if needed > memory:
        raise OmniError(
            f"{seeds} x {size.streams} streams of {size.units} units with {size.questions} "
            f"questions each take at least {needed / 1e9:,.1f} GB, but this machine has "
            f"{memory / 1e9:.1f} GB; lower --units, --streams, --questions or --seeds"
        )


def _slow(backend: str, device: str) -> bool:
    return backend == "mlx" and platform.system() != "Darwin" and backends.on_cpu(backend, device)
