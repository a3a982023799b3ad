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
    MetalEmulationError,
    NoLowering,
    TileWarning,
    UnsupportedDtype,
)
from tvmtile.jit import decorator, metal
from tvmtile.profiler import do_bench

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)

BACKENDS = ("emulator", "torch")


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
    monkeypatch.setattr(metal.TorchAdapter, "device", "cpu")


def compiled(program, backend="emulator", **options):
    return tvmtile.compile(program, target="metal", execution_backend=backend, **options)


@T.prim_func
def scale(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32"), n: T.int32, s: T.float32):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            if bx * 32 + tx < n:
                B[bx * 32 + tx] = A[bx * 32 + tx] * s


M = T.dynamic("m")


@T.prim_func
def two_launches(
    A: T.Tensor((M, 40), "float16"), B: T.StridedTensor((M, 40), (80, 1), "float16"), s: T.float32
):
    for by in T.thread_binding(M, thread="blockIdx.y"):
        for bx in T.thread_binding(2, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                if bx * 32 + tx < 40:
                    B[by, bx * 32 + tx] = A[by, bx * 32 + tx] * T.cast(s, "float16")
    for bx in T.thread_binding((M + 1) // 2, thread="blockIdx.x"):
        for tx in T.thread_binding(40, thread="threadIdx.x"):
            if bx * 2 + 1 < M:
                B[bx * 2 + 1, tx] = B[bx * 2 + 1, tx] + T.float16(1)


def copy_program(dtype):
    @T.prim_func
    def copy(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype)):
        for bx in T.thread_binding(2, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                B[bx * 32 + tx] = A[bx * 32 + 31 - tx]

    return copy


@pytest.mark.full
def test_an_array_of_numpy_is_written_in_place():
    a = np.random.default_rng(0).random(100, np.float32)
    b = np.full(100, -1, np.float32)
    compiled(scale)(a, b, 70, 2.5)
    np.testing.assert_array_equal(b[:70], a[:70] * np.float32(2.5))
    np.testing.assert_array_equal(b[70:], -1)


def test_a_tensor_of_tvm_is_written_in_place():
    a = np.random.default_rng(0).random(100, np.float32)
    b = tvm_ffi.from_dlpack(np.zeros(100, np.float32))
    compiled(scale)(tvm_ffi.from_dlpack(a), b, 100, 3)
    np.testing.assert_array_equal(np.from_dlpack(b), a * np.float32(3))


@pytest.mark.full(but=4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "int64"])
def test_torch_tensors_of_any_dtype(dtype, backend):
    a = torch.randint(-9, 9, (64,)).to(getattr(torch, dtype))
    b = torch.zeros_like(a)
    compiled(copy_program(dtype), backend)(a, b)
    assert torch.equal(b, a.reshape(2, 32).flip(1).flatten())


def test_a_tvm_tensor_of_a_dtype_that_numpy_lacks():
    a, b = torch.randn(64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    compiled(copy_program("bfloat16"))(tvm_ffi.from_dlpack(a), tvm_ffi.from_dlpack(b))
    assert torch.equal(b, a.reshape(2, 32).flip(1).flatten())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", [0, 1, 5, 8])
def test_grids_of_any_extent_strides_and_several_launches(m, backend):
    a, b = torch.randn(m, 40).half(), torch.full((m, 80), 7.0).half()
    compiled(two_launches, backend)(a, b[:, :40], 0.5)
    expected = a * 0.5
    expected[1::2] += 1
    assert torch.equal(b[:, :40], expected)
    assert (b[:, 40:] == 7).all()


def test_numpy_arrays_with_gaps():
    a, b = np.ones((3, 40), np.float16), np.zeros((3, 80), np.float16)
    compiled(two_launches)(a, b[:, :40], 3.0)
    np.testing.assert_array_equal(b[:, :40], np.array([[3.0], [4.0], [3.0]]).repeat(40, 1))
    np.testing.assert_array_equal(b[:, 40:], 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_allocated_like_the_first_tensor(backend):
    kernel = compiled(scale, backend, out_idx=1)
    a = torch.randn(100)
    result = kernel(a, 100, 2.0)
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, a * 2)
    if backend == "emulator":
        result = kernel(a.numpy(), 100, 2.0)
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, a.numpy() * 2)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scratch_tensors_between_launches(dtype, backend):
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m, 32), dtype), B: T.Tensor((m, 32), dtype)):
        reversed_rows = T.alloc_global((m, 32), dtype)
        doubled = T.alloc_global((m, 32), dtype)
        for bx in T.thread_binding(m, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                reversed_rows[bx, tx] = A[m - 1 - bx, tx]
        for bx in T.thread_binding(m, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                doubled[bx, tx] = reversed_rows[bx, tx] + reversed_rows[bx, tx]
        for bx in T.thread_binding(m, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                B[bx, tx] = doubled[bx, tx] + reversed_rows[m - 1 - bx, tx]

    kernel = compiled(main, backend)
    for rows in (1, 5):
        a = torch.randint(-9, 9, (rows, 32)).to(getattr(torch, dtype))
        b = torch.zeros_like(a)
        kernel(a, b)
        assert torch.equal(b, 2 * a.flip(0) + a)


SCALARS = {
    "bool": True,
    "int8": -7,
    "uint8": 200,
    "int16": -300,
    "uint16": 60_000,
    "int32": -70_000,
    "uint32": 3_000_000_000,
    "int64": -(2**40) - 3,
    "uint64": 2**40 + 1,
    "float16": 1.5,
    "float32": 2.7182817459106445,
}


@pytest.mark.full(but=2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", SCALARS)
def test_scalars_between_others_arrive(dtype, backend):
    scalar = getattr(T, dtype)

    @T.prim_func
    def main(before: T.int32, value: scalar, A: T.Tensor((32,), dtype), after: T.float32):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                if T.cast(tx + before, "float32") < after:
                    A[tx] = value

    a = torch.zeros(32, dtype=getattr(torch, dtype))
    compiled(main, backend)(3, SCALARS[dtype], a, 10.0)
    assert a.tolist() == [SCALARS[dtype]] * 7 + [0] * 25


def test_the_packed_scalars_are_laid_out_as_the_struct():
    kernel = compiled(scale)
    source = kernel.get_kernel_source()
    assert "struct main_kernel_args_t" not in source
    assert "struct scale_kernel_args_t {\n  int n[2];\n  float s[2];\n};" in source
    interface = kernel.adapter.kernels["scale_kernel"]
    packed = metal.packed_scalars(interface, (7, 0.5))
    assert packed == struct.pack("<ixxxxfxxxx", 7, 0.5)


def test_a_scalar_that_metal_can_not_take():
    @T.prim_func
    def main(value: T.float64, A: T.Tensor((32,), "float32")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                A[tx] = T.cast(value, "float32")

    with pytest.raises((UnsupportedDtype, NoLowering), match="float64"):
        compiled(main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_that_do_not_fit_are_named(backend):
    kernel = compiled(scale, backend)
    a, b = torch.zeros(100), torch.zeros(100)
    for args, message in [
        ((a[:7], b, 1, 1.0), r"scale: A is a tensor \[100\] of float32; it got shape \[7\]"),
        ((a, b.double(), 1, 1.0), "scale: B is a tensor .* it got float64"),
        ((a, b, 1.5, 1.0), "scale: n is an int32; it got the float 1.5"),
        ((a, b, 2**40, 1.0), "scale: n is an int32; 1099511627776 does not fit"),
        ((a, b), r"scale takes 4 arguments \(A, B, n, s\), not 2"),
        ((a, torch.zeros(200)[::2], 1, 1.0), "scale: B must be contiguous"),
        ((a, 3.0, 1, 1.0), "scale: B is a tensor .* it got a float"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            kernel(*args)
    assert b.abs().sum() == 0


def test_tensors_that_torch_does_not_have_on_the_gpu(monkeypatch):
    monkeypatch.setattr(metal.TorchAdapter, "device", "mps")
    kernel = compiled(scale, "torch")
    tensor, array = torch.zeros(100), np.zeros(100, np.float32)
    with pytest.raises(ArgumentError, match="A must be a torch tensor on mps; it is on cpu") as e:
        kernel(tensor, tensor, 1, 1.0)
    assert e.value.help == 'pass `x.to("mps")`'
    with pytest.raises(ArgumentError, match="A must be a torch tensor on mps; it is on cpu") as e:
        kernel(array, array, 1, 1.0)
    assert e.value.help == 'pass `torch.from_numpy(x).to("mps")`'


def test_more_threads_than_the_gpu_has_registers_for(monkeypatch):
    monkeypatch.setattr(FakeKernel, "max_threads_per_threadgroup", 16)
    kernel = compiled(copy_program("float32"), "torch")
    with pytest.raises(NoLowering, match="copy_kernel has 32 threads, .* has registers for 16"):
        kernel(torch.zeros(64), torch.zeros(64))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_that_start_between_two_vectors(backend):
    @T.prim_func
    def main(A: T.Tensor((128,), "float16"), B: T.Tensor((128,), "float16")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                for lane in T.vectorized(4):
                    B[tx * 4 + lane] = A[tx * 4 + lane]

    kernel = compiled(main, backend)
    memory, b = torch.randn(136).half(), torch.zeros(128).half()
    kernel(memory[4:132], b)
    assert torch.equal(b, memory[4:132])
    with pytest.raises(ArgumentError, match="main: A must start at a multiple of 8 bytes"):
        kernel(memory[1:129], b)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_pointers_take_tensors(backend):
    @T.prim_func
    def main(p: T.ptr, n: T.int32, q: T.ptr):
        A = T.make_tensor(p, (n, 32), "float32")
        B = T.make_tensor(q, (n, 32), "float32")
        for bx in T.thread_binding(n, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                B[bx, tx] = A[bx, 31 - tx]

    kernel = compiled(main, backend)
    a, b = torch.randn(3, 32), torch.zeros(3, 32)
    kernel(a, 3, b)
    assert torch.equal(b, a.flip(1))
    with pytest.raises(ArgumentError, match="main: p is a pointer; it got 4096"):
        kernel(4096, 3, b)


def test_arguments_that_are_no_arrays():
    @T.prim_func
    def main(
        A: T.Tensor((32,), "float32"),
        unused: T.Tensor((5,), "float32"),
        n: T.int32,
        B: T.Tensor((32,), "float32"),
    ):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                B[tx] = A[tx] + T.cast(n, "float32")

    a, b = torch.randn(32, requires_grad=True), torch.zeros(32)
    compiled(main)(a, None, np.int32(3), b)
    assert torch.equal(b, a.detach() + 3)


def test_read_only_arrays():
    a, b = np.zeros(100, np.float32), np.zeros(100, np.float32)
    b.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        compiled(scale)(a, b, 1, 1.0)


def test_a_mistake_of_the_kernel_reaches_the_caller_as_it_is():
    @T.prim_func
    def main(A: T.Tensor((32,), "float32")):
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                A[tx // 2] = T.cast(tx, "float32")

    with pytest.raises(MetalEmulationError, match="race") as caught:
        compiled(main)(np.zeros(32, np.float32))
    assert (caught.value.kind, caught.value.buffer, caught.value.index) == ("race", "A_ptr", 0)


def test_what_a_call_did_is_counted():
    kernel = compiled(two_launches)
    assert kernel.adapter.statistics is None
    kernel(torch.zeros(4, 40).half(), torch.zeros(4, 80).half()[:, :40], 1.0)
    names, counts = zip(*kernel.adapter.launch_statistics, strict=True)
    assert names == ("two_launches_kernel", "two_launches_kernel_1")
    assert [c.device_bytes_written for c in counts] == [4 * 40 * 2, 2 * 40 * 2]
    assert kernel.adapter.statistics.device_bytes_written == 6 * 40 * 2


def test_two_programs_of_one_name():
    def add(value):
        @T.prim_func
        def main(A: T.Tensor((32,), "float32")):
            for _bx in T.thread_binding(1, thread="blockIdx.x"):
                for tx in T.thread_binding(32, thread="threadIdx.x"):
                    A[tx] = A[tx] + T.float32(value)

        return main

    one, ten = compiled(add(1)), compiled(add(10))
    a = np.zeros(32, np.float32)
    one(a)
    ten(a)
    one(a)
    np.testing.assert_array_equal(a, 12)


def test_a_source_is_compiled_for_the_host_once(monkeypatch):
    built = []
    build = toolchain.build_module
    monkeypatch.setattr(
        toolchain, "build_module", lambda *args: built.append(args[2]) or build(*args)
    )
    msl_module._compile.cache_clear()
    a, b = np.ones(100, np.float32), np.zeros(100, np.float32)
    first, second = compiled(scale), compiled(scale)
    for kernel in (first, second, first):
        kernel(a, b, 100, 1.0)
    assert len(built) == 1


def test_the_source_and_the_passes_can_be_looked_at(capsys):
    kernel = compiled(two_launches)
    source = kernel.get_kernel_source()
    assert source.count("kernel void two_launches_kernel(") == 1
    assert source.count("kernel void two_launches_kernel_1(") == 1
    assert "define" not in source
    whole = kernel.get_kernel_source(kernel_only=False)
    assert whole.startswith(source)
    assert "define" in whole
    kernel.show_source()
    assert capsys.readouterr().out == source + "\n"
    assert "tirx.SplitHostDevice" in [name for name, _ in kernel.lowering]


def test_backends_and_targets_that_do_not_go_together():
    with pytest.raises(
        InvalidOperand, match="'emulator' runs Metal and CUDA programs; .* for 'llvm'"
    ):
        tvmtile.compile(scale, target="llvm", execution_backend="emulator")
    with pytest.raises(InvalidOperand, match="no execution backend 'cuda'"):
        compiled(scale, "cuda")


@pytest.mark.skipif(
    tvm_ffi.get_global_func("device_api.metal", allow_missing=True) is not None,
    reason="this TVM has a Metal runtime",
)
def test_a_runtime_that_this_tvm_lacks():
    with pytest.raises(InvalidOperand, match="has no Metal runtime") as caught:
        compiled(scale, "tvm_ffi")
    assert "USE_METAL" in caught.value.help


def test_auto_takes_torch_where_there_is_an_apple_gpu(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert isinstance(compiled(scale, "auto").adapter, metal.TorchAdapter)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has an Apple GPU")
def test_auto_takes_the_emulator_elsewhere_and_says_so():
    with pytest.warns(TileWarning, match="runs in the emulator"):
        kernel = tvmtile.compile(scale, target="mps")
    assert isinstance(kernel.adapter, metal.MetalEmulatorAdapter)


def test_several_programs_in_parallel():
    programs = [copy_program(dtype) for dtype in ("float32", "float16")]
    kernels = tvmtile.par_compile(programs, target="metal", execution_backend="emulator")
    for kernel, dtype in zip(kernels, (torch.float32, torch.float16), strict=True):
        a, b = torch.randn(64).to(dtype), torch.zeros(64, dtype=dtype)
        kernel(a, b)
        assert torch.equal(b, a.reshape(2, 32).flip(1).flatten())


def test_the_decorator_compiles_for_metal():
    @tvmtile.jit(out_idx=-1, target="metal", execution_backend="emulator")
    def reverse(dtype):
        return copy_program(dtype)

    a = torch.randn(64)
    assert torch.equal(reverse("float32")(a), a.reshape(2, 32).flip(1).flatten())
    assert reverse("float32") is reverse("float32")


def test_a_profiler_compares_and_warns_that_it_measures_an_emulator():
    profiler = compiled(copy_program("float32"), out_idx=-1).get_profiler()
    profiler.assert_allclose(
        lambda a: a.reshape(2, 32).flip(1).flatten(), atol=0, rtol=0, max_mismatched_ratio=0
    )
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

    @property
    def device(self):
        return torch.device("mps")


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


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gemm_of_any_number_of_rows(backend):
    rows = T.dynamic("rows")

    @T.prim_func
    def gemm(
        A: T.Tensor((rows, 64), "float16"),
        B: T.Tensor((64, 48), "float16"),
        C: T.Tensor((rows, 48), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 32), threads=128) as bx:
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 48), "float16")
            c = T.alloc_fragment((32, 48), "float32")
            T.clear(c)
            for k in T.serial(2):
                T.copy(A[bx * 32, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[bx * 32, 0])

    kernel = compiled(gemm, backend, out_idx=-1)
    b = torch.randn(64, 48).half()
    for m in (1, 32, 70):
        a = torch.randn(m, 64).half()
        torch.testing.assert_close(
            kernel(a, b).double(), a.double() @ b.double(), atol=1e-3, rtol=0
        )
    if backend == "emulator":
        assert kernel.adapter.statistics.matrix_multiplies == 3 * (4 * 6 * 8)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_of_two_kernels(backend):
    @T.prim_func
    def main(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32"), s: T.float32):
        with T.Kernel(T.ceildiv(100, 32), threads=32) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i < 100:
                    B[bx * 32 + i] = A[bx * 32 + i] * s
        with T.Kernel(T.ceildiv(100, 64), threads=64) as bx:
            for i in T.Parallel(64):
                if bx * 64 + i < 100:
                    B[bx * 64 + i] = B[bx * 64 + i] + T.float32(1)

    kernel = compiled(main, backend, out_idx=1)
    a = torch.randn(100)
    assert torch.equal(kernel(a, 3.0), a * 3 + 1)
    assert kernel.get_kernel_source().count("kernel void") == 2


@pytest.mark.full(but=1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_eager_kernel_returns_what_it_makes(backend):
    @tvmtile.jit(target="metal", execution_backend=backend)
    def doubled(X):
        M, N = T.dynamic("M"), T.const("N")
        X: T.Tensor((M, N), "float16")
        Y = T.empty((M, N), "float16")
        with T.Kernel(T.ceildiv(M, 8), threads=64) as bx:
            tile = T.alloc_shared((8, N), "float16")
            T.copy(X[bx * 8, 0], tile)
            for i, j in T.Parallel(8, N):
                tile[i, j] = tile[i, j] + tile[i, j]
            T.copy(tile, Y[bx * 8, 0])
        return Y

    for m in (3, 20):
        x = torch.randn(m, 24).half()
        assert torch.equal(doubled(x), x * 2)


def test_without_tensors_results_are_made_where_the_backend_has_them():
    @T.prim_func
    def ones(A: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            T.fill(A, 1)

    result = compiled(ones, out_idx=0)()
    assert result.device.type == "cpu"
    assert result.tolist() == [1] * 32


@pytest.mark.parametrize("backend", BACKENDS)
def test_grids_and_groups_of_three_dimensions(backend):
    @T.prim_func
    def main(A: T.Tensor((5, 3, 2, 2, 4, 8), "int32")):
        for bz in T.thread_binding(5, thread="blockIdx.z"):
            for by in T.thread_binding(3, thread="blockIdx.y"):
                for bx in T.thread_binding(2, thread="blockIdx.x"):
                    for tz in T.thread_binding(2, thread="threadIdx.z"):
                        for ty in T.thread_binding(4, thread="threadIdx.y"):
                            for tx in T.thread_binding(8, thread="threadIdx.x"):
                                A[bz, by, bx, tz, ty, tx] = (
                                    ((bz * 10 + by) * 10 + bx) * 1000 + (tz * 10 + ty) * 10 + tx
                                )

    a = np.zeros((5, 3, 2, 2, 4, 8), np.int32)
    compiled(main, backend)(torch.from_numpy(a))
    bz, by, bx, tz, ty, tx = np.indices(a.shape)
    np.testing.assert_array_equal(a, ((bz * 10 + by) * 10 + bx) * 1000 + (tz * 10 + ty) * 10 + tx)


def test_calls_from_several_threads_do_not_mix():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), n: T.int32):
        for bx in T.thread_binding(2, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                A[bx * 32 + tx] = A[bx * 32 + tx] + n

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


@T.prim_func
def atomic_sum(A: T.Tensor((32,), "float32"), B: T.Tensor((1,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            T.atomic_add(B[0], A[i])


@T.prim_func
def messages(A: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=32):
        T.print(A[0])


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("program", "needs"),
    [
        (row_maxima("bfloat16"), "bfloat16, of Metal 3.1"),
        (row_maxima("float32"), "infinities, which fast mathematics takes for impossible"),
        (atomic_sum, "atomic addition to float32, of Metal 3"),
        (messages, "messages from kernels, of Metal 3.2"),
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
