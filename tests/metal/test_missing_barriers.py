"""Every barrier of a kernel is there for something: without it the emulator finds a race.

The programs are those that compute-sanitizer watches on an NVIDIA GPU (see tests/gpu/sanitized.py).
"""

from __future__ import annotations

import re

import pytest
import tvm

from tests.gpu.sanitized import SAMPLES
from tests.metal.programs import emulated
from tvmtile.errors import MetalEmulationError

BARRIER = re.compile(r"^ *(?:threadgroup|simdgroup)_barrier\(mem_flags::\w+\);\n", re.MULTILINE)
# One needs more memory than a threadgroup has, the other has a function in CUDA C++.
NOT_FOR_METAL = {"tiles_that_share_memory", "product_of_int4_by_words"}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in NOT_FOR_METAL])
def test_every_barrier_is_missed(name):
    sample = SAMPLES[name]()
    kernel = emulated(sample.program)
    sample.check(kernel, tvm.cpu())
    ((symbol, source),) = kernel.adapter.sources.items()
    barriers = list(BARRIER.finditer(source))
    assert len(barriers) == source.count("_barrier(") > 0
    for barrier in barriers:
        missing = source[: barrier.start()] + source[barrier.end() :]
        kernel.adapter.sources[symbol] = missing
        with pytest.raises(MetalEmulationError) as caught:
            sample.check(kernel, tvm.cpu())
        assert caught.value.kind == "race", f"{barrier[0]} at {barrier.start()}: {caught.value}"
