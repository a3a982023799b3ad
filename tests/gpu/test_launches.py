"""How kernels are launched: on torch's current stream, in a graph, with results made by the call."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.gpu.machine import DEVICE, on_gpu
from tests.language.test_source_kernel import program as external_copy
from tvmtile.errors import ArgumentError, InvalidValue

pytestmark = pytest.mark.gpu

N = 1 << 20


@pytest.fixture(scope="module")
def increment():
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N // 1024, threads=128) as bx:
            for i in T.Parallel(1024):
                B[bx * 1024 + i] = A[bx * 1024 + i] + 1

    return on_gpu(main, out_idx=-1)


def test_a_kernel_follows_torchs_current_stream(increment):
    slow, x = torch.cuda.Stream(), torch.zeros(N, device=DEVICE)
    with torch.cuda.stream(slow):
        torch.cuda._sleep(200_000_000)  # a launch on another stream would overtake this
        x.fill_(1)
        y = increment(x)
        z = increment(y)
    slow.synchronize()
    assert torch.all(y == 2)
    assert torch.all(z == 3)


def test_a_kernel_is_captured_in_a_graph(increment):
    x, y = torch.zeros(N, device=DEVICE), torch.zeros(N, device=DEVICE)
    increment(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        increment(x, y)
    x.fill_(4)
    assert torch.all(y == 1)
    graph.replay()
    assert torch.all(y == 5)


@tvmtile.torch_op("tvmtile_tests_gpu::triple", target="cuda")
def triple(X):
    M, K = T.dynamic("M"), T.const("K")
    X: T.Tensor((M, K), "float32")
    Y = T.empty((M, K), "float32")
    with T.Kernel(M, threads=128) as row:
        for j in T.Parallel(K):
            Y[row, j] = X[row, j] * 3
    return Y


def test_an_operator_of_torch_is_captured_with_its_results():
    x = torch.ones(64, 256, device=DEVICE)
    torch.library.opcheck(triple, (x,))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = triple(triple(x)) + 1
    x.fill_(2)
    graph.replay()
    assert torch.all(y == 19)


def test_a_kernel_that_was_never_called_is_captured():
    @T.prim_func
    def cold(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N // 1024, threads=128) as bx:
            for i in T.Parallel(1024):
                B[bx * 1024 + i] = A[bx * 1024 + i] - 1

    kernel = on_gpu(cold)
    x, y = torch.zeros(N, device=DEVICE), torch.zeros(N, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, y)
    graph.replay()
    assert torch.all(y == -1)


def test_results_are_allocated_on_the_device_of_the_inputs(increment):
    y = increment(torch.ones(N, device=DEVICE))
    assert y.device.type == "cuda"
    assert torch.all(y == 2)


def test_a_tensor_on_the_cpu_is_refused(increment):
    with pytest.raises(
        ArgumentError, match=r"must be a torch tensor on cuda; it is on cpu"
    ) as caught:
        increment(torch.ones(N), torch.empty(N, device=DEVICE))
    assert '.to("cuda")' in caught.value.help


def test_resources_are_those_of_the_loaded_kernel(increment):
    (used,) = increment.resources()
    assert 0 < used.registers <= 32
    assert used.spills == 0


def test_a_profiler_measures_the_gpu_and_not_the_launch(increment):
    profiler = increment.get_profiler()
    assert profiler.inputs()[0].device.type == "cuda"
    # 8 MB take 2 us or more at 4 TB/s; waiting for a launch from Python would take much longer.
    assert 0.001 < profiler.do_bench(return_mode="median") < 0.05


def test_blocks_wait_for_each_other():
    blocks, size = 64, 256

    @T.prim_func
    def main(steps: T.int32, A: T.Tensor((2, blocks, size), "int32")):
        with T.Kernel(blocks, threads=128) as bx:
            for step in T.serial(steps):
                now = step % 2
                for i in T.Parallel(size):
                    left = A[now, (bx + blocks - 1) % blocks, i]
                    A[1 - now, bx, i] = left + A[now, (bx + 1) % blocks, i]
                T.sync_grid()

    kernel = on_gpu(main)
    a = torch.randint(0, 9, (2, blocks, size), device=DEVICE, dtype=torch.int32)
    expected = a[0].clone()
    kernel(25, a)
    for _ in range(25):
        expected = expected.roll(1, 0) + expected.roll(-1, 0)
    assert torch.equal(a[1], expected)


def test_more_blocks_than_fit_at_once_can_not_wait_for_each_other():
    @T.prim_func
    def main(A: T.Tensor((1 << 20,), "int32")):
        with T.Kernel(1 << 20, threads=128) as bx:
            A[bx] = 1
            T.sync_grid()

    kernel = on_gpu(main)
    with pytest.raises(InvalidValue, match="the GPU has no room") as caught:
        kernel(torch.zeros(1 << 20, device=DEVICE, dtype=torch.int32))
    assert caught.value.location.text == "T.sync_grid()"


@pytest.mark.parametrize("n", [1, 128, 1000])
def test_a_kernel_that_is_written_in_cuda(n):
    kernel = on_gpu(external_copy())
    x, y = torch.rand(n, device=DEVICE), torch.zeros(n, device=DEVICE)
    kernel(x, y)
    assert torch.equal(y, 2 * x)


def test_a_grid_without_blocks_is_not_launched():
    n = T.dynamic("n")

    @T.prim_func
    def main(N: T.Tensor((n,), "float32"), A: T.Tensor((4,), "float32")):
        with T.Kernel(n, threads=32) as bx:
            A[bx % 4] = 1

    kernel, result = on_gpu(main), torch.zeros(4, device=DEVICE)
    kernel(torch.zeros(0, device=DEVICE), result)
    assert result.tolist() == [0, 0, 0, 0]
    kernel(torch.zeros(2, device=DEVICE), result)
    assert result.tolist() == [1, 1, 0, 0]


def test_a_kernel_without_arguments():
    @T.prim_func
    def main():
        with T.Kernel(1, threads=32):
            T.device_assert(True)

    on_gpu(main)()
    torch.cuda.synchronize()
