"""The shipped checkpoint and demo clip: sizes, contents, and that their scripts make them again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer

from omni_core.checkpoints import open_checkpoint
from omni_core.model_config import thinker_config

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "apps/omnilive/assets"
EMBEDDED = ASSETS / "embedded"
DEMO = json.loads((ASSETS / "demo.json").read_text(encoding="utf-8"))
SHADES = {
    "red": (220, 40, 40),
    "blue": (40, 80, 220),
    "yellow": (240, 210, 40),
    "green": (40, 170, 70),
    "white": (245, 245, 245),
    "orange": (245, 140, 30),
    "purple": (140, 60, 180),
}


def run(script: str, folder: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), str(folder)]
    subprocess.run(command, check=True, timeout=120)


def pictures(clip: Path) -> list[npt.NDArray[np.uint8]]:
    with av.open(str(clip)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def loudness(clip: Path) -> npt.NDArray[np.float64]:
    """Root mean square of every half second."""
    with av.open(str(clip)) as container:
        blocks = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    sound = np.concatenate(blocks)[: 30 * 16_000].astype(np.float64)
    return np.sqrt((sound.reshape(60, -1) ** 2).mean(axis=1))


def test_the_checkpoint_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    run("make_untrained_checkpoint.py", tmp_path)
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    shipped = {file.name: file.read_bytes() for file in EMBEDDED.iterdir()}
    assert made.keys() == shipped.keys()
    assert [name for name in made if made[name] != shipped[name]] == []


def test_the_checkpoint_is_small_and_says_that_it_is_untrained() -> None:
    assert sum(file.stat().st_size for file in EMBEDDED.iterdir()) < 3_000_000
    assert json.loads((EMBEDDED / "config.json").read_text())["omnilive"] == {"trained": False}
    assert "untrained: random weights" in (EMBEDDED / "README.md").read_text()


def test_the_core_reads_the_checkpoint() -> None:
    checkpoint = open_checkpoint(EMBEDDED)
    config = thinker_config(checkpoint.config)
    assert config.text.head_dim == 32
    assert sum(config.text.mrope_section) == 16
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
        "vision_start_token_id": "<|vision_bos|>",
        "vision_end_token_id": "<|vision_eos|>",
        "user_token_id": "user",
    }
    assert {name: config[name] for name in fields} == {
        name: tokenizer.token_to_id(token) for name, token in fields.items()
    }
    assert tokenizer.get_vocab_size() == config["text_config"]["vocab_size"]
    eos = json.loads((EMBEDDED / "generation_config.json").read_text())["eos_token_id"]
    assert [tokenizer.id_to_token(token) for token in eos] == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize("text", ["what is on screen?", "Grüße, 世界!\n", "a\tb  c"])
def test_the_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    ids = tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>").ids
    assert ids[0] == tokenizer.token_to_id("<|im_start|>")
    assert ids[1] == tokenizer.token_to_id("user")
    assert tokenizer.decode(ids) == f"user\n{text}"


def test_transformers_loads_the_checkpoint_and_answers_differ_with_the_input() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, report = transformers.Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        EMBEDDED, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED)
    with torch.no_grad():
        first, second = (
            model(**tokenizer(text, return_tensors="pt")).logits[0, -1]
            for text in ("what is red?", "what is the first word?")
        )
    assert 1 < first.std() < 3
    assert (first - second).abs().max() > 0.5


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


def test_the_clip_shows_what_its_list_says() -> None:
    frames = pictures(ASSETS / "demo.mp4")
    for scene in DEMO["scenes"]:
        middle = frames[round((scene["start"] + scene["stop"]) / 2 * len(frames) / 30)]
        colour = np.array(SHADES[scene["shows"].split()[0]])
        near = np.abs(middle.astype(int) - colour).max(axis=2) < 30
        assert near.sum() > 1500, scene


def test_the_clip_sounds_when_its_list_says() -> None:
    loud = loudness(ASSETS / "demo.mp4")
    spoken = {round(scene["at"] * 2) for scene in DEMO["scenes"] if scene["says"]}
    assert all(loud[half] > 0.02 for half in spoken)
    silent = [
        half
        for scene in DEMO["scenes"]
        if not scene["says"]
        for half in range(scene["start"] * 2 + 1, scene["stop"] * 2 - 1)
    ]
    assert silent
    assert all(loud[half] < 0.001 for half in silent)


def test_questions_have_answers_inside_the_clip() -> None:
    assert len(DEMO["questions"]) >= 5
    for question in DEMO["questions"]:
        assert 0 < question["time"] <= 30
        assert question["question"].endswith("?")
        assert question["answer"]


def test_the_clip_is_made_again(tmp_path: Path) -> None:
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    run("make_demo_clip.py", tmp_path)
    assert (tmp_path / "demo.json").read_bytes() == (ASSETS / "demo.json").read_bytes()
    made, shipped = pictures(tmp_path / "demo.mp4"), pictures(ASSETS / "demo.mp4")
    assert len(made) == len(shipped) == 360
    # Encoders and fonts differ a little between versions, so pictures are alike rather than equal.
    gaps = [
        np.abs(a.astype(int) - b).mean() for a, b in zip(made[::20], shipped[::20], strict=True)
    ]
    assert max(gaps) < 4
    loud, heard = loudness(tmp_path / "demo.mp4"), loudness(ASSETS / "demo.mp4")
    assert np.corrcoef(loud, heard)[0, 1] > 0.95
