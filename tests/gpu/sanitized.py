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
from benchmarks.gpu_programs import GROUP, attention, int4_gemm
from tests.fuzz.program import mismatch
from tests.fuzz.run import loaded
from tests.fuzz.values import storage
from tests.programs import Case, catalogue
from tests.programs.text import Name
from tests.running import assert_close, random
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


_ALONE: dict[str, Any] = {"roles": False, "tensor_copies": False, "threads": 128}
_HALF, _INT8 = ("float16", "float16", "float32", "float32"), ("int8", "int8", "int32", "int32")
_PRODUCT: dict[str, Any] = {**_ALONE, "dtypes": _HALF, "block": (64, 64, 32), "stages": 3}
_FLASH = {"batch": 1, "heads": 1, "causal": False, "block_N": 32, "roles": False}
_COLUMNS = {**_FLASH, "block_N": 64, "stages": 2, "policy": "FullCol"}
_INT4 = {"M": 32, "N": 64, "K": 256, "dtype": "float16"}
_BRAIN = ("bfloat16", "bfloat16", "float32", "bfloat16")
NAMED: dict[str, tuple[int, str, dict[str, Any]]] = {
    "product_of_0_stages": (2, "gemm_by_mma", {**_PRODUCT, "extents": (64, 128, 192), "stages": 0}),
    "product_of_2_stages": (1, "gemm_by_mma", {**_PRODUCT, "extents": (64, 128, 192), "stages": 2}),
    "product_of_3_stages": (1, "gemm_by_mma", {**_PRODUCT, "extents": (64, 128, 192), "stages": 3}),
    "product_of_4_stages": (1, "gemm_by_mma", {**_PRODUCT, "extents": (64, 128, 192), "stages": 4}),
    "ragged_product": (1, "gemm_by_mma", {**_PRODUCT, "extents": (100, 72, 168)}),
    "product_of_transposed_tiles": (1, "gemm_by_mma",
        {**_PRODUCT, "extents": (64, 64, 128), "transpose_A": True, "transpose_B": True}),
    "product_of_bfloat16": (1, "gemm_by_mma",
        {**_PRODUCT, "extents": (64, 64, 128), "dtypes": _BRAIN}),
    "product_of_int8": (1, "gemm_by_mma",
        {**_PRODUCT, "extents": (64, 64, 256), "block": (64, 64, 64), "dtypes": _INT8}),
    "product_of_tf32": (1, "gemm_by_mma",
        {**_PRODUCT, "extents": (64, 64, 128), "dtypes": ("float32",) * 4}),
    "product_of_any_rows": (1, "gemm_of_any_extents", {**_PRODUCT, "extents": (Name("M"), 64, 128)}),
    "product_through_shared_memory": (2, "gemm_by_mma", {**_PRODUCT, "extents": (64, 128, 96),
        "stages": 2, "staged": True, "dtypes": (*_HALF[:3], "float16")}),
    "parts_of_a_product": (2, "epilogue_split_k", {"extents": (64, 64, 256, 2)}),
    "attention_to_all": (2, "attention",
        {**_FLASH, "length": 128, "block_M": 64, "tensor_copies": False}),
    "attention_over_columns_of_warps": (4, "attention", {**_COLUMNS, "length": 192}),
    "softmax_of_rows_over_warps": (2, "softmax", {"M": 5, "N": 1000, "block": 1, "threads": 128}),
    "layer_norm_of_rows_over_warps": (2, "layer_norm", {"N": 1000, "block": 1, "threads": 256}),
    "running_sums_of_rows": (1, "scan", {"tile": ((6, 300), 1), "threads": 128}),
    "running_sums_of_columns": (2, "scan", {"tile": ((300, 6), 0), "threads": 128}),
    "product_of_int4": (2, "quantized_gemm_of_4_bits",
        {**_INT4, "stages": 3, "in_registers": False}),
    "product_of_int4_decoded_in_registers": (2, "quantized_gemm_of_4_bits", {**_INT4, "stages": 2}),
    "transposed_copy": (2, "transposed_block_by_block", {}),
    "tiles_that_share_memory": (3, "tiles_that_share_memory", {}),
    "fragments_that_lie_differently": (2, "products_of_products_in_a_loop", {"tensor_copies": False}),
    "loops_after_each_other_that_share_a_tile": (5, "pipeline_of_tiles",
        {"form": "a loop behind it", "stages": 3}),
    "loops_in_persistent_and_serial_loops": (2, "pipeline_of_tiles",
        {"form": "persistent and serial loops around", "stages": 3}),
    "a_loop_in_a_loop": (2, "pipeline_of_rows", {"form": "a pipeline in it", "stages": 2}),
    "a_consumer_that_writes_back": (2, "pipeline_of_tiles",
        {"form": "a consumer that writes back", "stages": 3}),
    "blocks_that_a_mask_leaves_out": (1, "pipeline_of_operands", {"form": "a mask", "stages": 3}),
}  # fmt: skip
"""How many barriers the source has, those of a warp included, and the program of the catalogue.

There are no tensor maps and no roles, which racecheck does not look at.
"""


def causal_attention() -> Sample:
    """Two pipelined loops: tiles below the diagonal, and those on it."""
    program = attention(1, 1, 256, 64, True, block_M=64, block_N=32, stages=2, threads=128)
    q, k, v = (random(1, 1, 256, 64, dtype="float16") for _ in range(3))
    wide = (x.double() for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)
    return Sample(program, (q, k, v, torch.empty_like(q)), expected)


def product_of_int4_by_words() -> Sample:
    """The benchmark's, with a function in CUDA C++."""
    m, n, k = 16, 128, 768
    a, scales = random(m, k, dtype="float16"), random(n, k // GROUP, dtype="float16")
    words = torch.randint(1 << 32, (n, k // 8))
    firsts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28])
    by_thread = ((words[..., None] >> firsts) & 0xF).view(n, -1, 4, 8, 4, 2)
    nibbles = by_thread.permute(0, 1, 3, 4, 2, 5).flatten(1)
    weights = (nibbles.half() - 8) * scales.repeat_interleave(k // scales.shape[1], dim=1)
    expected = a.double() @ weights.double().T
    program = int4_gemm(m, n, k, block_N=64, block_K=256, stages=3, groups=1, threads=128)
    result = torch.empty(m, n, dtype=torch.float16)
    return Sample(program, (a, words.to(torch.uint32), scales, result), expected)


OTHERS = {
    "causal_attention": (2, causal_attention),
    "product_of_int4_by_words": (2, product_of_int4_by_words),
}
BARRIERS = {name: count for name, (count, *_) in {**NAMED, **OTHERS}.items()}
SAMPLES: dict[str, Callable[[], Named | Sample]] = {
    **{
        name: lambda program=program, given=given: Named(catalogue()[program].case(**given))
        for name, (_, program, given) in NAMED.items()
    },
    **{name: make for name, (_, make) in OTHERS.items()},
}
"""Functions that make a sample, by its name."""


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
