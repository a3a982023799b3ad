"""Mistakes planted in the source that TVM generates, for Metal and for CUDA: each is found.

A row of `MISTAKES` is a mistake, how the emulator finds it, and the text that has it in each language;
`wrong` is a result that is wrong, where the kernel is one that somebody might have meant. Protocols of
Hopper are in `cuda/planted.py`, and barriers that are left out in `test_missing_barriers.py`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import tvm

from tests.gpu.sanitized import SAMPLES
from tests.running import runnable
from tvmtile.errors import EmulationError

TARGETS = {"metal": "metal", "cuda": {"kind": "cuda", "arch": "sm_90a"}}
NAMES = (
    "transposed_copy",
    "parts_of_a_product",
    "layer_norm_of_rows_over_warps",
    "running_sums_of_rows",
)
Planted = tuple[str, str | Callable[[re.Match[str]], str]]


@dataclass(frozen=True)
class Mistake:
    """A mistake: how it is found, and in each language a pattern and its replacement."""

    found: str
    metal: Planted | None = None
    cuda: Planted | None = None


def _index(found: re.Match[str]) -> str:
    return "threadIdx.x" if "uint3 threadIdx" in found.string else "threadIdx"


def _halved(tile: re.Match[str]) -> str:
    return f"{tile[1]}{int(tile[2]) // 2}];"


MISTAKES = {
    "a barrier of a warp in place of one of the block": Mistake(
        "race", (r"threadgroup_(?=barrier\()", "simdgroup_"), (r"__syncthreads", "__syncwarp")
    ),
    "a barrier that orders no memory": Mistake(
        "race", (r"mem_flags::mem_threadgroup", "mem_flags::mem_none")
    ),
    "a barrier that orders the grid's memory": Mistake(
        "race", (r"mem_flags::mem_threadgroup", "mem_flags::mem_device")
    ),
    "a barrier for some threads": Mistake(
        "divergence race uninitialized",
        (r"(\w+_barrier\(.*\));", lambda found: f"if ({_index(found)} & 1) {{ {found[1]}; }}"),
        (r"(__sync\w+\(\));", r"if (threadIdx.x & 1) { \1; }"),
    ),
    "a tile of half its elements": Mistake(
        "out_of_bounds",
        (r"(threadgroup \w+ \w+\[)(\d+)\];", _halved),
        (r"(__shared__ .*\w+\[)(\d+)\];", _halved),
    ),
    "a tile that is not written": Mistake(
        "uninitialized wrong",
        (r"^ *(\*\(threadgroup |src\[|exchange\w*\[).* = .*;$", ""),
        (r"^ *(\*\(\w+\*\)\((tile|scanned|src)_ptr |exchange\w*_ptr\w*\[).* = .*;$", ""),
    ),
    "the element behind the one that is stored": Mistake(
        "race out_of_bounds misaligned wrong",
        (r"(?<=\*\(device float4\*\)\(C_ptr) \+", " + 1 +"),
        (r"(?<=\*\(float4\*\)\(C_ptr) \+", " + 1 +"),
    ),
    "the row behind the one that is read": Mistake(
        "race out_of_bounds uninitialized wrong",
        (r"(?<== tile\[)", "32 + "),
        (r"(?<== tile_ptr\[)", "32 + "),
    ),
    "the rows of another block": Mistake(
        "race out_of_bounds wrong",
        (r"\(\(int\)blockIdx(\.\w)?\)", "0"),
        (r"\(\(int\)blockIdx(\.\w)?\)", "0"),
    ),
    "no guard": Mistake(
        "race out_of_bounds wrong uninitialized",
        (r"if \(.*threadIdx.*\) \{$", "if (true) {"),
        (r"if \(.*threadIdx.*\) \{$", "if (true) {"),
    ),
    "another lane": Mistake(
        "wrong",
        (r"(simd_shuffle_\w+\(.*?, )\d+\)", r"\g<1>0)"),
        (r"(__shfl_\w+_sync\(.*?, .*?, )\d+,", r"\g<1>0,"),
    ),
    "a sum in memory that is not atomic": Mistake(
        "race",
        (r"tvmtile_atomic_add\w+\(\(&\((.*?\])\)\), .*\);", r"\1 = \1 + 1;"),
        (r"tvmtile_atomic_add\w+\(\(&\((.*?\])\)\), .*\);", r"\1 = \1 + 1;"),
    ),
    "a function of a warp for some lanes": Mistake(
        "divergence",
        (r"(simd_shuffle_\w+\(.*?, \d+\))", r"((threadIdx & 1) ? \1 : 0.0f)"),
        (r"(__shfl_\w+_sync\(.*?, .*?, \d+, \d+\))", r"((threadIdx.x & 1) ? \1 : 0.0f)"),
    ),
    "another address space": Mistake(
        "address_space", (r"(?<=\*\()(threadgroup)(?= \w+\*\))", "device")
    ),
    "a pointer to the memory of the grid": Mistake(
        "address_space", (r"(?<=\*\()(device)(?= \w+\*\))", "threadgroup")
    ),
    "a matrix that is not loaded": Mistake(
        "uninitialized wrong", (r"^ *simdgroup_load\(.*;$", "")
    ),
    "another distance of a matrix's rows": Mistake(
        "uninitialized out_of_bounds race wrong",
        (r"(simdgroup_load\(.*), (\d+), 0, ", lambda found: f"{found[1]}, {int(found[2]) - 8}, 0, "),
    ),
    "a matrix that is transposed": Mistake(
        "wrong", (r"(simdgroup_load\(.*), \(bool\)0\)", r"\1, (bool)1)")
    ),
    "factors in the other order": Mistake(
        "wrong", (r"(simdgroup_multiply_accumulate\(.*?, )(.*?), (.*?), ", r"\1\3, \2, ")
    ),
    "a sum that begins anew": Mistake(
        "wrong", (r"simdgroup_multiply_accumulate\((.*?, .*?, .*?), .*\);", r"simdgroup_multiply(\1);")
    ),
    "a position in the grid in place of that in the threadgroup": Mistake(
        "out_of_bounds",
        (r"thread_position_in_threadgroup", "thread_position_in_grid"),
    ),
}  # fmt: skip
# A mistake and a kernel that is right all the same.
EQUIVALENT = {
    (
        "a position in the grid in place of that in the threadgroup",
        "running_sums_of_rows",
    ),  # one block
}


@functools.cache
def sample(name, language):
    """A sample, its kernel, which is right as it is, and the source."""
    found = SAMPLES[name]()
    kernel = runnable(found.program, TARGETS[language])
    found.check(kernel, tvm.cpu())
    ((_, source),) = kernel.adapter.sources.items()
    return found, kernel, source


def broken(source: str, planted: Planted) -> Iterator[str]:
    """The source with a mistake at the first place that has it, and at the last."""
    pattern, other = planted
    start = source.rindex("\n", 0, source.rindex("main_kernel("))
    places = list(re.compile(pattern, re.MULTILINE).finditer(source, start))
    for place in places[:1] + places[1:][-1:]:
        changed = other(place) if callable(other) else place.expand(other)
        yield source[: place.start()] + changed + source[place.end() :]


def outcome(name, language, text):
    found, kernel, source = sample(name, language)
    (symbol,) = kernel.adapter.sources
    kernel.adapter.sources[symbol] = text
    try:
        found.check(kernel, tvm.cpu())
    except EmulationError as error:
        return error.kind
    except AssertionError:
        return "wrong"
    finally:
        kernel.adapter.sources[symbol] = source
    return "right"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
@pytest.mark.parametrize(
    ("what", "language"),
    [(w, language) for w, m in MISTAKES.items() for language in TARGETS if getattr(m, language)],
)
def test_planted_mistake_is_found(what, language):
    mistake, outcomes = MISTAKES[what], {}
    for name in NAMES:
        texts = broken(sample(name, language)[2], getattr(mistake, language))
        outcomes[name] = {outcome(name, language, text) for text in texts}
        if (what, name) in EQUIVALENT:
            assert outcomes.pop(name) == {"right"}
    assert any(outcomes.values())
    assert set().union(*outcomes.values()) <= {*mistake.found.split()}, outcomes
