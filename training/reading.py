"""One pass of the text backbone over a batch: embeddings in, losses and right answers out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from omni_core.frontend.qwen2_5_omni import QwenOmniFrontend
from omni_core.units import Int32
from training.bank import constant
from training.batch import Batch
from training.labels import Labels
from training.layout import Layout, layout
from training.rotary import text_angles
from training.text import Reading
from training.thinker import Thinker

AFTER = 2
"""Layers after which the delimiters must know what they close."""
LABELS = 0.2
NORMS = 1e-3


@dataclass
class Outcome:
    """What a pass gives.

    Attributes:
        loss: to be minimised.
        parts: its parts by name, detached.
        right: ``bool[S, Q]``, whether every token of the answer is the likeliest.
        share: of the questions that found room, those answered right.
        logits: ``[S, B, vocabulary]`` of the branches.
        spread: standard deviation of attention logits by layer, where asked for.
    """

    loss: torch.Tensor
    parts: dict[str, torch.Tensor]
    right: torch.Tensor
    share: torch.Tensor
    logits: torch.Tensor
    spread: list[torch.Tensor] | None


class Reader:
    """Reads batches.

    Args:
        thinker: the model.
        front: the checkpoint's, which lays streams out.
        labels: tokens that name things and sounds.

    Attributes:
        laid: what streams of square frames are made of.
    """

    def __init__(self, thinker: Thinker, front: QwenOmniFrontend, labels: Labels) -> None:
        self.thinker, self.labels, self._front = thinker, labels, front
        self.laid = layout(front)

    def read(
        self, seen: torch.Tensor, heard: torch.Tensor, batch: Batch, probe: bool = False
    ) -> Outcome:
        """Read units ``seen[N, rows, hidden]`` and ``heard[N, 25, hidden]``, and the questions."""
        embedded, reading = self.sequence(seen, heard, batch, probe)
        out, middle = self.thinker.model(embedded, reading, AFTER)
        logits = self.thinker.model.logits(out[:, reading.stream :]).float()
        losses = functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten().long(), reduction="none"
        )
        count = batch.asked.sum()
        answer = (losses * batch.weights.flatten()).sum() / count
        named = self._names(out, batch) + self._names(middle, batch)
        norms = torch.stack(reading.norms).mean()
        missed = ((logits.argmax(-1) != batch.targets) & batch.final).float()
        misses = missed.new_zeros(batch.unit.shape[0], batch.unit.shape[1] + 1)
        misses = misses.scatter_add(1, batch.branch.long(), missed)
        right = (misses[:, :-1] == 0) & batch.asked
        parts = {"answer": answer.detach(), "labels": named.detach(), "norms": norms.detach()}
        loss = answer + LABELS * named + NORMS * norms
        return Outcome(loss, parts, right, right.sum() / count, logits, reading.spread)

    def sequence(
        self, seen: torch.Tensor, heard: torch.Tensor, batch: Batch, probe: bool = False
    ) -> tuple[torch.Tensor, Reading]:
        """Embeddings ``[S, T + B, hidden]`` and how they are read."""
        dtype = self.thinker.model.embed_tokens.weight.dtype
        streams, laid, text = batch.ids.shape[0], self._laid(batch), self.thinker.model.embed_tokens
        opening, unit = (_ids(ids, batch.ids.device) for ids in (laid.prefix, laid.unit))
        given = text(unit).expand(seen.shape[0], -1, -1)
        parts, done = [], 0
        for span, rows in sorted(((laid.vision, seen), (laid.audio, heard)), key=_start):
            parts += [given[:, done : span.start], rows]
            done = span.stop
        units = torch.cat([*parts, given[:, done:]], 1).view(streams, -1, given.shape[2])
        prefix = text(opening).expand(streams, -1, -1)
        if batch.turns.shape[1]:
            stream = torch.cat([prefix, units, text(batch.turns)], 1)
            whole = torch.cat([stream.index_select(1, batch.order), text(batch.ids)], 1)
        else:
            whole = torch.cat([prefix, units, text(batch.ids)], 1)

        # Padding is laid out like the first branch's.
        after = functional.pad(batch.unit, (0, 1)).gather(1, batch.branch.long()).long()
        line = batch.ends[after] + batch.offset
        stream = batch.positions[:, None].expand(-1, streams, -1)
        places = torch.cat([stream, line.expand(3, -1, -1)], 2)
        cos, sin = text_angles(places, self.thinker.config.text, dtype)
        mask = self._mask(batch, after, dtype)
        total = batch.order.shape[0]
        return whole, Reading(cos, sin, total, mask, [], [] if probe else None)

    def _laid(self, batch: Batch) -> Layout:
        return layout(self._front, batch.size)

    def _mask(self, batch: Batch, after: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What branch tokens see: what is left of the stream up to ``after``, their own branch."""
        streams, count = batch.ids.shape
        device, total = batch.ids.device, batch.order.shape[0]
        past = torch.arange(total, device=device) < batch.visible[after][:, :, None]
        whole = batch.owner > (after - batch.recent[:, None])[:, :, None]
        past &= whole | batch.kept[:, None]
        line = torch.arange(count, device=device)
        own = (batch.branch[:, :, None] == batch.branch[:, None]) & (line[:, None] >= line)
        # Fused attention wants rows that start at multiples of 16 bytes.
        room = -(-(total + count) // 8) * 8
        mask = torch.full((streams, 1, count, room), -torch.inf, device=device, dtype=dtype)
        mask = mask[..., : total + count]
        return mask.masked_fill_(torch.cat([past, own], 2)[:, None], 0.0)

    def _names(self, out: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cost of not naming what a unit shows and says, where its delimiters close it."""
        laid = self._laid(batch)
        heard = out.index_select(1, batch.first + laid.audio_end).flatten(0, 1)
        seen = out.index_select(1, batch.first + laid.vision_end).flatten(0, 1)
        said = self.thinker.model.logits(heard).float()
        shown = self.thinker.model.logits(seen).float().log_softmax(-1)
        words = self.labels.things[batch.units["thing"].long()]
        sound = self.labels.sounds[batch.units["sound"].long()]
        return functional.cross_entropy(said, sound) - shown.gather(1, words).mean()


def _ids(ids: Int32, device: torch.device) -> torch.Tensor:
    return constant(tuple(ids.tolist()), device)


def _start(pair: tuple[slice, torch.Tensor]) -> int:
    return pair[0].start
