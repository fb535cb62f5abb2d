"""The two phases of training, each of which can stop at any step and go on from a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training import pieces
from training.bank import DeviceBank
from training.batch import ROOM, TURN, Batch, Plan, make, world_frontend
from training.feeder import Feeder
from training.graph import Recorder, Step, Values
from training.layout import layout
from training.log import Log
from training.model import Model
from training.optimiser import Optimiser, Rates
from training.packing import upload
from training.schedule import Length, factor
from training.shape import Shape
from training.stages import LONG, STAGES, Curriculum, Stage, shaped
from training.towers import NAMED, Naming, fold
from training.validate import measure

MOST_SPREAD = 6.0
"""Standard deviation of attention logits above which a model no longer learns."""
TOWERS_ALONE = 1.5
"""Of the learning rates, what the towers take while they learn alone."""
SHAPED_ALONE = 0.15
"""Share of steps on frames that are not square while the towers learn alone."""
_TOWER_CHECKS = 10
_NOTE = 25
_TOLD = 100


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        folder: checkpoint and log.
        rows: units rendered a step.
        towers, text: how long each phase lasts.
        minutes: wall-clock limit of this run.
        save_minutes: between checkpoints.
        check: steps between validations.
        graphs: replay steps as CUDA graphs.
    """

    folder: Path
    seed: int = 1
    rows: int = 640
    towers: Length = field(default_factory=lambda: Length(2_500))
    text: Length = field(default_factory=lambda: Length(8_000))
    minutes: float = 10.0
    save_minutes: float = 2.0
    check: int = 500
    graphs: bool = False
    rates: Rates = field(default_factory=Rates)
    stages: tuple[Stage, ...] = STAGES


class Stopped(Exception):
    """The time of this run is up; a checkpoint was written."""


class AttentionSaturatedError(Exception):
    """Attention logits have spread too far for training to go on."""


