"""Metal programs run by the emulator and, through a stand-in for its compiler, by torch."""

from __future__ import annotations

import shutil
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import tvm_ffi

import tvmtile
import tvmtile.language as T
from tvmtile.emulator.machine import toolchain
from tvmtile.emulator.metal import compile_msl
from tvmtile.emulator.metal import module as msl_module
from tvmtile.errors import (
    ArgumentError,
    InvalidOperand,
    NoLowering,
    TileWarning,
    UnsupportedDtype,
)
from tvmtile.jit import decorator, recorded
from tvmtile.jit.recorded import MetalEmulatorAdapter
from tvmtile.profiler import do_bench

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
of_both = pytest.mark.parametrize("backend", ["emulator", "torch"])


class FakeKernel:
    """A kernel of `torch.mps.compile_shader`, with its conversions of arguments and its checks."""

    max_threads_per_threadgroup = 1024

    def __init__(self, kernel):
        self.kernel = kernel

    def __call__(self, *args, threads=None, group_size=None):
        assert len(threads) == len(group_size) <= 3
        assert all(total % group == 0 for total, group in zip(threads, group_size, strict=True))
        grid = [total // group for total, group in zip(threads, group_size, strict=True)]
        self.kernel(*map(self._argument, args), grid=grid, threads=group_size)

    @staticmethod
    def _argument(arg):
        if isinstance(arg, torch.Tensor):  # its storage, from its first element on
            length = arg.untyped_storage().nbytes() // arg.itemsize - arg.storage_offset()
            return arg.as_strided((length,), (1,))
        assert arg
        return struct.pack(f"<{len(arg)}q", *arg)


class FakeLibrary:
    def __init__(self, source):
        self.module = compile_msl(source)

    def __getattr__(self, name):
        return FakeKernel(self.module.kernel(name))


@pytest.fixture(autouse=True)
def torch_has_mps(monkeypatch):
    """Torch compiles for the emulator, and its GPU is the CPU."""
    monkeypatch.setattr(torch.mps, "compile_shader", FakeLibrary)
    monkeypatch.setattr(recorded.TorchAdapter, "device", "cpu")


def compiled(program, backend="emulator", **options):
    return tvmtile.compile(program, target="metal", execution_backend=backend, **options)


@T.prim_func
def scale(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32"), n: T.int32, s: T.float32):
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(32):
            if bx * 32 + i < n:
                B[bx * 32 + i] = A[bx * 32 + i] * s


M = T.dynamic("m")


@T.prim_func
def two_launches(
    A: T.Tensor((M, 40), "float16"), B: T.StridedTensor((M, 40), (80, 1), "float16"), s: T.float32
):
    with T.Kernel(2, M, threads=32) as (bx, by):
        for i in T.Parallel(32):
            if bx * 32 + i < 40:
                B[by, bx * 32 + i] = A[by, bx * 32 + i] * T.cast(s, "float16")
    with T.Kernel((M + 1) // 2, threads=40) as bx:
        for i in T.Parallel(40):
            if bx * 2 + 1 < M:
                B[bx * 2 + 1, i] = B[bx * 2 + 1, i] + T.float16(1)


def reversing(dtype="float32"):
    @T.prim_func
    def reverse(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype)):
        with T.Kernel(2, threads=32) as bx:
            for i in T.Parallel(32):
                B[bx * 32 + i] = A[bx * 32 + 31 - i]

    return reverse


def reversed_blocks(a):
    return a.reshape(2, 32).flip(1).flatten()


@pytest.mark.full(but=4)
@pytest.mark.parametrize(
    ("dtype", "backend", "given"),
    [
        *((dtype, "torch", torch.Tensor.clone) for dtype in ("float32", "bfloat16", "uint8")),
        *((dtype, "emulator", torch.Tensor.clone) for dtype in ("float16", "int8", "int64")),
        ("float32", "emulator", torch.Tensor.numpy),
        ("float32", "emulator", tvm_ffi.from_dlpack),
        ("bfloat16", "emulator", tvm_ffi.from_dlpack),  # which numpy lacks
    ],
)
def test_memory_of_any_owner_and_dtype_is_written_in_place(dtype, backend, given):
    a = torch.randint(-9, 9, (64,)).to(getattr(torch, dtype))
    b = given(torch.zeros_like(a))
    compiled(reversing(dtype), backend)(given(a), b)
    written = torch.from_numpy(b) if isinstance(b, np.ndarray) else torch.from_dlpack(b)
    assert torch.equal(written, reversed_blocks(a))


@pytest.mark.parametrize(
    ("backend", "given"),
    [("emulator", torch.Tensor.detach), ("torch", torch.Tensor.detach), ("emulator", np.asarray)],
)
def test_grids_of_any_extent_strides_and_several_launches(backend, given):
    kernel = compiled(two_launches, backend)
    for m in (0, 1, 5, 8)[given is np.asarray :]:  # numpy has no strides of nothing
        a, b = torch.randn(m, 40).half(), torch.full((m, 80), 7.0).half()
        kernel(given(a), given(b[:, :40]), 0.5)
        expected = a * 0.5
        expected[1::2] += 1
        assert torch.equal(b[:, :40], expected)
        assert (b[:, 40:] == 7).all()


@of_both
def test_results_are_allocated_like_the_first_tensor(backend):
    kernel = compiled(scale, backend, out_idx=1)
    a = torch.randn(100)
    assert torch.equal(kernel(a, 100, 2.0), a * 2)
    if backend == "emulator":
        np.testing.assert_array_equal(kernel(a.numpy(), 100, 2.0), a.numpy() * 2, strict=True)


def test_without_tensors_results_are_made_where_the_backend_has_them():
    @T.prim_func
    def ones(A: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            T.fill(A, 1)

    result = compiled(ones, out_idx=0)()
    assert result.device.type == "cpu"
    assert result.tolist() == [1] * 32


@pytest.mark.full(but=1)
@of_both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scratch_tensors_between_launches(dtype, backend):
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m, 32), dtype), B: T.Tensor((m, 32), dtype)):
        turned = T.alloc_global((m, 32), dtype)
        doubled = T.alloc_global((m, 32), dtype)
        with T.Kernel(m, threads=32) as bx:
            for i in T.Parallel(32):
                turned[bx, i] = A[(bx + 1) % m, i]
        with T.Kernel(m, threads=32) as bx:
            for i in T.Parallel(32):
                doubled[bx, i] = turned[bx, i] + turned[bx, i]
        with T.Kernel(m, threads=32) as bx:
            for i in T.Parallel(32):
                B[bx, i] = doubled[bx, i] + turned[(bx + 1) % m, i]

    kernel = compiled(main, backend)
    for rows in (1, 5):
        a = torch.randint(-9, 9, (rows, 32)).to(getattr(torch, dtype))
        b = torch.zeros_like(a)
        kernel(a, b)
        assert torch.equal(b, 2 * a.roll(-1, 0) + a.roll(-2, 0))


