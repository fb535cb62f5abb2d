"""Sound of units: words, beeps, music and noise, in a room, through a microphone."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamworld import spec
from streamworld.banks import Bank
from streamworld.dice import Floats, choice, noise, seed_of, spread
from streamworld.mu_law import EXPANDED
from streamworld.script import LONG, Units

# Columns of `voice`: what the dice of a unit's sound decide.
CLIP, START, SPEED, LEVEL, FLOOR, FLOOR_TILT, SEED = 0, 1, 2, 3, 4, 5, 6
ECHO, ECHO_TIME, TILT, LOW_CUT, HIGH_CUT, PITCH, LENGTH, TIMBRE = 8, 9, 10, 11, 12, 13, 14, 15
NOTES, PATTERN = 16, 20

RATE = spec.SAMPLE_RATE
CLIP_TEXTS = (*spec.WORDS, *(form[2] for form in spec.SPOKEN_FORMS))
"""What the clips of each label say."""

_SPECTRUM = 32_768
_ECHO = 8_000
_CHUNK = 64
_SCALE = np.float32([1, 9 / 8, 5 / 4, 3 / 2, 5 / 3, 2])


def sounds(units: Units, bank: Bank) -> Floats:
    """``float32[N, 16000]``: each unit's second of sound."""
    made = np.empty((len(units), RATE), np.float32)
    for start in range(0, len(units), _CHUNK):
        rows = slice(start, start + _CHUNK)
        made[rows] = _sounds(units[rows], bank)
    return made


def _sounds(units: Units, bank: Bank) -> Floats:
    voice, sound = units.voice, units.sound
    source = np.zeros((len(units), RATE), np.float32)
    spoken = (sound == spec.SPOKEN) | ((sound >= spec.FIRST_WORD) & (sound < spec.BEEP))
    seed = seed_of(voice[:, SEED], voice[:, SEED + 1])
    for rows, make in (
        (spoken, lambda r: _said(units[r], bank)),
        (sound == spec.BEEP, lambda r: _beeps(voice[r])),
        (sound == spec.MUSIC, lambda r: _music(voice[r])),
        (sound == spec.NOISE, lambda r: _shaped(noise(seed[r] ^ np.uint32(1), RATE), voice[r])),
    ):
        if rows.any():
            source[rows] = make(np.flatnonzero(rows))
    # Loudness of what is heard (root mean square 0.03 to 0.2), and of the room around it.
    source *= (np.float32(0.25) * 10 ** spread(voice[:, LEVEL], 0, 0.82))[:, None]
    heard = _through(source, voice, seed)
    floor = _shaped(noise(seed + units.part, RATE), voice) / np.float32(0.12)
    quiet = 10 ** spread(voice[:, FLOOR], -3.6, -1.85)
    return np.clip(heard + floor * quiet[:, None], -1, 1).astype(np.float32)


def _said(units: Units, bank: Bank) -> Floats:
    """Clips of words, or the second of a spoken question that a unit holds."""
    voice, question = units.voice, units.sound == spec.SPOKEN
    label = np.where(question, len(spec.WORDS) + units.form, units.sound.astype(np.int64) - 1)
    if not bank.clip_count[label].all():
        lacking = sorted({int(n) for n in label[bank.clip_count[label] == 0]})
        raise ValueError(
            f"the bank has no clip of {', '.join(CLIP_TEXTS[n] for n in lacking)}: "
            "script streams without them, or load all of its engines"
        )
    clip = bank.clip_start[label] + choice(voice[:, CLIP], bank.clip_count[label])
    # A tape that runs faster or slower: pace, pitch and resonances move together.
    speed = np.where(
        question, spread(voice[:, SPEED], 0.9, 1.12), spread(voice[:, SPEED], 0.86, 1.2)
    )
    length = bank.clip_length[clip]
    three = units.part >= LONG
    seconds = np.where(question, np.where(three, 3, 2), 1).astype(np.float32)
    start = spread(voice[:, START], 0, 1) * np.maximum(0, seconds * RATE - length / speed)
    second = np.where(three, units.part - LONG, units.part)
    now = np.arange(RATE, dtype=np.float32) + (second * np.float32(RATE))[:, None]
    place = (now - start[:, None].astype(np.float32)) * speed[:, None]
    left = np.floor(place).astype(np.int64)
    between = (place - left).astype(np.float32)
    total = np.zeros(place.shape, np.float32)
    for step, weight in ((0, 1 - between), (1, between)):
        index = left + step
        inside = (index >= 0) & (index < length[:, None])
        where = bank.clip_offset[clip][:, None] + np.clip(index, 0, length[:, None] - 1)
        total += np.where(inside, EXPANDED[bank.sound[where]], 0) * weight
    return total


