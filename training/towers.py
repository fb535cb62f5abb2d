"""The towers learn alone first, by naming what a unit shows and says; heads and all."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from streamworld import spec
from training.bank import DeviceBank, Units
from training.senses import Senses
from training.thinker import Thinker

NAMED = ("form", "clothing", "colour", "sound")
"""What shares of right names are of; forms are all things without their colours."""
CLOTHING = 2.0
"""What a wrong piece of clothing costs against another form."""
_FORMS = 1 + len(spec.SHAPES) + len(spec.DIGITS) + len(spec.CLOTHES)


class Naming(nn.Module):
    """A thinker's towers with a linear head on the mean of each one's tokens."""

    def __init__(self, thinker: Thinker) -> None:
        super().__init__()
        width = thinker.config.text.hidden
        self.visual, self.audio_tower = thinker.visual, thinker.audio_tower
        self.form = nn.Linear(width, _FORMS)
        self.colour = nn.Linear(width, len(spec.COLOURS))
        self.sound = nn.Linear(width, spec.SOUNDS)

    def losses(
        self, seen: torch.Tensor, heard: torch.Tensor, units: Units
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, and the share of right names ``float32[4]``: as ``NAMED``."""
        thing, sound = units["thing"].long(), units["sound"].long()
        shape = (thing >= spec.FIRST_SHAPE) & (thing < spec.FIRST_DIGIT)
        place = (thing - spec.FIRST_SHAPE).clamp(min=0)
        colour = (place // len(spec.SHAPES)).clamp(max=len(spec.COLOURS) - 1)
        later = thing - spec.FIRST_DIGIT + 1 + len(spec.SHAPES)
        form = torch.where(shape, place % len(spec.SHAPES) + 1, later)
        form = torch.where(thing == spec.NOTHING, 0, form)
        mean = seen.mean(1)
        forms, colours = self.form(mean).float(), self.colour(mean).float()
        sounds = self.sound(heard.mean(1)).float()
        shapes = shape.sum().clamp(min=1)
        ink = functional.cross_entropy(colours, colour, reduction="none")
        clothing = form > len(spec.SHAPES) + len(spec.DIGITS)
        named = functional.cross_entropy(forms, form, reduction="none")
        # Clothes are the hardest to tell apart.
        named = (named * torch.where(clothing, CLOTHING, 1.0)).mean()
        loss = named + functional.cross_entropy(sounds, sound)
        loss = loss + (ink * shape).sum() / shapes
        inked = ((colours.argmax(-1) == colour) & shape).sum() / shapes
        known = forms.argmax(-1) == form
        worn = (known & clothing).sum() / clothing.sum().clamp(min=1)
        hits = [known.float().mean(), worn, inked]
        return loss, torch.stack([*hits, (sounds.argmax(-1) == sound).float().mean()])


@torch.no_grad()
def fold(thinker: Thinker, senses: Senses, units: Units, bank: DeviceBank) -> None:
    """Centre the towers' outputs and scale them to root mean square 1, inside their last layers."""
    seen, heard = senses.encoded(units, bank)
    for rows, last in ((seen, thinker.visual.merger.mlp[2]), (heard, thinker.audio_tower.proj)):
        flat = rows.flatten(0, 1).float()
        mean = flat.mean(0)
        size = (flat - mean).square().mean().sqrt()
        last.weight.div_(size)
        last.bias.sub_(mean).div_(size)
