"""Each barrier and each wait of a kernel is there for something: without it the emulator objects.

The programs are those that compute-sanitizer watches on an NVIDIA GPU (see tests/gpu/sanitized.py).
"""

from __future__ import annotations

import re

import pytest
import tvm

import tvmtile
from tests.gpu.sanitized import BARRIER, SAMPLES, without_barrier
from tvmtile.errors import CudaEmulationError

WAIT = re.compile(r"tvm_builtin_ptx_cp_async_wait_group_async_wait_group_(\d+)\(\);")
# By default those with cp.async, stmatrix, barriers of warps and several loops.
FEW = {
    "product_of_3_stages",
    "product_through_shared_memory",
    "attention_over_columns_of_warps",
    "rms_norm_of_rows_over_warps",
    "tiles_that_share_memory",
}
NAMES = [n if n in FEW else pytest.param(n, marks=pytest.mark.nightly) for n in SAMPLES]


def emulated(name):
    """A sample and its kernel, which is right as it is; its symbol, and its source."""
    sample = SAMPLES[name]()
    kernel = tvmtile.compile(
        sample.program, target={"kind": "cuda", "arch": "sm_90a"}, execution_backend="emulator"
    )
    sample.check(kernel, tvm.cpu())
    ((symbol, source),) = kernel.adapter.sources.items()
    return sample, kernel, symbol, source


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
@pytest.mark.parametrize("name", NAMES)
def test_every_barrier_and_every_wait_is_missed(name):
    sample, kernel, symbol, source = emulated(name)
    barriers = len(BARRIER.findall(source))
    assert barriers == source.count("__sync") > 0
    broken = [without_barrier(source, number) for number in range(barriers)]
    # The last wait is behind the loop, for groups without copies.
    broken += [_loosened(source, wait) for wait in list(WAIT.finditer(source))[:-1]]
    for text in broken:
        kernel.adapter.sources[symbol] = text
        with pytest.raises(CudaEmulationError) as caught:
            sample.check(kernel, tvm.cpu())
        assert caught.value.kind == "race", str(caught.value)


def _loosened(source, wait):
    """The source with one more group left under way by a wait."""
    groups = int(wait[1]) + 1
    direct = f'asm volatile("cp.async.wait_group {groups};" : : : "memory");'
    return source[: wait.start()] + direct + source[wait.end() :]
