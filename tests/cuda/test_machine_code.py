"""Machine code of typical kernels: no spills, the instructions of the tensor cores."""

from __future__ import annotations

import re
import struct
from functools import cache

import pytest

import tvmtile
import tvmtile.language as T
from tests.gpu.machine import ARCHITECTURES
from tests.running import gemm, traced
from tvmtile.jit.cuda import compile_source
from tvmtile.jit.resources import resources_of_log


def softmax(columns, threads=128):
    @T.prim_func
    def main(X: T.Tensor((64, columns), "float16"), Y: T.Tensor((64, columns), "float16")):
        with T.Kernel(64, threads=threads) as bx:
            x = T.alloc_fragment((1, columns), "float32")
            largest = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(X[bx, 0], x)
            T.reduce_max(x, largest, dim=1)
            for i, j in T.Parallel(1, columns):
                x[i, j] = T.exp(x[i, j] - largest[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(1, columns):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx, 0])

    return main


def product(*block, dtypes=("float16", "float32", "float32"), extents=(512, 512, 512), **options):
    options = {"stages": 3, **options}
    return lambda: gemm(*extents, block=block, dtypes=dtypes, **options)


def attention(dim):
    return lambda: traced(
        "attention", batch=1, length=512, dim=dim, block_M=64, block_N=64, stages=2
    )


FLOAT, INT, BRAIN = (
    ("float32",) * 3,
    ("int8", "int32", "int32"),
    ("bfloat16", "float32", "bfloat16"),
)
WITHOUT_SPILLS = {
    "gemm float16 128x128x32, 4 warps": product(128, 128, 32),
    "gemm float16 128x256x32, 8 warps": product(128, 256, 32, threads=256),
    "gemm float16, both transposed": product(128, 128, 32, transposes=(True, True)),
    "gemm bfloat16, ragged": product(128, 128, 32, extents=(500, 300, 333), dtypes=BRAIN),
    "gemm tf32": product(128, 128, 32, stages=2, dtypes=FLOAT),
    "gemm int8": product(128, 128, 64, stages=2, dtypes=INT),
    "attention d 64": attention(64),
    "attention d 128": attention(128),
    "softmax of 8192": lambda: softmax(8192, threads=256),
}


HOPPER = "sm_90a"


@cache
def source_of(name, arch=ARCHITECTURES[0]):
    """The CUDA source, the same for all architectures but those with instructions of their own."""
    if arch != HOPPER:
        arch = ARCHITECTURES[0]
    target = {"kind": "cuda", "arch": arch}
    return tvmtile.compile(WITHOUT_SPILLS[name](), target=target).get_kernel_source()


@pytest.mark.full
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", WITHOUT_SPILLS)
def test_registers_suffice(name, arch):
    log = compile_source(source_of(name, arch), arch).log
    (used,) = resources_of_log(log).values()
    assert used.spills == 0, used
    assert used.stack == 0, f"an array is not in registers: {used}"
    # Threads that load elements themselves, as of rows of an odd number of them, keep products waiting.
    is_slow = re.search(r"C75\d\d", log)
    assert not is_slow or name == "gemm bfloat16, ragged", "products of wgmma wait for each other"


@pytest.mark.full
@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES[1:] if a != HOPPER])
@pytest.mark.parametrize("name", ["gemm float16 128x128x32, 4 warps", "attention d 128"])
def test_one_source_serves_architectures_without_instructions_of_their_own(name, arch):
    target = {"kind": "cuda", "arch": arch}
    source = tvmtile.compile(WITHOUT_SPILLS[name](), target=target).get_kernel_source()
    assert source == source_of(name)
    assert "wgmma" not in source
    assert "wgmma" in source_of(name, HOPPER)


def instructions(cubin):
    """The number of instructions of the only kernel of a file, without those that fill it up.

    An instruction takes 16 bytes, the code of its operation is in the lowest 12 bits.
    """
    (headers,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + n * size) for n in range(count)]
    start_of_names = sections[names][4]
    (text,) = (s for s in sections if cubin.startswith(b".text.", start_of_names + s[0]))
    _, _, _, _, offset, length = text
    words = struct.unpack_from(f"<{length // 8}Q", cubin, offset)
    return sum(word & 0xFFF != 0x918 for word in words[::2])  # a NOP


def to_float16(dtype, size):
    @T.prim_func
    def main(A: T.Tensor((size,), dtype), B: T.Tensor((size,), "float16")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(size):
                B[i] = T.cast(A[i], "float16")

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("dtype", "arch", "most"),
    [
        ("float8_e4m3fn", "sm_80", 2.5),
        ("float8_e5m2", "sm_80", 0.5),
        ("float8_e4m3fn", "sm_90a", 0.5),
        ("float8_e5m2", "sm_90a", 0.5),
    ],
)
def test_instructions_that_decode_an_element(dtype, arch, most):
    """A load of 8 elements and a store are counted with them."""
    target = {"kind": "cuda", "arch": arch}
    counts = [
        instructions(tvmtile.compile(to_float16(dtype, 128 * n), target=target).cubin)
        for n in (16, 32)
    ]
    assert (counts[1] - counts[0]) / 16 <= most + 2 / 8
