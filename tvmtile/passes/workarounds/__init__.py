"""Passes that keep a meaning which TVM, LLVM or ptxas would change, or fail on.

Each writes a construct in a form that one of them does not recognise, or prints right. `WORKAROUNDS`
says what is kept from whom, and why: a row goes, with its pass, when the reason does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmtile.passes.workarounds.declare_as_accessed import DeclareAsAccessed
from tvmtile.passes.workarounds.hide_remainders import HideRemaindersOnCpu
from tvmtile.passes.workarounds.hide_truncations import HideTruncationsOnCpu
from tvmtile.passes.workarounds.keep_comparisons import KeepComparisons, ShowComparisons
from tvmtile.passes.workarounds.keep_elements import KeepElements
from tvmtile.passes.workarounds.keep_names import KeepNames
from tvmtile.passes.workarounds.keep_negations import KeepNegations
from tvmtile.passes.workarounds.keep_remainders import KeepRemainders
from tvmtile.passes.workarounds.keep_truncations import KeepTruncations
from tvmtile.passes.workarounds.limit_shifts import LimitShifts
from tvmtile.passes.workarounds.narrow_sums import NarrowSums
from tvmtile.passes.workarounds.predicate_arrivals import PredicateArrivals
from tvmtile.passes.workarounds.short_circuit import ShortCircuitOnCpu
from tvmtile.passes.workarounds.store_names import StoreNamesOnCpu
from tvmtile.passes.workarounds.widen_truth_values import WidenTruthValuesOnCpu
from tvmtile.passes.workarounds.wrap_unsigned import WrapUnsignedOnCpu
from tvmtile.passes.workarounds.write_constants import WriteConstants


@dataclass(frozen=True)
class Workaround:
    """A pass, and what would go wrong without it."""

    step: Any
    """The pass."""
    construct: str
    """What it writes in another form."""
    kept_from: str
    """Who would change it, or fail."""
    reason: str
    """What would happen."""


WORKAROUNDS = (
    Workaround(
        KeepComparisons,
        "comparisons of floats, and differences in which an operand cancels",
        "TVM's simplifier",
        "it takes floats for ordered and sums for exact: `not a > b` becomes `a <= b`, `a - a` zero",
    ),
    Workaround(
        ShowComparisons,
        "comparisons that KeepComparisons hid",
        "readers of the source",
        "nothing simplifies any more: the conversion to an integer says nothing",
    ),
    Workaround(
        KeepRemainders,
        "indices that divide a loop variable with different offsets",
        "TVM's FlattenBuffer",
        "it pads the variable for one division and takes the padded one in the others",
    ),
    Workaround(
        KeepTruncations,
        "conversions between integers that may wrap around",
        "TVM's analyzer, and its constant folding",
        "it takes them not to, so that `x < 0` is false; and fails on a constant that does not fit",
    ),
    Workaround(
        LimitShifts,
        "shifts of 64 bits by more than 31",
        "TVM's NarrowDataType",
        "it computes in 32 bits what fits them, and does not look at the amount",
    ),
    Workaround(
        KeepNames,
        "names of costly values",
        "TVM's simplifier and analyzer",
        "it puts a copy of the value at every use, and fails where it knows more of a copy's name",
    ),
    Workaround(
        WidenTruthValuesOnCpu,
        "comparisons of booleans",
        "TVM's generator for LLVM",
        "it takes what is neither a signed nor an unsigned integer for a float",
    ),
    Workaround(
        ShortCircuitOnCpu,
        "`and` and `or` whose right side loads",
        "TVM's generator for LLVM",
        "it computes both sides, and the right one may lie outside of a tensor",
    ),
    Workaround(
        WrapUnsignedOnCpu,
        "arithmetic of unsigned integers",
        "TVM's generator for LLVM",
        "it tells LLVM that there is no overflow",
    ),
    Workaround(
        HideRemaindersOnCpu,
        "dividends of remainders in indices",
        "LLVM's vectoriser",
        "it forgets that `j * 3 % 32` wraps around, and loads elements behind the row",
    ),
    Workaround(
        HideTruncationsOnCpu,
        "stores of narrow integers",
        "LLVM 22 for AVX-512",
        "it makes of a truncation and a masked store a store of the wider element",
    ),
    Workaround(
        StoreNamesOnCpu,
        "names of expressions within one another",
        "TVM's generator for LLVM",
        "its analyzer puts the value in every place of a name: their number grows exponentially",
    ),
    Workaround(
        NarrowSums,
        "sums in 64-bit indices",
        "TVM's simplifier",
        "it converts what is summed to 64 bits, where the sum fits 32",
    ),
    Workaround(
        KeepNegations,
        "negations of signed integers beside minima and maxima",
        "ptxas of CUDA 12.8 to 13.3",
        "it makes one instruction of both that leaves the sign out",
    ),
    Workaround(
        PredicateArrivals,
        "arrivals at mbarriers under a condition on the iteration",
        "ptxas",
        "products of wgmma wait for each other beside such a branch (C7514)",
    ),
    Workaround(
        WriteConstants,
        "constants, and operations on narrow dtypes",
        "TVM's generators for CUDA and Metal, and ptxas",
        "they print other values, or what does not compile, and it merges conversions wrongly",
    ),
    Workaround(
        DeclareAsAccessed,
        "memory that is accessed in another dtype only",
        "TVM's generator for Metal",
        "it declares as many elements of that dtype as there were: too much memory, or too little",
    ),
    Workaround(
        KeepElements,
        "strides of elements in arrays that are written as vectors",
        "TVM's generator for Metal",
        "it declares an array of vectors, and gives up where an element is read",
    ),
)
"""In the order of the pipelines."""
