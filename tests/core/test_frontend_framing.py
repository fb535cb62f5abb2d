from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from frontend_family import frame, noise, units_of
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.errors import MediaError
from omni_core.frontend.base import UnitMedia
from omni_core.frontend.framing import UnitFramer
from omni_core.frontend.tracks import samples_from_s16


def drain(framer: UnitFramer) -> list[UnitMedia]:
    units = []
    while (unit := framer.pop(0)) is not None:
        units.append(unit)
    return units


def values(unit: UnitMedia) -> list[int]:
    return [int(picture[0, 0, 0]) for picture in unit.frames]


def sound_of(units: list[UnitMedia]) -> np.ndarray:
    return np.concatenate([unit.audio for unit in units])


def test_a_slow_consumer_meets_a_bounded_queue_and_counted_drops():
    framer = UnitFramer(1.0, 1.0, waiting=4, waiting_sound=16)
    pushed, popped = 0, []
    for half in range(600):
        framer.push_frame(half / 2, frame(half // 2))
        framer.push_sound(half / 2, noise(0.5))
        pushed += 8000
        assert framer.waiting <= 16
        if half % 14 == 13:
            popped.append(framer.pop(0))
    framer.close()
    rest = drain(framer)
    units = [*popped, *rest]
    assert framer.ended and framer.waiting == 0
    # Every second frame is no sample; of the others each was delivered or counted.
    assert sum(len(unit.frames) for unit in units) + framer.dropped_frames == 300
    assert framer.dropped_frames > 200
    # Sound had room four times as long, and what it lost is counted to the sample.
    assert sound_of(units).size + framer.dropped_samples == pushed
    assert framer.dropped_samples > 0
    assert [unit.start for unit in units] == sorted(unit.start for unit in units)
    for unit in units:
        # A frame's grey level is the second it was taken in: picture and sound are of one unit.
        assert all(value == int(unit.start) % 256 for value in values(unit))
        assert unit.stop - unit.start == 1.0
    assert len(rest) == 16 and [len(unit.frames) for unit in rest] == [0] * 12 + [1] * 4


def test_frames_go_first_and_sound_only_when_its_own_queue_is_full():
    framer = UnitFramer(1.0, 1.0, waiting=2, waiting_sound=5)
    for second in range(5):
        framer.push_frame(second, frame(second))
        framer.push_sound(second, noise(1.0))
    assert (framer.waiting, framer.dropped_frames, framer.dropped_samples) == (5, 3, 0)
    framer.push_frame(5, frame(5))
    framer.push_sound(5, noise(1.0))
    assert (framer.waiting, framer.dropped_frames, framer.dropped_samples) == (5, 4, 16_000)
    assert [values(unit) for unit in drain(framer)] == [[], [], [], [4], [5]]


def test_a_mute_stream_keeps_no_empty_units():
    framer = UnitFramer(1.0, 1.0, sound=False, waiting=3)
    for second in range(10):
        framer.push_frame(second, frame(second))
    assert framer.waiting == 3 and framer.dropped_frames == 6
    assert [values(unit) for unit in drain(framer)] == [[6], [7], [8]]


@pytest.mark.parametrize("seconds", [1.0, 2.0])
def test_a_clip_that_ends_mid_unit_loses_no_sample(seconds):
    units = units_of(seconds, 2.0, picture=2.37, sound=2.37)
    assert [unit.stop for unit in units][-2:] == [2.0, 2.37]
    assert units[-1].audio.size == 5920
    np.testing.assert_array_equal(sound_of(units), noise(2.37))


@pytest.mark.parametrize("count", [1, 3, 333, 37_921])
def test_any_number_of_samples_will_do(count):
    framer = UnitFramer(1.0, 1.0, picture=False)
    samples = np.arange(count, dtype=np.float32)
    for start in range(0, count, 777):
        framer.push_sound(start / 16_000, samples[start : start + 777])
    framer.push_sound(count / 16_000, samples[:0])
    framer.close()
    units = drain(framer)
    np.testing.assert_array_equal(sound_of(units), samples)
    assert units[-1].stop == pytest.approx(count / 16_000)


def test_an_odd_byte_waits_for_its_other_half():
    data = np.arange(-500, 500, dtype="<i2").tobytes()
    carried, parts = b"", []
    for start in range(0, len(data), 7):
        samples, carried = samples_from_s16(carried + data[start : start + 7])
        parts.append(samples)
    assert carried == b""
    np.testing.assert_array_equal(np.concatenate(parts) * 32768, np.arange(-500, 500))
    assert samples_from_s16(b"\x01")[1] == b"\x01"


def test_a_mute_clip_has_no_audio():
    units = units_of(2.0, 2.0, picture=4.6)
    assert [unit.audio for unit in units] == [None] * 3
    assert [values(unit) for unit in units] == [[0, 5, 10, 15], [20, 25, 30, 35], [40, 45]]
    assert units[-1].stop == pytest.approx(4.6)


def test_sound_without_picture_has_no_frames():
    units = units_of(2.0, 2.0, sound=5.3)
    assert [unit.frames for unit in units] == [()] * 3
    assert [round(unit.stop - unit.start, 3) for unit in units] == [2.0, 2.0, 1.3]


def test_picture_that_ends_first_leaves_later_units_without_frames():
    units = units_of(2.0, 2.0, picture=2.37, sound=6.5)
    assert [values(unit) for unit in units] == [[0, 5, 10, 15], [20], [], []]
    np.testing.assert_array_equal(sound_of(units), noise(6.5))


def test_sound_that_ends_first_leaves_later_units_without_samples():
    units = units_of(2.0, 2.0, picture=6.5, sound=2.37)
    assert [unit.audio.size for unit in units] == [32_000, 5920, 0, 0]
    assert values(units[-1]) == [60] and units[-1].stop == pytest.approx(6.5)


def test_frames_are_sampled_by_their_times():
    ten = units_of(1.0, 2.0, picture=3.0, sound=3.0, rate=10)
    assert [values(unit) for unit in ten] == [[0, 5], [10, 15], [20, 25]]
    slow = units_of(1.0, 2.0, picture=6.0, sound=6.0, rate=0.5)
    assert [values(unit) for unit in slow] == [[0, 0], [0, 0], [1, 1], [1, 1], [2, 2], [2, 2]]


def test_variable_frame_rate():
    framer = UnitFramer(1.0, 4.0, waiting=99, block=True)
    framer.push_sound(0.0, noise(3.0))
    for moment, value in [(0.3, 1), (0.31, 2), (0.49, 3), (0.5, 4), (0.9, 5), (2.25, 6), (2.3, 7)]:
        framer.push_frame(moment, frame(value))
    framer.end_picture(3.0)
    framer.close()
    # Before the first frame of all, that one stands in; afterwards the one last shown.
    sampled = [values(unit) for unit in drain(framer)]
    assert sampled == [[1, 1, 4, 4], [5, 5, 5, 5], [5, 6, 7, 7]]


def test_a_first_frame_after_the_unit_is_not_of_the_unit():
    framer = UnitFramer(1.0, 1.0, block=True)
    framer.push_sound(0.0, noise(2.0))
    framer.push_frame(1.5, frame(9))
    framer.close()
    assert [values(unit) for unit in drain(framer)] == [[], [9]]


def test_frames_between_instants_are_not_kept():
    framer = UnitFramer(1.0, 1.0)
    for i in range(600):
        framer.push_frame(i / 600, frame(i))
    assert len(framer._picture._frames) <= 3


@settings(max_examples=150, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 900), max_size=25),
    sound=st.integers(0, 90_000),
    chunk=st.integers(500, 9000),
    cuts=st.lists(st.integers(1, 5000), max_size=4),
    lead=st.integers(0, 20),
    seconds=st.sampled_from([1.0, 2.0]),
    fps=st.sampled_from([1.0, 2.0, 10.0]),
)
def test_any_clip_is_cut_as_its_definition_says(gaps, sound, chunk, cuts, lead, seconds, fps):
    times = [ms / 1000 for ms in np.cumsum(gaps)]
    samples = np.arange(sound, dtype=np.float32)
    framer = UnitFramer(seconds, fps, waiting=10**6, block=True)
    for cut in cuts:
        framer.cut(cut / 1000)
    ends = [min(sound, start + chunk) for start in range(0, sound, chunk)]
    # Sound comes some chunks before or after the frames of its time.
    events = [(end / 16_000 + lead / 10 - 1, 1, end) for end in ends]
    events += [(moment, 0, i) for i, moment in enumerate(times)]
    done = 0
    for _, is_sound, index in sorted(events):
        if is_sound:
            framer.push_sound(done / 16_000, samples[done:index])
            done = index
        else:
            framer.push_frame(times[index], frame(index))
    framer.close()
    units = drain(framer)

    last = times[-1] if times else 0.0
    shown = min(1 / fps, times[-1] - times[-2]) if len(times) > 1 else 1 / fps
    picture_end = last + shown if times else 0.0
    end = sound / 16_000 if not times or last < sound / 16_000 - 1e-6 else picture_end
    start = 0.0
    for unit in units:
        after = [cut / 1000 for cut in cuts if cut / 1000 > start + 1e-6]
        stop = min([start + seconds, end, *after])
        assert (unit.start, unit.stop) == pytest.approx((start, stop))
        expected = []
        for i in range(100):
            instant = start + i / fps
            if instant > min(stop, picture_end) - 1e-6:
                break
            past = [k for k, moment in enumerate(times) if moment <= instant + 1e-6]
            coming = [k for k, moment in enumerate(times) if instant < moment < stop - 1e-6]
            expected += past[-1:] or coming[:1]
        assert values(unit) == expected
        start = stop
    assert start == pytest.approx(end)
    np.testing.assert_array_equal(sound_of(units) if units else samples[:0], samples)
    assert framer.dropped_frames == framer.dropped_samples == 0


