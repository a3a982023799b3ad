"""`T.gemm` by Metal 4's `matmul2d`: which products it takes, and their numbers in the emulator."""

import itertools

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import MetalEmulationError
from tvmtile.tileop.gemm.matmul2d import COLUMN, ROW

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def compiled(program, target="metal4"):
    return tvmtile.compile(program, target=target, execution_backend="emulator")


def gemm(
    shape=(64, 64, 64),
    tile=(64, 64, 32),
    dtype="float16",
    accum="float32",
    threads=128,
    stages=0,
    transposed=(False, False),
    policy=T.GemmWarpPolicy.Square,
):
    M, N, K = shape
    BM, BN, BK = tile
    ta, tb = transposed

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if ta else (M, K), dtype),
        B: T.Tensor((N, K) if tb else (K, N), dtype),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            As = T.alloc_shared((BK, BM) if ta else (BM, BK), dtype)
            Bs = T.alloc_shared((BN, BK) if tb else (BK, BN), dtype)
            Cl = T.alloc_fragment((BM, BN), accum)
            T.clear(Cl)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
                if tb:
                    T.copy(B[bx * BN, k * BK], Bs)
                else:
                    T.copy(B[k * BK, bx * BN], Bs)
                if ta:
                    T.copy(A[k * BK, by * BM], As)
                else:
                    T.copy(A[by * BM, k * BK], As)
                T.gemm(As, Bs, Cl, transpose_A=ta, transpose_B=tb, policy=policy)
            T.copy(Cl, C[by * BM, bx * BN])

    return main


def check(program, shape, dtype="float16", transposed=(False, False)):
    """Run a product and compare it with torch's; returns the kernel."""
    M, N, K = shape
    generator = torch.Generator().manual_seed(M * N + K)
    a = torch.randn(M, K, generator=generator).to(DTYPES[dtype])
    b = torch.randn(K, N, generator=generator).to(DTYPES[dtype])
    c = torch.zeros(M, N)
    ta, tb = transposed
    kernel = compiled(program)
    kernel(a.T.contiguous() if ta else a, b.T.contiguous() if tb else b, c)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)
    return kernel


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("transposed", list(itertools.product([False, True], repeat=2)), ids=str)
def test_products_over_dtypes_and_transposes(dtype, transposed):
    program = gemm(dtype=dtype, transposed=transposed)
    kernel = check(program, (64, 64, 64), dtype, transposed)
    names = "".join("nt"[flag] for flag in transposed)
    assert f"tvmtile_matmul2d_{names}(" in kernel.get_kernel_source()
    assert kernel.adapter.statistics.tensor_multiplies == 64**3 // (16 * 32 * 16)
    assert kernel.adapter.statistics.matrix_multiplies == 0


@pytest.mark.parametrize("shape", [(64, 64, 64), (70, 72, 36)])
def test_operands_may_stay_in_device_memory(shape):
    M, N, K = shape

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), threads=128) as (bx, by):
            Cl = T.alloc_fragment((64, 32), "float32")
            T.clear(Cl)
            for k in T.serial(T.ceildiv(K, 16)):
                T.gemm(
                    A[by * 64 : by * 64 + 64, k * 16 : k * 16 + 16],
                    B[k * 16 : k * 16 + 16, bx * 32 : bx * 32 + 32],
                    Cl,
                )
            T.copy(Cl, C[by * 64, bx * 32])

    statistics = check(main, shape).adapter.statistics
    assert statistics.tensor_multiplies > 0
    assert statistics.threadgroup_memory == statistics.threadgroup_barriers == 0


def test_a_simdgroup_loads_what_it_needs_once_a_step():
    statistics = check(gemm((64, 64, 32), (64, 64, 32)), (64, 64, 32)).adapter.statistics
    # Four simdgroups with 32x32 each, two steps: 32x16 of A and 16x32 of B in float16.
    assert statistics.threadgroup_bytes_read == 4 * 2 * (32 * 16 + 16 * 32) * 2


