"""Kernels in other processes: forked ones, and those that they are pickled for."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
import tvm
import tvm_ffi
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tests.kernels import scaling
from tvmtile.errors import ArgumentError
from tvmtile.ir.spans import location_of
from tvmtile.jit.ir_data import from_data, to_data

PROGRAM = """
import multiprocessing
import os
import threading

import torch

import tvmtile
import tvmtile.language as T


@T.prim_func
def double(X: T.Tensor((4096,), "float32"), Y: T.Tensor((4096,), "float32")):
    with T.Kernel(128, threads=32) as bx:
        for i in T.Parallel(32):
            Y[bx * 32 + i] = X[bx * 32 + i] * 2


kernel = tvmtile.compile(double, out_idx=-1, target="llvm")
x = torch.randn(4096)


def is_right(_index=0):
    return all(torch.equal(kernel(x), 2 * x) for _ in range(3))


def in_child(function):
    child = os.fork()
    if child == 0:
        os._exit(0 if function() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return kernel(x * index)


assert is_right()
"""

FORKS = """
# a fork, and a fork of a fork
assert in_child(lambda: is_right() and in_child(is_right))
assert is_right()

# a kernel compiled in the child
def compiled_there():
    again = tvmtile.compile(double, out_idx=-1, target="llvm")
    return torch.equal(again(x), 2 * x)

assert in_child(compiled_there)
assert is_right()

# a thread of the child
def in_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(is_right()))
    thread.start()
    thread.join()
    return results == [True] and is_right()

assert in_child(in_thread)
assert is_right()

# a pool
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(is_right, range(4)) == [True] * 4
assert is_right()

# the workers of a data loader
loader = torch.utils.data.DataLoader(
    Data(), num_workers=2, batch_size=None, multiprocessing_context="fork"
)
for index, item in enumerate(loader):
    assert torch.equal(item, 2 * x * index)
assert is_right()
"""


DAEMONS = """
import time

# in place: the death of a tensor of torch's, when the interpreter ends, is torch's to survive
kernel = tvmtile.compile(double, target="llvm")
of_torch = [x, torch.empty_like(x)]
of_numpy = [x.numpy() for x in of_torch]
if "torch" not in WITH:
    del sys.modules["torch"]  # as in a process that never imports it

def without_end():
    while True:
        kernel(*(of_torch if "torch" in WITH else of_numpy))
        sum(range(1000))  # outside the kernel for some of the time

for _ in range(3):
    threading.Thread(target=without_end, daemon=True).start()
time.sleep(0.1)
"""


def failure_of(path, program):
    """How a program ends in a process of its own, which may hang or die; None where it is right."""
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=300, check=False
    )
    return None if done.returncode == 0 else f"{done.returncode}: {done.stderr}"


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_kernel_that_has_run_runs_in_forked_processes(tmp_path):
    assert failure_of(tmp_path / "forks.py", PROGRAM + FORKS) is None


@T.prim_func
def scale(A: T.Tensor((8,), "float32"), factor: T.float32, B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            B[i] = A[i] * factor


@tvmtile.jit(target="llvm")
def eager(A):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=32):
        for i in T.Parallel(N):
            B[i] = A[i] + 1
    return B


@tvmtile.jit(out_idx=-1, target="llvm")
def lazy(factor):
    return scaling(8, factor)


METAL = {"target": "metal", "execution_backend": "emulator"}
COMPILED = [
    {"target": "llvm"},
    {"target": tvm.target.Target("llvm")},
    {**METAL, "pass_configs": {tvmtile.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}},
]


def pickled(value):
    return pickle.loads(pickle.dumps(value))


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("options", COMPILED)
@pytest.mark.parametrize("travelled", [pickled, saved])
def test_a_kernel_travels_as_its_program_and_its_options(options, travelled):
    kernel = tvmtile.compile(scale, out_idx=-1, **options)
    other = travelled(kernel)
    assert other is not kernel
    assert str(other.target) == str(kernel.target)
    assert type(other.adapter) is type(kernel.adapter)
    tvm.ir.assert_structural_equal(other.prim_func, kernel.prim_func)
    a = torch.randn(8)
    torch.testing.assert_close(other(a, 3.0), a * 3)


def test_a_kernel_for_another_machine_travels():
    kernel = tvmtile.compile(scale, target={"kind": "cuda", "arch": "sm_80"})
    assert pickled(kernel).get_kernel_source() == kernel.get_kernel_source()


def test_a_copy_of_a_kernel_is_the_kernel_and_functions_travel_by_name():
    kernel = tvmtile.compile(scale, target="llvm")
    for value in (kernel, eager, lazy):
        assert copy.copy(value) is value
        assert copy.deepcopy([value]) == [value]
    assert pickled(eager) is eager
    assert pickled(lazy) is lazy


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))
        self.scale = tvmtile.compile(scale, out_idx=-1, target="llvm")
        self.add_one = eager
        self.lazy = lazy

    def forward(self, a):
        return self.lazy(2.0)(self.add_one(self.scale(a * self.weight, 3.0)))


@pytest.mark.parametrize("travelled", [copy.deepcopy, pickled, saved])
def test_a_module_that_holds_kernels(travelled):
    module = Module()
    other = travelled(module)
    a = torch.randn(8)
    with torch.no_grad():
        torch.testing.assert_close(other(a), module(a))


@pytest.mark.full
def test_a_kernel_travels_to_a_new_process(tmp_path):
    file = tmp_path / "kernel.pickle"
    file.write_bytes(pickle.dumps(tvmtile.compile(scale, out_idx=-1, target="llvm")))
    program = f"""
import pathlib, pickle, torch
kernel = pickle.loads(pathlib.Path({str(file)!r}).read_bytes())
a = torch.randn(8)
assert torch.equal(kernel(a, 2.0), a * 2)
"""
    assert failure_of(tmp_path / "loads.py", program) is None


def test_a_function_without_a_name_says_what_to_do():
    @tvmtile.jit
    def local(n):
        return scale

    with pytest.raises(pickle.PicklingError, match="define it in a module, or pickle the kernel"):
        pickle.dumps(local)
    assert isinstance(pickled(local.compile(8)), tvmtile.Kernel)


@pytest.mark.parametrize("tensors", ["torch", "numpy"])
def test_a_process_ends_while_daemon_threads_are_in_kernels(tensors, tmp_path):
    program = f"{PROGRAM}\nimport sys\nWITH = {tensors!r}\n{DAEMONS}"
    assert failure_of(tmp_path / "daemons.py", program) is None


@pytest.mark.parametrize("travelled", [pickled, saved])
def test_a_program_that_something_else_holds_travels(travelled):
    tvm.ir.assert_structural_equal(travelled({"program": scale})["program"], scale)


def test_lines_and_variables_travel():
    other = from_data(to_data(scale))
    assert location_of(other.body) == location_of(scale.body)
    assert location_of(other.body).file == __file__
    with pytest.raises(ArgumentError, match="scale takes 3 arguments"):
        pickled(tvmtile.compile(scale, target="llvm"))()


def test_expressions_of_any_depth_travel():
    x = tirx.Var("x", "int32")
    total = x
    for index in range(3000):
        total = total * index + x
    other = from_data(to_data(tirx.Evaluate(total)))
    assert other.value.b.same_as(other.value.a.a.b)
    assert tvm_ffi.structural_equal(other, tirx.Evaluate(total), map_free_vars=True)


def test_what_has_no_fields_is_refused():
    with pytest.raises(pickle.PicklingError, match="a tile program with a Function in it"):
        to_data(tvm_ffi.convert([lambda: None]))