def test_a_cut_closes_the_running_unit_and_starts_the_next():
    units = units_of(1.0, 2.0, picture=3.0, sound=3.0, cuts=[1.25])
    assert [(unit.start, unit.stop) for unit in units] == [
        (0.0, 1.0),
        (1.0, 1.25),
        (1.25, 2.25),
        (2.25, 3.0),
    ]
    assert units[1].audio.size == 4000
    assert [values(unit) for unit in units] == [[0, 5], [10], [12, 17], [22, 27]]
    np.testing.assert_array_equal(sound_of(units), noise(3.0))


def test_a_cut_at_a_units_end_or_in_the_past_changes_nothing():
    framer = UnitFramer(1.0, 1.0, picture=False)
    framer.cut(1.0)
    framer.push_sound(0.0, noise(2.5))
    framer.cut(0.5)
    framer.cut(2.0)
    framer.close()
    assert [unit.stop for unit in drain(framer)] == [1.0, 2.0, 2.5]


def test_a_cut_now_takes_what_has_come():
    framer = UnitFramer(2.0, 2.0)
    framer.push_frame(0.0, frame(1))
    framer.push_sound(0.0, noise(0.7))
    assert framer.pop(0) is None
    framer.cut(0.5)
    assert framer.pop(0) is not None and framer.pop(0) is None


