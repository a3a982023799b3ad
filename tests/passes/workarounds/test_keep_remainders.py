"""KeepRemainders: elements whose indices divide one variable with different offsets."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import tvm
from tvm import ir
from tvm.script import tirx as S

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.passes import KeepRemainders


@pytest.mark.full(but=2)
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_remainders_of_a_variable_and_of_one_beside_it(target):
    @T.prim_func
    def program(A: T.Tensor((16, 16), "int32"), B: T.Tensor((4, 64), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((16, 16), "int32")
            T.copy(A, tile)
            for i in T.Parallel(64):
                B[0, i] = tile[i % 16, (i + 2) % 16]
                B[1, i] = tile[i // 4, (i + 2) // 8]
                B[2, i] = tile[(i % 4 + 1) % 4, i % 4]
                B[3, i] = A[i % 16, (i + n) % 16]

    if target == "cuda":
        source = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_80"})
        assert "& 15) * 17" not in source.get_kernel_source()
        return
    kernel = runnable(program, target)
    a, i = np.arange(256, dtype="int32").reshape(16, 16), np.arange(64)
    b = torch.zeros((4, 64), dtype=torch.int32)
    kernel(torch.from_numpy(a), b, 5)
    rows, columns = [i % 16, i // 4, (i % 4 + 1) % 4, i % 16], [(i + 2) % 16, (i + 2) // 8, i % 4]
    columns.append((i + 5) % 16)
    np.testing.assert_array_equal(b.numpy(), a[rows, columns])


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_a_variable_that_is_counted_down_is_divided(target):
    @T.prim_func
    def program(
        A: T.Tensor((6,), "int32"), B: T.Tensor((6, 160), "int32"), C: T.Tensor((64,), "int32")
    ):
        with T.Kernel(1, threads=32):
            own = T.alloc_local((6,), "int32")
            for i in T.serial(6):
                own[i] = A[i]
            for i in T.serial(160):
                B[0, i] = own[(159 - i) // 32]
                B[1, i] = A[(158 - i) % 5]
                B[2, i] = A[(159 - i) * 2 // 64]
                B[3, i] = A[(i * -2 + 318) // 64]
                if i < 64:
                    C[i] = (
                        A[(7 - i // 4 % 8) // 2] * 100
                        + A[(31 - i % 32) % 6] * 10
                        + A[((i - 63) * -2) // 32]
                    )
                B[(163 - i) // 160 + 4, (159 - i) % 160] = i
            for i in T.Parallel(160):
                B[3, i] = B[3, i] * 10 + A[(159 - i) // 32]

    compiled = {"target": target}
    if target != "llvm":
        compiled["execution_backend"] = "emulator"
    if target == "cuda":
        compiled["target"] = {"kind": "cuda", "arch": "sm_80"}
    a, i = np.arange(3, 9, dtype="int32"), np.arange(160)
    b = torch.zeros((6, 160), dtype=torch.int32)
    c = torch.zeros(64, dtype=torch.int32)
    tvmtile.compile(program, **compiled)(torch.from_numpy(a), b, c)
    j = np.arange(64)
    digits = [a[(7 - j // 4 % 8) // 2], a[(31 - j % 32) % 6], a[(126 - 2 * j) // 32]]
    np.testing.assert_array_equal(c.numpy(), digits[0] * 100 + digits[1] * 10 + digits[2])
    expected = np.zeros((6, 160), "int32")
    expected[0], expected[1] = a[(159 - i) // 32], a[(158 - i) % 5]
    expected[2] = a[(159 - i) * 2 // 64]
    expected[3] = a[(318 - 2 * i) // 64] * 10 + a[(159 - i) // 32]
    expected[(163 - i) // 160 + 4, 159 - i] = i
    np.testing.assert_array_equal(b.numpy(), expected)


@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_names_of_what_is_divided(target):
    """Names are written out before elements are numbered."""

    @T.prim_func
    def program(A: T.Tensor((16, 16), "int32"), B: T.Tensor((4, 64), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.serial(64):
                down = 63 - i
                row = down // 4
                beside = i + 2
                B[0, i] = A[0, down // 4]
                B[1, i] = A[row, 1]
                B[2, i] = A[i % 16, beside % 16]
                B[3, i] = A[row, down % 4]

    a, i = np.arange(256, dtype="int32").reshape(16, 16), np.arange(64)
    b = torch.zeros((4, 64), dtype=torch.int32)
    runnable(program, target)(torch.from_numpy(a), b)
    down = (63 - i) // 4
    expected = [a[0, down], a[down, 1], a[i % 16, (i + 2) % 16], a[down, (63 - i) % 4]]
    np.testing.assert_array_equal(b.numpy(), np.stack(expected))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_indices_that_tvm_takes_for_constants_hide_nothing(target):
    """The index that is hidden is one that a loop changes, and by an expression that TVM sees."""

    @T.prim_func
    def program(A: T.Tensor((4, 16), "int32"), B: T.Tensor((7, 16), "int32"), n: T.int32):
        with T.Kernel(1, threads=32) as bx:
            tile = T.alloc_shared((4, 16), "int32")
            T.copy(A, tile)
            for k in T.serial(1):
                for i in T.serial(16):
                    narrow = T.cast(T.cast(i, "int8"), "int32")
                    parity = narrow % 2
                    down = (15 - i) // 4
                    B[0, i] = A[k % 2, 15 - (13 - i) % 16]
                    B[1, i] = A[n % 4, (15 - i) // 4]
                    B[2, i] = A[n ^ 1, (15 - i) // 4]
                    B[3, i] = A[narrow % 2, (15 - i) // 4]
                    B[4, i] = A[parity, down]
                    B[5, i] = A[bx % 2, (15 - i) // 4]
            for i in T.Parallel(16):
                B[6, i] = tile[n % 4, (15 - i) // 4] + tile[bx ^ 1, (13 - i) % 16]

    compiled = {"target": target}
    if target != "llvm":
        compiled["execution_backend"] = "emulator"
    if target == "cuda":
        compiled["target"] = {"kind": "cuda", "arch": "sm_80"}
    a, i = np.arange(64, dtype="int32").reshape(4, 16), np.arange(16)
    b = torch.zeros((7, 16), dtype=torch.int32)
    tvmtile.compile(program, **compiled)(torch.from_numpy(a), b, 3)
    down, turned = (15 - i) // 4, (13 - i) % 16
    expected = [a[0, 15 - turned], a[3, down], a[2, down], a[i % 2, down], a[i % 2, down]]
    expected += [a[0, down], a[3, down] + a[1, turned]]
    np.testing.assert_array_equal(b.numpy(), np.stack(expected))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", {"kind": "cuda", "arch": "sm_80"}])
@pytest.mark.parametrize(("only", "offset"), [(0, lambda k: 1), (1, lambda k: k)])
def test_a_loop_variable_of_which_a_condition_leaves_one_value_is_a_constant(target, only, offset):
    @T.prim_func
    def program(A: T.Tensor((2, 16, 24), "int32"), B: T.Tensor((24,), "int32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((2, 16, 24), "int32")
            T.copy(A, tile)
            for k in T.serial(9):
                if k >= only and k < only + 1:
                    for i in T.Parallel(24):
                        B[i] = tile[k % 2, i % 16, (i + offset(k)) % 24]

    a, b = torch.arange(768, dtype=torch.int32).reshape(2, 16, 24), torch.zeros(24).int()
    runnable(program, target)(a, b)
    i = torch.arange(24)
    assert torch.equal(b, a[only, i % 16, (i + offset(only)) % 24])


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_terms_that_are_taken_off_again(target):
    @T.prim_func
    def program(A: T.Tensor((256,), "int32"), B: T.Tensor((6, 16, 8), "int32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((256,), "int32")
            T.copy(A, tile)
            for i in T.serial(16):
                for j in T.serial(8):
                    row = i - j
                    B[0, i, j] = A[row + j]
                    B[1, i, j] = tile[((i - i) + j // 4 * 3) + (i % 8 + j * 3) // 3]
                    B[2, i, j] = tile[((i + (i - i % 8)) - i * 2) + 7]
                    B[3, i, j] = A[((j % 3) + (i // 2)) - (i - (i + j))]
                    B[4, i, j] = A[(i - i + j) // 4]
            for i, j in T.Parallel(16, 8):
                B[5, i + j - j, j] = tile[i // 4 - i // 4 + i % 3 + j]

    a, (i, j) = np.arange(256, dtype="int32") * 3, np.mgrid[0:16, 0:8]
    b = torch.zeros((6, 16, 8), dtype=torch.int32)
    runnable(program, target)(torch.from_numpy(a), b)
    places = [
        i,
        j // 4 * 3 + (i % 8 + j * 3) // 3,
        7 - i % 8,
        j % 3 + i // 2 + j,
        j // 4,
        i % 3 + j,
    ]
    np.testing.assert_array_equal(b.numpy(), a[np.stack(places)])


@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_what_is_left_of_terms_is_divided_as_it_is_written(target):
    @T.prim_func
    def program(A: T.Tensor((8, 8), "int32"), B: T.Tensor((3, 8, 8), "int32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8, 8), "int32")
            T.copy(A, tile)
            for i in T.serial(7, -1, -1):
                for j in T.serial(8):
                    B[0, i, j] = tile[i - (i - i // 3), j]
                    B[1, i, j] = A[i // 2 - (i // 2 - (i + 1) % 4), j]
                    B[2, i, j] = tile[j, (i + j) // 3 + j - j]

    a, (i, j) = np.arange(64, dtype="int32").reshape(8, 8), np.mgrid[0:8, 0:8]
    b = torch.zeros((3, 8, 8), dtype=torch.int32)
    runnable(program, target)(torch.from_numpy(a), b)
    expected = [a[i // 3, j], a[(i + 1) % 4, j], a[j, (i + j) // 3]]
    np.testing.assert_array_equal(b.numpy(), np.stack(expected))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", {"kind": "cuda", "arch": "sm_80"}])
def test_terms_that_are_taken_off_again_in_conditions(target):
    """Those of guards, of indices that may lie outside, and a user's own."""

    @T.prim_func
    def program(A: T.Tensor((38,), "int32"), B: T.Tensor((3, 512), "int32")):
        with T.Kernel(1, threads=128):
            for q in T.Parallel(512):
                x = q // 4 + (q + q - q) - q // 4
                B[0, q] = A[q // 4 + q - q // 4]
                B[1, q] = A[x]
                if q // 4 + q < q // 4 + 200:
                    B[2, q] = x

    kernel = runnable(program, target)
    a, b = torch.arange(1, 39, dtype=torch.int32), torch.zeros(3, 512, dtype=torch.int32)
    kernel(a, b)
    expected = torch.zeros_like(b)
    expected[0, :38] = expected[1, :38] = a
    expected[2, :200] = torch.arange(200)
    assert torch.equal(b, expected)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", {"kind": "cuda", "arch": "sm_80"}])
def test_a_variable_that_is_counted_down_beside_what_no_loop_changes(target):
    """Neither a division nor a bitwise operator of an element hides the division beside it."""

    @T.prim_func
    def program(
        A: T.Tensor((16, 32), "int32"),
        rows: T.Tensor((32,), "int32"),
        B: T.Tensor((3, 32), "int32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.serial(32):
                row = rows[i]
                B[0, i] = A[(18 - row) // 2, (35 - i) // 2]
                B[1, i] = A[row ^ 3, (35 - i) // 2]
                B[2, i] = A[row // 3, (i % 8 + 1) % 8 + i % 4]

    a, i = np.arange(512, dtype="int32").reshape(16, 32), np.arange(32)
    rows, b = i % 12, torch.zeros((3, 32), dtype=torch.int32)
    kernel = runnable(program, target)
    kernel(torch.from_numpy(a), torch.from_numpy(rows.astype("int32")), b)
    expected = [
        a[(18 - rows) // 2, (35 - i) // 2],
        a[rows ^ 3, (35 - i) // 2],
        a[rows // 3, (i % 8 + 1) % 8 + i % 4],
    ]
    np.testing.assert_array_equal(b.numpy(), np.stack(expected))


def test_indices_with_one_offset_are_left_alone():
    @S.prim_func
    def program(A: S.Buffer((16, 16), "float32"), B: S.Buffer((64,), "float32")):
        for bx in S.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(64):
                B[i] = A[(i + 2) // 16, (i + 2) % 16]
                B[i] = A[i // 16, i % 16 // 4]
                B[i] = A[(i + 32) % 16, i // 8]
                B[i] = A[(bx + 2) % 16, i % 16]
                B[63 - i] = A[15 - i // 4, 15 - i % 16]
                B[(i - 1) % 4] = A[(15 - i) // 4, S.bitwise_xor(i, 1)]

    module = ir.IRModule({"main": program})
    tvm.ir.assert_structural_equal(KeepRemainders(module), module)


def random_index(draw, depth=0):
    """The text of an index in `i` and `j`, and constants."""
    kind = draw.random()
    if depth == 3 or kind < 0.3:
        return draw.choice(
            ["i", "j", "i * 2", "j * 3", "i % 8", "j // 4", "(31 - i)", "(15 - j)", "7"]
        )
    left = random_index(draw, depth + 1)
    if kind < 0.65:
        return f"({left} {draw.choice('--+')} {random_index(draw, depth + 1)})"
    if kind < 0.72:
        return f"({left} * {draw.choice([-2, -1, 2, 3])})"
    return f"({left} {draw.choice(['//', '%'])} {draw.choice([2, 3, 4, 8, 32])})"


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "metal"])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_random_indices(target, seed):
    draw, (i, j) = random.Random(seed), np.mgrid[0:32, 0:16]
    functions, places = [], []
    while len(functions) < 16:
        function = eval(f"lambda i, j: {random_index(draw)}")
        values = function(i, j) + 0 * i
        low, high = int(values.min()), int(values.max())
        if 0 < high - low < 256:
            functions.append((function, low))
            places.append(values - low)

    @T.prim_func
    def program(A: T.Tensor((256,), "int32"), B: T.Tensor((2, 16, 32, 16), "int32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((256,), "int32")
            T.copy(A, tile)
            for row, (function, low) in enumerate(functions):
                for i in T.serial(32):
                    for j in T.serial(16):
                        B[0, row, i, j] = A[function(i, j) - low]
                for i, j in T.Parallel(32, 16):
                    B[1, row, i, j] = tile[function(i, j) - low]

    a, b = np.arange(256, dtype="int32") * 3, torch.zeros((2, 16, 32, 16), dtype=torch.int32)
    runnable(program, target)(torch.from_numpy(a), b)
    np.testing.assert_array_equal(b.numpy(), a[np.stack([places, places])])
