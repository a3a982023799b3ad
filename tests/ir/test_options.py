"""Options of a kernel are an annotation that prints and parses back; other names are refused."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx

import tvmtile.language as T
from tvmtile._tvm import nodes_in
from tvmtile.errors import InvalidValue
from tvmtile.ir.kernels import is_kernel
from tvmtile.ir.options import KernelOptions, options_of, with_options


@T.prim_func
def asking(A: T.Tensor((8, 4), "float32")):
    with T.Kernel(4, 8, threads=32) as (bx, by):
        T.use_swizzle(4, "strip")
        T.annotate_persistent(False)
        T.annotate_min_blocks_per_sm(2)
        T.no_set_max_nreg()
        T.import_source('static const char* name = "a\\n";')
        T.import_source("int two() { return 2; }")
        A[by, bx] = 0


def kernel_of(func):
    return next(loop for loop in nodes_in(func.body, tirx.For) if is_kernel(loop))


def test_options_are_what_the_kernel_asks_for_also_when_it_is_parsed_back():
    parsed = tvm.script.from_source(asking.script(show_meta=True))
    tvm.ir.assert_structural_equal(parsed, asking)
    expected = KernelOptions(
        panel_size=4,
        panel_order="strip",
        persistent=False,
        blocks_per_multiprocessor=2,
        fixed_registers=True,
        source='static const char* name = "a\\n";\nint two() { return 2; }',
    )
    assert options_of(kernel_of(asking)) == options_of(kernel_of(parsed)) == expected


def test_options_with_other_names_are_refused():
    with pytest.raises(InvalidValue, match="a kernel has no option 'persist'") as caught:
        options_of(with_options(kernel_of(asking), {"persist": True}))
    assert "panel_order, panel_size, persistent" in caught.value.help
