from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from frontend_family import IDS, PREPROCESSOR, Characters, config, frame, noise, units_of

from omni_core.errors import CheckpointError, MediaError
from omni_core.frontend.base import Cursor, Frontend, UnitMedia
from omni_core.frontend.qwen2_5_omni import QwenOmniFrontend
from omni_core.units import EMBEDDED, Modality, Role

V, A, T = Modality.VISION, Modality.AUDIO, Modality.TEXT
V_BOS, V_EOS = IDS["<|vision_bos|>"], IDS["<|vision_eos|>"]
A_BOS, A_EOS = IDS["<|audio_bos|>"], IDS["<|audio_eos|>"]


def make(template: str | None = None, fps: float | None = None, **changes) -> QwenOmniFrontend:
    preprocessor = {**PREPROCESSOR, **changes.pop("preprocessor", {})}
    return QwenOmniFrontend.from_checkpoint(
        {**config(), **changes}, preprocessor, Characters(), template, fps
    )


def media(start: float, stop: float, frames: int, sound: float | None) -> UnitMedia:
    pictures = tuple(frame(i) for i in range(frames))
    return UnitMedia(start, stop, pictures, None if sound is None else noise(sound))


def test_it_is_a_frontend():
    front: Frontend = make()
    assert front.seconds == 2.0 and front.fps == 2.0
    assert front.stop_tokens == {IDS["<|im_end|>"], IDS["<|endoftext|>"]}
    assert front.text([72, 105, IDS["<|im_end|>"]]) == "Hi"


def test_markup_is_chatml():
    front, encode = make("1s"), Characters().encode
    block, cursor = front.open("Look.")
    assert block.tokens.tolist() == encode(
        "<|im_start|>system\nLook.<|im_end|>\n<|im_start|>user\n"
    )
    assert set(block.role) == {Role.PREFIX}
    tokens, cursor = front.unit(media(0, 1, 1, 1.0), cursor)
    block, cursor = front.question("What?", cursor)
    assert block.tokens.tolist() == encode("What?<|im_end|>\n<|im_start|>assistant\n")
    assert set(block.role) == {Role.PROMPT}
    assert block.positions[0, 0] == tokens.block.positions[0, -1] + 1
    answer, cursor = front.answer(65, cursor)
    assert (answer.tokens[0], answer.role[0]) == (65, Role.GENERATED)
    assert answer.positions[:, 0].tolist() == [block.positions[0, -1] + 1] * 3
    block, cursor = front.resume(cursor)
    assert block.tokens.tolist() == encode("<|im_end|>\n<|im_start|>user\n")
    assert cursor.position == answer.positions[0, 0] + 1 + len(block)


def test_one_second_units_carry_their_delimiters():
    tokens, cursor = make("1s").unit(media(0, 1, 1, 1.0), Cursor(10))
    (vision,), (mel,) = tokens.vision, tokens.audio
    count = vision.grid[1] * vision.grid[2] // 4
    assert vision.grid[0] == 1 and mel.shape == (32, 100)
    assert vision.patches.shape == (count * 4, 3 * 2 * 14 * 14)
    block = tokens.block
    embedded = [EMBEDDED] * (count + 25)
    assert block.tokens.tolist() == [V_BOS, A_BOS, *embedded, A_EOS, V_EOS]
    assert block.rows.tolist() == [-1, -1, *range(count + 25), -1, -1]
    assert block.modality.tolist() == [T, T] + [V] * count + [A] * 25 + [T, T]
    assert block.sense.tolist() == [V, A] + [V] * count + [A] * 25 + [A, V]
    marks = [Role.DELIMITER] * 2
    assert block.role.tolist() == marks + [Role.CONTENT] * (count + 25) + marks
    assert block.offset.tolist() == [0, 0, *range(count), *range(25), 1, 1]
    assert block.positions[:, :2].tolist() == [[10, 10]] * 3
    assert block.positions[:, -2:].tolist() == [[36, 36]] * 3
    assert cursor == Cursor(37)


def test_two_second_units_share_one_bracket():
    front = make("2s")
    first, cursor = front.unit(media(0, 2, 4, 2.0), Cursor(10))
    second, cursor = front.unit(media(2, 4, 4, 2.0), cursor)
    closing, after = front.question("", cursor)
    assert first.block.tokens[:2].tolist() == [V_BOS, A_BOS]
    assert first.block.role[:2].tolist() == [Role.BRACKET] * 2
    assert set(second.block.tokens) == {EMBEDDED}
    assert second.block.positions[0, 0] == 11 + 50
    assert closing.tokens[:2].tolist() == [A_EOS, V_EOS]
    assert closing.role[:2].tolist() == [Role.BRACKET] * 2
    assert closing.sense[:2].tolist() == [A, V]
    assert closing.positions[:, :2].tolist() == [[111, 111]] * 3
    assert after.bracket is None


