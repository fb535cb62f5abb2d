"""Faults put into the attention kernels by hand, each of which must be found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from metal_kernels.loader import Text, load
from tests.attended import Size, spread
from tests.metal.cases import attend, make_case
from tests.metal.runner import KernelFault

FEW = Size(300, 3, 2, 3, 64, 2, 2)
MANY = Size(300, 17, 2, 3, 64, 2, 2)
SHARED = Size(65, 2, 2, 3, 64, 2, 2, 5)
NARROW = Size(300, 3, 2, 3, 80, 1, 1)

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


class Fault(NamedTuple):
    """What is replaced in which kernel's functions, and a case that it spoils."""

    what: str
    kernel: str
    size: Size
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.what}"


FAULTS = [
    Fault(
        "queries are read before all are there",
        "decode",
        FEW,
        f"turned[i] = q * (scale * LOG2_E);\n        }}\n        {BARRIER}",
        "turned[i] = q * (scale * LOG2_E);\n        }",
    ),
    Fault(
        "queries of the next table overtake those in use",
        "decode",
        FEW,
        f"if (segment.begin >= segment.end) continue;\n        {BARRIER}",
        "if (segment.begin >= segment.end) continue;",
    ),
    Fault(
        "weights are read before all are there",
        "decode",
        FEW,
        "simdgroup_barrier(mem_flags::mem_threadgroup);\n            decode_values",
        "decode_values",
    ),
    Fault(
        "what simdgroups found is joined before all is there",
        "decode",
        FEW,
        f"{BARRIER}\n        const bool seen = sees(total);",
        "const bool seen = sees(total);",
    ),
    Fault(
        "the last subblock is left out", "decode", FEW, "unit < end; unit", "unit < end - 2; unit"
    ),
    Fault("a walk steps too far", "decode", FEW, "unit += SIMDS)", "unit += SIMDS + 1)"),
    Fault("a bias is left out", "decode", FEW, "added = bias[known] * LOG2_E", "added = 0.0f"),
    Fault(
        "dead values are read", "decode", FEW, "if ((alive >> (cell + i)) & 1u)", "if (cell >= 0)"
    ),
    Fault("a query does not see its own cell", "decode", FEW, "age <= query", "age < query"),
    Fault("newer cells are seen", "decode", FEW, "+ 1] > oldest", "+ 1] > newest"),
    Fault("the newest rows are left out", "decode", FEW, "* 2] > newest", "* 2] >= oldest"),
    Fault(
        "all rows are read by one table",
        "decode",
        FEW,
        "lines_before(segment.table)",
        "lines_before(0)",
    ),
    Fault(
        "columns that a narrow head lacks are joined",
        "decode",
        NARROW,
        "32u / parts && column < D",
        "32u / parts",
    ),
    Fault("lanes beyond a slice read on", "decode", NARROW, "D % 32 != 0 && column >= D", "false"),
    Fault("a line beyond the last is written", "decode", FEW, "index < of.sizes.lines()", "true"),
    Fault(
        "lines are mixed before all are there",
        "merge",
        SHARED,
        f"{BARRIER}\n    const bool seen",
        "const bool seen",
    ),
    Fault("what nobody wrote is mixed in", "merge", SHARED, "sum <= UNSEEN || column", "column"),
    Fault(
        "the last program is left out",
        "merge",
        SHARED,
        "(simdgroup); program <",
        "(simdgroup) + 1; program <",
    ),
    Fault(
        "cells are read before all are there",
        "prefill",
        MANY,
        f"{BARRIER}\n                if (busy)",
        "if (busy)",
    ),
    Fault(
        "the next cells overtake those in use",
        "prefill",
        MANY,
        f"}}\n                {BARRIER}\n            }}",
        "}\n            }",
    ),
    Fault(
        "a barrier is for some only",
        "prefill",
        MANY,
        f"{BARRIER}\n                if (busy) {{",
        f"if (busy) {{\n{BARRIER}",
    ),
    Fault(
        "the first row is left out",
        "prefill",
        MANY,
        "row = segment.begin;",
        "row = segment.begin + 1;",
    ),
    Fault("a bias is left out", "prefill", MANY, "more = bias[known] * LOG2_E", "more = 0.0f"),
    Fault(
        "dead cells are brought in", "prefill", MANY, "if ((alive >> cell) & 1u)", "if (cell >= 0)"
    ),
    Fault("dead cells weigh", "prefill", MANY, "there ? 0.0f : HIDDEN", "0.0f"),
    Fault(
        "a query does not see its own cell",
        "prefill",
        MANY,
        "ages[cell] > mine",
        "ages[cell] >= mine",
    ),
    Fault("newer cells are seen", "prefill", MANY, "+ 1] > oldest", "+ 1] > newest"),
    Fault("the newest rows are left out", "prefill", MANY, "* 2] > newest", "* 2] >= oldest"),
    Fault(
        "all rows are read by one table",
        "prefill",
        MANY,
        "lines_before(segment.table)",
        "lines_before(0)",
    ),
    Fault(
        "a page too far is read", "prefill", MANY, "int(subblock >> 1)", "int(subblock >> 1) + 1"
    ),
    Fault(
        "one stream is read for all", "prefill", MANY, "page_offset(of.stream,", "page_offset(0,"
    ),
    Fault("a head is missed", "prefill", MANY, "of.head * PAGE * head_dim", "0"),
    Fault(
        "cells overlap",
        "prefill",
        MANY,
        "return head_dim + 16 / number_size",
        "return head_dim - 8",
    ),
    Fault("lines beyond the last are written", "prefill", MANY, "if (!real) return;", ""),
    Fault("old sums are not shrunk", "prefill", MANY, "tile.total *= shrink;", ""),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found(fault: Fault) -> None:
    text = load(fault.kernel)
    assert text.header.count(fault.old) == 1
    broken = Text(text.header.replace(fault.old, fault.new), text.body)
    case = make_case(fault.size)
    try:
        out, sums = attend(case, {fault.kernel: broken})
    except KernelFault:
        return
    right = spread(out, case.attended()) < 1e-5 and np.allclose(sums, case.sums(), atol=1e-4)
    assert not right


@pytest.mark.parametrize("size", [FEW, MANY, SHARED, NARROW], ids=str)
def test_without_a_fault_it_is_right(size: Size) -> None:
    case = make_case(size)
    out, sums = attend(case)
    assert spread(out, case.attended()) < 1e-5
    np.testing.assert_allclose(sums, case.sums(), atol=1e-4, rtol=1e-5)
