"""How likely it is, every 32 ms, that somebody speaks: silero-vad's network, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.frontend.base import SAMPLE_RATE
from omni_core.frontend.tracks import JITTER
from omnilive.speech import SpeechError

Samples = npt.NDArray[np.float32]

STEP_SAMPLES = 512
STEP = STEP_SAMPLES / SAMPLE_RATE
"""Seconds that one probability stands for."""
MODEL = Path(__file__).parent.parent / "assets" / "silero_vad.onnx"

_CONTEXT = 64
_ERRORS_ONLY = 3


class SpeechDetector:
    """Gives the probability of speech for each 512 samples of a sound, as they come.

    The network and its weights are those of silero-vad 6.2 (MIT), the form for 16 kHz that takes a
    row of steps; each step sees the 64 samples before it and the state that the last one left.

    Attributes:
        broken: samples that were no numbers, or infinite, and were taken for silence.

    Raises:
        SpeechError: onnxruntime or the network's file is missing.
    """

    def __init__(self) -> None:
        self.broken = 0
        self._session = _open()
        self.reset()

    def reset(self, time: float = 0.0) -> None:
        """Forget what was heard; the next sample is the one at ``time`` seconds."""
        self._start, self._steps = time, 0
        self._rest = np.zeros(0, np.float32)
        self._context = np.zeros(_CONTEXT, np.float32)
        self._hidden = self._cell = np.zeros((1, 1, 128), np.float32)

    def feed(self, samples: Samples, time: float | None = None) -> list[tuple[float, float]]:
        """The steps that these samples complete, as (second at which it starts, probability).

        Args:
            samples: ``float32[n]`` at 16 kHz in -1 to 1, of any length.
            time: second of the first of them. Where it does not follow from what came before, the
                detector starts afresh there; None goes on.
        """
        if time is not None and not abs(time - self._now()) <= JITTER:
            self.reset(time)
        sound = np.concatenate([self._rest, self._clean(samples)])
        whole = len(sound) // STEP_SAMPLES * STEP_SAMPLES
        self._rest = sound[whole:]
        return [self._step(row) for row in sound[:whole].reshape(-1, STEP_SAMPLES)]

    def _now(self) -> float:
        return self._start + self._steps * STEP + len(self._rest) / SAMPLE_RATE

    def _clean(self, samples: Samples) -> Samples:
        sane = np.isfinite(samples)
        self.broken += int(np.count_nonzero(~sane))
        # Beyond 1 a square in the network may overflow, and its state would never be sane again.
        return np.clip(np.where(sane, samples, 0), -1, 1).astype(np.float32)

    def _step(self, row: Samples) -> tuple[float, float]:
        # One at a time: how the sound was cut into chunks then changes no bit of the result.
        heard = np.concatenate([self._context, row])
        probability, self._hidden, self._cell = self._session.run(
            ["speech_probs", "hn", "cn"],
            {"input": heard[None], "h": self._hidden, "c": self._cell},
        )
        self._context = row[-_CONTEXT:]
        start = self._start + self._steps * STEP
        self._steps += 1
        return start, float(probability[0])


def _open() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise SpeechError(
            f"speech cannot be found in the sound without onnxruntime ({error}): "
            "pip install -e '.[live]' in the checkout, or type the questions on the screen"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    try:
        network = MODEL.read_bytes()
    except OSError as error:
        raise SpeechError(
            f"{MODEL} cannot be read ({error.strerror}): install omnilive again"
        ) from None
    return onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
