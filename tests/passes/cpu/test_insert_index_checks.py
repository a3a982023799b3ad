"""InsertIndexChecks: indices of tiles that are known when a kernel runs."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import MetalEmulationError, OutOfBounds, TileWarning

CHECKED = {"tvmtile.check_indices": True}


def permuted(extent=64, size=64, dtype="float32"):
    @T.prim_func
    def main(X: T.Tensor((64,), dtype), I: T.Tensor((64,), "int32"), Y: T.Tensor((64,), dtype)):
        with T.Kernel(2, threads=32) as bx:
            s = T.alloc_shared((size,), dtype)
            T.copy(X, s)
            for i in T.Parallel(extent // 2):
                Y[bx * 32 + i] = s[I[bx * 32 + i]]

    return main


def indices_with(value):
    indices = torch.arange(64, dtype=torch.int32).flip(0)
    indices[40] = value
    return indices


def test_indices_inside_change_nothing():
    x, indices, y = torch.randn(64), indices_with(3), torch.zeros(64)
    tvmtile.compile(permuted(), target="llvm", pass_configs=CHECKED)(x, indices, y)
    torch.testing.assert_close(y, x[indices])


@pytest.mark.parametrize("value", [64, 70, -1, -(2**31), 2**31 - 1])
def test_a_load_outside_is_an_error_at_its_line(value):
    kernel = tvmtile.compile(permuted(), target="llvm", pass_configs=CHECKED)
    with pytest.raises(OutOfBounds) as caught:
        kernel(torch.randn(64), indices_with(value), torch.zeros(64))
    message = (
        f"out of bounds: the kernel takes index {value} of s[64] float32, which has 64 elements"
    )
    assert message in str(caught.value)
    assert caught.value.location.text == "Y[bx * 32 + i] = s[I[bx * 32 + i]]"
    assert "a tile has no guards" in caught.value.help


def test_the_emulator_says_the_same():
    arguments = torch.randn(64), indices_with(70), torch.zeros(64)
    kernel = tvmtile.compile(permuted(), target="llvm", pass_configs=CHECKED)
    with pytest.raises(OutOfBounds) as on_cpu:
        kernel(*arguments)
    emulated = tvmtile.compile(permuted(), target="metal", execution_backend="emulator")
    with pytest.raises(MetalEmulationError) as on_metal:
        emulated(*arguments)
    said = r"out of bounds: .* takes index 70 of s\b"
    assert re.search(said, str(on_cpu.value))
    assert re.search(said, str(on_metal.value))


def test_a_kernel_runs_again_after_the_error():
    kernel = tvmtile.compile(permuted(), target="llvm", pass_configs=CHECKED)
    x, y = torch.randn(64), torch.zeros(64)
    with pytest.raises(OutOfBounds):
        kernel(x, indices_with(64), y)
    kernel(x, indices_with(0), y)
    torch.testing.assert_close(y, x[indices_with(0)])


@pytest.mark.full
def test_stores_loops_and_atomics():
    def program(body):
        @T.prim_func
        def main(I: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "int32")):
            with T.Kernel(1, threads=32) as _:
                s = T.alloc_shared((4, 8), "int32")
                T.clear(s)
                body(s, I)
                T.copy(s[0, 0:8], Y)

        return tvmtile.compile(main, target="llvm", pass_configs=CHECKED)

    @T.macro
    def stores(s, I):
        for i in T.serial(8):
            s[0, I[i]] = i

    @T.macro
    def vector(s, I):
        for i in T.vectorized(8):
            s[I[0], i] = i

    @T.macro
    def adds(s, I):
        for i in T.Parallel(8):
            T.atomic_add(s[I[i], 0], 1)

    @T.macro
    def fills(s, I):
        T.fill(s[I[0] : I[0] + 2, 0:8], 1)

    @T.macro
    def until(s, I):
        n = T.alloc_var("int32", 0)
        while s[I[n], 0] == 0:
            n += 1

    inside, outside = torch.zeros(8, dtype=torch.int32), torch.full((8,), 9, dtype=torch.int32)
    element = {
        stores: "0, 9",
        vector: "9, 0",
        adds: "9, 0",
        fills: "9:11, 0:8",
        until: "9, 0",
    }
    for body, text in element.items():
        kernel = program(body)
        if body is not until:
            kernel(inside, torch.zeros(8, dtype=torch.int32))
        with pytest.raises(OutOfBounds, match=f"index {text} of s.* which has 4 x 8 elements"):
            kernel(outside, torch.zeros(8, dtype=torch.int32))


def test_what_a_condition_keeps_from_an_access_is_not_checked():
    @tvmtile.jit(target="llvm", pass_configs=CHECKED)
    def main(I: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32) as _:
            s = T.alloc_shared((4,), "float32")
            T.fill(s, 2)
            for i in T.Parallel(8):
                Y[i] = T.if_then_else(I[i] < 4, s[I[i]], 1)
                if I[i] < 4 and s[I[i]] > 1:
                    Y[i] += s[I[i]]
                if I[i] >= 4 or s[I[i]] > 3:
                    Y[i] += 10

    y = torch.zeros(8)
    main(torch.arange(8, dtype=torch.int32), y)
    assert y.tolist() == [4, 4, 4, 4, 11, 11, 11, 11]


def test_an_index_of_an_index_and_a_tile_of_an_extent_known_at_run_time():
    @T.prim_func
    def main(n: T.int32, I: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32) as _:
            places = T.alloc_shared((8,), "int32")
            s = T.alloc_shared((n,), "int32")
            T.copy(I, places)
            T.clear(s)
            for i in T.Parallel(8):
                Y[i] = s[places[places[i]]]

    kernel = tvmtile.compile(main, target="llvm", pass_configs=CHECKED)
    indices, y = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel(8, indices, y)
    with pytest.raises(OutOfBounds, match=r"index 4 of s\[n\] int32, which has 4 elements"):
        kernel(4, indices, y)
    indices[2] = 8
    with pytest.raises(OutOfBounds, match=r"index 8 of places\[8\] int32, which has 8 elements"):
        kernel(16, indices, y)


def test_code_by_thread_index():
    @T.prim_func
    def main(I: T.Tensor((32,), "int32"), Y: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32) as _:
            tx = T.get_thread_binding()
            own = T.alloc_local((4,), "int32")
            for i in T.serial(4):
                own[i] = i
            T.sync_threads()
            Y[tx] = own[I[tx]]

    kernel = tvmtile.compile(main, target="llvm", pass_configs=CHECKED)
    indices, y = torch.arange(32, dtype=torch.int32) % 4, torch.zeros(32, dtype=torch.int32)
    kernel(indices, y)
    assert torch.equal(y, indices)
    indices[17] = 4
    with pytest.raises(OutOfBounds, match=r"index 4 of own\[4\] int32") as caught:
        kernel(indices, y)
    assert caught.value.location.text == "Y[tx] = own[I[tx]]"


def test_a_gpu_has_no_such_checks():
    with pytest.warns(
        TileWarning, match=r"check_indices has no effect on metal: run the kernel on"
    ):
        tvmtile.compile(
            permuted(), target="metal", execution_backend="emulator", pass_configs=CHECKED
        )
