"""Faults put into the kernels over sealed pages by hand, each of which must be found."""

from __future__ import annotations

import numpy as np
import pytest

from metal_kernels.loader import Text, load
from tests.attended import spread
from tests.metal.runner import KernelFault
from tests.metal.sealed_cases import Size, attend, make_case
from tests.metal.test_attend_faults import BARRIER, Fault

FEW = Size(100, 20, 3, 2, 3, 32, 4, 2, 2, 3, 2)
TALL = Size(200, 20, 1, 1, 3, 64, 4, 1, 1, 1, 1)
THREE = Size(65, 20, 1, 1, 3, 32, 3)
TABLE = Size(65, 20, 1, 1, 3, 32, 2, codec="omnikvquant")
MANY = Size(100, 20, 17, 1, 3, 32, 2, 1, 2, 2, 2)
SPARSE = Size(1, 9, 1, 1, 3, 32, programs=4)

NEAR = "simdgroup_barrier(mem_flags::mem_threadgroup);"

# What is replaced in which kernel's functions, and a case that it spoils.
FAULTS = [
    Fault(
        "ranges are read before all are there",
        "sealed_decode",
        FEW,
        f"{NEAR}\n    simdgroup_matrix<float, 8, 8> scores",
        "simdgroup_matrix<float, 8, 8> scores",
    ),
    Fault(
        "what simdgroups found is joined before all is there",
        "sealed_decode",
        FEW,
        f"{BARRIER}\n    float share[2];",
        "float share[2];",
    ),
    Fault(
        "columns are joined before all are there",
        "sealed_decode",
        FEW,
        f"{BARRIER}\n        ROLLED",
        "ROLLED",
    ),
    Fault(
        "the next columns overtake those that are joined",
        "sealed_decode",
        TALL,
        f"}}\n        {BARRIER}\n    }}",
        "}\n    }",
    ),
    Fault("a bias is left out", "sealed_decode", FEW, "if (biased) {", "if (false) {"),
    Fault("dead cells weigh", "sealed_decode", FEW, "there ? score : HIDDEN", "score"),
    Fault(
        "dead cells are mixed in",
        "sealed_decode",
        FEW,
        "(sight.alive >> i) & 1u ? share",
        "true ? share",
    ),
    Fault("keys have no norm", "sealed_decode", FEW, " * sight.norms[i]", ""),
    Fault("values have no scale", "sealed_decode", FEW, "share * sight.scales[i]", "share"),
    Fault("offsets have the spans' scale", "sealed_decode", FEW, "(both, offset_", "(both, span_"),
    Fault(
        "levels are not about 0",
        "sealed_decode",
        FEW,
        "column_sum(now.weight[e]) * middle_of(BITS)",
        "0.0f",
    ),
    Fault("keys have no mean", "sealed_decode", FEW, "ground += x[i] * y[i];", ""),
    Fault(
        "queries are rotated by half",
        "sealed_decode",
        FEW,
        "if (2 * word < block) butterfly_lanes",
        "if (false) butterfly_lanes",
    ),
    Fault(
        "all rows are read by one table",
        "sealed_decode",
        FEW,
        "lines_before(segment.table)",
        "lines_before(0)",
    ),
    Fault(
        "the last subblock is left out",
        "sealed_decode",
        FEW,
        "unit < end; unit +=",
        "unit < end - 1; unit +=",
    ),
    Fault(
        "a subblock counts twice", "sealed_decode", FEW, "row.subblock(later) - ", "row.first - "
    ),
    Fault("pages are counted from another", "sealed_decode", FEW, " - first * 2u;", ";"),
    Fault(
        "a page's first half is read twice",
        "sealed_decode",
        FEW,
        "form::VALUES_AT + from.which * form::VALUE_BYTES",
        "form::VALUES_AT",
    ),
    Fault("one stream is read for all", "sealed_decode", FEW, "Offset(of.stream) *", "Offset(0) *"),
    Fault(
        "a line beyond the last is written",
        "sealed_decode",
        FEW,
        "first_line + line >= of.sizes.lines() ||",
        "",
    ),
    Fault(
        "the high plane's words are not told apart",
        "sealed_decode",
        THREE,
        "high_keys + turn * 4, i % 2 * 8",
        "high_keys + turn * 4, 0",
    ),
    Fault(
        "levels are read before they are there",
        "sealed_decode",
        TABLE,
        f"levels[lane];\n        {BARRIER}",
        "levels[lane];",
    ),
    Fault(
        "cells are read before all are there",
        "sealed_prefill",
        MANY,
        f"{BARRIER}\n        held = true;",
        "held = true;",
    ),
    Fault(
        "the next cells overtake those in use",
        "sealed_prefill",
        MANY,
        f"{BARRIER}\n        brought.template",
        "brought.template",
    ),
    Fault(
        "a barrier is for some only",
        "sealed_prefill",
        MANY,
        f"{BARRIER}\n        brought.template",
        f"if (busy) {BARRIER}\n        brought.template",
    ),
    Fault(
        "the last cells are not taken",
        "sealed_prefill",
        MANY,
        "if (held && busy)",
        "if (held && busy && next.alive)",
    ),
    Fault(
        "lines beyond the last are written",
        "sealed_prefill",
        MANY,
        "if (line > last_line) continue;",
        "",
    ),
    Fault("old sums are not shrunk", "sealed_prefill", MANY, "now.total[e] *= shrink[e];", ""),
    Fault("cells overlap", "sealed_prefill", MANY, "SUBBLOCK + 8;", "SUBBLOCK - 8;"),
    Fault(
        "a value is turned back before all of it is there",
        "sealed_merge",
        FEW,
        f"{BARRIER}\n        const device float* rotation",
        "const device float* rotation",
    ),
    Fault(
        "a value is added up before all of it is there",
        "sealed_merge",
        FEW,
        f"{BARRIER}\n        ROLLED",
        "ROLLED",
    ),
    Fault(
        "lines are joined before all are there",
        "sealed_merge",
        FEW,
        f"{BARRIER}\n    if (part != 0",
        "if (part != 0",
    ),
    Fault(
        "one rotation undoes all",
        "sealed_merge",
        FEW,
        "Offset(kind * sizes.kv",
        "Offset(0 * sizes.kv",
    ),
    Fault(
        "a program counts for all modalities",
        "sealed_merge",
        FEW,
        "(kind < 0 || kinds[p] == kind)",
        "true",
    ),
    Fault("sealed cells are not counted", "sealed_merge", FEW, " + sealed.total(top, lane)", ""),
    Fault(
        "what nobody wrote is mixed in",
        "sealed_merge",
        SPARSE,
        "weights[i] != 0.0f && d < D",
        "d < D",
    ),
    Fault(
        "simdgroups take the same programs",
        "sealed_merge",
        FEW,
        "int first = part;",
        "int first = 0;",
    ),
    Fault(
        "a part of a rotation is left out", "sealed_merge", FEW, "part * rows + i", "part * rows"
    ),
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
    wanted, wanted_sums = case.attended()
    right = spread(out, wanted) < 2e-3 and np.allclose(sums, wanted_sums, atol=5e-3)
    assert not right


@pytest.mark.parametrize("size", [FEW, TALL, THREE, TABLE, MANY, SPARSE], ids=str)
def test_without_a_fault_it_is_right(size: Size) -> None:
    case = make_case(size)
    out, sums = attend(case)
    wanted, wanted_sums = case.attended()
    assert spread(out, wanted) < 2e-3
    np.testing.assert_allclose(sums, wanted_sums, atol=5e-3)
