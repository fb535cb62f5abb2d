"""The exported folder: the same model in transformers and in both twins as in training."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.checkpoints import open_checkpoint
from omni_core.frontend.base import UnitMedia
from omni_core.frontend.images import resize
from omni_core.model_config import thinker_config
from omni_core.session import Model as Loaded
from omni_core.session import Session
from streamworld import tokens
from training.batch import Batch, Plan, make, world_frontend
from training.export import save
from training.media import log_mel, patches
from training.model import Model
from training.picture import frames
from training.reading import Outcome
from training.senses import SPEC
from training.shape import SMALL, SQUARE
from training.sound import sounds

UNITS = 3
TWINS = {"cuda": "torch", "mlx": "mlx"}


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("exported")
    save(model, made)
    return made


@pytest.fixture(scope="module")
def halved(model: Any) -> Any:
    """The model with the float16 weights that were written."""
    copy = Model.build(SMALL, torch.device("cpu"), 0)
    state = {name: value.half().float() for name, value in model.thinker.state_dict().items()}
    copy.thinker.load_state_dict(state)
    return copy


@pytest.fixture(scope="module", params=[SQUARE, (84, 140)], ids=["1:1", "16:9"])
def batch(request: pytest.FixtureRequest) -> Batch:
    plan = Plan(UNITS, 2, 4, "test", spoken=0.0, size=request.param)
    return make(plan, 3).to(torch.device("cpu"))


@pytest.fixture(scope="module")
def media(batch: Batch, bank: Any) -> list[list[UnitMedia]]:
    """Both streams' units as the app would take them in: larger than the model does."""
    height, width = batch.size
    seen = frames(batch.units, bank, size=batch.size).numpy().astype(np.uint8)
    seen = seen.repeat(3, axis=1).repeat(3, axis=2)
    seen = seen.reshape(2, UNITS, 3 * height, 3 * width, 3)
    heard = sounds(batch.units, bank).numpy().reshape(2, UNITS, -1)
    return [
        [UnitMedia(u, u + 1, (seen[s, u],), heard[s, u]) for u in range(UNITS)] for s in range(2)
    ]


@pytest.fixture(scope="module")
def outcome(halved: Any, batch: Batch, media: Any) -> Outcome:
    """What training makes of the units."""
    units = [unit for stream in media for unit in stream]
    seen = torch.from_numpy(np.stack([resize(unit.frames[0], *batch.size) for unit in units]))
    heard = torch.from_numpy(np.stack([unit.audio for unit in units]))
    thinker = halved.thinker
    with torch.no_grad():
        rows = thinker.visual(patches(seen, SPEC, torch.float32), batch.size)
        return halved.reader.read(rows, thinker.audio_tower(log_mel(heard, 128)), batch)


def _branch(batch: Batch, stream: int, slot: int) -> torch.Tensor:
    return torch.nonzero(batch.branch[stream] == slot)[:, 0]


@torch.no_grad()
def test_logits_are_transformers(folder: Path, batch: Batch, media: Any, outcome: Outcome) -> None:
    transformers = pytest.importorskip("transformers")
    thinker = transformers.Qwen2_5OmniThinkerForConditionalGeneration
    loaded, notes = thinker.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(notes.values()), notes
    front = world_frontend()
    for stream, slot in np.argwhere(batch.asked.numpy()):
        here = _branch(batch, stream, slot)
        ids, positions, rows, prepared = _inputs(front, batch, stream, slot, media)
        seen = [_seen(loaded, given) for given in prepared[0]]
        heard = [_heard(loaded, mel) for mel in prepared[1]]
        embedded = loaded.get_input_embeddings()(torch.from_numpy(np.maximum(ids, 0)))
        for unit, (picture, sound) in enumerate(zip(seen, heard, strict=True)):
            embedded[rows[unit] >= 0] = torch.cat([picture, sound])
        run = loaded.eval()(
            inputs_embeds=embedded[None], position_ids=torch.from_numpy(positions)[:, None].long()
        )
        expected = run.logits[0, -here.numel() :]
        found = outcome.logits[stream, here]
        assert (found - expected).norm() / expected.norm() < 1e-4