def test_the_order_of_senses_is_the_templates():
    swapped = make(preprocessor={"unit_template": {"name": "1s", "order": ["audio", "vision"]}})
    block = swapped.unit(media(0, 1, 1, 1.0), Cursor())[0].block
    count = len(block) - 4 - 25
    assert block.modality.tolist() == [T, T] + [A] * 25 + [V] * count + [T, T]
    assert block.rows[2:-2].tolist() == [*range(count, count + 25), *range(count)]


def test_a_frame_alone_fills_its_temporal_patch():
    (vision,) = make("1s").unit(media(0, 1, 1, None), Cursor())[0].vision
    patches = vision.patches.reshape(-1, 3, 2, 14, 14)
    np.testing.assert_array_equal(patches[:, :, 0], patches[:, :, 1])


def test_a_mute_unit_has_only_vision_delimiters():
    block = make("1s").unit(media(0, 1, 1, None), Cursor())[0].block
    assert (block.tokens[0], block.tokens[-1]) == (V_BOS, V_EOS)
    assert A_BOS not in block.tokens and A not in block.sense


def test_sound_alone_has_only_audio_delimiters():
    block = make("2s").unit(media(0, 2, 0, 2.0), Cursor())[0].block
    assert block.tokens.tolist() == [A_BOS] + [EMBEDDED] * 50


@pytest.mark.parametrize("template", ["1s", "2s"])
def test_a_unit_of_nothing_gives_nothing(template):
    front = make(template)
    tokens, cursor = front.unit(UnitMedia(0, front.seconds, (), np.zeros(0, np.float32)), Cursor(7))
    assert len(tokens.block) == 0 and cursor == Cursor(7)


def test_a_sense_that_vanishes_leaves_its_time_open():
    front = make("2s")
    _, cursor = front.unit(media(0, 2, 4, 2.0), Cursor())
    blind, cursor = front.unit(media(2, 4, 0, 2.0), cursor)
    deaf, cursor = front.unit(media(4, 6, 4, None), cursor)
    both, _ = front.unit(media(6, 8, 4, 2.0), cursor)
    assert set(blind.block.modality) == {A} and set(deaf.block.modality) == {V}
    assert blind.block.positions[0, 0] == 1 + 50
    assert deaf.block.positions[0, 0] == 1 + 100
    seen, heard = both.block.modality == V, both.block.modality == A
    assert both.block.positions[0, seen].min() == 1 + 150
    assert both.block.positions[0, heard].min() == 1 + 150
    assert T not in both.block.modality


def test_a_sense_that_appears_opens_a_new_bracket():
    front = make("2s")
    _, cursor = front.unit(media(0, 2, 4, None), Cursor())
    tokens, cursor = front.unit(media(2, 4, 4, 2.0), cursor)
    assert tokens.block.tokens[:3].tolist() == [V_EOS, V_BOS, A_BOS]
    closed = tokens.block.positions[0, 0]
    assert tokens.block.positions[0, 1:4].tolist() == [closed + 1, closed + 1, closed + 2]
    assert cursor.bracket is not None and cursor.bracket.audio and cursor.bracket.vision


def test_a_unit_after_a_part_unit_opens_a_new_bracket():
    front = make("2s")
    _, cursor = front.unit(media(0, 1.1, 3, 1.1), Cursor())
    tokens, _ = front.unit(media(1.1, 3.1, 4, 2.0), cursor)
    assert tokens.block.tokens[:4].tolist() == [A_EOS, V_EOS, V_BOS, A_BOS]


def test_cursors_are_values_so_a_unit_can_be_rolled_back():
    front = make("2s")
    _, cursor = front.unit(media(0, 2, 4, 2.0), Cursor())
    once = front.unit(media(2, 4, 4, 2.0), cursor)
    again = front.unit(media(2, 4, 4, 2.0), cursor)
    assert once[1] == again[1]
    np.testing.assert_array_equal(once[0].block.positions, again[0].block.positions)


@pytest.mark.parametrize("samples", [1, 320, 321])
def test_the_shortest_sound_is_a_token(samples):
    unit = UnitMedia(0, samples / 16_000, (), np.ones(samples, np.float32))
    tokens, _ = make("1s").unit(unit, Cursor())
    assert tokens.block.tokens.tolist() == [A_BOS, EMBEDDED, A_EOS]


