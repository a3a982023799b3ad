"""Operators and functions of single elements on an NVIDIA GPU, and what they are compiled to."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.gpu.machine import EMULATED, HAS_GPU, by_way_of_gpu, on_gpu
from tests.language.test_import_source import program as imported_functions
from tests.programs import catalogue
from tvmtile.errors import CudaEmulationError

ROOT = Path(__file__).parents[2]
FAST = {
    "cos": (T.__dict__["__cos"], torch.cos),
    "exp": (T.__dict__["__exp"], torch.exp),
    "exp10": (T.__dict__["__exp10"], lambda x: 10**x),
    "log": (T.__dict__["__log"], torch.log),
    "log10": (T.__dict__["__log10"], torch.log10),
    "log2": (T.__dict__["__log2"], torch.log2),
    "sin": (T.__dict__["__sin"], torch.sin),
}


def source(program, arch="sm_80"):
    return tvmtile.compile(program, target={"kind": "cuda", "arch": arch}).get_kernel_source()


# Functions ---------------------------------------------------------------------------------------


def test_fast_functions():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((len(FAST), 64), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                for row, (function, _) in enumerate(FAST.values()):
                    C[row, i] = function(A[i])

    text = source(main)
    assert all(f"__{name}f(" in text for name in FAST)
    a, c = torch.linspace(0.1, 3, 64), torch.zeros(len(FAST), 64)
    by_way_of_gpu(main)(a, c)
    expected = torch.stack([exact(a.double()) for _, exact in FAST.values()])
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-5)


# Floats of 8 bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", [("float16", "bfloat16"), ("bfloat16", "float16")])
def test_floats_of_16_bits_go_by_float32(pair):
    @T.prim_func
    def main(X: T.Tensor((64,), pair[0]), Y: T.Tensor((64,), pair[1])):
        with T.Kernel(1, threads=32):
            T.copy(X, Y)

    assert re.search(r"\((half|nv_bfloat16)\)\(*\(float\)", source(main))


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["extremes_of_negated_integers", "operators_of_integers", "widened_negatives"]
)
@pytest.mark.parametrize("dtype", ["int32", "int16", "int8"])
def test_negated_integers_are_hidden_from_ptxas(name, dtype, tmp_path):
    """ptxas, whose error no emulator has, finds nothing that it could take for a negative."""
    program = loaded(catalogue()[name].case(dtype=dtype), tmp_path).main
    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_90a"})
    assert "max." in kernel.ptx
    assert not re.findall(r"(?:neg|abs)\.s(?:16|32) .*|sub\.s(?:16|32) \s*%\w+, 0,.*", kernel.ptx)


# Atomic operations -------------------------------------------------------------------------------


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("offset", [0, 1])
def test_neighbours_are_added_at_once_where_the_address_allows(dtype, offset):
    """Also where the first of them lies between two vectors."""

    @T.prim_func
    def main(A: T.Tensor((4, 128), dtype), C: T.Tensor((140,), dtype), D: T.Tensor((140,), dtype)):
        with T.Kernel(4, threads=32) as bx:
            tx = T.get_thread_binding()
            T.atomic_addx4(C[tx * 4 + offset], A[bx, tx * 4])
            T.atomic_addx2(D[tx * 4 + offset], A[bx, tx * 4])

    pair = {"float16": "__half2", "bfloat16": "__nv_bfloat162", "float32": "float4"}[dtype]
    assert f"atomicAdd(({pair}*)" in source(main)
    kind = getattr(torch, dtype)
    a = torch.randint(-8, 8, (4, 128)).to(kind)
    c, d = torch.zeros(140, dtype=kind), torch.zeros(140, dtype=kind)
    by_way_of_gpu(main)(a, c, d)
    sums = a.double().sum(0)
    expected = torch.zeros(2, 140, dtype=torch.float64)
    expected[0, offset : offset + 128] = sums
    for lane in (0, 1):
        expected[1, offset + lane : offset + lane + 128 : 4] = sums[lane::4]
    assert torch.equal(torch.stack([c, d]).double(), expected)


def test_a_former_value_of_a_vector():
    @T.prim_func
    def main(C: T.Tensor((4,), "float32"), D: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            if T.get_thread_binding() == 0:
                value = T.alloc_local((4,), "float32")
                for i in T.serial(4):
                    value[i] = i + 1
                D[0:4] = T.atomic_addx4(C[0], value[0], return_prev=True)

    c, d = torch.arange(4.0), torch.zeros(4)
    by_way_of_gpu(main)(c, d)
    assert torch.equal(c, torch.arange(4.0) * 2 + 1)
    assert torch.equal(d, torch.arange(4.0))


@pytest.mark.full
@pytest.mark.parametrize("order", ["relaxed", "acq_rel", "seq_cst"])
def test_a_message_between_blocks(order):
    """The last block to come sees what all others have written: counted by an atomic operation."""
    blocks = 64

    @T.prim_func
    def main(
        A: T.Tensor((blocks,), "int32"), count: T.Tensor((1,), "int32"), C: T.Tensor((1,), "int32")
    ):
        with T.Kernel(blocks, threads=32) as bx:
            if T.get_thread_binding() == 0:
                A[bx] = bx + 1
                before = T.atomic_add(count[0], 1, memory_order=order, return_prev=True)
                if before == blocks - 1:
                    total = T.alloc_var("int32", 0)
                    for i in T.serial(blocks):
                        total += T.atomic_load(A[i], memory_order="relaxed")
                    C[0] = total

    fences = source(main).count("__threadfence();")
    assert (fences > 0) == (order != "relaxed")
    a, count, c = (torch.zeros(n, dtype=torch.int32) for n in (blocks, 1, 1))
    if order == "relaxed" and EMULATED.get() and not HAS_GPU:
        with pytest.raises(CudaEmulationError, match="nothing orders two blocks"):
            by_way_of_gpu(main)(a, count, c)
        return
    by_way_of_gpu(main)(a, count, c)
    if order != "relaxed":
        assert c.item() == blocks * (blocks + 1) // 2


# Barriers ----------------------------------------------------------------------------------------


def test_barriers_of_a_warp_and_of_some_threads():
    @T.prim_func
    def main(A: T.Tensor((128,), "int32"), C: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((128,), "int32")
            shared[tx] = A[tx]
            T.sync_warp()
            C[tx] = shared[tx ^ 1]
            if tx < 64:
                T.sync_threads(3, 64)
                C[tx] += A[63 - tx] * 2

    text = source(main)
    assert "__syncwarp" in text
    assert "bar.sync" in text
    a, c = torch.randint(0, 100, (128,), dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    by_way_of_gpu(main)(a, c)
    expected = a[torch.arange(128) ^ 1]
    expected[:64] += 2 * a[:64].flip(0)
    assert torch.equal(c, expected)


# Printing and assertions -------------------------------------------------------------------------


@T.prim_func
def printing(A: T.Tensor((2, 3), "float16"), n: T.int64):
    with T.Kernel(2, threads=32) as bx:
        tile = T.alloc_shared((3,), "float16")
        T.copy(A[bx, 0:3], tile)
        T.print(tile, msg="row")
        T.print(n, msg="100%")


@T.prim_func
def asserting(A: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        if tx < 8:
            T.device_assert(A[tx] > 0, 'all of "A" is positive')
            A[tx] = A[tx] + 1


@pytest.mark.full
def test_print_and_assert_are_calls_of_cuda():
    text = source(printing)
    assert r'printf("[block %d] row: tile[%d] = %.9g\n"' in text
    assert r'printf("[block %d] 100%%: n = %lld\n"' in text
    assert r'tvmtile_assert_fail("all of \"A\" is positive", "' in source(asserting)
    if not HAS_GPU:  # where there is one, an assertion would leave its context unusable
        on_gpu(printing)(torch.zeros(2, 3, dtype=torch.float16), 1)
        with pytest.raises(CudaEmulationError, match="is positive"):
            on_gpu(asserting)(torch.zeros(8, dtype=torch.int32))


def _in_a_process(statement):
    """Run a statement in a process of its own: a kernel may leave the GPU's context unusable."""
    code = f"import torch; from tests.gpu.test_elements import *; {statement}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.gpu
