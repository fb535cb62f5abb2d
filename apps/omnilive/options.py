"""What a run is asked to do, and the reading of its command-line words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from omni_core import sealing
from omni_core.calibration import COVER
from omni_core.errors import OmniError
from omni_core.mass_profile import RECENT
from omni_core.paging import LAYOUTS
from omni_core.retention import POLICIES

BACKENDS = ("auto", "mlx", "cuda")
WEIGHTS = ("auto", "f32", "bf16", "8", "4")
RETENTION = tuple(POLICIES)
LAYOUT = tuple(LAYOUTS)
KV_BITS = (16, 4, 3, 2)
SEAL = (sealing.RECENT, sealing.ALL)
QUESTION = "What do you see and hear?"
UNITS = 8
_ASK = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*:\s*(\S.*?)\s*", re.DOTALL)


class UsageError(OmniError):
    """The command was given words that do not fit together, or do not fit the clip."""


@dataclass(frozen=True, order=True)
class Ask:
    """A question, the second of the stream at which it is put, and its true answer if known."""

    time: float
    question: str
    truth: str | None = None


@dataclass(frozen=True)
class ModelOptions:
    """Which model runs where; the fields are those of :func:`omnilive.models.prepare`."""

    model: str = "embedded"
    backend: str = "auto"
    device: str = "auto"
    weights: str = "auto"


@dataclass(frozen=True)
class LiveOptions:
    """One ``omnilive live``.

    Attributes:
        source: the clip, or None for devices, and for the shipped one where there are none.
        camera, mic: which devices, as :mod:`omnilive.capture.choosing` reads it; None for the
            default ones, if there are any.
        watches: what to tell when it comes to be so.
        speak: say answers aloud.
        pause: seconds of silence that end a spoken turn.
        barge_in: speech ends a running answer.
        sinks: a calibration for OmniPick, or None for what suits the model.
        budget: cells or bytes as text, or None for a size that suits the machine.
        kv_bits, seal: as :func:`omnilive.sealing.chosen` reads them.
        aggregate, theta_inter, theta_intra: as :func:`omnilive.aggregating.chosen` reads them.
        layer_budgets, layer_blend: as :func:`omnilive.layering.chosen` reads them.
        system: system prompt, or None for the core's own.
        asks: questions by time.
        asked_from: the file that some of them came from.
        fast: as fast as it goes, nothing dropped; otherwise at the clip's own pace.
        loop: how often the clip plays.
        duration: seconds of stream, the clip repeating as needed; overrides ``loop``.
        record: folder for the recording.
        explain: file for the explanation.
        save: folder for the session at its end.
        resume: folder of the saved session that goes on.
        trace: file for the Chrome trace.
        given: the options that were given in words, as ``--budget``.
    """

    model: ModelOptions
    source: Path | None = None
    camera: str | None = None
    mic: str | None = None
    watches: tuple[str, ...] = ()
    speak: bool = False
    pause: float = 0.6
    barge_in: bool = True
    retention: str = "omnipick"
    sinks: Path | None = None
    layout: str = "page"
    budget: str | None = None
    kv_bits: int = 16
    seal: str | None = None
    aggregate: bool = False
    theta_inter: float | None = None
    theta_intra: float | None = None
    layer_budgets: Path | None = None
    layer_blend: tuple[float, float] | None = None
    system: str | None = None
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    asks: tuple[Ask, ...] = ()
    asked_from: Path | None = None
    fast: bool = False
    loop: int = 1
    duration: float | None = None
    jsonl: bool = False
    record: Path | None = None
    explain: Path | None = None
    save: Path | None = None
    resume: Path | None = None
    trace: Path | None = None
    given: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CalibrateOptions:
    """One ``omnilive calibrate retention``.

    Attributes:
        out: the JSON file to write.
        sources: the clips; none for the shipped one.
        plot: the PNG file to write, if one is wanted.
        cover, recent: as in :mod:`omni_core.calibration` and :mod:`omni_core.mass_profile`.
        budget, system: as for :class:`LiveOptions`.
    """

    model: ModelOptions
    out: Path
    sources: tuple[Path, ...] = ()
    plot: Path | None = None
    cover: float = COVER
    recent: int = RECENT
    budget: str | None = None
    system: str | None = None


@dataclass(frozen=True)
class CalibrateValuesOptions:
    """One ``omnilive calibrate values``.

    Attributes:
        out: the safetensors file to write.
        sources: the clips; none for the shipped one.
        budget, system: as for :class:`LiveOptions`.
    """

    model: ModelOptions
    out: Path
    sources: tuple[Path, ...] = ()
    budget: str | None = None
    system: str | None = None


@dataclass(frozen=True)
class CalibrateLayersOptions:
    """One ``omnilive calibrate layers``.

    Attributes:
        out: the JSON file to write.
        sources: the clips; none for the shipped one.
        units: of a stretch.
        question: put at the end of each.
        system: system prompt, or None for the core's own.
    """

    model: ModelOptions
    out: Path
    sources: tuple[Path, ...] = ()
    units: int = UNITS
    question: str = QUESTION
    system: str | None = None


@dataclass(frozen=True)
class EvalOptions:
    """One ``omnilive eval streamworld``.

    Attributes:
        retention: policies, none for the default table's.
        budgets: each as ``1/8`` of the stream, cells or bytes; none for the default table's.
        sinks, layout, kv_bits, seal, aggregate, theta_inter, theta_intra, layer_budgets,
        layer_blend: as for :class:`LiveOptions`.
        units: seconds of each stream, None for the default.
        streams: of each seed, None for the default.
        questions: to each stream, None for the default.
        seeds: how many.
        quick: small defaults.
        batch: streams in step, None for what suits the device.
        banks: folder of the test split's bank, None for the one that ships.
        out, plot: the JSON and PNG files to write, if wanted.
    """

    model: ModelOptions
    retention: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    sinks: Path | None = None
    layout: str = "page"
    kv_bits: int = 16
    seal: str | None = None
    aggregate: bool = False
    theta_inter: float | None = None
    theta_intra: float | None = None
    layer_budgets: Path | None = None
    layer_blend: tuple[float, float] | None = None
    units: int | None = None
    streams: int | None = None
    questions: int | None = None
    seeds: int = 3
    quick: bool = False
    batch: int | None = None
    banks: Path | None = None
    out: Path | None = None
    plot: Path | None = None


def parse_ask(text: str) -> Ask:
    """Read ``SECONDS: question``.

    Raises:
        ValueError: saying what the right form is.
    """
    found = _ASK.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is no timed question; write SECONDS: QUESTION, as in "
            '"12.5: what is on screen?"'
        )
    return Ask(float(found[1]), found[2])
