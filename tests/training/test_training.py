"""Training runs, learns, stops, goes on and exports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from training import pieces, schedule
from training.batch import Plan, make
from training.export import export, restored
from training.log import Log, read
from training.model import Model
from training.optimiser import Optimiser, Rates, orthogonal
from training.schedule import Length
from training.shape import SIZES, SMALL, SQUARE
from training.stages import STAGES, Curriculum
from training.towers import fold
from training.trainer import Settings, Stopped, Trainer

ROOT = Path(__file__).resolve().parents[2]


def _trainer(folder: Path, bank: Any, **changes: Any) -> Trainer:
    values = {"rows": 8, "towers": Length(2), "text": Length(4), "check": 4, **changes}
    settings = Settings(folder, **values)
    model = Model.build(SMALL, torch.device("cpu"), settings.seed)
    return Trainer(model, SMALL, (bank, bank), settings, Log(folder), torch.float32)


def test_a_stopped_training_goes_on(tmp_path: Path, bank: Any) -> None:
    whole = _trainer(tmp_path / "whole", bank)
    whole.run()
    runs = 0
    while runs < 10:
        parts = _trainer(tmp_path / "parts", bank, minutes=0.0)
        runs += 1
        try:
            parts.run()
            break
        except Stopped:
            continue
    assert runs > 1
    assert parts.step == whole.step == 4
    events = [line["event"] for line in read(tmp_path / "parts")]
    assert events.count("resumed") >= 1
    first, second = (
        restored(tmp_path / name, torch.device("cpu"))[0] for name in ("whole", "parts")
    )
    for name, weight in first.thinker.state_dict().items():
        assert torch.isfinite(weight).all(), name
        # Momentum is not kept, so the same batches lead to nearby weights, not to equal ones.
        other = second.thinker.state_dict()[name]
        assert (weight - other).abs().max() < 0.1, name


def test_pieces_are_small_and_whole(tmp_path: Path) -> None:
    tensors = {f"t{n}": torch.randn(1 << 20) for n in range(9)}
    pieces.save(tmp_path, tensors, {"step": 3})
    assert max(file.stat().st_size for file in tmp_path.iterdir()) <= 16 << 20
    found = pieces.load(tmp_path)
    assert found is not None
    assert found[1] == {"step": 3}
    assert all(torch.equal(found[0][name], tensors[name]) for name in tensors)
    (tmp_path / pieces.RECORD).unlink()
    assert pieces.load(tmp_path) is None


def test_a_few_steps_lower_the_loss(tmp_path: Path, bank: Any) -> None:
    trainer = _trainer(tmp_path, bank, rows=16, towers=Length(60))
    units = make(Plan(8, 8, 1), 1).to(torch.device("cpu")).units

    @torch.no_grad()
    def loss() -> float:
        return float(trainer._naming.losses(*trainer.model.senses.encoded(units, bank), units)[0])

    before = loss()
    trainer._towers()
    assert loss() < before - 0.3


def test_folded_towers_are_centred_and_of_size_one(bank: Any) -> None:
    model = Model.build(SMALL, torch.device("cpu"), 3)
    units = make(Plan(8, 4, 1), 1).to(torch.device("cpu")).units
    fold(model.thinker, model.senses, units, bank)
    with torch.no_grad():
        for rows in model.senses.encoded(units, bank):
            assert rows.mean((0, 1)).abs().max() < 1e-4
            assert rows.square().mean().sqrt().item() == pytest.approx(1, abs=1e-3)


def test_orthogonal_matrices_have_singular_values_near_one() -> None:
    draw = torch.randn(3, 48, 20, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(draw))
    assert ((values > 0.6) & (values < 1.3)).all()


def test_an_optimiser_gives_its_weights_back() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4))
    before = [weight.detach().clone() for weight in module.parameters()]
    optimiser = Optimiser(module, torch.bfloat16, Rates())
    assert all(weight.dtype == torch.bfloat16 for weight in module.parameters())
    optimiser.release()
    for weight, kept in zip(module.parameters(), before, strict=True):
        assert torch.equal(weight, kept)


def test_rates_rise_stay_and_fall() -> None:
    length = Length(1000)
    rates = [schedule.factor(step, length.progress(step, 0.0)) for step in range(1001)]
    assert rates[0] < 0.02
    assert rates[100] == rates[500] == 1
    assert rates[1000] == pytest.approx(schedule.LOWEST)
    assert all(np.diff(rates[500:]) <= 0)
    assert Length(1000, 2.0).progress(10, 60.0) == 0.5


def test_streams_grow_when_they_are_understood_or_when_it_is_time() -> None:
    quick = Curriculum(768)
    assert not any(quick.note(2, 1.0, 0.0) for _ in range(19))
    assert quick.note(2, 1.0, 0.0)
    assert quick.stage == 1
    slow = Curriculum(768)
    assert not slow.note(2, 0.0, STAGES[0].until - 0.01)
    assert slow.note(2, 0.0, STAGES[0].until)
    slow.stage = len(STAGES) - 1
    plans = [slow.plan(step, 0) for step in range(400)]
    assert {plan.units for plan in plans} == {stage.units for stage in STAGES}
    assert all(plan.units * plan.streams == 768 for plan in plans)
    assert any(plan.turns for plan in plans)
    assert {plan.size for plan in plans if plan.units == 64} == set(SIZES)
    assert {plan.size for plan in plans if plan.units == 128} == {SQUARE}


def test_smoke(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "training/embedded.py"),
        "--smoke",
        "--out",
        str(tmp_path),
    ]
    subprocess.run(command, check=True, timeout=120)
    events = [line["event"] for line in read(tmp_path)]
    assert events[0] == "start"
    assert events[-1] == "done"
    export(tmp_path, tmp_path / "folder")
    assert "stream world" in (tmp_path / "folder/README.md").read_text()
    assert json.loads((tmp_path / "folder/claims.json").read_text()) == {"streamworld": []}
    assert json.loads((tmp_path / "folder/training_log.json").read_text())