def test_a_silent_microphone_does_not_hold_the_picture_up():
    framer = UnitFramer(1.0, 1.0, waiting=99)
    for second in range(6):
        framer.push_frame(float(second), frame(second))
    units = drain(framer)
    assert [values(unit) for unit in units] == [[0], [1], [2], [3], [4]]
    assert [unit.audio.size for unit in units] == [0] * 5
    framer.push_sound(0.0, noise(5.5))
    assert framer.dropped_samples == 80_000
    framer.close()
    assert drain(framer)[0].audio.size == 8000


def test_a_stalled_camera_does_not_hold_the_sound_up():
    framer = UnitFramer(1.0, 1.0, waiting=99, waiting_sound=99)
    framer.push_frame(0.0, frame(7))
    for second in range(15):
        framer.push_sound(float(second), noise(1.0))
        assert framer.waiting >= second
    # Its last frame is shown on for ten seconds, then the picture counts as gone.
    assert [values(unit) for unit in drain(framer)] == [[7]] * 11 + [[]] * 4


def test_holes_in_the_sound_become_silence():
    framer = UnitFramer(1.0, 1.0, picture=False)
    framer.push_sound(0.5, np.ones(8000, np.float32))
    framer.push_sound(3.0, np.ones(8000, np.float32))
    framer.close()
    line = sound_of(drain(framer))
    assert line.size == 56_000 and line.sum() == 16_000
    assert line[8000:16_000].all() and line[48_000:].all()


