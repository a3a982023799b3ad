"""T.print on the CPU: what is printed, when and how often."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T


def printed(capsys, func, *args):
    tvmtile.compile(func)(*args)
    return capsys.readouterr().out


def numbers(text):
    """The numbers in the brackets of an array."""
    return [float(x) for x in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text[text.index("=") :])]


def test_values_texts_and_messages(capsys):
    @T.prim_func
    def main(A: T.Tensor((4,), "float16"), n: T.int32):
        with T.Kernel(1, threads=32):
            T.print(n, msg="n")
            T.print(A[1])
            T.print(n > 3)
            T.print(7)
            T.print("a text")
            T.print(msg="a message")
            T.print("a text", msg="a message")

    out = printed(capsys, main, torch.tensor([0, 0.5, 1, 2]).half(), 5)
    assert out.splitlines() == [
        "[block 0] n: n = 5",
        "[block 0] A[1] = 0.5",
        "[block 0] n > 3 = True",
        "[block 0] value = 7",
        "[block 0] a text",
        "[block 0] a message",
        "[block 0] a message: a text",
    ]


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int64", "bool"]
)
def test_whole_tile(capsys, dtype):
    @T.prim_func
    def main(A: T.Tensor((3, 5), dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((3, 5), dtype)
            T.copy(A, tile)
            T.print(tile, msg="here")

    src = torch.tensor(np.arange(15).reshape(3, 5) % 4).to(getattr(torch, dtype))
    out = printed(capsys, main, src)
    assert out.startswith(f"[block 0] here: tile[0:3, 0:5] {dtype} =\n[[")
    assert numbers(out) == src.double().flatten().tolist()


def test_region_that_is_not_contiguous(capsys):
    @T.prim_func
    def main(A: T.Tensor((6, 8), "int32")):
        with T.Kernel(1):
            T.print(A[2:4, 3:5])

    src = torch.arange(48, dtype=torch.int32).reshape(6, 8)
    assert numbers(printed(capsys, main, src)) == [19, 20, 27, 28]


def test_large_tile_is_not_abbreviated(capsys):
    @T.prim_func
    def main(A: T.Tensor((60, 70), "int32")):
        with T.Kernel(1):
            T.print(A)

    src = torch.arange(4200, dtype=torch.int32).reshape(60, 70)
    assert numbers(printed(capsys, main, src)) == list(range(4200))


def test_each_block_and_each_iteration(capsys):
    @T.prim_func
    def main(A: T.Tensor((4,), "int32")):
        with T.Kernel(2, 3, threads=128) as (bx, by):
            T.print(bx + by * 10, msg="id")
            if (bx == 1) & (by == 2):
                for i in T.Parallel(4):
                    T.print(A[i], msg="element")

    lines = printed(capsys, main, torch.arange(4, dtype=torch.int32)).splitlines()
    ids = [line for line in lines if "id" in line]
    assert sorted(ids) == [
        f"[block {x}, {y}] id: bx + by * 10 = {x + y * 10}" for x in range(2) for y in range(3)
    ]
    elements = [line for line in lines if "element" in line]
    assert elements == [f"[block 1, 2] element: A[i] = {i}" for i in range(4)]


def test_each_thread_prints_what_depends_on_it(capsys):
    @T.prim_func
    def main(A: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=4):
            tx = T.get_thread_binding()
            T.print(A[tx])
            if tx == 2:
                T.print("only two")

    out = printed(capsys, main, torch.tensor([5, 6, 7, 8], dtype=torch.int32))
    words = [line.rpartition(" ")[2] for line in out.splitlines()]
    assert [word for word in words if word != "two"] == ["5", "6", "7", "8"]
    assert words.count("two") == 1


def test_element_outside_a_tensor_is_zero(capsys):
    @T.prim_func
    def main(A: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=1):
            for i in T.serial(6):
                T.print(A[i])

    out = printed(capsys, main, torch.tensor([5, 6, 7, 8], dtype=torch.int32))
    assert [line.rpartition(" ")[2] for line in out.splitlines()] == ["5", "6", "7", "8", "0", "0"]


def test_text_comes_between_pythons_own(capfd):
    @T.prim_func
    def main(A: T.Tensor((1,), "int32")):
        with T.Kernel(1):
            T.print("kernel")

    kernel = tvmtile.compile(main)
    print("before")
    kernel(torch.zeros(1, dtype=torch.int32))
    print("after")
    assert capfd.readouterr().out == "before\n[block 0] kernel\nafter\n"


def test_log_of_a_kernel_on_metal(capfd):
    """A value once a block, an element by the thread that has it."""

    @T.prim_func
    def main(A: T.Tensor((2, 3), "float16"), n: T.int32):
        with T.Kernel(2, threads=32) as bx:
            tile = T.alloc_fragment((3,), "float16")
            T.copy(A[bx, 0], tile)
            T.print(n * 2, msg='100% "n"')
            T.print(tile, msg="row")
            T.print("done")

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    kernel(torch.arange(6).reshape(2, 3).half() / 4, 21)
    lines = capfd.readouterr().out.splitlines()
    expected = [
        line
        for block in range(2)
        for line in (
            f'[block {block}] 100% "n": n * 2 = 42',
            *(f"[block {block}] row: tile[{i}] = {(3 * block + i) / 4:g}" for i in range(3)),
            f"[block {block}] done",
        )
    ]
    assert sorted(lines) == sorted(expected)
