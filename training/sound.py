"""Sound of units on the training device: what ``streamworld.render_sounds`` defines."""

from __future__ import annotations

import math

import torch

from streamworld import render_sounds as world
from streamworld import spec
from streamworld.script import LONG
from training.bank import DeviceBank, Units, choice, constant, noise, seed_of, spread

_RATE = spec.SAMPLE_RATE
_SPECTRUM, _ECHO = 32_768, 8_000
_SCALE = (1, 9 / 8, 5 / 4, 3 / 2, 5 / 3, 2)


def sounds(units: Units, bank: DeviceBank) -> torch.Tensor:
    """``float32[N, 16000]``: each unit's second of sound."""
    voice, sound = units["voice"], units["sound"][:, None]
    seed = seed_of(voice[:, world.SEED], voice[:, world.SEED + 1])
    said = (sound == spec.SPOKEN) | ((sound >= spec.FIRST_WORD) & (sound < spec.BEEP))
    source = torch.where(said, _said(units, bank), 0.0)
    source = torch.where(sound == spec.BEEP, _beeps(voice), source)
    source = torch.where(sound == spec.MUSIC, _music(voice), source)
    rushing = _shaped(noise(seed ^ 1, _RATE), voice)
    source = torch.where(sound == spec.NOISE, rushing, source)
    source = source * (0.25 * 10 ** spread(voice[:, world.LEVEL], 0, 0.82))[:, None]
    heard = _through(source, voice, seed)
    floor = _shaped(noise(seed + units["part"], _RATE), voice) / 0.12
    quiet = 10 ** spread(voice[:, world.FLOOR], -3.6, -1.85)
    return (heard + floor * quiet[:, None]).clamp(-1, 1)


def _said(units: Units, bank: DeviceBank) -> torch.Tensor:
    voice, sound = units["voice"], units["sound"].long()
    asked = sound == spec.SPOKEN
    word = (sound - spec.FIRST_WORD).clamp(0, len(spec.WORDS) - 1)
    label = torch.where(asked, len(spec.WORDS) + units["form"], word)
    clip = bank.clip_start[label] + choice(voice[:, world.CLIP], bank.clip_count[label])
    # A bank may lack words, which no unit says but all units look up.
    clip = clip.clamp(max=len(bank.clip_length) - 1)
    dice = voice[:, world.SPEED]
    speed = torch.where(asked, spread(dice, 0.9, 1.12), spread(dice, 0.86, 1.2))
    length, offset = bank.clip_length[clip], bank.clip_offset[clip]
    three = units["part"] >= LONG
    seconds = torch.where(asked, torch.where(three, 3.0, 2.0), 1.0)
    room = (seconds * _RATE - length / speed).clamp(min=0)
    start = spread(voice[:, world.START], 0, 1) * room
    second = torch.where(three, units["part"] - LONG, units["part"])
    now = torch.arange(_RATE, device=voice.device) + (second * float(_RATE))[:, None]
    place = (now - start[:, None]) * speed[:, None]
    left = place.floor()
    between = place - left
    total = torch.zeros_like(place)
    for step, weight in ((0, 1 - between), (1, between)):
        index = left.long() + step
        inside = (index >= 0) & (index < length[:, None])
        where = offset[:, None] + torch.minimum(index.clamp(min=0), length[:, None] - 1)
        total = total + bank.expanded[bank.sound[where].int()] * inside * weight
    return total


def _beeps(voice: torch.Tensor) -> torch.Tensor:
    now = torch.arange(_RATE, device=voice.device).float()[None] / _RATE
    long = spread(voice[:, world.LENGTH], 0.14, 0.4)[:, None]
    start = spread(voice[:, world.START], 0, 1)[:, None] * (0.98 - long)
    inside = (torch.minimum(now - start, start + long - now) * 200).clamp(0, 1)
    turns = 2 * math.pi * spread(voice[:, world.PITCH], 500, 2400)[:, None] * now
    timbre = spread(voice[:, world.TIMBRE], 0, 0.4)[:, None]
    return (turns.sin() + timbre * (2 * turns).sin()) * inside * 0.25


def _music(voice: torch.Tensor) -> torch.Tensor:
    now = torch.arange(_RATE, device=voice.device).float()[None] / _RATE
    base = spread(voice[:, world.PITCH], 170, 460)[:, None]
    timbre = spread(voice[:, world.TIMBRE], 0.2, 0.7)[:, None]
    scale = constant(_SCALE, voice.device)
    total = (2 * math.pi * base * now).sin() * 0.35
    for number in range(4):
        pitch = base * scale[choice(voice[:, world.NOTES + number], len(_SCALE))][:, None]
        since = now - 0.25 * number
        shape = torch.where(since > 0, torch.exp(-5 * since), 0) * (since * 150).clamp(0, 1)
        # The harmonics of a sine from its own sine and cosine.
        angle = 2 * math.pi * pitch * now
        sin, cos = angle.sin(), angle.cos()
        third = sin * (4 * cos * cos - 1)
        total = total + shape * (sin + timbre * (2 * sin * cos) + timbre * timbre * third)
    return total * 0.16


def _shaped(raw: torch.Tensor, voice: torch.Tensor) -> torch.Tensor:
    """Noise from rushing to rumbling at root mean square 0.12."""
    spectrum = torch.fft.rfft(raw)
    band = torch.arange(spectrum.shape[1], device=raw.device).clamp(min=40) / 1000
    fall = band ** -spread(voice[:, world.FLOOR_TILT], 0, 1)[:, None]
    fall[:, 0] = 0
    made = torch.fft.irfft(spectrum * fall, raw.shape[1])
    return made * (0.12 / made.square().mean(1, keepdim=True).sqrt())


def _through(source: torch.Tensor, voice: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    """A room's echo and a microphone's response; loudness stays."""
    spectrum = torch.fft.rfft(source, _SPECTRUM)
    hertz = torch.arange(spectrum.shape[1], device=source.device) * (_RATE / _SPECTRUM)
    band = hertz.clamp(min=20)[None]
    response = (band / 1000) ** spread(voice[:, world.TILT], -0.4, 0.4)[:, None]
    narrow = voice[:, world.HIGH_CUT] < 16_384
    low = torch.where(narrow, 250, spread(voice[:, world.LOW_CUT], 20, 150))[:, None]
    high = torch.where(narrow, 3_600.0, 7_900.0)[:, None]
    response = response / (1 + (low / band) ** 4) / (1 + (band / high) ** 8)
    wet = spread(voice[:, world.ECHO], -0.9, 0.9).clamp(min=0)[:, None]
    fall = 6.9 / (spread(voice[:, world.ECHO_TIME], 0.08, 0.5)[:, None] * _RATE)
    echo = noise(seed ^ 0x5BD1E995, _ECHO)
    echo = echo * torch.exp(-fall * torch.arange(_ECHO, device=source.device))
    echo = echo * (wet / echo.square().sum(1, keepdim=True).sqrt())
    echo[:, 0] += 1
    spectrum = spectrum * response * torch.fft.rfft(echo, _SPECTRUM)
    made = torch.fft.irfft(spectrum, _SPECTRUM)[:, :_RATE]
    before = source.square().mean(1, keepdim=True).sqrt()
    after = made.square().mean(1, keepdim=True).sqrt()
    return made * (before / after.clamp(min=1e-9))
