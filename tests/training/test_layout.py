"""Streams, turns and branches lie where the checkpoint's own frontend puts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omni_core.frontend.base import UnitMedia
from omni_core.session import SYSTEM
from omni_core.units import EMBEDDED, TokenBlock
from streamworld import questions, script, tokens
from training.batch import TURN, Batch, Plan, branches, make, make_packed, world_frontend
from training.layout import arrange, layout
from training.packing import unpack
from training.shape import SIZES, SQUARE
from training.validate import test_plans as plans_of_tests

SOUND = np.zeros(16_000, np.float32)
CAMERAS = {
    SQUARE: [(112, 112), (480, 480), (1080, 1080)],
    (84, 112): [(480, 640), (240, 320), (1080, 1440)],
    (84, 140): [(720, 1280), (1080, 1920), (480, 854), (450, 800), (768, 1366)],
    (112, 84): [(640, 480)],
    (140, 84): [(1280, 720), (1920, 1080)],
}


def _laid(
    front: Any, units: int, turns: dict[int, list[int]], size: tuple[int, int] = SQUARE
) -> tuple[TokenBlock, list[Any]]:
    """The frontend's stream with given text behind some units, and the cursor after each unit."""
    frame = np.zeros((*CAMERAS[size][-1], 3), np.uint8)
    block, cursor = front.open(SYSTEM)
    blocks, cursors = [block], []
    for unit in range(units):
        laid, cursor = front.unit(UnitMedia(unit, unit + 1, (frame,), SOUND), cursor)
        blocks.append(laid.block)
        for token in turns.get(unit, ()):
            block, cursor = front.answer(token, cursor)
            blocks.append(block)
        cursors.append(cursor)
    return TokenBlock.join(blocks), cursors


def test_cameras_give_the_sizes_that_are_trained() -> None:
    spec = world_frontend().spec
    assert set(CAMERAS) == set(SIZES)
    for size, cameras in CAMERAS.items():
        assert {spec.size(*camera) for camera in cameras} == {size}
    # No multiple of 16:9 or 4:3 loses a row of tokens to floating point.
    assert {spec.size(9 * n, 16 * n) for n in range(10, 500)} == {(84, 140)}
    assert {spec.size(3 * n, 4 * n) for n in range(50, 500)} == {(84, 112)}


@pytest.mark.parametrize(
    ("places", "size"),
    [*(((2, 3), size) for size in SIZES), ((), SQUARE), ((1, 1), SQUARE)],
)
def test_a_stream_is_the_frontends(places: tuple[int, ...], size: tuple[int, int]) -> None:
    front, turn = world_frontend(), 7
    laid = layout(front, size)
    texts = np.arange(len(places) * turn).reshape(len(places), turn) + 1
    turns: dict[int, list[int]] = {}
    for place, text in zip(places, texts, strict=True):
        turns.setdefault(place, []).extend(text.tolist())
    expected, cursors = _laid(front, 5, turns, size)
    found = arrange(laid, 5, places, turn)
    held = np.concatenate([laid.prefix, np.tile(laid.unit, 5), texts.ravel()])
    assert np.array_equal(
        held[found.order], np.where(expected.tokens == EMBEDDED, 0, expected.tokens)
    )
    assert np.array_equal(found.positions, expected.positions)
    assert found.ends.tolist() == [cursor.position for cursor in cursors]
    assert found.visible[-1] == len(expected)
    assert (held[found.order][found.first + laid.vision_end] == front.marks[1]).all()
    assert (held[found.order][found.first + laid.audio_end] == front.marks[3]).all()
    assert laid.vision.stop - laid.vision.start == size[0] * size[1] // 28**2
    assert laid.audio.stop - laid.audio.start == 25


def test_branches_are_the_frontends_questions_and_the_worlds_answers() -> None:
    written = script.write(3, 4, 12, "train", spoken=0.5)
    drawn = questions.draw(written, 3, 12, asked_at=(-1, 5))
    ids, branch, offset, targets, weights, final, asked = branches(drawn)
    front = world_frontend()
    _, cursors = _laid(front, 12, {})
    assert asked.any()
    for stream, slot in np.argwhere(asked):
        here = np.flatnonzero(branch[stream] == slot)
        assert np.array_equal(offset[stream, here], np.arange(here.size))
        cursor = cursors[drawn.unit[stream, slot]]
        block, _ = front.question(drawn.text(stream, slot), cursor)
        answer = [*tokens.answer_ids(drawn.answer[stream, slot]), tokens.special("<|im_end|>")]
        assert ids[stream, here].tolist() == [*block.tokens, *answer]
        read = here[final[stream, here]]
        assert targets[stream, read].tolist() == answer
        assert (weights[stream, read] == 1).all()
        assert front.text(answer) == drawn.answer_text(stream, slot)
    early = (weights > 0) & ~final
    assert early.any()
    assert (weights[early] == 0.5).all()


def test_turns_are_right_answers_in_the_frontends_markup() -> None:
    made = make(Plan(16, 2, 4, turns=2), 7)
    front = world_frontend()
    resume = layout(front).resume.tolist()
    assert made.turns.shape == (2, 2 * TURN)
    for turn in made.turns.reshape(-1, TURN).tolist():
        text = front.tokenizer._tokenizer.decode(turn, skip_special_tokens=False)
        question, _, rest = text.partition("<|im_end|>\n<|im_start|>assistant\n")
        assert question.rstrip().endswith(("?", ".")) or question == ""
        assert rest.count("<|im_end|>") == 1
        start = len(turn) - turn[::-1].index(resume[0]) - 1
        assert turn[start : start + len(resume)] == resume
        assert set(turn[start + len(resume) :]) <= {resume[-1]}
    assert made.order.size == np.unique(made.order).size


def test_a_plan_and_a_seed_give_the_same_batch() -> None:
    first, second = (make(Plan(4, 3, 4), 11).tensors() for _ in range(2))
    other = make(Plan(4, 3, 4), 12).tensors()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["ids"], other["ids"])


def test_a_size_that_no_frame_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(84, 84\) are taken as \(112, 112\)"):
        layout(world_frontend(), (84, 84))


def test_a_packed_batch_tells_its_size() -> None:
    specs = set()
    for size in SIZES:
        buffer, spec = make_packed(Plan(4, 3, 4, size=size), 11)
        assert Batch.of(unpack(torch.from_numpy(buffer), spec)).size == size
        specs.add(spec)
    assert len(specs) == len(SIZES)


def test_the_final_table_has_square_frames_first() -> None:
    plans = plans_of_tests(640, 8)
    assert [plan.units for plan in plans] == [16, 64, 128, 256, 64, 64, 64]
    assert [plan.size for plan in plans] == [SQUARE] * 4 + [(84, 112), (84, 140), SQUARE]
    assert [plan.recent for plan in plans] == [None] * 6 + [4]
    assert {plan.streams * plan.units for plan in plans} <= {512, 640}