def test_jitter_makes_no_holes():
    framer = UnitFramer(1.0, 1.0, picture=False)
    for i, shift in enumerate([0.0, 0.03, -0.02, 0.05, 0.0]):
        framer.push_sound(i * 0.1 + shift, noise(0.1))
    framer.close()
    assert sound_of(drain(framer)).size == 8000 and framer.dropped_samples == 0


def test_frames_out_of_order_are_dropped_and_counted():
    framer = UnitFramer(1.0, 1.0, sound=False)
    framer.push_frame(0.5, frame(1))
    framer.push_frame(0.2, frame(2))
    assert framer.dropped_frames == 1


def test_a_blocked_source_waits_and_loses_nothing():
    framer = UnitFramer(1.0, 1.0, waiting=2, block=True)
    deepest = 0

    def source() -> None:
        for second in range(40):
            framer.push_frame(float(second), frame(second))
            framer.push_sound(float(second), noise(1.0, second))
        framer.close()

    thread = threading.Thread(target=source)
    thread.start()
    units = []
    while not framer.ended:
        deepest = max(deepest, framer.waiting)
        if (unit := framer.pop(1.0)) is not None:
            units.append(unit)
        if len(units) < 4:
            time.sleep(0.02)
    thread.join(5)
    assert not thread.is_alive() and deepest <= 3
    assert [values(unit) for unit in units] == [[second] for second in range(40)]
    assert framer.dropped_frames == framer.dropped_samples == 0
    assert sound_of(units).size == 40 * 16_000


def test_closing_frees_a_blocked_source():
    framer = UnitFramer(1.0, 1.0, picture=False, waiting=1, block=True)
    said = []

    def source() -> None:
        said.append(framer.push_sound(0.0, noise(2.0)))
        said.append(framer.push_sound(2.0, noise(1.0)))

    thread = threading.Thread(target=source)
    thread.start()
    time.sleep(0.1)
    assert said == [True]
    framer.close()
    thread.join(2)
    assert said == [True, False] and not thread.is_alive()


def test_pop_waits_for_a_unit():
    framer = UnitFramer(1.0, 1.0, picture=False)
    start = time.monotonic()
    assert framer.pop(0.05) is None and time.monotonic() - start >= 0.05
    threading.Timer(0.1, lambda: framer.push_sound(0.0, noise(1.0))).start()
    unit = framer.pop(5)
    assert unit is not None and unit.audio.size == 16_000
    framer.close()
    assert framer.pop() is None and framer.ended


def test_a_file_whose_tracks_lie_apart_is_refused_not_cut_short():
    framer = UnitFramer(1.0, 1.0, waiting=99, block=True)
    for second in range(45):
        framer.push_frame(float(second), frame(second))
    assert framer.waiting > 10
    with pytest.raises(MediaError, match="within 30 s of its picture"):
        framer.push_sound(0.0, noise(1.0))


