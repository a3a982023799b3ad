"""LowerIntegerCastsOnCuda: every integer of the range becomes the float that it should."""

import numpy as np
import pytest
import tvm
from tvm import ir
from tvm.script import tirx as T

from tvmtile.passes import LowerIntegerCastsOnCuda

RANGES = {
    "uint8": (lambda x: x, "uint8", "float16"),
    "int8": (lambda x: x, "int8", "float16"),
    "nibbles": (lambda x: (T.Cast("int32", x) >> 4) & 15, "uint8", "float16"),
    "centred nibbles": (lambda x: ((T.Cast("int32", x) >> 4) & 15) - 8, "uint8", "float16"),
    "ten bits": (lambda x: x & 1023, "int32", "float16"),
    "int8 that wraps": (lambda x: T.Cast("int8", x), "uint16", "float16"),
    "uint8 that wraps": (lambda x: T.Cast("uint8", (x & 511) - 200), "int32", "float16"),
    "bfloat16 nibbles": (lambda x: (x & 15) - 8, "int32", "bfloat16"),
    "bfloat16 seven bits": (lambda x: x & 127, "int32", "bfloat16"),
}
TOO_LARGE = {
    "int32": (lambda x: x, "int32", "float16"),
    "eleven bits": (lambda x: x & 2047, "int32", "float16"),
    "bfloat16 of int8 that wraps": (lambda x: T.Cast("int8", x) + 1, "uint16", "bfloat16"),
    "bfloat16 of a byte": (lambda x: x, "uint8", "bfloat16"),
}


def converted(case, *, named=False):
    """A kernel that converts, and all its inputs."""
    function, source, target = case
    if named:

        @T.prim_func(private=True)
        def main(A: T.Buffer((4096,), source), B: T.Buffer((4096,), "float32")):
            for bx in T.thread_binding(
                4096, thread="blockIdx.x", annotations={"tvmtile.kernel": True}
            ):
                value = T.bind(function(A[bx]))
                B[bx] = T.Cast("float32", T.Cast(target, value))
    else:

        @T.prim_func(private=True)
        def main(A: T.Buffer((4096,), source), B: T.Buffer((4096,), "float32")):
            for bx in T.thread_binding(
                4096, thread="blockIdx.x", annotations={"tvmtile.kernel": True}
            ):
                B[bx] = T.Cast("float32", T.Cast(target, function(A[bx])))

    before = ir.IRModule({"main": main.with_attr("global_symbol", "main")})
    return before, LowerIntegerCastsOnCuda(before)


def on_cpu(mod, source):
    """What a kernel computes, with its blocks one after the other."""
    mod = ir.IRModule(
        {
            "main": tvm.script.from_source(
                mod["main"]
                .script()
                .replace("T.thread_binding(4096, ", "T.serial(4096, ")
                .replace('thread="blockIdx.x", annotations={"tvmtile.kernel": True}', "")
            ).with_attr("global_symbol", "main")
        }
    )
    a = np.arange(4096).astype(source)
    b = tvm.runtime.tensor(np.zeros(4096, "float32"))
    tvm.compile(mod, target="llvm")["main"](tvm.runtime.tensor(a), b)
    return b.numpy()


@pytest.mark.full(but=2)
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", RANGES)
def test_every_value_is_exact(name, named):
    before, after = converted(RANGES[name], named=named)
    assert "reinterpret" in after.script()
    source = RANGES[name][1]
    np.testing.assert_array_equal(on_cpu(after, source), on_cpu(before, source))


@pytest.mark.parametrize("name", TOO_LARGE)
def test_larger_ranges_are_left_alone(name):
    before, after = converted(TOO_LARGE[name])
    tvm.ir.assert_structural_equal(before, after)


def test_addresses_stay_as_they_are():
    import tvmtile.language as TL

    @TL.prim_func
    def main(table: TL.Tensor((4,), "int64"), B: TL.Tensor((4, 32), "float16")):
        with TL.Kernel(4, threads=32) as bx:
            row = TL.make_tensor(table[bx], (32,), "int32")
            for i in TL.Parallel(32):
                B[bx, i] = row[i]

    mod = ir.IRModule({"main": main})
    tvm.ir.assert_structural_equal(LowerIntegerCastsOnCuda(mod), mod)