def _beeps(voice: Any) -> Floats:
    """One short tone."""
    now = np.arange(RATE, dtype=np.float32)[None] / RATE
    long = spread(voice[:, LENGTH], 0.14, 0.4)[:, None]
    start = spread(voice[:, START], 0, 1)[:, None] * (np.float32(0.98) - long)
    inside = np.clip(np.minimum(now - start, start + long - now) * 200, 0, 1)
    turns = 2 * np.pi * spread(voice[:, PITCH], 500, 2400)[:, None] * now
    tone = np.sin(turns) + spread(voice[:, TIMBRE], 0, 0.4)[:, None] * np.sin(2 * turns)
    return (tone * inside * np.float32(0.25)).astype(np.float32)


def _music(voice: Any) -> Floats:
    """Four plucked notes over a held one, all second long."""
    now = np.arange(RATE, dtype=np.float32)[None] / RATE
    base = spread(voice[:, PITCH], 170, 460)[:, None]
    timbre = spread(voice[:, TIMBRE], 0.2, 0.7)[:, None]
    total = np.sin(2 * np.pi * base * now) * np.float32(0.35)
    for number in range(4):
        pitch = base * _SCALE[choice(voice[:, NOTES + number], len(_SCALE))][:, None]
        since = now - np.float32(0.25 * number)
        shape = np.where(since > 0, np.exp(-5 * since), 0) * np.clip(since * 150, 0, 1)
        for harmonic in (1, 2, 3):
            part = timbre ** (harmonic - 1)
            total = total + shape * part * np.sin(2 * np.pi * harmonic * pitch * now)
    return (total * np.float32(0.16)).astype(np.float32)


def _shaped(raw: Floats, voice: Any) -> Floats:
    """Noise from rushing to rumbling at root mean square 0.12."""
    spectrum = np.fft.rfft(raw)
    band = np.maximum(np.arange(spectrum.shape[1], dtype=np.float32), 40) / 1000
    spectrum *= band ** -spread(voice[:, FLOOR_TILT], 0, 1)[:, None]
    spectrum[:, 0] = 0
    made = np.fft.irfft(spectrum, raw.shape[1]).astype(np.float32)
    return made * (np.float32(0.12) / np.sqrt(np.mean(made**2, axis=1, keepdims=True)))


def _through(source: Floats, voice: Any, seed: Any) -> Floats:
    """A room's echo and a microphone's response; loudness stays."""
    spectrum = np.fft.rfft(source, _SPECTRUM)
    hertz = np.arange(spectrum.shape[1], dtype=np.float32) * np.float32(RATE / _SPECTRUM)
    band = np.maximum(hertz, 20)[None]
    response = (band / 1000) ** spread(voice[:, TILT], -0.4, 0.4)[:, None]
    # One in four hears like a telephone.
    narrow = voice[:, HIGH_CUT] < 16_384
    low = np.where(narrow, 250, spread(voice[:, LOW_CUT], 20, 150))[:, None]
    high = np.where(narrow, 3_600, 7_900)[:, None]
    response = response / (1 + (low / band) ** 4) / (1 + (band / high) ** 8)
    # Half of the rooms are dry.
    wet = np.maximum(0, spread(voice[:, ECHO], -0.9, 0.9))[:, None]
    fall = 6.9 / (spread(voice[:, ECHO_TIME], 0.08, 0.5)[:, None] * RATE)
    echo = noise(seed ^ np.uint32(0x5BD1E995), _ECHO)
    echo = echo * np.exp(-fall * np.arange(_ECHO, dtype=np.float32))
    echo = echo * (wet / np.sqrt(np.sum(echo**2, axis=1, keepdims=True)))
    echo[:, 0] += 1
    made = np.fft.irfft(spectrum * response * np.fft.rfft(echo, _SPECTRUM), _SPECTRUM)[:, :RATE]
    before, after = (np.sqrt(np.mean(x**2, axis=1, keepdims=True)) for x in (source, made))
    return (made * (before / np.maximum(after, 1e-9))).astype(np.float32)
