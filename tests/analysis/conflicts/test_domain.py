"""Facts about the threads and variables of a kernel."""

import pytest
from tvm import tirx

import tvmtile.language as T
from tvmtile._tvm import nodes_in
from tvmtile.analysis.conflicts.domain import UNBOUNDED, Domain
from tvmtile.ir.kernels import Launch
from tvmtile.ir.operands import integer_range


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_a_variable_has_no_values_that_its_dtype_has_not(dtype):
    @T.prim_func
    def main(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                A[i] = i

    domain = Domain(Launch(next(iter(nodes_in(main.body, tirx.For, order="pre")))), set())
    least, greatest = integer_range(dtype)
    quotient = domain.symbol("k", "quotient", dtype, -UNBOUNDED, 2 * UNBOUNDED)
    assert str(quotient.ty.dtype) == dtype
    assert domain.upper_bound(quotient) == min(greatest, UNBOUNDED - 1)
    assert domain.upper_bound(tirx.Cast("int64", 0) - tirx.Cast("int64", quotient)) == min(
        -least, UNBOUNDED
    )
