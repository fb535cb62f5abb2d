"""Positions of streamed units against ``get_rope_index`` of transformers on the whole clip."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from frontend_family import IDS, PREPROCESSOR, Characters, config, units_of

from omni_core.frontend.base import UnitMedia
from omni_core.frontend.qwen2_5_omni import QwenOmniFrontend
from omni_core.units import Modality, TokenBlock

torch = pytest.importorskip("torch")
modeling = pytest.importorskip("transformers.models.qwen2_5_omni.modeling_qwen2_5_omni")

# What a clip is made of: seconds of picture and of sound, and the picture's own frame rate.
CLIPS = {
    "whole units": (4.0, 4.0, 10.0),
    "ends mid-unit": (2.37, 2.37, 10.0),
    "ends in its first unit": (0.37, 0.37, 10.0),
    "mute": (4.6, 0.0, 10.0),
    "mute, in its first unit": (1.3, 0.0, 10.0),
    "sound alone": (0.0, 5.3, 10.0),
    "picture ends before sound": (2.37, 6.5, 10.0),
    "picture ends three frames into a unit": (3.1, 4.0, 10.0),
    "sound ends before picture": (6.5, 2.37, 10.0),
    "slow picture": (6.0, 6.0, 3.0),
    "long": (21.9, 21.9, 4.0),
}


def frontend(template: str, fps: float) -> QwenOmniFrontend:
    return QwenOmniFrontend.from_checkpoint(
        config(), PREPROCESSOR, Characters(), template=template, fps=fps
    )


class StandIn:
    """As much of the thinker as ``get_rope_index`` asks for."""

    _whole = modeling.Qwen2_5OmniPreTrainedModelForConditionalGeneration
    get_rope_index = _whole.get_rope_index
    get_llm_pos_ids_for_vision = _whole.get_llm_pos_ids_for_vision
    get_chunked_index = _whole.get_chunked_index
    spatial_merge_size = 2
    config = SimpleNamespace(
        image_token_id=IDS["<|IMAGE|>"],
        video_token_id=IDS["<|VIDEO|>"],
        audio_token_id=IDS["<|AUDIO|>"],
        vision_start_token_id=IDS["<|vision_bos|>"],
        audio_start_token_id=IDS["<|audio_bos|>"],
        position_id_per_seconds=25,
        seconds_per_chunk=2,
    )


def stream(front: QwenOmniFrontend, turns: list[list[UnitMedia]]):
    """All tokens of a talk, and of each clip in it the grid and the mel frames."""
    block, cursor = front.open("You see.")
    blocks, clips = [block], []
    per_unit = front.template.delimiters == "unit"
    for number, units in enumerate(turns):
        for group in [[unit] for unit in units] if per_unit else [units]:
            grids, samples = [], 0
            for unit in group:
                tokens, cursor = front.unit(unit, cursor)
                blocks.append(tokens.block)
                grids += [vision.grid for vision in tokens.vision]
                samples += 0 if unit.audio is None else unit.audio.size
            grid = (sum(t for t, _, _ in grids), *grids[0][1:]) if grids else None
            clips.append((grid, math.ceil(samples / 160)))
        block, cursor = front.question("What?", cursor)
        blocks.append(block)
        for token in Characters().encode("Ah"):
            block, cursor = front.answer(token, cursor)
            blocks.append(block)
        if number + 1 < len(turns):
            block, cursor = front.resume(cursor)
            blocks.append(block)
    return TokenBlock.join(blocks), clips


def reference(block: TokenBlock, clips, fps: float) -> np.ndarray:
    placeholder = {Modality.VISION: IDS["<|VIDEO|>"], Modality.AUDIO: IDS["<|AUDIO|>"]}
    ids = [
        placeholder[Modality(modality)] if token < 0 else token
        for token, modality in zip(block.tokens.tolist(), block.modality.tolist(), strict=True)
    ]
    grids = [grid for grid, _ in clips if grid is not None]
    mels = [mel for _, mel in clips if mel]
    positions, _ = StandIn().get_rope_index(
        torch.tensor([ids]),
        video_grid_thw=torch.tensor(grids) if grids else None,
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        use_audio_in_video=bool(grids and mels),
        audio_seqlens=torch.tensor(mels) if mels else None,
        second_per_grids=torch.tensor([2 / fps] * len(grids)) if grids else None,
    )
    return positions[:, 0].numpy()


def assert_equal(template: str, fps: float, turns: list[list[UnitMedia]]) -> TokenBlock:
    block, clips = stream(frontend(template, fps), turns)
    np.testing.assert_array_equal(block.positions, reference(block, clips, fps))
    return block


@pytest.mark.parametrize("fps", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("name", CLIPS)
def test_two_second_units_are_the_whole_clip(name, fps):
    picture, sound, rate = CLIPS[name]
    block = assert_equal("2s", fps, [units_of(2, fps, picture=picture, sound=sound, rate=rate)])
    content = block.modality[block.tokens < 0]
    assert (Modality.VISION in content) == (picture > 0)
    assert (Modality.AUDIO in content) == (sound > 0)


@pytest.mark.parametrize("fps", [1.0, 2.0, 3.0, 10.0])
@pytest.mark.parametrize("name", [name for name in CLIPS if name != "sound ends before picture"])
def test_one_second_units_are_a_sequence_of_clips(name, fps):
    picture, sound, rate = CLIPS[name]
    units = units_of(1, fps, picture=picture, sound=sound, rate=rate)
    assert_equal("1s", fps, [units])


@pytest.mark.parametrize("template", ["1s", "2s"])
@pytest.mark.parametrize("fps", [1.0, 2.0])
def test_several_turns_in_a_row(template, fps):
    seconds = 1 if template == "1s" else 2
    units = units_of(seconds, fps, picture=9.37, sound=9.37, cuts=[3.1, 6.3])
    split = [[u for u in units if lo <= u.start < hi] for lo, hi in [(0, 3.1), (3.1, 6.3)]]
    assert_equal(template, fps, [*split, [u for u in units if u.start >= 6.3]])


@pytest.mark.parametrize("size", [(641, 359), (720, 1280), (30, 31)])
@pytest.mark.parametrize("template", ["1s", "2s"])
def test_sizes(template, size):
    seconds = 1 if template == "1s" else 2
    assert_equal(template, 1.0, [units_of(seconds, 1, picture=2.4, sound=2.4, size=size)])


def test_the_time_axis_follows_seconds_at_ten_frames_a_second():
    block, _ = stream(frontend("2s", 10.0), [units_of(2, 10.0, picture=4.0, sound=4.0)])
    seen = np.unique(block.positions[0, block.modality == Modality.VISION])
    heard = np.unique(block.positions[0, block.modality == Modality.AUDIO])
    assert seen[-1] - seen[0] == 25 * 3.8
    assert heard[-1] - heard[0] == 99


@pytest.mark.parametrize("fps", [1, 2, 3, 4, 5, 6, 7, 10, 12, 15, 24, 25, 30])
def test_no_patch_of_an_hour_slips_out_of_its_unit(fps):
    from omni_core.frontend.tmrope import video_positions

    slots = video_positions(0, 0, (fps * 3600, 2, 2), 2, 2 / fps, 25)[0].reshape(-1, fps)
    assert (slots // 50 == np.arange(3600)[:, None]).all()


@pytest.mark.parametrize("name", [name for name, (seen, heard, _) in CLIPS.items() if seen * heard])
def test_token_order_is_the_processors(name):
    processing = pytest.importorskip(
        "transformers.models.qwen2_5_omni.processing_qwen2_5_omni"
    ).Qwen2_5OmniProcessor
    picture, sound, rate = CLIPS[name]
    block, [(grid, mel)] = stream(
        frontend("2s", 2.0), [units_of(2, 2, picture=picture, sound=sound, rate=rate)]
    )
    stand_in = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2),
        audio_bos_token="(",
        audio_eos_token=")",
        video_token="v",
        audio_token="a",
        get_chunked_index=lambda *args: processing.get_chunked_index(None, *args),
    )
    expected = processing.replace_video_with_audio_token(
        stand_in,
        {"video_grid_thw": np.asarray([grid]), "video_second_per_grid": [1.0]},
        0,
        {"num_audio_tokens": [((mel - 1) // 2 + 1 - 2) // 2 + 1]},
        0,
        position_id_per_seconds=25,
        seconds_per_chunk=2.0,
    )
    letters = {Modality.VISION: "v", Modality.AUDIO: "a"}
    marks = {IDS["<|audio_bos|>"]: "(", IDS["<|audio_eos|>"]: ")"}
    ours = "".join(
        letters[Modality(modality)] if token < 0 else marks.get(token, "")
        for token, modality in zip(block.tokens.tolist(), block.modality.tolist(), strict=True)
    )
    assert ours == expected