@pytest.mark.parametrize("template", ["1s", "2s"])
def test_resolutions_may_change_within_a_stream(template):
    front = make(template, 2.0)
    portrait = units_of(front.seconds, 2, picture=2.0, sound=2.0, size=(641, 359))
    wide = units_of(front.seconds, 2, picture=2.0, sound=2.0, size=(720, 1280))
    cursor, grids = Cursor(), []
    for unit in [*portrait, *wide]:
        tokens, cursor = front.unit(unit, cursor)
        grids += [vision.grid[1:] for vision in tokens.vision]
        assert (tokens.block.modality == V).sum() == np.prod(tokens.vision[0].grid) // 4
    assert grids[0] != grids[-1]
    assert grids[0][0] > grids[0][1] and grids[-1][0] < grids[-1][1]


@pytest.mark.parametrize(
    ("unit", "says"),
    [
        (media(0, 2, 5, 2.0), "5 frames, expected at most 4"),
        (media(0, 2, 4, 2.1), "33600 samples of sound, expected at most 2 s"),
    ],
)
def test_more_than_a_unit_holds_is_refused(unit, says):
    with pytest.raises(MediaError, match=says):
        make("2s").unit(unit, Cursor())


@pytest.mark.parametrize("fps", [0.5, 1.5, 2.25, 2.5])
def test_full_units_with_an_unfilled_temporal_patch_are_refused(fps):
    with pytest.raises(CheckpointError, match="expected a multiple of 2, the frames in one patch"):
        make("2s", fps)


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), float("inf")])
def test_frame_rates_that_cannot_be_are_refused(fps):
    with pytest.raises(CheckpointError, match="fps is"):
        make("1s", fps)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"position_id_per_seconds": None}, "`position_id_per_seconds` is missing"),
        ({"position_id_per_seconds": 13}, "expected 25 with template '2s'"),
        ({"seconds_per_chunk": None}, "`seconds_per_chunk` is missing"),
        ({"seconds_per_chunk": 4}, "chunks are 4 s"),
        ({"preprocessor": {"feature_size": 80}}, "`feature_size` is 80, expected 32"),
        ({"preprocessor": {"hop_length": 80}}, "`hop_length` is 80, expected 160"),
        ({"preprocessor": {"patch_size": 16}}, "`patch_size` is 16, expected 14"),
        ({"preprocessor": {"image_mean": 0.5}}, "`image_mean` is 0.5"),
        ({"preprocessor": {"min_pixels": 99999}}, "limited to 99999 .. 12544"),
        ({"preprocessor": {"unit_template": {"name": "1s", "sec": 2}}}, "unknown keys sec"),
        ({"preprocessor": {"unit_template": {"name": "1s", "seconds": 1e-9}}}, "at least 0.02"),
        ({"preprocessor": {"do_normalize": False}}, "`do_normalize` is False, expected True"),
        ({"preprocessor": {"resample": 2}}, "`resample` is 2, expected 3"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused_by_name(changes, says):
    with pytest.raises(CheckpointError, match=says):
        make(**changes)


INF, NAN = float("inf"), float("nan")
NO_NUMBERS = ("x", -1, 0, [], {}, INF, NAN, [0, 0, 0], True)
NO_OBJECTS = ("x", -1, 5, [], INF, NAN, [0, 0, 0], True)
NO_IDS = ("x", -1, -7, 2.0, [], {}, INF, NAN, True, 512, 99_999)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("position_id_per_seconds", (*NO_NUMBERS, 10**9)),
        ("seconds_per_chunk", NO_NUMBERS),
        ("audio_start_token_id", NO_IDS),
        ("audio_end_token_id", NO_IDS),
        ("vision_start_token_id", NO_IDS),
        ("vision_end_token_id", NO_IDS),
    ],
)
def test_fields_of_the_config_that_cannot_be_are_refused_by_name(field, values):
    for value in values:
        with pytest.raises(CheckpointError, match=f"^config.json: `{field}` is ") as caught:
            make("1s", **{field: value})
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("min_pixels", NO_NUMBERS),
        ("max_pixels", NO_NUMBERS),
        ("image_mean", ("x", 5, {}, [1, 2], [1, 2, NAN], [1, 2, "x"], [True, 1, 1])),
        ("image_std", ("x", 5, {}, [1, 2], [0, 0, 0], [1, 2, INF], [1, 1, -1])),
        ("size", NO_OBJECTS),
        ("video_processor", NO_OBJECTS),
        ("feature_extractor", NO_OBJECTS),
        ("unit_template", NO_OBJECTS),
        ("feature_size", (*NO_NUMBERS, 80)),
        ("sampling_rate", (*NO_NUMBERS, 8000)),
        ("patch_size", (*NO_NUMBERS, 16)),
    ],
)
def test_fields_of_the_preprocessor_that_cannot_be_are_refused_by_name(field, values):
    for value in values:
        with pytest.raises(CheckpointError, match=f"^preprocessor_config.json: `{field}` is "):
            make(preprocessor={field: value})


