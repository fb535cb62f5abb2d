"""One stream through transformers, and through either twin, for answers that can be compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core import Session, UnitMedia
from omni_core.frontend.base import SAMPLE_RATE
from omni_core.session import SYSTEM
from omnilive import load
from streamworld import tokens

Float32 = npt.NDArray[np.float32]

LONGEST = 20
"""Tokens of an answer; the longest in the world has fewer."""


@dataclass(frozen=True)
class Said:
    """An answer: the tokens drawn, the end included, and their logits ``float32[n, vocab]``."""

    ids: list[int]
    logits: Float32


class Reference:
    """transformers from pixels and samples on, in float32; it finds positions by itself."""

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        thinker = transformers.Qwen2_5OmniThinkerForConditionalGeneration
        self._torch = torch
        self._model = thinker.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._hear = transformers.WhisperFeatureExtractor.from_pretrained(folder)
        # Of the processors that make these patches, the one that needs no torchvision.
        self._see = transformers.Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.restart()

    def restart(self) -> None:
        """Begin another stream."""
        self._text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
        self._seen: list[Any] = []
        self._grids: list[Any] = []
        self._heard: list[Any] = []

    def append(self, media: UnitMedia) -> None:
        """One more unit: a clip of its own, whose one frame stands for two."""
        seen = self._see(images=[media.frames[0]], return_tensors="pt")
        heard = self._hear(
            media.audio,
            sampling_rate=SAMPLE_RATE,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="pt",
        )
        # The rest, up to five minutes, is padding, which the mask takes away in the model too.
        whole = heard["attention_mask"][0].bool()
        video = int(seen["image_grid_thw"].prod()) // self._see.merge_size**2
        audio = ((int(whole.sum()) - 1) // 2 - 1) // 2 + 1
        self._text += (
            "<|vision_bos|><|audio_bos|>"
            + "<|VIDEO|>" * video
            + "<|AUDIO|>" * audio
            + "<|audio_eos|><|vision_eos|>"
        )
        self._seen.append(seen["pixel_values"])
        self._grids.append(seen["image_grid_thw"])
        self._heard.append(heard["input_features"][:, :, whole])

    def ask(self, question: str) -> Said:
        """One ``generate()`` over everything so far."""
        torch = self._torch
        ids = self._tokenizer(self._text + question + tokens.TURN, return_tensors="pt")["input_ids"]
        heard = torch.cat(self._heard)
        with torch.no_grad():
            made = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values_videos=torch.cat(self._seen),
                video_grid_thw=torch.cat(self._grids),
                video_second_per_grid=torch.full((len(self._seen),), 2.0),
                input_features=heard,
                feature_attention_mask=torch.ones(heard[:, 0].shape, dtype=torch.long),
                use_audio_in_video=True,
                do_sample=False,
                max_new_tokens=LONGEST,
                output_logits=True,
                return_dict_in_generate=True,
            )
        drawn = made.sequences[0, ids.shape[1] :].tolist()
        return Said(drawn, torch.cat(made.logits).float().numpy())


class Twin:
    """A twin in float32 on the CPU, behind a session that evicts nothing."""

    def __init__(self, name: str, folder: Path) -> None:
        model = load(str(folder), backend=name, device="cpu", weights="f32")
        self._listener = _Listener(model.backend)
        self._model = replace(model, backend=self._listener)
        self.restart()

    def restart(self) -> None:
        """Begin another stream."""
        self._session = Session(self._model, budget=2048, retention="no-slide", max_tokens=LONGEST)

    def append(self, media: UnitMedia) -> None:
        """One more unit."""
        self._session.append(media)

    def ask(self, question: str) -> Said:
        """A branch: the stream is afterwards as it was before."""
        self._listener.heard.clear()
        self._session.ask(question, branch=True)
        logits = np.stack(self._listener.heard)
        return Said(logits.argmax(axis=-1).tolist(), logits)


class _Listener:
    """A backend that keeps the logits it hands out."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.heard: list[Float32] = []

    def forward(self, plan: Any, embeddings: Any = None) -> Any:
        result = self._backend.forward(plan, embeddings)
        self.heard += list(result.logits[0])
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
