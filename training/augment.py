"""Changes to log-mel spectrograms that make a few voices sound like many.

Sources: vocal tract length perturbation (Jaitly and Hinton, 2013) and SpecAugment (Park et al.,
2019).
"""

from __future__ import annotations

import torch

CHANCES = 16
"""Even random numbers in 0..1 that each clip needs."""
_KNOTS = 8
_WARP, _EQUALISER, _SHIFT = 0.17, 0.16, 0.1
_BANDS, _TIMES = 18, 12


def changed(mel: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Spectrograms ``[N, mel_bins, frames]`` changed by random numbers ``chance[N, 16]``.

    The mel axis is stretched, a smooth curve of up to 6 dB and a loudness are added, and a band and
    a moment are dimmed to the floor; one clip in four stays as it is but for the curve.
    """
    bins, frames = mel.shape[1:]
    line = torch.arange(bins, device=mel.device)
    kept = chance[:, 15] < 0.25
    factor = 1 + torch.where(kept, 0.0, (chance[:, 0] * 2 - 1) * _WARP)
    place = (line * factor[:, None]).clamp(0, bins - 1)
    low = place.floor().long()
    part = (place - low)[..., None]
    high = (low + 1).clamp(max=bins - 1)
    rows = [index[..., None].expand(-1, -1, frames) for index in (low, high)]
    mel = torch.lerp(mel.gather(1, rows[0]), mel.gather(1, rows[1]), part)
    floor = mel.amin((1, 2), keepdim=True)

    knots = (chance[:, 1 : 1 + _KNOTS] * 2 - 1) * _EQUALISER
    along = line * ((_KNOTS - 1) / (bins - 1))
    left = along.floor().long().clamp(max=_KNOTS - 2)
    curve = torch.lerp(knots[:, left], knots[:, left + 1], along - left)
    level = (chance[:, 9, None] * 2 - 1) * _SHIFT
    mel = torch.maximum(mel + (curve + level)[..., None], floor)

    band = _span(chance[:, 10], chance[:, 11], bins, _BANDS, kept)
    moment = _span(chance[:, 12], chance[:, 13], frames, _TIMES, kept)
    return torch.where(band[:, :, None] | moment[:, None], floor, mel)


def _span(
    start: torch.Tensor, size: torch.Tensor, total: int, largest: int, kept: torch.Tensor
) -> torch.Tensor:
    """``bool[N, total]``, true in a run of up to ``largest`` places."""
    length = torch.where(kept, 0.0, size * largest)
    first = start * (total - length)
    line = torch.arange(total, device=start.device)
    return (line >= first[:, None]) & (line < (first + length)[:, None])
