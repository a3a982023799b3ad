"""Compiles of others with TVM are the same with tvmtile at work in the process as without."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules["tvmtile"] = sys.modules["tvmtile._plugin"] = None  # as if it were not installed
"""

WITH = """
import tvm
import tvmtile
import tvmtile.language as T

@T.prim_func
def tile(A: T.Tensor((64,), "float16"), B: T.Tensor((64,), "float16")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(64):
            B[i] = T.exp(A[i])

for target in ("llvm", {"kind": "cuda", "arch": "sm_90a"}, "metal"):
    tvm.tirx.build(tile, target=target, pipeline="tvmtile")
    tvmtile.compile(tile, target=target).get_kernel_source()
assert "tvmtile" in sys.modules
"""

PLAIN = """
import sys
import tvm
from tvm import ir, tirx
from tvm.script import relax as R
from tvm.script import tirx as T

CUDA = {"kind": "cuda", "arch": "sm_90a"}
UNARY = ("exp", "log", "tanh", "floor", "log1p")

def elementwise(name, dtype):
    function = getattr(tirx, name)

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((256,), dtype), B: T.Buffer((256,), dtype)):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            for i in T.thread_binding(32, thread="threadIdx.x"):
                for v in T.vectorized(4):
                    B[b * 128 + i * 4 + v] = function(A[b * 128 + i * 4 + v])

    return main

@T.prim_func(s_tir=True)
def select(A: T.Buffer((64,), "float32"), new: T.Buffer((64,), "float32")):
    for i in T.thread_binding(64, thread="threadIdx.x"):
        x = T.Cast("float32", A[i] < T.float32(0.1))
        new[i] = T.max(x, T.tvm_warp_shuffle_down(T.uint32(0xFFFFFFFF), A[i], 1, 32, 32))

@T.prim_func(s_tir=True)
def tile(A: T.Buffer((64,), "int8"), B: T.Buffer((64,), "int8")):
    for i in T.thread_binding(64, thread="threadIdx.x"):
        B[i] = A[i] * A[i] + T.int8(3)

def source(program, target):
    try:
        module = tvm.tirx.build(program, target=target)
    except Exception as error:
        return type(error).__name__
    text = module.inspect_source("ll") if target == "llvm" else module.imports[0].inspect_source()
    return str(text)

for target in ("llvm", CUDA, "metal"):
    for program in (select, tile):
        print(source(program, target))
    for name in UNARY:
        for dtype in ("float16", "float32", "bfloat16"):
            print(name, dtype, source(elementwise(name, dtype), target))

@tvm.script.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((4, 64), "float32")):
        with R.dataflow():
            y = R.exp(R.nn.relu(x))
            z = R.reshape(y, (256,))
            R.output(z)
        return z

print(tvm.relax.transform.LegalizeOps()(Model).script())
for target in ("llvm", CUDA, "metal"):
    executable = tvm.compile(Model, tvm.target.Target(target))
    print(*(device.inspect_source() for host in executable.mod.imports for device in host.imports))

for cls in (ir.Expr, ir.Var, ir.Call, tirx.PrimFunc, tvm.target.Target, tvm.runtime.Tensor):
    print(cls, sorted(vars(cls)))
print(ir.Var.dtype.fget.__module__)

def print_names(thing, path, seen):
    names = [name for name in dir(thing) if name != "tvmtile"]  # the script's one name of ours
    print(path, type(thing), names)
    for name in names:
        child = getattr(thing, name, None)
        place = child.__name__ if isinstance(child, type(tvm)) else type(child).__module__
        if name[0] == "_" or not place.startswith("tvm."):
            continue
        if getattr(thing, name) is not child:  # made each time it is asked for
            print(path, name, type(child), dir(child))
        elif id(child) not in seen:
            seen.add(id(child))
            print_names(child, path + "." + name, seen)

print_names(T, "T", set())

@T.prim_func
def primitives(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
    T.tile.copy(B[0:64, 0:64], A[0:64, 0:64])
    T.tile.add(B[0:64, 0:64], A[0:64, 0:64], A[0:64, 0:64])

print(primitives.script())
"""


@pytest.mark.full
def test_sources_of_others(tmp_path):
    texts = {}
    for name, first in {"without": "import sys\n" + WITHOUT, "with": "import sys\n" + WITH}.items():
        script = tmp_path / f"{name}.py"
        script.write_text(first + PLAIN)
        ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        texts[name] = ran.stdout
    assert "tvmtile" not in texts["without"]
    assert "exp" in texts["without"]
    assert texts["with"] == texts["without"]
