"""Attention on old units by modality and offset, and the sink counts and file made of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy_backend import TEXT, NumpyBackend, PlainFrontend, plain_model, second

from omni_core.backend import StepPlan, StepResult
from omni_core.calibration import FORMAT, VERSION, document, read_sinks, sink_counts
from omni_core.errors import OmniError
from omni_core.mass_profile import MassProfile
from omni_core.retention import OmniPick
from omni_core.session import SYSTEM, Model, Session
from omni_core.units import Modality, Role

VISION, AUDIO = Modality.VISION, Modality.AUDIO
EDGE = len(Modality)


def stream(model: Model, profile: MassProfile, units: int, groups: int = 1) -> Session:
    profile.begin()
    session = Session(
        model,
        budget=4096,
        retention="no-slide",
        max_tokens=4,
        watcher=profile,
        prefill_chunk=7,
        groups=groups,
    )
    for index in range(units):
        session.append(second(index))
    return session


def naive(model: Model, units: int, recent: int, width: int) -> np.ndarray:
    """The same shares, from the order of every token, step by step."""
    rows: list[tuple[int, int, int]] = []
    sums: dict[int, np.ndarray] = {}
    forward = model.backend.forward
    state = {"unit": -1}

    def run(plan: StepPlan, embeddings: Any = None) -> StepResult:
        result = forward(plan, embeddings)
        assert result.mass is not None
        unit = state["unit"]
        for order, mass in enumerate(result.mass[0].tolist()):
            of, row, offset = rows[order]
            if 0 <= of <= unit - recent:
                sums.setdefault(unit, np.zeros((2 * EDGE, width)))[row, offset] += mass
        return result

    model.backend.forward = run
    frontend = model.frontend
    take = frontend.unit

    def unit(media: Any, cursor: Any) -> Any:
        tokens, after = take(media, cursor)
        state["unit"] += 1
        block = tokens.block
        for sense, role, offset in zip(block.sense, block.role, block.offset, strict=True):
            edge = role == Role.DELIMITER
            rows.append((state["unit"], sense + EDGE * edge, 0 if edge else int(offset)))
        return tokens, after

    frontend.unit = unit
    prefix, _ = frontend.open("hi")
    rows.extend([(-1, 0, 0)] * len(prefix))
    session = Session(
        model,
        budget=4096,
        retention="no-slide",
        max_tokens=4,
        system="hi",
        prefill_chunk=7,
        watcher=Asking(),
    )
    for index in range(units):
        session.append(second(index))
    return np.mean([part / part.sum() for part in sums.values()], axis=0)


class Asking:
    """Asks for mass and looks away."""

    mass = True

    def stepped(self, *_: object) -> None: ...

    def evicting(self, *_: object) -> None: ...

    def closed(self, *_: object) -> None: ...


def test_shares_equal_a_naive_sum() -> None:
    profile = MassProfile(recent=3)
    profile.begin()
    session = Session(
        plain_model(),
        budget=4096,
        retention="no-slide",
        max_tokens=4,
        system="hi",
        prefill_chunk=7,
        watcher=profile,
    )
    for index in range(9):
        session.append(second(index))
    expected = naive(plain_model(), 9, 3, 9)
    np.testing.assert_allclose(profile.shares(), expected, rtol=1e-9)
    assert [unit.unit for unit in profile.streams[0]] == [3, 4, 5, 6, 7, 8]


def test_shares_add_up_and_count_keys() -> None:
    profile = MassProfile(recent=2)
    stream(plain_model(vision=9, audio=5), profile, 12, groups=2)
    shares = profile.shares()
    assert shares.shape == (6, 9) and shares.sum() == pytest.approx(1)
    assert not shares[Modality.TEXT].any() and not shares[AUDIO, 5:].any()
    assert (shares[EDGE + VISION : EDGE + AUDIO + 1, 0] > 0).all()
    last = profile.streams[0][-1]
    # Unit 11 looks at units 0 to 9: ten keys at each offset, and two delimiters a span.
    assert (last.keys[VISION] == 10).all() and (last.keys[AUDIO, :5] == 10).all()
    assert last.keys[EDGE + VISION, 0] == last.keys[EDGE + AUDIO, 0] == 20
    contrast = last.contrast()
    assert np.isnan(contrast[Modality.TEXT]).all()
    assert np.nansum(contrast * last.keys) == pytest.approx(last.keys.sum())


class Weighted(NumpyBackend):
    """Mass by the token's place in its unit of 18, whatever the length of the stream."""

    def __init__(self, prefix: int, weights: np.ndarray) -> None:
        super().__init__()
        self.prefix, self.weights = prefix, weights

    def forward(self, plan: StepPlan, embeddings: Any = None) -> StepResult:
        result = super().forward(plan, embeddings)
        assert result.mass is not None
        order = np.arange(result.mass[0].size) - self.prefix
        mass = np.where(order < 0, 50.0, self.weights[order % self.weights.size])
        return StepResult(result.logits, (mass / mass.sum() * plan.order.size,))


def weighted(weights: np.ndarray, units: int) -> MassProfile:
    frontend = PlainFrontend()
    prefix, _ = frontend.open(SYSTEM)
    profile = MassProfile()
    stream(Model(Weighted(len(prefix), weights), frontend, TEXT, "weighted"), profile, units)
    return profile


