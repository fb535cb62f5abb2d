"""The shipped model answers the same through transformers and both twins."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import same_answers
from benchmarks.harness import FAILS, LACKS
from benchmarks.same_answers import OURS, Findings
from benchmarks.same_answers_ways import Said
from omnilive.models import EMBEDDED_FOLDER
from streamworld import banks, tokens


@pytest.mark.shipped
def test_twelve_questions() -> None:
    for module in ("torch", "transformers", "mlx", "PIL"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: not all three can be asked")
    found = same_answers.compare(EMBEDDED_FOLDER, banks.load(same_answers.BANKS, "test"), 12)
    assert len(found.rows) == 12
    assert [claim.name for claim in found.claims() if not claim.holds] == []
    assert sum(row["transformers_right"] for row in found.rows) >= 8
    assert len({row["transformers"] for row in found.rows}) >= 5


def answers(words: list[str], off: float = 0.0) -> Said:
    ids = [*map(tokens.word_id, words), tokens.special("<|im_end|>")]
    logits = np.zeros((len(ids), 600), np.float32)
    logits[np.arange(len(ids)), ids] = 9.0 + off
    return Said(ids, logits)


def failing(**said: Said) -> list[str]:
    found = Findings()
    truth = answers(["red", "star"])
    everyone = {"transformers": truth, **dict.fromkeys(OURS, truth), **said}
    found.add(everyone, truth.ids, kind="now")
    return [claim.name for claim in found.claims() if not claim.holds]


def test_what_the_claims_see() -> None:
    assert failing() == []
    assert failing(omni_mlx=answers(["red", "star"], 9e-4)) == []
    assert failing(omni_mlx=answers(["red", "star"], 2e-3)) == [
        "omni_mlx: first token's logits, furthest apart",
        "omni_mlx: every token's logits, furthest apart",
    ]
    assert failing(omni_cuda=answers(["red", "moon"])) == [
        "omni_cuda: whole answers that differ, of 1",
        "omni_cuda: every token's logits, furthest apart",
    ]
    assert failing(omni_cuda=answers(["red"]))[0] == "omni_cuda: whole answers that differ, of 1"
    assert failing(omni_cuda=answers(["blue", "star"]))[0] == "first tokens that differ, of 1"


def test_the_verdict_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Findings()
    right, wrong = answers(["red"]), answers(["blue"])
    found.add({"transformers": right, "omni_cuda": right, "omni_mlx": wrong}, right.ids, kind="now")
    monkeypatch.setattr(same_answers, "compare", lambda *_: found)
    monkeypatch.setattr(same_answers, "_lacking", list)
    assert same_answers.main(["--quick", "--out", str(tmp_path)]) == FAILS
    out = capsys.readouterr().out
    assert "omni_cuda 0.0e+00, omni_mlx 9.0e+00" in out
    assert "FAILS  omni_mlx: whole answers that differ, of 1" in out
    (file,) = tmp_path.glob("same-answers-*.json")
    model, question = json.loads(file.read_text())["rows"]
    assert model["part"] == "model" and len(model["model.safetensors"]) == 16
    assert question["omni_mlx"] == "blue" and not question["omni_mlx_right"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--questions", "0"], "--questions is 0"),
        (["--banks", "."], "test.npz"),
        (["--model", "."], "expected a folder that holds config.json"),
    ],
)
def test_wrong_usage(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(same_answers, "NEEDS", {})
    with pytest.raises(SystemExit) as ended:
        same_answers.main(words)
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_a_machine_that_lacks_a_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(same_answers, "NEEDS", {"abacus": "cuda"})
    assert same_answers.main([]) == LACKS
    assert (
        "abacus is not installed: pip install -e '.[cuda]' in the checkout"
        in capsys.readouterr().err
    )