SCALARS = {
    "bool": True,
    "int8": -7,
    "uint8": 200,
    "int16": -300,
    "uint16": 60_000,
    "int32": -70_000,
    "uint32": 3_000_000_000,
    "int64": -(2**40) - 3,
    "uint64": 2**63 + 1,
    "float16": 1.5,
    "float32": 2.7182817459106445,
}


@pytest.mark.full(but=2)
@of_both
@pytest.mark.parametrize("dtype", SCALARS)
def test_scalars_between_others_arrive(dtype, backend):
    scalar = getattr(T, dtype)

    @T.prim_func
    def main(before: T.int32, value: scalar, A: T.Tensor((32,), dtype), after: T.float32):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                if T.cast(i + before, "float32") < after:
                    A[i] = value

    a = torch.zeros(32, dtype=getattr(torch, dtype))
    compiled(main, backend)(3, SCALARS[dtype], a, 10.0)
    assert a.tolist() == [SCALARS[dtype]] * 7 + [0] * 25


def test_a_scalar_that_metal_can_not_take():
    @T.prim_func
    def main(value: T.float64, A: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            T.fill(A, T.cast(value, "float32"))

    with pytest.raises((UnsupportedDtype, NoLowering), match="float64"):
        compiled(main)


@of_both
def test_arguments_that_do_not_fit_are_named_and_nothing_is_written(backend):
    """By what tests/messages/arguments.txt shows on the CPU."""
    kernel = compiled(scale, backend)
    a, b = torch.zeros(100), torch.zeros(100)
    for args, message in [
        ((a[:7], b, 1, 1.0), r"scale: A is a tensor \[100\] of float32; it got shape \[7\]"),
        ((a, b.double(), 1, 1.0), "scale: B is a tensor .* it got float64"),
        ((a, b, 2**40, 1.0), "scale: n is an int32; 1099511627776 does not fit"),
        ((a, b), r"scale takes 4 arguments \(A, B, n, s\), not 2"),
        ((a, torch.zeros(200)[::2], 1, 1.0), "scale: B must be contiguous"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            kernel(*args)
    assert b.abs().sum() == 0
    read_only = np.zeros(100, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        kernel(a, read_only, 1, 1.0)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (torch.zeros(100), 'pass `x.to("mps")`'),
        (np.zeros(100, np.float32), 'pass `torch.from_numpy(x).to("mps")`'),
    ],
)
def test_tensors_that_torch_does_not_have_on_the_gpu(monkeypatch, given, remedy):
    monkeypatch.setattr(recorded.TorchAdapter, "device", "mps")
    with pytest.raises(ArgumentError, match="A must be a torch tensor on mps; it is on cpu") as e:
        compiled(scale, "torch")(given, given, 1, 1.0)
    assert e.value.help == remedy


@T.prim_func
def product(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    with T.Kernel(1, threads=32):
        total = T.alloc_fragment((32, 32), "float32")
        T.gemm(A, B, total, clear_accum=True)
        T.copy(total, C)


@pytest.mark.full
@pytest.mark.parametrize("element", ["i", "i ^ 4"])
def test_matmul2d_runs_where_its_elements_lie_as_kernels_have_them(monkeypatch, element):
    """With another map, of lanes to elements, a known product is wrong."""
    compiler = lambda source: FakeLibrary(source.replace("= sum[i]", f"= sum[{element}]"))
    monkeypatch.setattr(torch.mps, "compile_shader", compiler)
    monkeypatch.setattr(recorded, "_is_right", recorded._is_right.__wrapped__)
    kernel = tvmtile.compile(product, target="metal4", execution_backend="torch")
    a, b, c = torch.randn(32, 32).half(), torch.randn(32, 32).half(), torch.zeros(32, 32)
    if element == "i":
        kernel(a, b, c)
        torch.testing.assert_close(c, a.float() @ b.float(), rtol=0, atol=1e-4)
        return
    with pytest.raises(NoLowering) as caught:
        kernel(a, b, c)
    assert not c.any()
    first, *_, last = str(caught.value).splitlines()
    assert first == (
        "this GPU, or its compiler, holds the elements of matmul2d elsewhere than kernels for Metal 4 "
        "do: a product came out wrong"
    )
    assert last == '  help: compile for target="metal"'


def test_more_threads_than_the_gpu_has_registers_for(monkeypatch):
    monkeypatch.setattr(FakeKernel, "max_threads_per_threadgroup", 16)
    kernel = compiled(reversing(), "torch")
    with pytest.raises(NoLowering, match="reverse_kernel has 32 threads, .* has registers for 16"):
        kernel(torch.zeros(64), torch.zeros(64))


@of_both
def test_tensors_that_start_between_two_vectors(backend):
    @T.prim_func
    def main(A: T.Tensor((128,), "float16"), B: T.Tensor((128,), "float16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                for lane in T.vectorized(4):
                    B[i * 4 + lane] = A[i * 4 + lane]

    kernel = compiled(main, backend)
    memory, b = torch.randn(136).half(), torch.zeros(128).half()
    kernel(memory[4:132], b)
    assert torch.equal(b, memory[4:132])
    with pytest.warns(TileWarning, match="main: A must begin at a multiple of 16 bytes to be fast"):
        kernel(memory[1:129], b)
    assert torch.equal(b, memory[1:129])


@pytest.mark.full(but=1)
@of_both
def test_pointers_take_tensors(backend):
    @T.prim_func
    def main(p: T.ptr, n: T.int32, q: T.ptr):
        A = T.make_tensor(p, (n, 32), "float32")
        B = T.make_tensor(q, (n, 32), "float32")
        with T.Kernel(n, threads=32) as bx:
            for i in T.Parallel(32):
                B[bx, i] = A[bx, 31 - i]

    kernel = compiled(main, backend)
    a, b = torch.randn(3, 32), torch.zeros(3, 32)
    kernel(a, 3, b)
    assert torch.equal(b, a.flip(1))
    with pytest.raises(ArgumentError, match="main: p is a pointer; it got 4096"):
        kernel(4096, 3, b)


def test_none_numbers_of_numpy_and_a_tensor_with_a_gradient():
    @T.prim_func
    def main(
        A: T.Tensor((32,), "float32"),
        unused: T.Tensor((5,), "float32"),
        n: T.int32,
        B: T.Tensor((32,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                B[i] = A[i] + T.cast(n, "float32")

    a, b = torch.randn(32, requires_grad=True), torch.zeros(32)
    compiled(main)(a, None, np.int32(3), b)
    assert torch.equal(b, a.detach() + 3)


def test_what_a_call_did_is_counted_and_its_source_shown(capsys):
    kernel = compiled(two_launches)
    assert kernel.adapter.statistics is None
    kernel(torch.zeros(4, 40).half(), torch.zeros(4, 80).half()[:, :40], 1.0)
    names, counts = zip(*kernel.adapter.launch_statistics, strict=True)
    assert names == ("two_launches_kernel", "two_launches_kernel_1")
    assert [c.device_bytes_written for c in counts] == [4 * 40 * 2, 2 * 40 * 2]
    assert kernel.adapter.statistics.device_bytes_written == 6 * 40 * 2
    source = kernel.get_kernel_source()
    assert [source.count(f"kernel void {name}(") for name in names] == [1, 1]
    assert "define" not in source
    whole = kernel.get_kernel_source(kernel_only=False)
    assert whole.startswith(source)
    assert "define" in whole
    kernel.show_source()
    assert capsys.readouterr().out == source + "\n"
    assert "tirx.SplitHostDevice" in [name for name, _ in kernel.lowering]


def test_a_source_is_compiled_for_the_host_once_and_another_of_its_name_is_another(monkeypatch):
    def add(value):
        @T.prim_func
        def main(A: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(32):
                    A[i] = A[i] + T.float32(value)

        return compiled(main)

    built = []
    build = toolchain.build_module
    monkeypatch.setattr(
        toolchain, "build_module", lambda *args: built.append(args[2]) or build(*args)
    )
    msl_module._compile.cache_clear()
    a = np.zeros(32, np.float32)
    for kernel in (add(1), add(10), add(1)):
        kernel(a)
    np.testing.assert_array_equal(a, 12)
    assert len(built) == 2


@pytest.mark.skipif(
    tvm_ffi.get_global_func("device_api.metal", allow_missing=True) is not None,
    reason="this TVM has a Metal runtime",
)
def test_a_runtime_that_this_tvm_lacks():
    with pytest.raises(InvalidOperand, match="has no Metal runtime") as caught:
        compiled(scale, "tvm_ffi")
    assert "USE_METAL" in caught.value.help


def test_auto_takes_torch_where_there_is_an_apple_gpu_else_the_emulator(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert isinstance(compiled(scale, "auto").adapter, recorded.TorchAdapter)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.warns(TileWarning, match="runs in the emulator"):
        kernel = tvmtile.compile(scale, target="mps")
    assert isinstance(kernel.adapter, MetalEmulatorAdapter)


def test_a_profiler_compares_and_warns_that_it_measures_an_emulator():
    profiler = compiled(reversing(), out_idx=-1).get_profiler()
    profiler.assert_allclose(reversed_blocks, atol=0, rtol=0, max_mismatched_ratio=0)
    with pytest.warns(TileWarning, match="say nothing about a GPU"):
        assert profiler.do_bench(n_warmup=1, n_repeat=2) > 0


def test_measuring_waits_for_the_gpu(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append(True))
    do_bench(lambda: None, _n_warmup=1, _n_repeat=3)
    assert len(waited) >= 3


class OnMps(torch.Tensor):
    """A tensor that says it is on an Apple GPU."""

    device = torch.device("mps")


def test_an_eager_kernel_is_compiled_for_where_its_tensors_are(monkeypatch):
    @tvmtile.jit
    def fill(A: T.Tensor((32,), "float32"), value):
        with T.Kernel(1):
            T.fill(A, value)

    targets = []
    monkeypatch.delenv("TVMTILE_TARGET")
    monkeypatch.setattr(
        decorator, "compile_program", lambda program, **options: targets.append(options["target"])
    )
    tensor = torch.zeros(32)
    for given in (tensor, tensor.as_subclass(OnMps), tensor.numpy()):
        fill.compile(given, 3)
    assert targets == ["llvm", "metal", "llvm"]


@of_both
def test_grids_and_groups_of_three_dimensions(backend):
    @T.prim_func
    def main(A: T.Tensor((5, 3, 2, 2, 4, 8), "int32")):
        with T.Kernel(2, 3, 5, threads=(8, 4, 2)) as (bx, by, bz):
            tx, ty, tz = (T.get_thread_binding(axis) for axis in range(3))
            A[bz, by, bx, tz, ty, tx] = ((bz * 10 + by) * 10 + bx) * 1000 + (tz * 10 + ty) * 10 + tx

    a = torch.zeros((5, 3, 2, 2, 4, 8), dtype=torch.int32)
    compiled(main, backend)(a)
    bz, by, bx, tz, ty, tx = np.indices(a.shape)
    np.testing.assert_array_equal(a, ((bz * 10 + by) * 10 + bx) * 1000 + (tz * 10 + ty) * 10 + tx)


def test_calls_from_several_threads_do_not_mix():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(2, threads=32) as bx:
            for i in T.Parallel(32):
                A[bx * 32 + i] = A[bx * 32 + i] + n

    kernel = compiled(main)

    def called(n):
        a = np.zeros(64, np.int32)
        for _ in range(10):
            kernel(a, n)
        return a

    with ThreadPoolExecutor(4) as workers:
        for n, a in enumerate(workers.map(called, range(8))):
            np.testing.assert_array_equal(a, 10 * n)


def row_maxima(dtype):
    @T.prim_func
    def main(A: T.Tensor((32, 32), dtype), B: T.Tensor((32,), dtype)):
        with T.Kernel(1, threads=32):
            maxima = T.alloc_fragment((32,), dtype)
            T.reduce_max(A, maxima, dim=1)
            T.copy(maxima, B)

    return main


def of_a_statement(statement):
    @T.prim_func
    def main(A: T.Tensor((32,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            statement(A, B)

    return main


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("program", "needs"),
    [
        (row_maxima("bfloat16"), "bfloat16, of Metal 3.1"),
        (row_maxima("float32"), "infinities, which fast mathematics takes for impossible"),
        (
            of_a_statement(lambda A, B: T.atomic_add(B[0], A[0])),
            "atomic addition to float32, of Metal 3",
        ),
        (of_a_statement(lambda A, B: T.print(A[0])), "messages from kernels, of Metal 3.2"),
        (row_maxima("int32"), None),
    ],
)
def test_what_tvms_runtime_lacks(monkeypatch, program, needs):
    monkeypatch.setattr("tvmtile.jit.backends._require_metal_runtime", lambda: None)
    if needs is None:
        compiled(program, "tvm_ffi")
        return
    with pytest.raises(
        InvalidOperand, match=f"as Metal 2.3 with fast mathematics.*{needs}"
    ) as error:
        compiled(program, "tvm_ffi")
    assert "use execution_backend='torch'" in str(error.value)
