"""The shipped checkpoint and demo clip: sizes, contents, and that the one understands the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import pytest
from tokenizers import Tokenizer

from omni_core import Session
from omni_core.checkpoints import open_checkpoint
from omni_core.model_config import thinker_config
from omnilive import load, open_clip
from omnilive.question_files import read_questions

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "apps/omnilive/assets"
EMBEDDED = ASSETS / "embedded"
DEMO = json.loads((ASSETS / "demo.json").read_text(encoding="utf-8"))


def test_the_checkpoint_is_small_and_says_that_it_is_trained() -> None:
    assert sum(file.stat().st_size for file in EMBEDDED.iterdir()) < 30_000_000
    assert json.loads((EMBEDDED / "config.json").read_text())["omnilive"]["trained"] is True
    card = (EMBEDDED / "README.md").read_text(encoding="utf-8")
    assert "## Limits" in card and "## Data" in card


def test_the_core_reads_the_checkpoint() -> None:
    checkpoint = open_checkpoint(EMBEDDED)
    config = thinker_config(checkpoint.config)
    assert sum(config.text.mrope_section) * 2 == config.text.head_dim == 64
    checkpoint.require("lm_head.weight", (config.text.vocab, config.text.hidden))


def test_token_ids_in_the_config_are_the_tokenizers() -> None:
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    config = json.loads((EMBEDDED / "config.json").read_text())
    fields = {
        "audio_token_index": "<|AUDIO|>",
        "image_token_index": "<|IMAGE|>",
        "video_token_index": "<|VIDEO|>",
        "audio_start_token_id": "<|audio_bos|>",
        "audio_end_token_id": "<|audio_eos|>",
    }
    assert {name: config[name] for name in fields} == {
        name: tokenizer.token_to_id(token) for name, token in fields.items()
    }
    assert tokenizer.get_vocab_size() == config["text_config"]["vocab_size"]


def test_transformers_loads_the_checkpoint() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    _, report = transformers.Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        EMBEDDED, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    assert transformers.AutoTokenizer.from_pretrained(EMBEDDED)("what do you see now?")


def test_transformers_reads_the_preprocessor_config() -> None:
    pytest.importorskip("transformers")
    from transformers import Qwen2VLImageProcessorPil, WhisperFeatureExtractor

    sound: Any = WhisperFeatureExtractor.from_pretrained(EMBEDDED)
    assert (sound.feature_size, sound.hop_length, sound.n_fft) == (128, 160, 400)
    image: Any = Qwen2VLImageProcessorPil.from_pretrained(EMBEDDED)
    assert (image.patch_size, image.temporal_patch_size, image.merge_size) == (14, 2, 2)


def test_the_clip_is_small_and_half_a_minute_of_h264_and_aac() -> None:
    assert (ASSETS / "demo.mp4").stat().st_size < 2_000_000
    with av.open(str(ASSETS / "demo.mp4")) as container:
        codecs = {stream.type: stream.codec_context.name for stream in container.streams}
        assert codecs == {"video": "h264", "audio": "aac"}
        assert container.duration is not None
        assert container.duration / av.time_base == pytest.approx(30, abs=0.1)


def test_its_questions_lie_inside_the_clip_and_have_answers() -> None:
    asks = read_questions(ASSETS / "demo.json")
    assert len(asks) >= 5
    assert all(0 < ask.time <= DEMO["seconds"] == 30 and ask.truth for ask in asks)
    assert len(DEMO["shows"]) == len(DEMO["says"]) == 30


@pytest.mark.shipped
@pytest.mark.parametrize("backend", ["mlx", "cuda"])
def test_the_model_answers_the_demo_right(backend: str) -> None:
    pytest.importorskip("mlx.core" if backend == "mlx" else "torch")
    session = Session(load(backend=backend, device="cpu"), budget=768, max_tokens=12)
    asks, answers = list(read_questions(ASSETS / "demo.json")), []
    for unit in open_clip(ASSETS / "demo.mp4", session.model):
        session.append(unit)
        while len(answers) < len(asks) and asks[len(answers)].time <= unit.stop + 1e-4:
            answers.append(session.ask(asks[len(answers)].question).strip())
    assert answers == [ask.truth for ask in asks]