def test_a_missing_preprocessor_config_is_refused():
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json: missing or empty"):
        QwenOmniFrontend.from_checkpoint(config(), {}, Characters())


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>", "<|vision_bos|>"])
def test_ids_of_the_tokenizer_outside_of_the_vocabulary_are_refused(token):
    class Other(Characters):
        def encode(self, text):
            return [5000] if text == token else super().encode(text)

    made = config() | {"vision_start_token_id": None}
    with pytest.raises(CheckpointError, match=r"\[5000\].* vocabulary of 512"):
        QwenOmniFrontend.from_checkpoint(made, PREPROCESSOR, Other())


def test_an_unknown_template_is_refused():
    with pytest.raises(CheckpointError, match="'3s', expected one of 2s, 1s"):
        make("3s")


def test_marks_come_from_the_tokenizer_where_the_config_has_none():
    front = make(vision_start_token_id=None, vision_end_token_id=None)
    assert front.marks == (V_BOS, V_EOS, A_BOS, A_EOS)


@pytest.mark.parametrize(
    ("preprocessor", "limits"),
    [
        ({"feature_size": 32}, (100352, 602112)),
        ({"min_pixels": 3136, "max_pixels": 12845056}, (100352, 602112)),
        ({"min_pixels": 3136, "max_pixels": 12544}, (3136, 12544)),
        ({"size": {"shortest_edge": 3136, "longest_edge": 12544}}, (3136, 12544)),
        ({"video_processor": {}, "min_pixels": 3136, "max_pixels": 12544}, (3136, 12544)),
        (
            {"video_processor": {"size": {"shortest_edge": 3136, "longest_edge": 9999999}}},
            (3136, 9999999),
        ),
        (
            {"video_processor": {"size": {"shortest_edge": 5, "longest_edge": 9}}, "max_pixels": 7},
            (5, 9),
        ),
    ],
)
def test_pixel_limits(preprocessor, limits):
    front = QwenOmniFrontend.from_checkpoint(config(), preprocessor, Characters())
    assert (front.spec.min_pixels, front.spec.max_pixels) == limits


def test_importing_it_brings_in_no_framework():
    code = (
        "import sys, omni_core.frontend.qwen2_5_omni, omni_core.frontend.framing\n"
        "heavy = {'torch', 'mlx', 'transformers', 'triton', 'PIL', 'cv2', 'av', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("template", ["1s", "2s"])
@pytest.mark.parametrize(
    "size", [(112, 112), (500, 300), (90, 1200), (2000, 2100), (28, 5600), (1000, 5)]
)
def test_no_unit_is_larger_than_the_largest(template: str, size: tuple[int, int]) -> None:
    frontend = make(template)
    count = frontend.frames_per_unit
    frames = tuple(np.zeros((*size, 3), np.uint8) for _ in range(count))
    sound = np.zeros(round(frontend.seconds * 16000), np.float32)
    unit, _ = frontend.unit(UnitMedia(0.0, frontend.seconds, frames, sound), Cursor(5))
    assert 4 < len(unit.block) <= frontend.largest_unit


def test_dropped_units_open_another_bracket_so_that_positions_stay_seconds():
    front = make("2s")
    _, cursor = front.unit(media(0, 2, 4, 2.0), Cursor(10))
    following, _ = front.unit(media(2, 4, 4, 2.0), cursor)
    assert Role.BRACKET not in following.block.role
    later, cursor = front.unit(media(6, 8, 4, 2.0), cursor)
    marks = later.block.tokens[later.block.role == Role.BRACKET].tolist()
    assert marks == [A_EOS, V_EOS, V_BOS, A_BOS]
    assert cursor.bracket is not None and cursor.bracket.stop == 8
    assert later.block.positions.min() > 10


def test_sound_of_a_short_unit_is_filled_up_where_the_template_says_so():
    plain = make("1s")
    padded = make(preprocessor={"unit_template": {"name": "1s", "pad_sound": True}})
    short = media(3, 3.4, 1, 0.4)
    whole = UnitMedia(3, 4, short.frames, np.pad(short.audio, (0, 9_600)))
    found, after = padded.unit(short, Cursor(10))
    expected, behind = plain.unit(whole, Cursor(10))
    assert after == behind
    assert np.array_equal(found.audio[0], expected.audio[0])
    assert np.array_equal(found.block.tokens, expected.block.tokens)
    assert len(plain.unit(short, Cursor(10))[0].block) < len(found.block)
    # What was not heard at all is not made up.
    assert not padded.unit(media(3, 4, 1, None), Cursor(10))[0].audio
