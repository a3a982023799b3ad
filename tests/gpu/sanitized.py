"""Programs for compute-sanitizer: each is a process of its own, small, with all that threads share.

`python -m tests.gpu.sanitized NAME` compiles a program, runs it on random data and compares; with
`--without-barrier N` the Nth barrier is taken out of the generated source, counted from 0, and what is
computed does not matter. Arguments are allocated one by one, without torch's allocator, so that an
access beyond the end of one is an access to no memory.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import tvm
import tvm_ffi

import tvmtile
from benchmarks.gpu_programs import GROUP, attention, int4_gemm, rms_norm, softmax
from tests.fuzz.program import mismatch
from tests.fuzz.run import loaded
from tests.fuzz.values import storage
from tests.metal.programs import assert_close, random
from tests.programs import Case, catalogue
from tests.programs.text import Name
from tvmtile.errors import TileWarning

BARRIER = re.compile(r"^ *__sync(threads|warp)\(\);\n", re.MULTILINE)


@dataclass(frozen=True)
class Named:
    """A program of the catalogue."""

    case: Case

    @cached_property
    def program(self) -> Any:
        with tempfile.TemporaryDirectory() as directory:
            return loaded(self.case, Path(directory)).main

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The arguments of a call, on the CPU."""
        found = {}
        for arg in self.case.parameters:
            dtype = str(arg.annotation.args[-1].value)  # type: ignore[union-attr]
            elements = self.case.arguments(0)[arg.arg]
            raw = torch.from_numpy(elements.astype(storage(dtype)).reshape(-1).view("uint8"))
            # A clone is aligned, as TVM wants it.
            found[arg.arg] = raw.clone().view(getattr(torch, dtype)).reshape(elements.shape)
        return found

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.tensors.values())

    @cached_property
    def expected(self) -> dict[str, Any]:
        return self.case.meaning(0)

    def check(self, kernel: Any, device: Any) -> None:
        """Compare what a kernel of the program computes on a device of TVM."""
        there = {name: _moved(tensor, device) for name, tensor in self.tensors.items()}
        kernel(*there.values())
        for name, meant in self.expected.items():
            found = _back(there[name], self.tensors[name])
            wide = found.double() if found.is_floating_point() else found.long()
            assert not mismatch(meant, wide.numpy()), mismatch(meant, wide.numpy())


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


SAMPLES: dict[str, Callable[[], Named | Sample]] = {}
"""Functions that make a sample, by its name."""


def sample(function: Callable[[], Sample]) -> Callable[[], Sample]:
    SAMPLES[function.__name__] = function
    return function


def _empty(*shape: int, dtype: str = "float32") -> torch.Tensor:
    return torch.full(shape, 77, dtype=getattr(torch, dtype))


def _named(name: str, program: str, **parameters: Any) -> None:
    """A program of the catalogue, without what racecheck does not look at: tensor maps and roles."""
    SAMPLES[name] = lambda: Named(catalogue()[program].case(**parameters))


_ALONE: dict[str, Any] = {"roles": False, "tensor_copies": False, "threads": 128}
_HALF, _INT8 = ("float16", "float16", "float32", "float32"), ("int8", "int8", "int32", "int32")


def _product(name: str, extents: tuple[Any, int, int], **options: Any) -> None:
    given = {"dtypes": _HALF, "block": (64, 64, 32), "stages": 3, **_ALONE, **options}
    text = "gemm_of_any_rows" if isinstance(extents[0], str) else "gemm_by_mma"
    _named(name, text, extents=extents, **given)


for _stages in (0, 2, 3, 4):
    _product(f"product_of_{_stages}_stages", (64, 128, 192), stages=_stages)
_product("ragged_product", (100, 72, 168))
_product("product_of_transposed_tiles", (64, 64, 128), transpose_A=True, transpose_B=True)
_product(
    "product_of_bfloat16", (64, 64, 128), dtypes=("bfloat16", "bfloat16", "float32", "bfloat16")
)
_product("product_of_int8", (64, 64, 256), block=(64, 64, 64), dtypes=_INT8)
_product("product_of_tf32", (64, 64, 128), dtypes=("float32",) * 4)
_product("product_of_any_rows", (Name("M"), 64, 128))
_named("product_through_shared_memory", "gemm_pipelined_and_stored_through_shared_memory")
_named("parts_of_a_product", "epilogue_split_k", extents=(64, 64, 256, 2))
_FLASH = {"batch": 1, "heads": 1, "causal": False, "block_N": 32, "roles": False}
_named("attention_to_all", "attention", length=128, block_M=64, tensor_copies=False, **_FLASH)
_COLUMNS = {**_FLASH, "block_N": 64, "stages": 2, "policy": "FullCol"}
_named("attention_over_columns_of_warps", "attention", length=192, **_COLUMNS)


def _attention(program: Any, q: Any, k: Any, v: Any, causal: bool, heads_second: bool) -> Sample:
    inner = [x.double().transpose(1, 2) if heads_second else x.double() for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*inner, is_causal=causal)
    if heads_second:
        expected = expected.transpose(1, 2)
    return Sample(program, (q, k, v, _empty(*q.shape, dtype="float16")), expected)


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


_named("running_sums_of_rows", "running_sums", shape=(6, 300), dim=1, reverse=False)
_named("running_sums_of_columns", "running_sums", shape=(300, 6), dim=0, reverse=False)
_INT4 = {"M": 32, "N": 64, "K": 256, "dtype": "float16"}
_named("product_of_int4", "quantized_gemm_of_4_bits", stages=3, in_registers=False, **_INT4)
_named("product_of_int4_decoded_in_registers", "quantized_gemm_of_4_bits", stages=2, **_INT4)


def _product_of_nibbles(a: torch.Tensor, nibbles: torch.Tensor, scales: torch.Tensor) -> Any:
    group = nibbles.shape[1] // scales.shape[1]
    weights = (nibbles.half() - 8) * scales.repeat_interleave(group, dim=1)
    return a.double() @ weights.double().T


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


_named("transposed_copy", "transposed_block_by_block")
_named("tiles_that_share_memory", "tiles_that_share_memory")
_named("fragments_that_lie_differently", "gemm_chained_in_a_loop", tensor_copies=False)
for _name, _program, _form, _stages in (
    ("loops_after_each_other_that_share_a_tile", "tiles", "a loop behind it", 3),
    ("loops_in_persistent_and_serial_loops", "tiles", "persistent and serial loops around", 3),
    ("a_loop_in_a_loop", "rows", "a pipeline in it", 2),
    ("a_consumer_that_writes_back", "tiles", "a consumer that writes back", 3),
    ("blocks_that_a_mask_leaves_out", "operands", "a mask", 3),
):
    _named(_name, f"pipeline_of_{_program}", form=_form, stages=_stages)


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
