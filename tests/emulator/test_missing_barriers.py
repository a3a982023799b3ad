"""Each barrier and each wait of a kernel is there for something: without it the emulator finds a race.

The programs are those that compute-sanitizer watches on an NVIDIA GPU (see tests/gpu/sanitized.py).
"""

from __future__ import annotations

import re

import pytest
import tvm

from tests.gpu.sanitized import BARRIER, SAMPLES
from tests.running import runnable
from tvmtile.errors import EmulationError

WAIT = re.compile(r"tvm_builtin_ptx_cp_async_wait_group_async_wait_group_(\d+)\(\);")
OF_METAL = re.compile(r"^ *(?:threadgroup|simdgroup)_barrier\(mem_flags::\w+\);\n", re.MULTILINE)
# By default those with cp.async, stmatrix, barriers of warps and several loops.
FEW = {
    "product_of_3_stages",
    "product_through_shared_memory",
    "attention_over_columns_of_warps",
    "layer_norm_of_rows_over_warps",
    "tiles_that_share_memory",
}
# One needs more memory than a threadgroup has, the other has a function in CUDA C++.
NOT_FOR_METAL = {"tiles_that_share_memory", "product_of_int4_by_words"}
HOPPER = {"kind": "cuda", "arch": "sm_90a"}


def is_behind_loop(source, wait):
    """Tell whether a wait is behind a loop: for the groups of the last iterations, without copies.

    The last wait of a kernel is one, too.
    """
    indent, end, *before = reversed(source[: wait.start()].split("\n"))
    around = (line for line in before if re.match(rf"{indent}\S", line))
    return end == indent + "}" and next(around).startswith(f"{indent}for ")


def missed(name, target):
    """A sample's kernel, which is right as it is, and its text with each of the steps left out."""
    sample = SAMPLES[name]()
    kernel = runnable(sample.program, target)
    sample.check(kernel, tvm.cpu())
    ((_, source),) = kernel.adapter.sources.items()
    barriers = list((OF_METAL if target == "metal" else BARRIER).finditer(source))
    assert len(barriers) == source.count("_barrier(" if target == "metal" else "__sync") > 0
    waits = [wait for wait in list(WAIT.finditer(source))[:-1] if not is_behind_loop(source, wait)]
    more = 'asm volatile("cp.async.wait_group {};" : : : "memory");'
    changed = [(barrier, "") for barrier in barriers]
    changed += [(wait, more.format(int(wait[1]) + 1)) for wait in waits]
    return sample, kernel, [source[: m.start()] + new + source[m.end() :] for m, new in changed]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
@pytest.mark.parametrize(
    ("name", "target"),
    [
        *(
            pytest.param(name, HOPPER, marks=[] if name in FEW else pytest.mark.nightly)
            for name in SAMPLES
        ),
        *((n, "metal") for n in SAMPLES if n not in NOT_FOR_METAL),
    ],
    ids=lambda value: value if isinstance(value, str) else value["arch"],
)
def test_every_barrier_and_every_wait_is_missed(name, target):
    sample, kernel, broken = missed(name, target)
    (symbol,) = kernel.adapter.sources
    for text in broken:
        kernel.adapter.sources[symbol] = text
        with pytest.raises(EmulationError) as caught:
            sample.check(kernel, tvm.cpu())
        assert caught.value.kind == "race", str(caught.value)