class Trainer:
    """Trains a model on one bank and checks it on another."""

    def __init__(
        self,
        model: Model,
        shape: Shape,
        banks: tuple[DeviceBank, DeviceBank],
        settings: Settings,
        log: Log,
        dtype: torch.dtype,
        pool: ProcessPoolExecutor | None = None,
    ) -> None:
        self.model, self.shape, self.settings, self.log = model, shape, settings, log
        self.bank, self.check_bank = banks
        self.dtype, self._pool = dtype, pool
        self.device = model.labels.sounds.device
        self.curriculum = Curriculum(settings.rows, settings.stages)
        self.phase, self.step, self.spent = "towers", 0, 0.0
        self._start = self._saved = time.monotonic()
        self._naming = Naming(model.thinker).to(self.device)
        self._optimiser = Optimiser(
            self._naming, dtype, replace(settings.rates, towers=TOWERS_ALONE)
        )

    def run(self) -> None:
        """Train to the end.

        Raises:
            Stopped: the time is up.
            AttentionSaturatedError: attention logits spread too far.
        """
        state = pieces.load(self.settings.folder)
        if state is not None:
            if state[1]["phase"] == "text":
                self._begin_text()
            self._resume(*state)
        if self.phase == "towers":
            self._towers()
            self._begin_text()
        self._text()
        self.save()

    def _begin_text(self) -> None:
        """Take the towers over into the whole model, folded."""
        self._optimiser.release()
        plan = Plan(8, max(1, self.settings.rows // 8), 1)
        units = make(plan, self._seed("fold", 0)).to(self.device).units
        fold(self.model.thinker, self.model.senses, units, self.bank)
        self._optimiser = Optimiser(self.model.thinker, self.dtype, self.settings.rates)
        self.phase, self.step, self.spent = "text", 0, 0.0

    def _towers(self) -> None:
        base = Plan(8, max(1, self.settings.rows // 8), 1, spoken=0.3, long=LONG)

        def step(batch: Batch) -> Values:
            seen, heard = self.model.senses.encoded(
                batch.units, self.bank, batch.chance, batch.size
            )
            loss, right = self._naming.losses(seen, heard, batch.units)
            self._optimiser.zero()
            loss.backward()
            norm = self._optimiser.step()
            return {"loss": loss, "norm": norm, **dict(zip(NAMED, right, strict=True))}

        def plan(step: int) -> Plan:
            draw = np.random.default_rng([self.settings.seed, step, 6])
            return replace(base, size=shaped(draw, SHAPED_ALONE))

        self._loop(self.settings.towers, plan, step, self._tell)
        self._check_towers(replace(base, split="validation"))

    @torch.no_grad()
    def _check_towers(self, plan: Plan) -> None:
        found = []
        for number in range(_TOWER_CHECKS):
            units = make(plan, self._seed("check", number)).to(self.device).units
            seen, heard = self.model.senses.encoded(units, self.check_bank)
            found.append(self._naming.losses(seen, heard, units)[1])
        means = torch.stack(found).mean(0).tolist()
        self.log.write("validation of towers", **dict(zip(NAMED, means, strict=True)))

    def _text(self) -> None:
        def step(batch: Batch) -> Values:
            outcome = self.model.read(batch, self.bank, learn=True)
            self._optimiser.zero()
            outcome.loss.backward()
            norm = self._optimiser.step()
            return {"loss": outcome.loss, "norm": norm, "right": outcome.share, **outcome.parts}

        def plan(step: int) -> Plan:
            return self.curriculum.plan(step, self.settings.seed)

        self._loop(self.settings.text, plan, step, self._note)

    def _loop(
        self,
        length: Length,
        plan: Callable[[int], Plan],
        step: Step,
        tell: Callable[[list[tuple[Plan, dict[str, float]]], float], None],
    ) -> None:
        """Steps to the end of a phase; ``tell`` is given what the last few made."""
        made: list[tuple[Plan, Values]] = []
        run = Recorder(step, self.settings.graphs)
        since, phase = time.monotonic(), self.phase
        feeder = Feeder(self._pool, plan, lambda number: self._seed(phase, number), self.step)
        while True:
            done = length.progress(self.step, self.spent)
            if not made and done >= 1:
                break
            self._optimiser.factor.fill_(factor(self.step, done))
            chosen, (buffer, spec) = feeder.next()
            made.append((chosen, run(upload(buffer, self.device), spec)))
            self.step += 1
            if len(made) < _NOTE and length.progress(self.step, self.spent) < 1:
                continue
            told = [(plan, {n: float(v) for n, v in found.items()}) for plan, found in made]
            now = time.monotonic()
            self.spent += now - since
            tell(told, (now - since) / len(made))
            made, since = [], time.monotonic()
            self._pause()
        feeder.stop()

    def _pause(self) -> None:
        now = time.monotonic()
        if now - self._start >= self.settings.minutes * 60:
            self.save()
            self.log.write("stopped", phase=self.phase, step=self.step)
            raise Stopped
        if now - self._saved > self.settings.save_minutes * 60:
            self.save()

    def _tell(self, made: list[tuple[Plan, dict[str, float]]], seconds: float) -> None:
        if self.step % _TOLD == 0 or self.settings.towers.progress(self.step, self.spent) >= 1:
            self.log.write("towers", step=self.step, **_means(made), s=seconds)

    def _note(self, made: list[tuple[Plan, dict[str, float]]], seconds: float) -> None:
        done = self.settings.text.progress(self.step, self.spent)
        for plan, found in made:
            if self.curriculum.note(plan.units, found["right"], done):
                units = self.curriculum.stages[self.curriculum.stage].units
                self.log.write("stage", step=self.step, units=units, progress=done)
        if self.step % _TOLD == 0:
            right: dict[int, list[float]] = {}
            for plan, found in made:
                right.setdefault(plan.units, []).append(found.pop("right"))
            shares = {units: sum(all_) / len(all_) for units, all_ in sorted(right.items())}
            rate = round(sum(self._tokens(plan) for plan, _ in made) / len(made) / seconds)
            told = {"progress": done, "right": shares, "s": seconds, "tokens_per_s": rate}
            self.log.write("step", step=self.step, **_means(made), **told)
        if self.step % self.settings.check == 0:
            self.check()

    def _tokens(self, plan: Plan) -> int:
        laid = layout(world_frontend(), plan.size)
        stream = laid.prefix.size + plan.units * laid.unit.size + plan.turns * TURN
        return plan.streams * (stream + plan.questions * ROOM)

    def check(self) -> None:
        """Measure on the validation split at the longest streams so far, and watch attention.

        Raises:
            AttentionSaturatedError: attention logits spread too far.
        """
        units = min(64, self.curriculum.stages[self.curriculum.stage].units)
        streams = max(2, self.settings.rows // units)
        plan = Plan(units, streams, 32, "validation", spoken=0.1)
        found = measure(self.model, self.check_bank, plan, (self._seed("check", units),))
        self.log.write("validation", step=self.step, **found)
        if max(found["logit_std"]) > MOST_SPREAD:
            self.save()
            raise AttentionSaturatedError(
                f"attention logits have a standard deviation of {max(found['logit_std']):.1f} at "
                f"step {self.step}, expected at most {MOST_SPREAD:g}: such a model stays at guess "
                "level; start again with a lower rate of Muon"
            )

    def save(self) -> None:
        """Write a checkpoint."""
        self._saved = time.monotonic()
        record = {
            "phase": self.phase,
            "step": self.step,
            "spent": self.spent,
            "seed": self.settings.seed,
            "shape": asdict(self.shape),
            "curriculum": self.curriculum.state(),
        }
        pieces.save(self.settings.folder, self._optimiser.state(), record)

    def _resume(self, tensors: dict[str, torch.Tensor], record: dict[str, Any]) -> None:
        self._optimiser.load(tensors)
        self.step, self.spent = int(record["step"]), float(record["spent"])
        self.curriculum.load(record["curriculum"])
        self.log.write("resumed", phase=self.phase, step=self.step)

    def _seed(self, phase: str, step: int) -> int:
        phases = {"towers": 1, "text": 2, "fold": 3, "check": 4}
        return (self.settings.seed * 8 + phases[phase]) * 10_000_000 + step


def _means(made: list[tuple[Plan, dict[str, float]]]) -> dict[str, float]:
    return {n: sum(found[n] for _, found in made) / len(made) for n in made[0][1]}
