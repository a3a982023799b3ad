"""Programs for compute-sanitizer: each is a process of its own, small, with all that threads share.

`python -m tests.gpu.sanitized NAME` compiles a program, runs it on random data and compares; with
`--without-barrier N` the Nth barrier is taken out of the generated source, counted from 0, and what is
computed does not matter. Arguments are allocated one by one, without torch's allocator, so that an
access beyond the end of one is an access to no memory.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import tvm
import tvm_ffi

import tvmtile
import tvmtile.language as T
from benchmarks.gpu_programs import GROUP, attention, int4_gemm, rms_norm, softmax
from tests import pipelines
from tests.metal.programs import assert_close, flash_attention, gemm, operands, random
from tests.metal.test_dequantize import dequant_gemm
from tests.metal.test_split_k import splitk
from tvmtile.errors import TileWarning

BARRIER = re.compile(r"^ *__sync(threads|warp)\(\);\n", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """A program and what it computes.

    Attributes
    ----------
    program : PrimFunc
        A tile program.
    arguments : tuple of Tensor
        Of a call; the last one is written, and holds here what it holds before.
    expected : Tensor
        What that holds afterwards, in float64 or integers.
    precision : str
        The narrowest dtype that the result went through; its own where empty.
    """

    program: Any
    arguments: tuple[torch.Tensor, ...]
    expected: torch.Tensor
    precision: str = ""

    def check(self, kernel: Any, device: Any) -> None:
        """Compare what a kernel of the program computes on a device of TVM."""
        there = [_moved(argument, device) for argument in self.arguments]
        kernel(*there)
        assert_close(_back(there[-1], self.arguments[-1]), self.expected, self.precision)


def _moved(tensor: torch.Tensor, device: Any) -> Any:
    dtype = str(tensor.dtype).removeprefix("torch.")
    there = tvm.runtime.empty(tuple(tensor.shape), dtype, device)
    return there.copyfrom(tvm.runtime.from_dlpack(tensor))


def _back(result: Any, like: torch.Tensor) -> torch.Tensor:
    here = torch.empty_like(like)
    result.copyto(tvm.runtime.from_dlpack(here))
    return here


SAMPLES: dict[str, Callable[[], Sample]] = {}
"""Functions that make a sample, by its name."""


def sample(function: Callable[[], Sample]) -> Callable[[], Sample]:
    SAMPLES[function.__name__] = function
    return function


def _empty(*shape: int, dtype: str = "float32") -> torch.Tensor:
    return torch.full(shape, 77, dtype=getattr(torch, dtype))


def _product(name: str, m: int, n: int, k: int, *, rows: Any = None, **options: Any) -> None:
    """Register a matrix product; `rows` stands for m in the program."""

    def make() -> Sample:
        dtypes = options.get("dtypes", ("float16", "float32", "float32"))
        alone = {"roles": False, "tensor_copies": False}  # which racecheck does not look at
        program = gemm(m if rows is None else rows, n, k, **alone, **options)
        a, b, expected = operands(m, n, k, dtypes[0], options.get("transposes", (False, False)))
        if dtypes[2].startswith("int"):
            expected = expected.long()
        precision = "float16" if dtypes[0] == "float32" else ""  # tf32 has the mantissa of float16
        return Sample(program, (a, b, _empty(m, n, dtype=dtypes[2])), expected, precision)

    SAMPLES[name] = make


for _stages in (0, 2, 3, 4):
    _product(f"product_of_{_stages}_stages", 64, 128, 192, stages=_stages)
_product("ragged_product", 100, 72, 168, stages=3)
_product("product_of_transposed_tiles", 64, 64, 128, stages=3, transposes=(True, True))
_product("product_of_bfloat16", 64, 64, 128, stages=3, dtypes=("bfloat16", "float32", "bfloat16"))
_product(
    "product_of_int8", 64, 64, 256, block=(64, 64, 64), stages=3, dtypes=("int8", "int32", "int32")
)
_product("product_of_tf32", 64, 64, 128, stages=3, dtypes=("float32",) * 3)
_product("product_of_any_rows", 100, 64, 128, rows=T.dynamic("rows"), stages=3)


@sample
def product_through_shared_memory() -> Sample:
    """On Hopper by `stmatrix`; the tile of the result has the memory of none before it."""
    m, n, k = 64, 128, 96

    @T.prim_func
    def program(
        A: T.Tensor((m, k), "float16"),
        B: T.Tensor((k, n), "float16"),
        C: T.Tensor((m, n), "float16"),
    ):
        with T.Kernel(n // 64, threads=128) as bx:
            T.annotate_warp_specialize(False)
            A_s = T.alloc_shared((m, 32), "float16")
            B_s = T.alloc_shared((32, 64), "float16")
            C_s = T.alloc_shared((m, 64), "float16")
            total = T.alloc_fragment((m, 64), "float32")
            T.clear(total)
            for step in T.Pipelined(k // 32, num_stages=2):
                T.copy(A[0, step * 32], A_s)
                T.copy(B[step * 32, bx * 64], B_s)
                T.gemm(A_s, B_s, total)
            T.copy(total, C_s)
            T.copy(C_s, C[0, bx * 64])

    a, b, expected = operands(m, n, k)
    return Sample(program, (a, b, _empty(m, n, dtype="float16")), expected)


@sample
def parts_of_a_product() -> Sample:
    """Tiles of parts of K go through shared memory and are added atomically."""
    a, b, expected = operands(64, 64, 256)
    program = splitk(64, 64, 256, 2, True)
    return Sample(program, (a, b, torch.zeros(64, 64)), expected)


def _attention(program: Any, q: Any, k: Any, v: Any, causal: bool, heads_second: bool) -> Sample:
    inner = [x.double().transpose(1, 2) if heads_second else x.double() for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*inner, is_causal=causal)
    if heads_second:
        expected = expected.transpose(1, 2)
    return Sample(program, (q, k, v, _empty(*q.shape, dtype="float16")), expected)


@sample
def attention_to_all() -> Sample:
    options = {"block_M": 64, "block_N": 32, "threads": 128, "dtype": "float16"}
    options |= {"roles": False, "tensor_copies": False}  # which racecheck does not look at
    rows = T.GemmWarpPolicy.FullRow
    program = flash_attention(1, 1, 128, 64, False, stages=1, policy=rows, **options)
    q, k, v = (random(1, 128, 1, 64, dtype="float16") for _ in range(3))
    return _attention(program, q, k, v, False, True)


@sample
def attention_over_columns_of_warps() -> Sample:
    """Warps share the rows of the scores, so that maxima and sums go through shared memory."""
    options = {"block_M": 32, "block_N": 64, "threads": 128, "dtype": "float16"}
    columns = T.GemmWarpPolicy.FullCol
    program = flash_attention(
        1, 1, 192, 64, False, stages=2, policy=columns, roles=False, **options
    )
    q, k, v = (random(1, 192, 1, 64, dtype="float16") for _ in range(3))
    return _attention(program, q, k, v, False, True)


@sample
def causal_attention() -> Sample:
    """Two pipelined loops: tiles below the diagonal, and those on it."""
    program = attention(1, 1, 256, 64, True, block_M=64, block_N=32, stages=2, threads=128)
    q, k, v = (random(1, 1, 256, 64, dtype="float16") for _ in range(3))
    return _attention(program, q, k, v, True, False)


@sample
def softmax_of_rows_over_warps() -> Sample:
    x = random(4, 1024, dtype="float16")
    program = softmax(4, 1024, block_M=1, threads=128)
    return Sample(program, (x, _empty(4, 1024, dtype="float16")), torch.softmax(x.double(), 1))


@sample
def rms_norm_of_rows_over_warps() -> Sample:
    x, weight = random(4, 2048, dtype="float16"), random(2048, dtype="float16")
    program = rms_norm(4, 2048, block_M=1, threads=256)
    expected = torch.nn.functional.rms_norm(x.double(), (2048,), weight.double(), eps=1e-6)
    return Sample(program, (x, weight, _empty(4, 2048, dtype="float16")), expected)


def _sums_along(name: str, shape: tuple[int, int], dim: int) -> None:
    def make() -> Sample:
        @T.prim_func
        def program(A: T.Tensor(shape, "float32"), C: T.Tensor(shape, "float32")):
            with T.Kernel(1, threads=128):
                tile = T.alloc_shared(shape, "float32")
                sums = T.alloc_fragment(shape, "float32")
                T.copy(A, tile)
                T.cumsum(tile, sums, dim=dim)
                T.copy(sums, C)

        a = random(*shape)
        return Sample(program, (a, _empty(*shape)), a.double().cumsum(dim))

    SAMPLES[name] = make


_sums_along("running_sums_of_rows", (6, 300), 1)
_sums_along("running_sums_of_columns", (300, 6), 0)


def _int4_product(name: str, stages: int, in_registers: bool) -> None:
    def make() -> Sample:
        m, n, k, group = 32, 64, 256, 32
        a, scales = random(m, k, dtype="float16"), random(n, k // group, dtype="float16")
        packed = torch.randint(256, (n, k // 2), dtype=torch.uint8)
        nibbles = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(1)
        expected = _product_of_nibbles(a, nibbles, scales)
        program = dequant_gemm(m, n, k, "float16", stages, in_registers)
        return Sample(program, (a, packed, scales, _empty(m, n, dtype="float16")), expected)

    SAMPLES[name] = make


def _product_of_nibbles(a: torch.Tensor, nibbles: torch.Tensor, scales: torch.Tensor) -> Any:
    group = nibbles.shape[1] // scales.shape[1]
    weights = (nibbles.half() - 8) * scales.repeat_interleave(group, dim=1)
    return a.double() @ weights.double().T


_int4_product("product_of_int4", 3, False)
_int4_product("product_of_int4_decoded_in_registers", 2, True)


@sample
def product_of_int4_by_words() -> Sample:
    """The benchmark's, with a function in CUDA C++."""
    m, n, k = 16, 128, 768
    a, scales = random(m, k, dtype="float16"), random(n, k // GROUP, dtype="float16")
    words = torch.randint(1 << 32, (n, k // 8))
    firsts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28])
    by_thread = ((words[..., None] >> firsts) & 0xF).view(n, -1, 4, 8, 4, 2)
    nibbles = by_thread.permute(0, 1, 3, 4, 2, 5).flatten(1)
    expected = _product_of_nibbles(a, nibbles, scales)
    program = int4_gemm(m, n, k, block_N=64, block_K=256, stages=3, groups=1, threads=128)
    result = _empty(m, n, dtype="float16")
    return Sample(program, (a, words.to(torch.uint32), scales, result), expected)


@sample
def transposed_copy() -> Sample:
    """Block by block through one tile, in a loop."""

    @T.prim_func
    def program(A: T.Tensor((64, 256), "float32"), C: T.Tensor((256, 64), "float32")):
        with T.Kernel(2, threads=128) as bx:
            tile = T.alloc_shared((32, 32), "float32")
            for step in T.serial(8):
                T.copy(A[bx * 32, step * 32], tile)
                for i, j in T.Parallel(32, 32):
                    C[step * 32 + i, bx * 32 + j] = tile[j, i]

    a = random(64, 256)
    return Sample(program, (a, _empty(256, 64)), a.double().T)


@sample
def tiles_that_share_memory() -> Sample:
    """Two tiles of 128 KiB, more than a block may have at once."""
    shape = (128, 256)

    @T.prim_func
    def program(
        A: T.Tensor(shape, "float32"), B: T.Tensor(shape, "float32"), C: T.Tensor(shape, "float32")
    ):
        with T.Kernel(1, threads=256):
            first = T.alloc_shared(shape, "float32")
            second = T.alloc_shared(shape, "float32")
            total = T.alloc_fragment(shape, "float32")
            T.copy(A, first)
            for i, j in T.Parallel(*shape):
                total[i, j] = first[127 - i, j]
            T.copy(B, second)
            for i, j in T.Parallel(*shape):
                total[i, j] += second[127 - i, j]
            T.copy(total, C)

    a, b = random(*shape), random(*shape)
    return Sample(program, (a, b, _empty(*shape)), (a.double() + b.double()).flip(0))


@sample
def fragments_that_lie_differently() -> Sample:
    """A product is an operand of the next, whose warps hold other rows of it, in each iteration."""

    @T.prim_func
    def program(
        A: T.Tensor((4, 64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            left = T.alloc_shared((64, 64), "float16")
            right = T.alloc_shared((64, 64), "float16")
            product = T.alloc_fragment((64, 64), "float32")
            operand = T.alloc_fragment((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.copy(B, right)
            T.clear(total)
            for step in T.serial(4):
                T.copy(A[step, :, :], left)
                T.clear(product)
                T.gemm(left, right, product, policy=T.GemmWarpPolicy.FullRow)
                T.copy(product, operand)
                T.gemm(operand, right, total, policy=T.GemmWarpPolicy.FullCol)
            T.copy(total, C, disable_tma=True)  # racecheck does not look at tensor maps

    a, b = random(4, 64, 64, dtype="float16"), random(64, 64, dtype="float16")
    halves = (a.double() @ b.double()).half().double()
    return Sample(program, (a, b, _empty(64, 64)), (halves @ b.double()).sum(0), "float16")


def _pipeline(name: str, stages: int) -> None:
    def make() -> Sample:
        run = pipelines.CASES[name](stages)
        result = torch.full_like(run.expected, 77, memory_format=torch.contiguous_format)
        expected = run.expected.double() if result.is_floating_point() else run.expected
        return Sample(run.program, (*run.arguments, result), expected)

    SAMPLES[name] = make


_pipeline("loops_after_each_other_that_share_a_tile", 3)
_pipeline("loops_in_persistent_and_serial_loops", 3)
_pipeline("a_loop_in_a_loop", 2)
_pipeline("a_consumer_that_writes_back", 3)
_pipeline("blocks_that_a_mask_leaves_out", 3)


def without_barrier(source: str, number: int) -> str:
    """A CUDA source without one of its barriers, counted from 0."""
    barrier = list(BARRIER.finditer(source))[number]
    return source[: barrier.start()] + source[barrier.end() :]


def compiled(program: Any, target: Any) -> Any:
    """A kernel of a program; which loops can't be pipelined does not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TileWarning)
        return tvmtile.compile(program, target=target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SAMPLES)
    parser.add_argument("--without-barrier", type=int, metavar="N")
    args = parser.parse_args()
    torch.manual_seed(0)
    chosen = SAMPLES[args.name]()
    missing = args.without_barrier
    if missing is not None:
        tvm_ffi.register_global_func(
            "tvm_callback_cuda_postproc", lambda source, _: without_barrier(source, missing)
        )
    kernel = compiled(chosen.program, "cuda")
    try:
        chosen.check(kernel, tvm.cuda(0))
    except AssertionError:
        if missing is None:
            raise
    print("ran", args.name)


if __name__ == "__main__":
    main()