def test_closed_streams_take_nothing_and_close_twice():
    framer = UnitFramer(1.0, 1.0)
    framer.close()
    framer.close()
    assert framer.ended and not framer.push_frame(0.0, frame(0))
    assert not framer.push_sound(0.0, noise(0.1))


@pytest.mark.parametrize(
    ("push", "says"),
    [
        (lambda f: f.push_frame(0.0, np.zeros((4, 4), np.uint8)), r"uint8\[4, 4\]"),
        (lambda f: f.push_frame(0.0, np.zeros((4, 4, 3), np.float32)), "float32"),
        (lambda f: f.push_frame(float("nan"), frame(0)), "time nan"),
        (lambda f: f.push_frame(1.7e9, frame(0)), "one running clock"),
        (lambda f: f.push_sound(0.0, np.zeros(4)), "float64"),
        (lambda f: f.push_sound(0.0, np.zeros((4, 2), np.float32)), r"float32\[4, 2\]"),
        (lambda f: f.push_sound(1.7e9, noise(0.1)), "one running clock"),
        (lambda f: f.cut(float("inf")), "a cut came with time inf"),
        (lambda f: f.cut(float("nan")), "a cut came with time nan"),
    ],
)
def test_what_no_stream_can_use_is_refused(push, says):
    with pytest.raises(MediaError, match=says):
        push(UnitFramer(1.0, 1.0))


def test_tracks_that_were_not_announced_are_refused():
    with pytest.raises(MediaError, match="without sound"):
        UnitFramer(1.0, 1.0, sound=False).push_sound(0.0, noise(0.1))
    with pytest.raises(MediaError, match="without picture"):
        UnitFramer(1.0, 1.0, picture=False).push_frame(0.0, frame(0))
    with pytest.raises(MediaError, match="neither picture nor sound"):
        UnitFramer(1.0, 1.0, picture=False, sound=False)


def test_a_unit_waits_for_no_frame_where_none_will_come():
    framer = UnitFramer(1.0, 1.0)
    framer.push_frame(0.0, frame(1))
    framer.push_frame(0.6, frame(2))
    framer.push_sound(0.0, noise(1.5))
    assert [values(unit) for unit in drain(framer)] == [[1]]
    framer.cut(1.5)
    framer.skip_picture(0.9)
    assert framer.waiting == 0
    framer.skip_picture(1.0)
    assert [(unit.stop, values(unit)) for unit in drain(framer)] == [(1.5, [2])]
    # A frame may still come for a time that was given up.
    framer.skip_picture(1.9)
    framer.push_frame(1.8, frame(3))
    framer.push_sound(1.5, noise(1.0))
    framer.close()
    assert [values(unit) for unit in drain(framer)] == [[2]]
    assert framer.dropped_frames == 0


def test_a_stream_of_pictures_alone_goes_on_without_them():
    framer = UnitFramer(1.0, 2.0, sound=False)
    framer.push_frame(0.0, frame(1))
    framer.skip_picture(13.0)
    units = drain(framer)
    assert [unit.stop for unit in units] == [10.0, 11.0, 12.0, 13.0]
    assert [values(unit) for unit in units] == [[1, 1], [1], [], []]


def test_a_blank_picture_shows_nothing_until_a_frame_comes():
    framer = UnitFramer(1.0, 2.0, sound=False)
    framer.push_frame(0.0, frame(1))
    framer.skip_picture(0.4, blank=True)
    framer.skip_picture(0.6, blank=True)
    framer.push_frame(0.5, frame(2))
    framer.push_frame(1.4, frame(3))
    framer.push_frame(2.0, frame(4))
    assert [values(unit) for unit in drain(framer)] == [[1, 2], [2, 3]]
    framer.skip_picture(2.1, blank=True)
    framer.push_frame(2.05, frame(5))
    assert framer.dropped_frames == 1
    framer.skip_picture(3.0)
    assert [values(unit) for unit in drain(framer)] == [[4]]
    with pytest.raises(MediaError, match="time nan"):
        framer.skip_picture(float("nan"))