def test_lines_are_printed():
    result = _in_a_process(
        "on_gpu(printing)(torch.arange(6.).reshape(2, 3).half().cuda(), 2**40);"
        "torch.cuda.synchronize()"
    )
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    values = [f"[block {b}] row: tile[{i}] = {3 * b + i}" for b in (0, 1) for i in range(3)]
    assert lines == sorted([*values, *(f"[block {b}] 100%: n = {2**40}" for b in (0, 1))])


@pytest.mark.gpu
def test_a_kernel_stops_where_an_assertion_fails():
    good = _in_a_process(
        "a = torch.ones(8, dtype=torch.int32).cuda(); on_gpu(asserting)(a); print(a.tolist())"
    )
    assert good.stdout.strip() == str([2] * 8), good.stderr
    bad = _in_a_process(
        "a = torch.arange(8, dtype=torch.int32).cuda(); on_gpu(asserting)(a); print(a.tolist())"
    )
    assert bad.returncode != 0
    assert 'thread: [0,0,0] Assertion `all of "A" is positive` failed' in bad.stderr + bad.stdout


# The order of blocks -----------------------------------------------------------------------------


def test_infinities_and_constants():
    values = [16777217.0 - 1, 0.1, 1.0000001, -math.inf, 1e-30, 3.4028234663852886e38]

    @T.prim_func
    def main(
        A: T.Tensor((6,), "float32"), B: T.Tensor((2,), "bfloat16"), C: T.Tensor((1,), "float16")
    ):
        with T.Kernel(1, threads=32):
            for place, value in enumerate(values):
                A[place] = T.float32(value)
            B[0] = T.bfloat16(1e30)
            B[1] = T.bfloat16(-math.inf)
            C[0] = T.float16(math.inf)

    a, b = torch.zeros(6), torch.zeros(2, dtype=torch.bfloat16)
    c = torch.zeros(1, dtype=torch.float16)
    by_way_of_gpu(main)(a, b, c)
    assert c.item() == math.inf
    assert a.tolist() == torch.tensor(values).tolist()
    assert b.tolist() == torch.tensor([1e30, -math.inf], dtype=torch.bfloat16).tolist()


def test_functions_of_the_users():
    a, c = torch.randn(128), torch.empty(128)
    by_way_of_gpu(imported_functions())(a, c)
    torch.testing.assert_close(c, 2 * a + 1)