def _inputs(front: Any, batch: Batch, stream: int, slot: int, media: Any) -> Any:
    """Tokens of a stream and one of its branches as the frontend lays them out."""
    from omni_core.session import SYSTEM

    block, cursor = front.open(SYSTEM)
    ids, positions, vision, audio, spans = [block.tokens], [block.positions], [], [], []
    for unit in range(int(batch.unit[stream, slot]) + 1):
        laid, cursor = front.unit(media[stream][unit], cursor)
        spans.append((sum(map(len, ids)), laid.block.rows))
        ids.append(laid.block.tokens)
        positions.append(laid.block.positions)
        vision += laid.vision
        audio += laid.audio
    text = batch.ids[stream, _branch(batch, stream, slot)].numpy().astype(np.int32)
    ids.append(text)
    line = cursor.position + np.arange(text.size, dtype=np.int32)
    positions.append(np.tile(line, (3, 1)))
    whole = np.concatenate(ids)
    rows = []
    for start, local in spans:
        marked = np.full(whole.size, -1)
        marked[start : start + local.size] = local
        rows.append(torch.from_numpy(marked))
    return whole, np.concatenate(positions, 1), rows, (vision, audio)


def _seen(loaded: Any, given: Any) -> torch.Tensor:
    grid = torch.tensor([given.grid])
    return _part(loaded, "VisionEncoder")(torch.from_numpy(given.patches), grid).pooler_output


def _heard(loaded: Any, mel: Any) -> torch.Tensor:
    frames_ = torch.tensor([mel.shape[1]])
    tower = _part(loaded, "AudioEncoder")
    made = tower(torch.from_numpy(mel), feature_lens=frames_, aftercnn_lens=(frames_ - 1) // 2 + 1)
    return made.last_hidden_state


def _part(loaded: Any, name: str) -> Any:
    return next(part for part in loaded.modules() if type(part).__name__ == f"Qwen2_5Omni{name}")


@pytest.mark.parametrize("twin", TWINS)
def test_both_twins_give_the_likeliest_first_token(
    twin: str, folder: Path, batch: Batch, media: Any, outcome: Outcome
) -> None:
    if importlib.util.find_spec(TWINS[twin]) is None:
        pytest.skip("MLX is not installed" if twin == "mlx" else "torch is not installed")
    backend = importlib.import_module(f"omni_{twin}")
    checkpoint = open_checkpoint(folder)
    config, front = thinker_config(checkpoint.config), world_frontend()
    likeliest = outcome.logits.argmax(-1)
    compared = 0
    for stream in range(2):
        loaded = backend.load(checkpoint, device="cpu", weights="f32")
        session = Session(Loaded(loaded, front, config.text, "test"), budget=1024)
        for unit, taken in enumerate(media[stream]):
            session.append(taken)
            now = (batch.unit[stream] == unit) & batch.asked[stream]
            for slot in np.flatnonzero(now.numpy()):
                here = _branch(batch, stream, slot)
                start = here[batch.final[stream, here]][0]
                ids = batch.ids[stream, here[: int((here == start).nonzero()) + 1]].tolist()
                text = front.tokenizer._tokenizer.decode(ids, skip_special_tokens=False)
                question = text.removesuffix(tokens.TURN)
                assert front.tokenizer.encode(question + tokens.TURN) == ids
                first = int(likeliest[stream, start])
                expected = "" if first in front.stop_tokens else front.text([first])
                assert session.ask(question, max_tokens=1, branch=True) == expected
                compared += 1
    assert compared == int(batch.asked.sum())


def test_a_batch_is_rendered_at_its_own_size(halved: Any, batch: Batch, bank: Any) -> None:
    with torch.no_grad():
        found = halved.read(batch, bank, learn=False)
        seen = patches(frames(batch.units, bank, size=batch.size), SPEC, torch.float32)
        mel = log_mel(sounds(batch.units, bank), 128)
        rows = halved.thinker.visual(seen, batch.size), halved.thinker.audio_tower(mel)
        expected = halved.reader.read(*rows, batch)
    assert torch.equal(found.logits, expected.logits)


def test_the_folder_says_that_it_is_trained(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["omnilive"] == {"trained": True, "watch": "{watch}"}
    assert (folder / "model.safetensors").stat().st_size < 30e6
