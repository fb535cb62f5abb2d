"""What the attention kernels are handed of a case, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from metal_kernels import attention
from metal_kernels.launch import Launch
from metal_kernels.loader import Text
from omni_core.backend import SUBBLOCK
from tests import attended
from tests.attended import Float64, Size
from tests.metal import numbers, runner
from tests.metal.numbers import AnyArray

Run = Callable[[Launch, Mapping[str, AnyArray]], dict[str, AnyArray]]


class Case(attended.Case):
    """A case and its launches."""

    def attention(self) -> attention.Attention:
        """What the launches are made of."""
        rows = attention.padded_listing(self.listing, self.query_order)
        size = self.size
        return attention.Attention(
            tables=len(self.queries),
            streams=size.streams,
            count=size.count,
            kv_heads=size.kv_heads,
            group=size.group,
            head_dim=size.head_dim,
            pages=len(self.order),
            dtype=size.dtype,
            rows=len(rows["rows"]),
            segments=len(rows["segments"]),
            programs=size.programs,
            biased=self.bias is not None,
        )

    def inputs(self) -> dict[str, npt.NDArray]:
        """What attention is handed: where no row is in use, rows of live-looking dead cells."""
        given = attention.padded_listing(self.listing, self.query_order)
        # Both halves of the pool's last page, in which nothing is alive.
        last = self.order.shape[0] * 2 - 1
        used = np.zeros(len(given["rows"]), np.bool_)
        for first, _, end, _ in self.listing.segments.tolist():
            used[first:end] = True
        given["rows"] = np.where(used[:, None], given["rows"], [(last - 1) + (last << 32), -1])
        return {
            **given,
            "queries": numbers.stored(self.queries, self.size.dtype),
            "keys": numbers.stored(self.keys, self.size.dtype),
            "values": numbers.stored(self.values, self.size.dtype),
            "order": self.order,
            "bias": attention.NO_BIAS if self.bias is None else self.bias,
            "numbers": attention.numbers(self.attention()),
            "scale": attention.factor(self.scale),
        }


class TallCase(Case):
    """A case for a GPU with registers for sixteen lines a simdgroup."""

    def attention(self) -> attention.Attention:
        """What the launches are made of."""
        return replace(super().attention(), tall=True)


def make_case(
    size: Size, blind: int = 0, spare: int = 2, most: int = SUBBLOCK, kind: type[Case] = Case
) -> Case:
    """As :func:`tests.attended.make_case`."""
    return attended.make_case(size, kind, blind=blind, spare=spare, most=most)


def attend(
    case: Case, texts: Mapping[str, Text] | None = None, run: Run | None = None
) -> tuple[Float64, Float64]:
    """What the kernels give: output ``[streams, T, q_heads, head_dim]``, and the sums.

    Args:
        case: what is attended.
        texts: of kernels by name, to be run in place of the shipped ones.
        run: carries out launches of the shipped ones, if not the CPU's runner.
    """
    of, texts = case.attention(), texts or {}

    def carry_out(launch: Launch, given: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        return (
            run(launch, given) if run else runner.run(launch, given, texts.get(launch.kernel.name))
        )

    found = carry_out(attention.attend(of), case.inputs())
    if of.programs > 1:
        given = {"found": found["out"], "found_sums": found["sums"]}
        found = carry_out(attention.merge(of), given)
    return numbers.read(found["out"], of.dtype), found["sums"].astype(np.float64)
