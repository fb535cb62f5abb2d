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
SPARSE = Size(65, 2, 2, 3, 64, 2, 2, 5)
SHARED = Size(1300, 2, 1, 3, 64, 1, 1, 18)
NARROW = Size(300, 3, 2, 3, 80, 1, 1)
NARROW_SHARED = Size(300, 3, 2, 3, 80, 1, 1, 5)
WIDE = Size(300, 3, 2, 3, 128, 1, 1)

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
        "what simdgroups found is joined before all is there",
        "decode",
        FEW,
        f"{BARRIER}\n    float share[2];",
        "float share[2];",
    ),
    Fault(
        "columns are joined before all are there",
        "decode",
        FEW,
        f"{BARRIER}\n        ROLLED",
        "ROLLED",
    ),
    Fault(
        "the next columns overtake those that are joined",
        "decode",
        WIDE,
        f"}}\n        {BARRIER}\n    }}",
        "}\n    }",
    ),
    Fault("the last cells are left out", "decode", FEW, "unit < end; unit", "unit < end - 2; unit"),
    Fault("a walk steps too far", "decode", FEW, "unit += SIMDS)", "unit += SIMDS + 1)"),
    Fault("the next row is read too late", "decode", FEW, "(unit + SIMDS) / turns", "unit / turns"),
    Fault("a bias is left out", "decode", FEW, "= bias[known + cell] * LOG2_E", "= 0.0f"),
    Fault("dead cells are read", "decode", FEW, "(alive >> (i * 8 + row)) & 1u", "true"),
    Fault("dead cells weigh", "decode", FEW, "((alive >> cell) & 1u) == 0u", "cell < 0"),
    Fault("a query does not see its own cell", "decode", FEW, "> mine) sight", ">= mine) sight"),
    Fault("newer cells are seen", "decode", FEW, "+ 1] > oldest", "+ 1] > newest"),
    Fault("the newest rows are left out", "decode", FEW, "* 2] > newest", "* 2] >= oldest"),
    Fault(
        "all rows are read by one table",
        "decode",
        FEW,
        "lines_before(segment.table)",
        "lines_before(0)",
    ),
    Fault("a narrow head's neighbour is read", "decode", NARROW, "there && inside)", "there)"),
    Fault(
        "columns that a narrow head lacks are written",
        "decode",
        NARROW,
        " || first + column >= D) continue",
        ") continue",
    ),
    Fault(
        "a line beyond the last is written",
        "decode",
        FEW,
        "first_line + line >= of.sizes.lines() ||",
        "",
    ),
    Fault(
        "old sums are not shrunk",
        "decode",
        FEW,
        "shrink[e] = fast::exp2(now.peak[e] - top)",
        "shrink[e] = 1.0f",
    ),
    Fault(
        "lines are merged before all are there",
        "merge",
        SHARED,
        f"{BARRIER}\n    if (simdgroup != 0",
        "if (simdgroup != 0",
    ),
    Fault(
        "what nobody wrote is mixed in",
        "merge",
        SPARSE,
        "seen ? parts[i].mixed[c]",
        "true ? parts[i].mixed[c]",
    ),
    Fault(
        "the last program is left out",
        "merge",
        SHARED,
        "* BESIDE < programs;",
        "* BESIDE < programs - 1;",
    ),
    Fault("a program counts twice", "merge", SHARED, "there && !(", "!("),
    Fault(
        "lanes are not joined",
        "merge",
        SHARED,
        "step = ACROSS; step < 32; step *= 2) {\n        all.total",
        "step = ACROSS; step < 16; step *= 2) {\n        all.total",
    ),
    Fault(
        "programs keep their own peaks",
        "merge",
        SHARED,
        "all.total += parts[i].total * weight",
        "all.total += parts[i].total",
    ),
    Fault(
        "a narrow head's neighbour is merged", "merge", NARROW_SHARED, "    if (inside) {", "    {"
    ),
    Fault(
        "cells are read before all are there",
        "prefill",
        MANY,
        f"{BARRIER}\n            held = true;",
        "held = true;",
    ),
    Fault(
        "the next cells overtake those in use",
        "prefill",
        MANY,
        f"{BARRIER}\n            some_keys.put",
        "some_keys.put",
    ),
    Fault(
        "a barrier is for some only",
        "prefill",
        MANY,
        f"{BARRIER}\n            some_keys.put",
        f"if (busy) {BARRIER}\n            some_keys.put",
    ),
    Fault(
        "the first row is left out",
        "prefill",
        MANY,
        "unit = segment.begin * (",
        "unit = (segment.begin + 1) * (",
    ),
    Fault("a bias is left out", "prefill", MANY, "more = bias[known] * LOG2_E", "more = 0.0f"),
    Fault(
        "dead cells are brought in", "prefill", MANY, "inside && ((alive >> cell) & 1u)", "inside"
    ),
    Fault("dead cells weigh", "prefill", MANY, "there ? 0.0f : HIDDEN", "0.0f"),
    Fault("a query does not see its own cell", "prefill", MANY, "] > mine[e])", "] >= mine[e])"),
    Fault(
        "the last cells are not taken",
        "prefill",
        MANY,
        "if (held && busy)",
        "if (held && busy && piece.alive)",
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
        "return tile_columns(head_dim) + 16 / number_size",
        "return tile_columns(head_dim) - 8",
    ),
    Fault(
        "lines beyond the last are written", "prefill", MANY, "line <= last_line && (seen", "(seen"
    ),
    Fault("old sums are not shrunk", "prefill", MANY, "now.total[e] * shrink[e]", "now.total[e]"),
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


@pytest.mark.parametrize("size", [FEW, MANY, SPARSE, SHARED, NARROW, NARROW_SHARED, WIDE], ids=str)
def test_without_a_fault_it_is_right(size: Size) -> None:
    case = make_case(size)
    out, sums = attend(case)
    assert spread(out, case.attended()) < 1e-5
    np.testing.assert_allclose(sums, case.sums(), atol=1e-4, rtol=1e-5)
