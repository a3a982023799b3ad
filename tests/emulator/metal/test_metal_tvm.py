"""Metal source as stock TVM prints it, run as it stands."""

import numpy as np
import tvm
from tvm.script import tirx as T

from tvmtile.emulator.metal import compile_msl

RNG = np.random.default_rng(2)


def kernel_of(function):
    """The only kernel that TVM makes of a function."""
    module = compile_msl(
        tvm.tirx.build(function, target="metal").imports[0].inspect_source("metal")
    )
    (name,) = module.kernel_names
    return module.kernel(name)


def test_scalars_in_the_struct_that_tvm_makes():
    @T.prim_func
    def axpy(a: T.handle, b: T.handle, n: T.int32, alpha: T.float32):
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.thread_binding((n + 63) // 64, "blockIdx.x"):
            for j in T.thread_binding(64, "threadIdx.x"):
                if i * 64 + j < n:
                    B[i * 64 + j] = A[i * 64 + j] * alpha + T.exp(A[i * 64 + j])

    kernel = kernel_of(axpy)
    n, alpha = 150, 2.5
    values = {"n": n, "alpha": alpha}
    x, out = RNG.standard_normal(n).astype(np.float32), np.zeros(n, np.float32)
    scalars = [values[field.name] for field in kernel.signature.argument_struct]
    kernel(x, out, *scalars, grid=3, threads=64)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(out, wide * alpha + np.exp(wide), rtol=1e-5, atol=1e-6)


def test_vectors_of_half_through_threadgroup_memory():
    @T.prim_func
    def reverse(A: T.Buffer((64, 128), "float16"), B: T.Buffer((64, 128), "float32")):
        for i in T.thread_binding(64, "blockIdx.x"):
            for j in T.thread_binding(32, "threadIdx.x"):
                S = T.alloc_buffer((128,), "float16", scope="shared")
                for v in T.vectorized(4):
                    S[j * 4 + v] = A[i, j * 4 + v]
                T.evaluate(T.tvm_storage_sync("shared"))
                for v in T.vectorized(4):
                    B[i, j * 4 + v] = T.Cast("float32", T.max(S[(31 - j) * 4 + v], T.float16(0.5)))

    kernel = kernel_of(reverse)
    a, out = RNG.standard_normal((64, 128)).astype(np.float16), np.zeros((64, 128), np.float32)
    statistics = kernel(a, out, grid=64, threads=32)
    expected = np.maximum(a.reshape(64, 32, 4)[:, ::-1].reshape(64, 128), np.float16(0.5))
    np.testing.assert_array_equal(out, expected.astype(np.float32))
    assert statistics.threadgroup_barriers == 64


def test_simdgroup_matrices():
    @T.prim_func
    def multiply(
        A: T.Buffer((8, 16), "float16"),
        B: T.Buffer((16, 8), "float16"),
        C: T.Buffer((8, 8), "float32"),
    ):
        for i in T.thread_binding(1, "blockIdx.x"):
            for j in T.thread_binding(32, "threadIdx.x"):
                a = T.alloc_buffer((64,), "float16", scope="metal.simdgroup")
                b = T.alloc_buffer((64,), "float16", scope="metal.simdgroup")
                c = T.alloc_buffer((64,), "float32", scope="metal.simdgroup")
                zero = T.float32(0)
                T.evaluate(T.metal.make_filled_simdgroup_matrix(c.data, 0, zero, 8, 8))
                for k in range(2):
                    T.evaluate(
                        T.metal.simdgroup_load(
                            a.data, 0, T.address_of(A[0, k * 8]), 16, 8, 8, False
                        )
                    )
                    T.evaluate(
                        T.metal.simdgroup_load(b.data, 0, T.address_of(B[k * 8, 0]), 8, 8, 8, False)
                    )
                    T.evaluate(
                        T.metal.simdgroup_multiply_accumulate(
                            c.data, 0, a.data, 0, b.data, 0, c.data, 0
                        )
                    )
                T.evaluate(
                    T.metal.simdgroup_store(c.data, 0, T.address_of(C[0, 0]), 8, 8, 8, False)
                )

    a, b = RNG.standard_normal((2, 128)).astype(np.float16)
    a, b, c = a.reshape(8, 16), b.reshape(16, 8), np.zeros((8, 8), np.float32)
    statistics = kernel_of(multiply)(a, b, c, grid=1, threads=32)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-5)
    assert statistics.matrix_multiplies == 2
