"""The model with what it is trained and measured by: layouts, labels, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from omni_core.model_config import thinker_config
from streamworld import tokens
from training import shape as shapes
from training.bank import DeviceBank
from training.batch import Batch
from training.labels import Labels, labels
from training.layout import frontend
from training.reading import Outcome, Reader
from training.senses import Senses
from training.thinker import Thinker, fill


@dataclass
class Model:
    """A thinker and how the stream world is read by it.

    Attributes:
        config: the checkpoint's ``config.json``.
        reader: of batches.
        senses: renderers and towers.
    """

    config: dict[str, Any]
    thinker: Thinker
    labels: Labels
    reader: Reader
    senses: Senses

    @classmethod
    def build(
        cls, shape: shapes.Shape, device: torch.device, seed: int, fused: int | None = None
    ) -> Model:
        """A model with fresh weights; batches of ``fused`` units run compiled."""
        vocabulary = tokens.tokenizer().get_vocab()
        config = shapes.config(shape, vocabulary, len(vocabulary))
        thinker = Thinker(thinker_config(config))
        fill(thinker, seed)
        thinker = thinker.to(device)
        named = labels(device)
        reader = Reader(thinker, frontend(config), named)
        return cls(config, thinker, named, reader, Senses(thinker, fused))

    def read(self, batch: Batch, bank: DeviceBank, learn: bool, probe: bool = False) -> Outcome:
        """Render, encode and read a batch; in learning, spectrograms are changed by chance."""
        chance = batch.chance if learn else None
        seen, heard = self.senses.encoded(batch.units, bank, chance, batch.size)
        return self.reader.read(seen, heard, batch, probe)