def test_epilogues_and_reductions_stay_in_registers():
    @T.prim_func
    def main(
        A: T.Tensor((64, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        bias: T.Tensor((64,), "float32"),
        C: T.Tensor((64, 64), "float16"),
        largest: T.Tensor((64,), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            As, Bs = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            Cl, rows = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
            T.copy(A, As)
            T.copy(B, Bs)
            T.gemm(As, Bs, Cl, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(64, 64):
                Cl[i, j] = T.max(Cl[i, j] + bias[j], T.float32(0)) * T.float32(0.5)
            T.reduce_max(Cl, rows, dim=1)
            T.copy(Cl, C)
            T.copy(rows, largest)

    kernel = compiled(main)
    a, b, bias = torch.randn(64, 32).half(), torch.randn(32, 64).half(), torch.randn(64)
    c, largest = torch.zeros(64, 64).half(), torch.zeros(64)
    kernel(a, b, bias, c, largest)
    expected = (a.double() @ b.double() + bias).relu() * 0.5
    torch.testing.assert_close(c.double(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(largest.double(), expected.max(dim=1)[0], rtol=1e-4, atol=1e-4)
    # B, with rows of at most 16 bytes more: A is read once, by the simdgroup that needs it.
    assert kernel.adapter.statistics.threadgroup_memory <= 32 * (64 + 8) * 2


def test_a_product_is_a_factor_of_the_next_one():
    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        V: T.Tensor((64, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=64) as _:
            scores = T.alloc_fragment((32, 64), "float32")
            factor = T.alloc_fragment((32, 64), "float16")
            Cl = T.alloc_fragment((32, 32), "float32")
            by_rows = T.GemmWarpPolicy.FullRow
            T.gemm(A, B, scores, clear_accum=True, policy=by_rows)
            T.copy(scores, factor)
            T.gemm(factor, V, Cl, clear_accum=True, policy=by_rows)
            T.copy(Cl, C)

    a, b, v = torch.randn(32, 32).half(), torch.randn(32, 64).half(), torch.randn(64, 32).half()
    c = torch.zeros(32, 32)
    kernel = compiled(main)
    kernel(a, b, v, c)
    scores = (a.double() @ b.double()).half().double()
    torch.testing.assert_close(c.double(), scores @ v.double(), rtol=2e-3, atol=0.05)
    assert kernel.adapter.statistics.tensor_multiplies == 2 * 2 * 2 + 2 * 4
    assert kernel.adapter.statistics.threadgroup_memory == 0


# What it leaves to others --------------------------------------------------------------------------


def uses_matmul2d(program, target="metal4"):
    return "matmul2d" in compiled(program, target).get_kernel_source()


def test_the_target_decides():
    program = gemm()
    keys = ["metal4", "metal", "gpu"]
    assert uses_matmul2d(program, {"kind": "metal", "keys": keys})
    assert not uses_matmul2d(program, "metal")


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "float32"},
        {"dtype": "float16", "accum": "float16"},
        {"tile": (64, 64, 24)},
        {"tile": (24, 64, 32)},
        {"tile": (64, 16, 32), "threads": 32},
        {"tile": (16, 32, 16), "threads": 64},
    ],
    ids=str,
)
def test_what_does_not_fit_is_multiplied_by_simdgroup_matrices(other):
    program = gemm((48, 64, 48), **other)
    kernel = compiled(program)
    assert "matmul2d" not in kernel.get_kernel_source()
    dtype = DTYPES[other.get("dtype", "float16")]
    a, b, c = torch.randn(48, 48).to(dtype), torch.randn(48, 64).to(dtype), torch.zeros(48, 64)
    kernel(a, b, c)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-2, atol=5e-2)
    assert kernel.adapter.statistics.matrix_multiplies > 0


def test_one_product_that_does_not_fit_takes_the_others_of_its_function_along():
    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        C: T.Tensor((32, 64), "float32"),
    ):
        with T.Kernel(1, threads=32) as _:
            As, Bs = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 64), "float16")
            Cl = T.alloc_fragment((32, 64), "float32")
            T.copy(A, As)
            T.copy(B, Bs)
            T.clear(Cl)
            T.gemm(As, Bs, Cl)
            T.gemm(As[0:32, 0:8], Bs[0:8, 0:64], Cl)
            T.copy(Cl, C)

    a, b, c = torch.randn(32, 32).half(), torch.randn(32, 64).half(), torch.zeros(32, 64)
    kernel = compiled(main)
    kernel(a, b, c)
    expected = a.double() @ b.double() + a[:, :8].double() @ b[:8].double()
    torch.testing.assert_close(c.double(), expected, rtol=1e-4, atol=1e-4)
    assert kernel.adapter.statistics.tensor_multiplies == 0


# The lane map --------------------------------------------------------------------------------------


def test_every_element_of_a_block_is_in_one_register_of_one_lane():
    def index(digits, lane, register):
        value = 0
        for digit in digits:
            number = lane if digit.is_thread else register
            value = value * digit.extent + number // digit.stride % digit.extent
        return value

    places = {
        (lane, register): (index(ROW, lane, register), index(COLUMN, lane, register))
        for lane in range(32)
        for register in range(8)
    }
    assert set(places.values()) == set(itertools.product(range(16), repeat=2))
    # As MLX's BaseNAXFrag::get_coord(idx) has it.
    for (lane, register), place in places.items():
        quad = lane >> 2
        row = ((quad & 4) | ((lane >> 1) & 3)) + (register >> 2) * 8
        assert place == (row, ((quad & 2) | (lane & 1)) * 4 + register % 4)


def test_another_map_would_give_other_numbers(monkeypatch):
    """The emulator knows the map by itself, so that a mistake in the layouts shows."""
    import tvmtile.tileop.gemm.matmul2d as implementation

    monkeypatch.setattr(implementation, "ROW", COLUMN)
    monkeypatch.setattr(implementation, "COLUMN", ROW)
    with pytest.raises((AssertionError, MetalEmulationError)):
        check(gemm(), (64, 64, 64))
