"""The codecs' part of docs/results.md, and its figures, from what was measured.

``python benchmarks/codec_page.py`` draws the figures; ``scripts/write_results.py`` puts the part in
its place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.codec_losses import FEEDBACK, MODAL, PAPER, SHARED
from benchmarks.harness import LACKS, ROOT, pyplot
from benchmarks.perplexity_stream import SETTINGS
from omnilive.evaluation.tables import markdown

RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "figures"
ERRORS, PERPLEXITY = "codec-error.png", "perplexity.png"
_COLOURS = (
    *("#b03a2e", "#3b6ea5", "#d68910", "#1e8449", "#7d3c98", "#444444", "#aaaaaa", "#16a085"),
    *("#e377c2", "#8c6d31"),
)
Row = dict[str, Any]

_PART = """
## What sealed pages lose, by codec

Queries, keys and values are real ones: of the embedded model on the demo clip, and of SmolLM2-135M
on a licence. They are sealed as pages are, 32 tokens of a modality together, and read back. What
is calibrated saw other streams, or other text. *Score* is the root mean square error of scaled
attention scores, a query's own mean left out; *values* and *outputs* are `|error| / |what it was|`.
Bits are those of an element of a key and of a value, scales and ranges counted in. Means over
layers, at 2 bits:

{errors}
![Error of attention's outputs by bits, a line a codec](figures/{figure})

### Rotations of values

What 2 bits lose of the embedded model's values, by modality:

{rotations}
### Keys far from 0

All keys of a layer with one channel at +600: how far scores are off on a subblock's average
(*bias*), how that differs between subblocks, and the error within one. A mean that is taken from
all keys of a head goes back on all scores of a query, and so costs nothing.

{biased}
### Perplexity

SmolLM2-135M over {tokens} tokens of a licence in chunks of 32; a whole cache gives {whole:.2f}.
*All sealed*: each token reads all earlier ones sealed.

{perplexity}
![Perplexity over that of a whole cache, by codec](figures/{bars})

### What is claimed of codecs

{claims}
Measured by `python benchmarks/codec_error.py` and `python benchmarks/perplexity.py` on
{machine}.
"""


def section(results: Path = RESULTS) -> str:
    """The part in Markdown; empty while one of the two files is missing."""
    errors, perplexity = _newest("codec-error", results), _newest("perplexity", results)
    if errors is None or perplexity is None:
        return ""
    rows, runs = errors["rows"], perplexity["rows"]
    machine, versions = errors["machine"], errors["versions"] | perplexity["versions"]
    return _PART.format(
        errors=markdown(_errors(rows)),
        figure=ERRORS,
        rotations=markdown(_rotations(rows)),
        biased=markdown(_biased(rows)),
        tokens=runs[0]["tokens"],
        whole=runs[0]["perplexity"],
        perplexity=markdown(_perplexity(runs[1:])),
        bars=PERPLEXITY,
        claims=markdown(_claims(errors["claims"] + perplexity["claims"])),
        machine=f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; "
        + ", ".join(f"{name} {found}" for name, found in versions.items()),
    )


def draw(figures: Path = FIGURES, results: Path = RESULTS) -> bool:
    """Both figures; False where there is nothing to draw, or nothing to draw with."""
    errors, perplexity = _newest("codec-error", results), _newest("perplexity", results)
    plots = pyplot() if errors and perplexity else None
    if plots is None or errors is None or perplexity is None:
        return False
    rows = [row for row in errors["rows"] if row["part"] == "codec"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    colours = dict(zip(dict.fromkeys(row["codec"] for row in rows), _COLOURS, strict=False))
    figure, panels = plots.subplots(1, len(models), figsize=(5.2 * len(models), 4), squeeze=False)
    for panel, model in zip(panels.flat, models, strict=True):
        own = [row for row in rows if row["model"] == model and row["tokens"] == "consecutive"]
        bits = sorted({row["bits"] for row in own})
        for name in dict.fromkeys(row["codec"] for row in own):
            errs = [_mean(own, "output_error", codec=name, bits=width) for width in bits]
            style = "o-" if name in (MODAL, FEEDBACK, SHARED, "fitted") else "s--"
            panel.plot(
                bits, errs, style, color=colours.get(name), label=name, markersize=4, linewidth=1
            )
        panel.set(yscale="log", title=model, xlabel="bits of a code")
        panel.set_xticks(bits)
        panel.grid(alpha=0.3, which="both")
    panels[0, 0].set_ylabel("error of attention's outputs")
    panels[0, 0].legend(fontsize=7)
    _save(plots, figure, figures / ERRORS)
    runs = [row for row in perplexity["rows"] if row.get("bits") == 2]
    figure, panels = plots.subplots(1, len(SETTINGS), figsize=(10, 3.4), squeeze=False)
    for panel, setting in zip(panels.flat, SETTINGS, strict=True):
        own = [row for row in runs if row["setting"] == setting.name][::-1]
        panel.barh(
            [row["codec"] for row in own], [row["ratio"] - 1 for row in own], color="#3b6ea5"
        )
        panel.set(
            xscale="log", title=setting.name, xlabel="perplexity over a whole cache's, less 1"
        )
        panel.grid(alpha=0.3, axis="x")
    _save(plots, figure, figures / PERPLEXITY)
    return True


def _save(plots: Any, figure: Any, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plots.close(figure)
    print(f"drew {file}")


def _newest(name: str, results: Path) -> dict[str, Any] | None:
    files = sorted(results.glob(f"{name}-*.json"), key=lambda file: file.name)
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    whole = [document for document in found if not document["quick"]]
    return whole[-1] if whole else None


def _errors(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["model", "codec", "tokens", "key bits", "value bits", "score", "values", "outputs"]]
    rows = [row for row in rows if row["part"] == "codec" and row["bits"] == 2]
    for model, tokens, codec in dict.fromkeys(
        (row["model"], row["tokens"], row["codec"]) for row in rows
    ):
        about = {"model": model, "tokens": tokens, "codec": codec}
        own = next(row for row in rows if about.items() <= row.items())
        bits = [f"{own[part]:.2f}" for part in ("key_bits", "value_bits")]
        values = np.mean(
            [np.mean(list(row["value_error"].values())) for row in _where(rows, **about)]
        )
        lines.append(
            [
                *(model, codec, tokens, *bits),
                f"{_mean(rows, 'score_error', **about):.3f}",
                f"{values:.3f}",
                f"{_mean(rows, 'output_error', **about):.3f}",
            ]
        )
    return lines


def _rotations(rows: Sequence[Row]) -> list[list[str]]:
    rows = [row for row in rows if row["part"] == "codec" and row["bits"] == 2]
    several = {row["model"] for row in rows if row["codec"] == SHARED}
    names = {
        FEEDBACK: "Hadamard",
        PAPER: "the paper's, by modality",
        SHARED: "fitted, one for all",
        MODAL: "fitted, by modality",
    }
    rows = [row for row in rows if row["model"] in several]
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["value_error"]))
    lines = [["rotation", "tokens", *kinds]]
    for codec, name in names.items():
        for tokens in dict.fromkeys(row["tokens"] for row in rows):
            own = _where(rows, codec=codec, tokens=tokens)
            means = [
                np.mean([r["value_error"][k] for r in own if k in r["value_error"]] or [np.nan])
                for k in kinds
            ]
            lines.append([name, tokens, *(f"{mean:.3f}" for mean in means)])
    return lines


def _biased(rows: Sequence[Row]) -> list[list[str]]:
    shown = ("bias", "bias_apart", "score_error")
    lines = [["model", "codec", "bias", "between subblocks", "within one"]]
    for row in rows:
        if "bias" in row:
            lines.append([row["model"], row["codec"], *(f"{row[part]:.2f}" for part in shown)])
    return lines


def _perplexity(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["codec", "sealed", "bits", "perplexity", "over a whole cache"]]
    for row in rows:
        figures = (str(row["bits"]), f"{row['perplexity']:.2f}", f"{row['ratio']:.3f}")
        lines.append([row["codec"], row["setting"], *figures])
    return lines


def _claims(claims: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        ["claim", "", "value", "bound"],
        *(
            [
                claim["name"],
                "holds" if claim["holds"] else "**fails**",
                f"{claim['value']:.3f}",
                f"{claim['is']} {claim['bound']:g}",
            ]
            for claim in claims
        ),
    ]


def _where(rows: Sequence[Row], **about: Any) -> list[Row]:
    return [row for row in rows if about.items() <= row.items()]


def _mean(rows: Sequence[Row], what: str, **about: Any) -> float:
    return float(np.mean([row[what] for row in _where(rows, **about)]))


if __name__ == "__main__":
    sys.exit(0 if draw() else LACKS)
