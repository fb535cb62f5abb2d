"""``omnilive calibrate values``: what pages of few bits take of a model, measured on clips."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core import Model, Session
from omni_core.backend import StepPlan, StepResult
from omni_core.calibration_values import Found, QueryMoments, ValueSamples
from omni_core.errors import BackendError
from omni_core.quantization import value_rotations
from omni_core.quantization.hadamard import block_size
from omni_core.quantization.tables_file import write_tables
from omnilive import provenance
from omnilive.budget import settle
from omnilive.clip import Clip, probe
from omnilive.files import check_target, write
from omnilive.live import DEMO
from omnilive.models import UNTRAINED, prepare
from omnilive.options import CalibrateValuesOptions
from omnilive.sinks import model_label
from omnilive.stream import open_clip
from omnilive.terminal import put, say

"""In a checkpoint's folder: the calibration of the model."""
# Nothing is asked here, so an answer needs no room.
_NO_ANSWER = 1
_HEARD = "cuda"
"""The backend whose queries can be heard."""
_PACKAGES = ("omnilive", "numpy", "torch", "mlx")


def run(options: CalibrateValuesOptions) -> None:
    """Measure, and write what was found.

    Raises:
        OmniError: what a part says; the model's head_dim cannot be sealed.
    """
    check_target(options.out, "--out", options.sources)
    clips = [probe(source) for source in options.sources or (DEMO,)]
    prepared = prepare(**asdict(options.model))
    block_size(prepared.config.text.head_dim)
    room: dict[str, Any] = {
        "budget": options.budget,
        "system": options.system,
        "max_tokens": _NO_ANSWER,
    }
    settle(prepared, prepared.element, **room)
    prepared.check()
    model = prepared.load()
    budget = settle(prepared, model.backend.element, **room)
    say(f"model {model.name} on {model.backend.name} ({model.backend.device}), {budget} cells")
    if not model.trained:
        say(f"warning: {UNTRAINED}")
    moments = QueryMoments(model.text)
    heard = model.backend.name == _HEARD
    if heard:
        model = replace(model, backend=_Heard(model.backend, moments))
    values = ValueSamples(model.backend, model.text)
    used = [_follow(clip, model, values, budget, options.system) for clip in clips]
    say(f"fitting rotations of {model.text.layers} layers")
    tables, found = values.fit()
    if heard:
        tables = moments.feed(tables)
    else:
        say(f"key feedback is left out: queries are heard with --backend {_HEARD} alone")
    label = model_label(model.name)
    about = {
        "model": label,
        "identity": model.identity,
        "trained": model.trained,
        "weights": model.weights,
        "date": datetime.now(UTC).date().isoformat(),
        "clips": used,
        "fitted_to": {"codec": "fitted", "bits": value_rotations.BITS},
        "modalities": {kind.name.lower(): _described(one) for kind, one in found.items()},
        "backend": model.backend.name,
        "versions": provenance.versions(_PACKAGES),
    }
    write(options.out, write_tables(tables, about))
    for kind, one in found.items():
        put(f"{kind.name.lower()}: {_told(one)}\n")


class _Heard:
    """A PyTorch backend whose queries are added up, step by step."""

    def __init__(self, backend: Any, moments: QueryMoments) -> None:
        if not hasattr(backend, "listen"):
            raise BackendError(
                f"the backend {backend.name} does not tell its queries; update omni_cuda"
            )
        self._backend, self._moments = backend, moments
        self._positions = np.zeros((3, 0), np.int32)
        backend.listen(self._hear)

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        """A step, whose positions are those of the queries to come."""
        self._positions = plan.positions
        result: StepResult = self._backend.forward(plan, embeddings)
        return result

    def _hear(self, layer: int, queries: npt.NDArray[np.float32]) -> None:
        self._moments.add(layer, queries[0], self._positions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def _follow(
    clip: Clip, model: Model, values: ValueSamples, budget: int, system: str | None
) -> dict[str, Any]:
    """Let a clip flow through; what was used of it."""
    values.begin()
    settings = {} if system is None else {"system": system}
    session = Session(model, budget=budget, max_tokens=_NO_ANSWER, watcher=values, **settings)
    units, seconds = 0, 0.0
    for unit in open_clip(clip.path, model):
        session.append(unit)
        units, seconds = units + 1, unit.stop
    say(f"{clip.path}: {units} units")
    return {"name": clip.path.name, "seconds": round(seconds, 3), "units": units}


def _described(found: Found) -> dict[str, Any]:
    known = (
        {}
        if np.isnan(found.hadamard)
        else {
            "error": round(found.fitted, 4),
            "hadamard_error": round(found.hadamard, 4),
        }
    )
    return {"tokens": found.tokens, "rotation": "own" if found.own else "hadamard", **known}


def _told(found: Found) -> str:
    if not found.tokens:
        return "never occurred, so its values get a Hadamard rotation; give clips that have it"
    if not found.own:
        return (
            f"{found.tokens} tokens are too few for rotations that help, so its values get a "
            "Hadamard rotation; give longer clips"
        )
    return (
        f"rotations from {found.tokens} tokens; at {value_rotations.BITS} bits the last quarter, "
        f"not fitted to, loses {found.fitted:.1%}, and {found.hadamard:.1%} with Hadamard"
    )
