"""How kernels are launched: what `SetKernelAttributes` writes into the functions that TVM has made."""

import pytest
import torch

import tvmtile
import tvmtile.language as T


def launches(arch, first, second):
    """The launch parameters of two kernels, and the second one's source."""

    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(128):
                A[bx * 128 + i] = 1
            first()
        with T.Kernel(2, threads=128) as bx:
            second()
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[255 - bx * 128 - i]

    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": arch})
    functions = dict(kernel.lowering)["tvmtile.SetKernelAttributes"].functions.items()
    tags = {
        name.name_hint: [str(tag) for tag in func.attrs["tirx.kernel_launch_params"]]
        for name, func in functions
        if "tirx.kernel_launch_params" in func.attrs
    }
    source = kernel.get_kernel_source()
    return tags["main_kernel"], tags["main_kernel_1"], source[source.rindex("__global__") :]


AXES = ["blockIdx.x", "threadIdx.x"]
OVERLAPPED = "tirx.use_programtic_dependent_launch"


def test_a_kernel_that_waits_for_the_one_before_it_may_begin_while_that_ends():
    before, after, source = launches("sm_90a", T.pdl_trigger, T.pdl_sync)
    assert before == AXES
    assert after == [OVERLAPPED, *AXES]
    assert "griddepcontrol" in source
    assert "__restrict__" not in source  # what the kernel before it writes is not constant


@pytest.mark.full
def test_such_a_kernel_runs_in_the_emulator():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = i
            T.pdl_trigger()
        with T.Kernel(1, threads=64):
            T.pdl_sync()
            for i in T.Parallel(64):
                B[i] = A[63 - i]

    a, b = torch.empty(64), torch.empty(64)
    target = {"kind": "cuda", "arch": "sm_90a"}
    tvmtile.compile(main, target=target, execution_backend="emulator")(a, b)
    assert torch.equal(b, torch.arange(64.0).flip(0))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_other_kernels_follow_each_other(arch):
    nothing = lambda: None
    before, after, source = launches(arch, nothing, nothing if arch == "sm_90a" else T.pdl_sync)
    assert before == after == AXES
    assert "__restrict__" in source
