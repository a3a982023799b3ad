"""PlaceMemoryOnCpu: memory of TVM's pool is given back, whatever a loop does."""

import pytest
import torch
import tvm
from tvm import ir
from tvm.script import tirx

import tvmtile
import tvmtile.language as T
from tvmtile.passes import PlaceMemoryOnCpu


def test_what_a_loop_allocates_that_is_left_stands_in_front_of_it():
    @tirx.prim_func
    def before(A: tirx.Buffer((64,), "float32", align=4)):
        for _ in tirx.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(8):
                kept = tirx.alloc_buffer((64,), "float32")
                kept[0] = A[i]
                if A[i] > kept[1]:
                    tirx.break_loop()
                for j in range(8):
                    own = tirx.alloc_buffer((64,), "float32")
                    own[j] = A[j]

    @tirx.prim_func
    def after(A: tirx.Buffer((64,), "float32", align=4)):
        for _ in tirx.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            kept = tirx.alloc_buffer((64,), "float32")
            own = tirx.alloc_buffer((64,), "float32")
            for i in range(8):
                kept[0] = A[i]
                if A[i] > kept[1]:
                    tirx.break_loop()
                for j in range(8):
                    own[j] = A[j]

    module, wanted = (
        ir.IRModule({"main": func.with_attr("global_symbol", "main")}) for func in (before, after)
    )
    tvm.ir.assert_structural_equal(PlaceMemoryOnCpu(module), wanted)


def test_loops_of_blocks_and_loops_that_end_keep_what_they_allocate():
    @tirx.prim_func
    def main(A: tirx.Buffer((64,), "float32", align=4)):
        while A[0] > tirx.float32(0):
            for _ in tirx.thread_binding(
                1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}
            ):
                for i in range(8):
                    kept = tirx.alloc_buffer((64,), "float32")
                    kept[0] = A[i]

    module = ir.IRModule({"main": main})
    tvm.ir.assert_structural_equal(PlaceMemoryOnCpu(module), module)


@tvmtile.jit(target="llvm")
def repeated(loop):
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float16"), C: T.Tensor((4, 32, 32), "float32")):
        with T.Kernel(4, threads=64) as bx:
            a = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            if loop == "while":
                n = T.alloc_var("int32", init=0)
                while n < bx:
                    T.copy(A, a)
                    T.gemm(a, a, c)  # packs an operand
                    n = n + 1
            else:
                for n in T.serial(4):
                    if n >= bx:
                        break
                    T.copy(A, a)
                    T.gemm(a, a, c)
                    if n + 1 >= bx:
                        break
            T.copy(c, C[bx, 0, 0])

    return main


@pytest.mark.parametrize("loop", ["while", "for"])
def test_products_in_loops_that_are_left(loop):
    a, c = torch.randn(32, 32).half(), torch.zeros(4, 32, 32)
    repeated(loop)(a, c)
    product = a.float() @ a.float()
    expected = torch.stack([product * n for n in range(4)])
    torch.testing.assert_close(c, expected, atol=1e-3, rtol=1e-3)