def test_streams_of_other_lengths_compare() -> None:
    weights = np.random.default_rng(0).exponential(size=18)
    short, long = weighted(weights, 8), weighted(weights, 30)
    np.testing.assert_allclose(short.shares(), long.shares(), rtol=1e-5)
    total = weights.sum()
    # A unit is a delimiter, 9 of vision, two delimiters, 5 of audio, and a delimiter.
    np.testing.assert_allclose(short.shares()[VISION], weights[1:10] / total, rtol=1e-5)
    np.testing.assert_allclose(short.shares()[AUDIO, :5], weights[12:17] / total, rtol=1e-5)


def test_sinks_are_counted_as_they_are() -> None:
    weights = np.ones(18)
    weights[1:3] = 40.0
    weights[12] = 9.0
    counts = sink_counts(weighted(weights, 8).shares(), 0.6)
    assert counts == {"vision": 2, "audio": 1}


def test_the_fewest_tokens_that_cover_the_share() -> None:
    shares = np.zeros((6, 5))
    shares[VISION] = [0.5, 0.25, 0.125, 0.0625, 0.0625]
    shares[EDGE + AUDIO, 0] = 1.0
    assert sink_counts(shares, 0.5) == {"vision": 1}
    assert sink_counts(shares, 0.51) == {"vision": 2}
    assert sink_counts(shares, 1.0) == {"vision": 5}
    shares[AUDIO] = 0.1
    assert sink_counts(shares, 0.6)["audio"] == 3
    assert sink_counts(np.zeros((6, 0)), 0.5) == {}


def test_the_file_goes_round() -> None:
    shares = weighted(np.linspace(3, 1, 18), 8).shares()
    made = json.loads(json.dumps(document(shares, 0.5, {"model": "plain"})))
    assert made["format"] == FORMAT and made["about"] == {"model": "plain"}
    assert len(made["mass"]["vision"]) == 9 and set(made["delimiters"]) == {"vision", "audio"}
    measured = sum(map(sum, made["mass"].values())) + sum(made["delimiters"].values())
    assert measured == pytest.approx(1, abs=1e-3)
    rule = OmniPick.from_calibration(made)
    assert (rule.vision, rule.audio) == (made["sinks"]["vision"], made["sinks"]["audio"])
    assert rule.text == OmniPick().text and rule.share == OmniPick().share


GOOD = {"format": FORMAT, "version": 1, "sinks": {"vision": 3, "audio": 0}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "no retention calibration"),
        (None, "no retention calibration"),
        ({}, "no retention calibration"),
        ({"sinks": {"vision": 3}}, "no retention calibration"),
        (GOOD | {"version": 2}, "version 2"),
        (GOOD | {"version": None}, "version None"),
        (GOOD | {"sinks": {}}, "`sinks`"),
        (GOOD | {"sinks": [3, 2]}, "`sinks`"),
        (GOOD | {"sinks": {"smell": 3}}, "`sinks`"),
        (GOOD | {"sinks": {"vision": -1}}, "-1 vision sinks"),
        (GOOD | {"sinks": {"audio": 2.5}}, "2.5 audio sinks"),
        (GOOD | {"sinks": {"audio": True}}, "True audio sinks"),
        (GOOD | {"sinks": {"audio": "4"}}, "'4' audio sinks"),
    ],
)
def test_bad_files_are_told(content: Any, says: str) -> None:
    with pytest.raises(OmniError, match=says):
        read_sinks(content)
    assert read_sinks(GOOD) == {"vision": 3, "audio": 0}


@pytest.mark.parametrize("units", [0, 1, 4])
def test_a_stream_without_old_units_is_told(units: int) -> None:
    profile = MassProfile()
    stream(plain_model(), profile, units)
    with pytest.raises(OmniError, match="longer clips"):
        profile.shares()
    assert profile.streams == [[]]
    stream(plain_model(), profile, 5)
    assert profile.shares().sum() == pytest.approx(1)


def test_a_stream_that_evicts_is_refused() -> None:
    profile = MassProfile()
    profile.begin()
    session = Session(plain_model(), budget=256, max_tokens=4, watcher=profile)
    with pytest.raises(OmniError, match="must not evict"):
        for index in range(30):
            session.append(second(index))


def test_a_calibration_may_say_what_share_sinks_take() -> None:
    content = {"format": FORMAT, "version": VERSION, "sinks": {"vision": 0}, "share": 0.75}
    assert OmniPick.from_calibration(content) == OmniPick(vision=0, share=0.75)
    assert OmniPick.from_calibration(content | {"share": None}).share == OmniPick.share
    for wrong in (1.5, -0.1, "0.5", True, float("nan")):
        with pytest.raises(OmniError, match="share"):
            OmniPick.from_calibration(content | {"share": wrong})


@pytest.mark.parametrize("share", [0, 0.0, 1])
def test_a_share_may_be_nothing_or_all(share: float) -> None:
    content = {"format": FORMAT, "version": VERSION, "sinks": {"vision": 0}, "share": share}
    assert OmniPick.from_calibration(content).share == share
