"""T.copy of sums to a tensor through shared memory, from which a thread stores boxes."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close, random
from tvmtile.errors import CudaEmulationError, NoLowering
from tvmtile.target import capabilities

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
SEEDS = range(2)


def product(M, N, K, *, block=(64, 64, 32), threads=128, out="float16", roles=False, impl=None):
    bM, bN, bK = block

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), out)
    ):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=threads) as (bx, by):
            T.annotate_warp_specialize(roles)
            a = T.alloc_shared((bM, bK), "float16")
            b = T.alloc_shared((bK, bN), "float16")
            c = T.alloc_fragment((bM, bN), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=2):
                T.copy(A[by * bM, k * bK], a)
                T.copy(B[k * bK, bx * bN], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * bM, bx * bN], impl=impl)

    return main


def compiled(program):
    return tvmtile.compile(program, target=HOPPER, execution_backend="emulator")


def way(kernel):
    """How the last copy is done, and why not otherwise."""
    choice = [c for c in kernel.choices if c.operator == "copy"][-1]
    return choice.chosen, dict(choice.declined)


def check(program, tensors, expected):
    kernel = compiled(program)
    assert way(kernel)[0] == "tma_store"
    for seed in SEEDS:
        kernel.adapter.seed = seed
        tensors[-1].fill_(float("nan"))
        kernel(*tensors)
        assert_close(tensors[-1], expected)


def operands(M, N, K, out="float16"):
    a, b = random(M, K, dtype="float16"), random(K, N, dtype="float16")
    return (a, b, torch.empty(M, N, dtype=getattr(torch, out))), a.double() @ b.double()


@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize(
    ("block", "threads"),
    [
        ((64, 64, 32), 128),
        ((128, 128, 32), 256),
        ((128, 256, 32), 256),
        ((256, 64, 32), 256),
        ((192, 64, 32), 384),
    ],
)
def test_how_warpgroups_share_the_sums(block, threads, roles, out):
    M, N = 2 * block[0], 2 * block[1]
    tensors, expected = operands(M, N, 64, out=out)
    check(product(M, N, 64, block=block, threads=threads, roles=roles, out=out), tensors, expected)


@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.parametrize("columns", [8, 16, 24, 40, 96, 192])
def test_widths(columns, out):
    """Pieces are as wide as a swizzle may be, down to rows of 16 bytes."""
    tensors, expected = operands(64, columns, 32, out=out)
    check(product(64, columns, 32, block=(64, columns, 32), out=out), tensors, expected)


@pytest.mark.parametrize("shape", [(100, 72, 40), (1, 8, 32), (129, 200, 32)])
@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
def test_ragged_edges(shape, out):
    tensors, expected = operands(*shape, out=out)
    check(product(*shape, out=out), tensors, expected)


@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 288), (64, 272), (128, 24), (192, 8)])
def test_matrices_of_one_instruction_are_of_one_piece(rows, columns, out):
    """Neighbours in registers, of which `stmatrix` takes four, may be far apart in the tile."""

    @T.prim_func
    def program(
        A: T.Tensor((rows, 32), "float16"),
        B: T.Tensor((columns, 32), "float16"),
        C: T.Tensor((rows, columns), out),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((rows, 32), "float16"), T.alloc_shared((columns, 32), "float16")
            c = T.alloc_fragment((rows, columns), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C)

    a, b = random(rows, 32, dtype="float16"), random(columns, 32, dtype="float16")
    result = torch.empty(rows, columns, dtype=getattr(torch, out))
    check(program, (a, b, result), a.double() @ b.double().T)


def test_sums_of_integers():
    @T.prim_func
    def program(
        A: T.Tensor((128, 64), "int8"),
        B: T.Tensor((96, 64), "int8"),
        C: T.Tensor((128, 96), "int32"),
    ):
        with T.Kernel(2, threads=128) as by:
            a, b = T.alloc_shared((64, 64), "int8"), T.alloc_shared((96, 64), "int8")
            c = T.alloc_fragment((64, 96), "int32")
            T.copy(A[by * 64, 0], a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C[by * 64, 0])

    a, b = (torch.randint(-128, 128, (rows, 64), dtype=torch.int8) for rows in (128, 96))
    tensors = (a, b, torch.empty(128, 96, dtype=torch.int32))
    kernel = compiled(program)
    assert way(kernel)[0] == "tma_store"
    kernel(*tensors)
    assert torch.equal(tensors[-1], a.int() @ b.int().T)


def test_axes_between_rows_and_columns():
    @T.prim_func
    def program(A: T.Tensor((128, 32), "float16"), C: T.Tensor((128, 3, 64), "float16")):
        with T.Kernel(2, 3, threads=128) as (by, head):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A[by * 64, 0], a)
            T.copy(A[0, 0], b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C[by * 64 : by * 64 + 64, head, :])

    a = random(128, 32, dtype="float16")
    expected = (a.double() @ a[:64].double().T)[:, None].expand(128, 3, 64)
    check(program, (a, torch.empty(128, 3, 64, dtype=torch.float16)), expected)


def test_the_last_of_several_values_stays():
    """Copies in a loop to one place are done in order, though no thread waits for the last one."""

    @T.prim_func
    def program(
        A: T.Tensor((3, 64, 32), "float16"),
        B: T.Tensor((128, 32), "float16"),
        C: T.Tensor((64, 128), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((128, 32), "float16")
            c = T.alloc_fragment((64, 128), "float32")
            T.copy(B, b)
            for i in T.serial(3):
                T.copy(A[i, 0, 0], a)
                T.gemm(a, b, c, transpose_B=True, clear_accum=True)
                T.copy(c, C)

    a, b = random(3, 64, 32, dtype="float16"), random(128, 32, dtype="float16")
    expected = a[2].double() @ b.double().T
    check(program, (a, b, torch.empty(64, 128, dtype=torch.float16)), expected)


@pytest.mark.parametrize("step", [0, 64, 128])
def test_places_that_a_loop_moves(step):
    """One warpgroup stores what another one has stored in the iteration before, or its own again."""

    @T.prim_func
    def program(
        A: T.Tensor((128, 32), "float16"),
        B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((128 + 2 * step, 64), "float16"),
    ):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((128, 32), "float16"), T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            for n in T.serial(3):
                for i, j in T.Parallel(128, 64):
                    c[i, j] += 1
                T.copy(c, C[n * step, 0])

    a, b = random(128, 32, dtype="float16"), random(64, 32, dtype="float16")
    result = torch.empty(128 + 2 * step, 64, dtype=torch.float16)
    expected = torch.empty(result.shape, dtype=torch.float64)
    for n in range(3):
        expected[n * step : n * step + 128] = a.double() @ b.double().T + n + 1
    check(program, (a, b, result), expected)


def parts(M, N, K, *, count=2, threads=256, persist=None, first=lambda number, rows: number * rows):
    """A product whose tile is `count` fragments of as many rows, each copied by itself."""
    rows = 128 * threads // 256
    block = rows * count

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, block), threads=threads) as (bx, by):
            if persist is not None:
                T.annotate_persistent(persist)
            a, b = T.alloc_shared((block, 32), "float16"), T.alloc_shared((32, 128), "float16")
            sums = [T.alloc_fragment((rows, 128), "float32") for _ in range(count)]
            for total in sums:
                T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * block, k * 32], a)
                T.copy(B[k * 32, bx * 128], b)
                for number, total in enumerate(sums):
                    T.gemm(a[number * rows : (number + 1) * rows, :], b, total)
            for number, total in enumerate(sums):
                T.copy(total, C[by * block + first(number, rows), bx * 128])

    return main


@pytest.mark.parametrize("columns", [296, 88])
@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize(("count", "persist"), [(2, None), (2, True), (3, True)])
def test_parts_of_a_tile(count, persist, threads, columns, monkeypatch):
    """They go through the same slots, one after the other, and so do those of the next tile."""
    monkeypatch.setitem(capabilities._MULTIPROCESSORS, 90, 3)
    shape = (200 * count * threads // 128, columns, 64)
    tensors, expected = operands(*shape)
    program = parts(*shape, count=count, threads=threads, persist=persist)
    check(program, tensors, expected)
    kernel = compiled(program)
    copies = [c.chosen for c in kernel.choices if c.operator == "copy"]
    assert set(copies) == {"tma_store"}
    assert len(set(re.findall(r"\bC_staged\w*", kernel.get_kernel_source()))) == 1


# What it takes -----------------------------------------------------------------------------------


def reason(program):
    chosen, declined = way(tvmtile.compile(program, target=HOPPER))
    assert chosen == "elements"
    return declined["tma_store"]


def test_elements_of_other_widths():
    program = product(64, 64, 64, out="float8_e4m3fn")
    assert "has no elements of 16 or 32 bits" in reason(program)


def test_rows_that_begin_anywhere():
    assert "may not begin at multiples of 16 bytes" in reason(product(64, 60, 64))


def test_a_tensor_that_is_used_elsewhere():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.gemm(a, a, c, clear_accum=True)
            T.copy(c, C)
            for i in T.Parallel(64):
                C[i, i] = T.float16(0)

    assert "the kernel uses C[64, 64] float16 elsewhere too" in reason(program)


def test_a_view_of_a_tensor_that_is_used_elsewhere():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64 * 64,), "float16")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.gemm(a, a, c, clear_accum=True)
            matrix = T.reshape(C, (64, 64))
            T.copy(c, matrix)
            for i in T.Parallel(64):
                C[i] = T.float16(0)

    assert "the kernel uses matrix[64, 64] float16 elsewhere too" in reason(program)


def test_parts_that_overlap():
    program = parts(256, 128, 64, first=lambda number, rows: number * (rows - 1))
    assert "may store other values in the same part of C[256, 128] float16" in reason(program)


def test_parts_that_a_loop_moves():
    """A part may be what another one was in the iteration before."""

    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((256, 64), "float16")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            for n in T.serial(3):
                T.gemm(a, a, c, clear_accum=True)
                T.copy(c, C[n * 64, 0])
                T.copy(c, C[n * 64 + 64, 0])

    assert "may store other values in the same part of C[256, 64] float16" in reason(program)


@pytest.mark.parametrize("options", [{"disable_tma": True}, {"annotations": {"disable_tma": True}}])
def test_copies_that_are_told_not_to(options):
    @T.prim_func
    def program(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for _k in T.Pipelined(4, num_stages=2):
                T.copy(A, a)
                T.copy(B, b, **options)
                T.gemm(a, b, c)
            T.copy(c, C, **options)

    assert "it is not to use the tensor memory accelerator" in reason(program)
    kernel = tvmtile.compile(program, target=HOPPER)
    (loop,) = (choice for choice in kernel.choices if choice.operator == "Pipelined")
    assert loop.declined == (("two roles", "copy can't go on by itself"),)
    assert "cp_async_bulk_tensor" not in kernel.get_kernel_source()


@pytest.mark.parametrize("value", [True, False])
def test_an_option_keeps_all_copies_of_a_kernel_from_tensor_maps(value):
    options = {"tl.disable_tma_lower": value}
    kernel = tvmtile.compile(product(128, 64, 64), target=HOPPER, pass_configs=options)
    assert (way(kernel)[0] != "tma_store") == value
    assert ("cp_async_bulk_tensor" not in kernel.get_kernel_source()) == value


def test_shared_memory_that_is_not_left():
    program = product(64, 256, 352, block=(64, 256, 176))
    assert "bytes of shared memory are not left" in reason(program)


def test_a_copy_before_that_needs_less_than_its_piece():
    """Three blocks would fit then, and no slot beside them."""
    M, N, K = 128, 16, 224

    @T.prim_func
    def program(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((2, K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
        D: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((M, K), "float16")
            b = T.alloc_shared((K, N), "float16")
            d = T.alloc_shared((K, N), "float16")
            c = T.alloc_fragment((M, N), "float32")
            e = T.alloc_fragment((M, N), "float32")
            T.copy(A, a)
            T.copy(B[0, :, :], b)
            T.copy(B[1, :, :], d)
            T.gemm(a, b, c, clear_accum=True)
            T.gemm(a, d, e, clear_accum=True)
            T.copy(c, C)
            T.copy(e, D)

    a, b = random(M, K, dtype="float16"), random(2, K, N, dtype="float16")
    c, d = torch.zeros(2, M, N, dtype=torch.float16)
    kernel = compiled(program)
    assert [choice.chosen for choice in kernel.choices].count("tma_store") == 2
    kernel(a, b, c, d)
    assert_close(c, a.double() @ b[0].double())
    assert_close(d, a.double() @ b[1].double())


def test_fragments_of_other_layouts():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            c = T.alloc_fragment((64, 64), "float16")
            T.copy(A, c)
            T.copy(c, C)

    assert "do not lie as matrix instructions hold sums" in reason(program)


def test_a_target_without_the_instructions():
    program = product(64, 64, 64, impl="tma_store")
    with pytest.raises(NoLowering, match="CUDA sm_80 has no wgmma, whose sums are copied so"):
        tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_80"})


# The code ----------------------------------------------------------------------------------------

_ORDERING = re.compile(
    r"__(syncthreads)\(\);|"
    r"tvm_builtin_ptx_(bar_sync_count_sync|fence_proxy_\w+|cp_async_bulk_wait_group\w+)\([^;]*\);"
)


def test_pieces_take_turns_in_two_slots():
    source = compiled(product(64, 256, 64, block=(64, 256, 32), roles=True)).get_kernel_source()
    stored = source[source.rindex("wgmma_wait_group") :]
    assert len(re.findall(r"\w+_bulk_tensor_2d_global\w+\(", stored)) == 4
    assert len(re.findall(r"stmatrix_sync_aligned_m8n8_x4\w+\(", stored)) == 4 * 4
    waits = [m[2] for m in _ORDERING.finditer(stored) if "wait_group" in (m[2] or "")]
    assert [wait.rpartition("wait_group")[2] for wait in waits] == [
        "_read_0", "_0", "_read_1", "_read_1", "_read_0",
    ]  # fmt: skip


def test_pairs_of_wide_elements_are_stored_at_once():
    source = compiled(product(64, 64, 64, out="float32")).get_kernel_source()
    stored = source[source.rindex("wgmma_wait_group") :]
    assert "stmatrix" not in stored
    assert len(re.findall(r"\*\(float2\*\)\(C_staged\w* \+ .* = ", stored)) == 64 * 64 // 128 // 2


@pytest.mark.parametrize(("out", "number"), [("float16", 16), ("float32", 32)])
def test_every_barrier_fence_and_wait_is_missed(out, number):
    """Where a block copies several tiles; the wait for their arrival includes that for the slots."""
    kernel = compiled(tiles_in_a_loop(out))
    ((symbol, source),) = kernel.adapter.sources.items()
    start = source.rindex("wgmma_wait_group")
    found = [m.span() for m in _ORDERING.finditer(source) if m.start() > start]
    assert len(found) == number
    first, arrived, *rest = found
    a, b = random(3, 64, 32, dtype="float16"), random(256, 32, dtype="float16")
    tensors = (a, b, torch.empty(3, 64, 256, dtype=getattr(torch, out)))
    for begin, end in [(first[0], arrived[1]), *rest]:
        kernel.adapter.sources[symbol] = source[:begin] + source[end:]
        with pytest.raises(CudaEmulationError):
            run(kernel, tensors)


def run(kernel, tensors):
    """Run a kernel with copies that arrive at several times."""
    for seed in SEEDS:
        kernel.adapter.seed = seed
        kernel(*tensors)


def tiles_in_a_loop(out):
    @T.prim_func
    def program(
        A: T.Tensor((3, 64, 32), "float16"),
        B: T.Tensor((256, 32), "float16"),
        C: T.Tensor((3, 64, 256), out),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((256, 32), "float16")
            c = T.alloc_fragment((64, 256), "float32")
            T.copy(B, b)
            for i in T.serial(3):
                T.copy(A[i, 0, 0], a)
                T.gemm(a, b, c, transpose_B=True, clear_accum=True)
                T.copy(c, C[i, 0, 0])

    return program
