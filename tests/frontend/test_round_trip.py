"""`.script()` of a program is read back, by TVM's parser, as the same program."""

from __future__ import annotations

import pytest
import tvm

import tvmtile.language as T

M, N, K = 100, 70, 48


@T.prim_func
def gemm(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=(64, 2)) as (bx, by):
        a, b = T.alloc_shared((32, 16), "float16"), T.alloc_shared((32, 16), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.use_swizzle(10, order="column")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=3):
            T.copy(A[by * 32, k * 16], a)
            T.copy(B[bx * 32, k * 16], b, annotations={"direct": True})
            T.gemm(a, b, c, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        T.copy(c, C[by * 32, bx * 32])


@T.prim_func
def schedule_by_hand(A: T.Tensor((K, 8), "float32"), B: T.Tensor((K, 8), "float32")):
    with T.Kernel(1):
        tile = T.alloc_shared((8,), "float32")
        for k in T.Pipelined(K, num_stages=2, order=[0, 1], stage=[0, 1]):
            T.copy(A[k, :], tile)
            T.copy(tile, B[k, :])


@T.prim_func
def regions(A: T.Tensor((M, N), "float32"), B: T.Tensor((4, M, N), "float16"), row: T.int32):
    with T.Kernel(1):
        tile = T.alloc_fragment((1, 8, N), "float32")
        T.copy(A[row : row + 8, :], tile)
        T.copy(tile, B[2, row, 0])
        T.fill(tile[0, 2:4, :], 1.5)
        T.fill(tile[0, row % 8, 0:3], A[0, row])
        T.copy(A[row:row, 0:N] if False else A[row, 0:N], B[3, 0, 0:N])


@T.prim_func
def reductions(A: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 16)) as block:
        tile, total = T.alloc_fragment((16, N), "float32"), T.alloc_fragment((16,), "float32")
        T.copy(A[block * 16, 0], tile)
        T.reduce_max(tile, total, dim=1, nan_propagate=True)
        T.reduce_sum(tile, total, dim=1, clear=False)
        T.reduce_absmax(tile, total, dim=-1)
        T.cumsum(tile, dim=1, reverse=True)
        T.copy(total, B[block * 16])


@T.prim_func
def atomics(A: T.Tensor((M,), "float32"), B: T.Tensor((8,), "float32"), C: T.Tensor((8,), "int32")):
    with T.Kernel(T.ceildiv(M, 8)) as block:
        tile = T.alloc_fragment((8,), "float32")
        T.copy(A[block * 8], tile)
        T.atomic_add(B, tile)
        for i in T.Parallel(8):
            T.atomic_max(C[i], block, memory_order="relaxed")
            before = T.atomic_add(C[i], 1, return_prev=True)
            B[i] = before


@T.prim_func
def control(X: T.Tensor((M,), "int32"), n: T.int32, flag: T.bool, scale: T.float32):
    assert n > 0, "n is positive"
    with T.Kernel(T.max(n, 1), threads=32) as block:
        count = T.alloc_var("int32", init=n)
        for i in T.serial(2, n, annotations={"note": "text"}):
            if i % 3 == 0 and flag:
                continue
            elif X[i] < 0 or not flag:
                break
            else:
                count += i
        while count > 10:
            count = count // 2
        for j in T.unroll(4):
            X[j] = T.if_then_else(j < 2, count, block)
        for v in T.vectorized(8):
            X[v] = T.cast(T.cast(X[v], "float32") * scale, "int32")
        for a, b in T.grid(2, 3):
            X[a * 3 + b] = a
        for s in range(10, 0, -3):
            X[s] = s


@T.prim_func
def values(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "int64"), H: T.Tensor((8,), "bfloat16")):
    with T.Kernel(1):
        for i in T.Parallel(8, annotations={"hint": 4}):
            x = A[i]
            y: T.float64 = x
            A[i] = (
                T.exp(x) + T.sigmoid(x) * T.rsqrt(x) - T.infinity("float32") + T.cast(y, "float32")
            )
            B[i] = (B[i] << 2) ^ 0xFF00FF00FF & T.reinterpret(y, "int64")
            H[i] = T.clamp(T.max(H[i], T.bfloat16(0.5)), T.min_value("bfloat16"), 3)
        A[0:4] = A[4:8]


@T.prim_func
def memory(A: T.Tensor((64,), "uint8"), pointer: T.ptr, n: T.int32):
    B = T.make_tensor(pointer, (n, 4), "float32")
    C = T.alloc_global((n,), "int32")
    with T.Kernel(n) as block:
        words = T.view(A, (16,), "float32")
        shared = T.alloc_shared((4, 4), "float32", scope="shared")
        flat = T.reshape(shared, (16,))
        own = T.alloc_local((2,), "float16")
        T.annotate_layout({shared: lambda i, j: (j, i)})
        T.annotate_safe_value({A: 7})
        T.clear(flat)
        own[0] = words[block]
        C[block] = block
        B[block, 0] = own[0] + flat[1] + C[block]


@T.prim_func
def threads(A: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=32) as block:
        thread = T.get_thread_binding()
        tile = T.alloc_shared((32,), "float32")
        tile[thread] = A[block * 32 + thread]
        T.sync_threads()
        A[block * 32 + thread] = tile[31 - thread]


@T.prim_func
def dynamic(
    A: T.Tensor((T.dynamic("m"), 4), "float32"),
    B: T.StridedTensor((T.dynamic("p"), 4), (T.dynamic("stride"), 1), "float32"),
):
    with T.Kernel(A.shape[0]) as row:
        for j in T.Parallel(4):
            B[row, j] = A[row, j]


@T.prim_func
def walk(A: T.Tensor((8, 8), "int32")):
    with T.Kernel(4) as block:
        for i, j in T.Persistent([8, 8], 4, block):
            A[i, j] = block


@T.prim_func
def several(A: T.Tensor((8,), "int32")):
    with T.Kernel(8) as block:
        A[block] = block
    with T.Kernel(1) as _:
        T.print(A[0], msg="first")
        T.device_assert(A[0] >= 0, "negative")


@T.prim_func
def outputs(A: T.Tensor((8,), "int32")):
    B = T.empty((8,), "float32")
    with T.Kernel(1):
        for i in T.Parallel(8):
            B[i] = A[i]
    return B


@T.prim_func(private=True)
def private(A: T.Tensor((8,), "int32")):
    with T.Kernel(1):
        A[0] = T.any_of(A[0:4])


PROGRAMS = {
    name: value for name, value in globals().items() if isinstance(value, tvm.tirx.PrimFunc)
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_printed_program_reads_back_equal(name):
    program = PROGRAMS[name]
    again = tvm.script.from_source(program.script())
    tvm.ir.assert_structural_equal(again, program)
    assert again.script() == program.script()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_well_formed(name):
    tvm.tirx.analysis.verify_well_formed(PROGRAMS[name])
