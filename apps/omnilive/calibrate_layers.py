"""``omnilive calibrate layers``: how sensitive a model's answers are to what each layer caches.

Clips are cut into stretches of some units. Of each the model, in float32, gives its own likeliest
answer to a question, and the gradient of that answer's loss tells what a change of each layer's
keys and values would do to it. No clip needs a caption, and a model is held to its own words alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from omni_core import Model, UnitMedia
from omni_core.frontend.base import Cursor
from omni_core.layer_budgets import GradientNorms, document
from omni_core.session import SYSTEM
from omni_core.units import TokenBlock
from omnilive import provenance
from omnilive.calibrate import lines
from omnilive.clip import Clip, probe
from omnilive.files import check_target, write
from omnilive.live import DEMO
from omnilive.models import UNTRAINED, prepare
from omnilive.options import CalibrateLayersOptions, UsageError
from omnilive.sinks import model_label
from omnilive.stream import open_clip
from omnilive.terminal import put, say

if TYPE_CHECKING:
    from omni_cuda.sensitivity import DenseRun, Part

LONGEST = 16
"""Tokens of an answer that count."""
_BACKEND, _WEIGHTS = "cuda", "f32"
"""Whose autograd is used, and the numbers that are exact enough for it."""
_PACKAGES = ("omnilive", "numpy", "torch")


def run(options: CalibrateLayersOptions) -> None:
    """Measure, and write what was found.

    Raises:
        UsageError: another backend or number format than gradients are taken with.
        OmniError: what a part says.
    """
    chosen = options.model
    if chosen.backend not in ("auto", _BACKEND) or chosen.weights not in ("auto", _WEIGHTS):
        raise UsageError(
            "layers are calibrated with gradients, which PyTorch takes in float32; leave --backend "
            f"and --weights out, or give {_BACKEND} and {_WEIGHTS}"
        )
    check_target(options.out, "--out", options.sources)
    clips = [probe(source) for source in options.sources or (DEMO,)]
    prepared = prepare(**asdict(chosen) | {"backend": _BACKEND, "weights": _WEIGHTS})
    prepared.check()
    model = prepared.load()
    say(f"model {model.name} on {model.backend.name} ({model.backend.device})")
    if not model.trained:
        say(f"warning: {UNTRAINED}")
    from omni_cuda.sensitivity import DenseRun

    dense, norms = DenseRun(model.backend), GradientNorms()
    used = [_follow(clip, model, dense, norms, options) for clip in clips]
    label = model_label(model.name)
    about = {
        "model": label,
        "identity": model.identity,
        "trained": model.trained,
        "weights": model.weights,
        "date": datetime.now(UTC).date().isoformat(),
        "clips": used,
        "units": options.units,
        "question": options.question,
        "backend": model.backend.name,
        "versions": provenance.versions(_PACKAGES),
    }
    found = document(norms, about)
    write(options.out, lines(found).encode())
    whole = sum(found["sensitivity"]) or 1.0
    each = zip(found["sensitivity"], found["spread"], strict=True)
    for layer, (sensitivity, spread) in enumerate(each):
        put(f"layer {layer}: {sensitivity / whole:.1%} of the sensitivity, ± {spread:.0%} of it\n")


def _follow(
    clip: Clip,
    model: Model,
    dense: DenseRun,
    norms: GradientNorms,
    options: CalibrateLayersOptions,
) -> dict[str, Any]:
    """Measure each stretch of a clip; what was used of it."""
    units, seconds, before = 0, 0.0, len(norms)
    for stretch in _stretches(open_clip(clip.path, model), options.units):
        read, cursor = _read(model, stretch, options.system)
        cached = sum(len(block) for block, _ in read)
        block, cursor = model.frontend.question(options.question, cursor)
        read.append((block, None))
        following = _answer(model, dense, read, cursor)
        norms.add(*dense.gradient_norms(read, cached, following))
        units, seconds = units + len(stretch), stretch[-1].stop
    say(f"{clip.path}: {units} units, {len(norms) - before} stretches")
    return {"name": clip.path.name, "seconds": round(seconds, 3), "units": units}


def _stretches(units: Iterator[UnitMedia], count: int) -> Iterator[list[UnitMedia]]:
    while stretch := list(islice(units, count)):
        yield stretch


def _read(model: Model, stretch: list[UnitMedia], system: str | None) -> tuple[list[Part], Cursor]:
    """A stream of its own that holds the stretch alone, and where it goes on."""
    prefix, cursor = model.frontend.open(SYSTEM if system is None else system)
    read: list[Part] = [(prefix, None)]
    for media in stretch:
        tokens, cursor = model.frontend.unit(media, cursor)
        read.append((tokens.block, model.backend.encode(tokens.vision, tokens.audio)))
    return read, cursor


def _answer(model: Model, dense: DenseRun, read: list[Part], cursor: Cursor) -> list[int]:
    """The model's likeliest tokens, the one that ends them included; all but the last are read."""
    drawn: list[int] = []
    while len(drawn) < LONGEST:
        drawn.append(int(dense.next_logits(read).argmax()))
        if drawn[-1] in model.frontend.stop_tokens or len(drawn) == LONGEST:
            break
        block: TokenBlock
        block, cursor = model.frontend.answer(drawn[-1], cursor)
        read.append((block, None))
    return drawn
