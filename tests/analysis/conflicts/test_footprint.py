"""Threads for which conditions hold."""

from tvm import tirx

import tvmtile.language as T
from tvmtile._tvm import nodes_in
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.ir.kernels import Launch


def test_a_condition_of_the_call_alone_is_certain_for_no_thread():
    """As `whole < rounds`, which two groups of threads decide alike: it, and its opposite, may hold."""

    @T.prim_func
    def main(A: T.Tensor((32,), "int32"), size: T.int32):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                A[i] = size

    launch = Launch(next(iter(nodes_in(main.body, tirx.For, order="pre"))))
    size, thread = main.params[1], launch.thread_index
    footprints = Footprints(launch, {size})
    assert footprints.threads_where([thread < 8]) == 0xFF
    for condition in (size > 5, tirx.floordiv(size, 64) < tirx.floordiv(size + 63, 64)):
        assert footprints.threads_where([condition]) == 0
        assert footprints.threads_where([tirx.Not(condition)]) == 0
        assert footprints.threads_where([thread < 8, condition]) == 0
