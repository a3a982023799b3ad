"""Tile programs in flows of TVM that nobody has told of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.ir.instrument import PassTimingInstrument
from tvm.s_tir import Schedule, dlight
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as TVMScript
from tvm.target import Target

import tvmtile
import tvmtile.language as T
from tvmtile.errors import NoLowering
from tvmtile.ir.kernels import is_tile_program
from tvmtile.passes import LowerTilePrograms

ROWS, COLUMNS = 4, 64
SM90A = {"kind": "cuda", "arch": "sm_90a"}
PIPELINES = ["default", "tvmtile"]


@I.ir_module
class Model:
    @T.prim_func
    def normalize(X: T.Tensor((ROWS, COLUMNS), "float32"), Y: T.Tensor((ROWS, COLUMNS), "float32")):
        with T.Kernel(ROWS, threads=32) as row:
            tile = T.alloc_fragment((1, COLUMNS), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(X[row, 0], tile)
            T.reduce_sum(tile, total, dim=1)
            for _, j in T.Parallel(1, COLUMNS):
                Y[row, j] = tile[0, j] / total[0]

    @R.function
    def main(x: R.Tensor((ROWS, COLUMNS), "float32")):
        cls = Model
        with R.dataflow():
            positive = R.nn.relu(x)
            moved = R.add(positive, R.const(1.0))
            normal = R.call_tir(
                cls.normalize, (moved,), out_ty=R.Tensor((ROWS, COLUMNS), "float32")
            )
            result = R.subtract(normal, positive)
            R.output(result)
        return result


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    positive = np.maximum(x.astype("float64"), 0)
    moved = positive + 1
    return np.asarray(moved / moved.sum(1, keepdims=True) - positive)


def result_on_cpu(executable: Any) -> tuple[Any, Any]:
    """The result of a module, and the right one."""
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy(), expected(x)


def device_source(executable: Any) -> str:
    (device,) = executable.mod.imports[0].imports
    return str(device.inspect_source())


def body_of(name: str, source: str) -> str:
    """The text of a kernel in a source."""
    match = re.search(rf"\b{name}\([^;{{]*\)\s*{{\n(.*?)\n}}\n", source, re.DOTALL)
    assert match is not None, source
    return match[1]


def built() -> Any:
    """The model, the program in which a block builder adds."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((ROWS, COLUMNS), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            positive = builder.emit(relax.op.nn.relu(x))
            moved = builder.emit(relax.op.add(positive, relax.const(1.0)))
            program = builder.add_func(Model["normalize"], "normalize")
            result = R.Tensor((ROWS, COLUMNS), "float32")
            normal = builder.emit(relax.call_tir(program, [moved], result))
            result = builder.emit_output(relax.op.subtract(normal, positive))
        builder.emit_func_output(result)
    return builder.finalize()


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(
    ("model", "target"),
    [(Model, "llvm"), (Model, {"kind": "llvm", "mcpu": "x86-64-v3"}), (built(), "llvm")],
    ids=["llvm", "x86-64-v3", "by a block builder"],
)
def test_relax_on_a_cpu(model, target, pipeline):
    executable = tvm.compile(model, Target(target), tir_pipeline=pipeline)
    np.testing.assert_allclose(*result_on_cpu(executable), rtol=1e-5, atol=1e-6)
    assert is_tile_program(model["normalize"])  # it is not changed
    assert "sblock" not in model["normalize"].script()


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("target", [SM90A, "metal"], ids=["sm_90a", "metal"])
def test_relax_on_a_gpu(target, pipeline):
    executable = tvm.compile(Model, Target(target), tir_pipeline=pipeline)
    kernel = tvmtile.compile(Model["normalize"], target=target, execution_backend="emulator")
    x = np.random.default_rng(0).random((ROWS, COLUMNS), dtype=np.float32)
    y = np.zeros_like(x)
    kernel(x, y)
    np.testing.assert_allclose(y, x / x.sum(1, keepdims=True), rtol=1e-5)
    # What the emulator ran is what the module has; of Metal, arrays are aligned when it is loaded.
    alone = body_of("normalize_kernel", kernel.get_kernel_source()).replace("alignas(16) ", "")
    assert body_of("normalize_kernel", device_source(executable)) == alone


@pytest.mark.parametrize("target", ["llvm", SM90A, "metal"], ids=["llvm", "sm_90a", "metal"])
def test_a_program_alone_is_the_same_by_each_pipeline(target):
    sources = set()
    for pipeline in ("default", "tirx", "tvmtile"):
        module = tvm.compile(Model["normalize"], Target(target), tir_pipeline=pipeline).mod
        sources.add(str(module.inspect_source("ll" if target == "llvm" else "")))
        sources.update(str(device.inspect_source()) for device in module.imports)
    assert len(sources) == (1 if target == "llvm" else 2)
    assert not any("tvmtile.copy" in source for source in sources)


def test_a_program_with_a_name_in_other_letters():
    """LLVM's text, and what compilers for GPUs read, know C's letters only."""
    program = Model["normalize"].with_attr("global_symbol", "größe")
    for target in (SM90A, "metal", "llvm"):
        built = tvm.compile(program, Target(target)).mod
        assert built.implements_function("größe")
        assert all(kernels.inspect_source().isascii() for kernels in built.imports)


@pytest.mark.parametrize("target", ["llvm", SM90A], ids=["llvm", "sm_90a"])
def test_instruments_see_each_pass(target):
    timing = PassTimingInstrument()
    with tvm.transform.PassContext(instruments=[timing]):
        tvm.compile(Model, Target(target))
        times = timing.render()
    for name in (
        "LegalizeOps",  # of Relax
        "tvmtile.with_tile_programs",
        "tvmtile.LowerTilePrograms",
        "tvmtile.SelectImplementation",
        "tirx.MakePackedAPI",
    ):
        assert f"{name}: " in times


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_functions_that_metaschedule_tuned_beside_a_tile_program(pipeline):
    mixed = ir.IRModule({"scale": scale, "normalize": Model["normalize"]})
    target = Target({"kind": "llvm", "num-cores": 1})
    database = ms.database.MemoryDatabase()
    schedule = Schedule(scale)
    _, inner = schedule.split(schedule.get_loops("scale")[0], [None, 16])
    schedule.vectorize(inner)
    normalized = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(scale)
    workload = database.commit_workload(normalized)
    database.commit_tuning_record(
        ms.database.TuningRecord(schedule.trace, workload, run_secs=[1e-6], target=target)
    )
    with target, database:
        tuned = relax.transform.MetaScheduleApplyDatabase()(mixed)
    assert "T.vectorized(16)" in tuned["scale"].script()
    assert is_tile_program(tuned["normalize"])
    module = tvm.compile(tuned, target, tir_pipeline=pipeline)
    x = np.random.default_rng(0).random(1024, np.float32)
    y = tvm.runtime.tensor(np.zeros_like(x))
    module["scale"](tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), np.exp(x) * 3, rtol=1e-5)
    x = x[: ROWS * COLUMNS].reshape(ROWS, COLUMNS)
    y = tvm.runtime.tensor(np.zeros_like(x))
    module["normalize"](tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), x / x.sum(1, keepdims=True), rtol=1e-5)


def test_dictionaries_as_targets_of_tirx_build():
    built = tvm.tirx.build(Model["normalize"], target=SM90A)
    assert "normalize_kernel" in built.imports[0].inspect_source()


@TVMScript.prim_func(s_tir=True)
def scale(A: TVMScript.Buffer((1024,), "float32"), B: TVMScript.Buffer((1024,), "float32")):
    for i in range(1024):
        with TVMScript.sblock("scale"):
            vi = TVMScript.axis.spatial(1024, i)
            B[vi] = TVMScript.exp(A[vi]) * TVMScript.float32(3)


@pytest.mark.parametrize("target", [SM90A, "metal"], ids=["sm_90a", "metal"])
def test_functions_that_dlight_schedules_stay_what_they_are_alone(target):
    with Target(target):
        mixed = ir.IRModule({"scale": scale, "normalize": Model["normalize"]})
        scheduled = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(mixed)
    assert scheduled["normalize"].same_as(mixed["normalize"])
    together = tvm.compile(scheduled, Target(target)).mod.imports[0].inspect_source()
    alone = tvm.compile(ir.IRModule({"scale": scheduled["scale"]}), Target(target))
    text = alone.mod.imports[0].inspect_source()
    assert body_of("scale_kernel", together) == body_of("scale_kernel", text)
    assert "normalize_kernel" in together


def test_a_scheduled_function_on_a_cpu_stays_what_it_is_alone():
    def functions(module: Any) -> str:
        text = str(module.mod.inspect_source("ll"))
        start = text.index("define internal", text.index("@__tvm_ffi_scale("))
        return re.sub(r"[%#!]\w+", "", text[start : text.index("\n}\n", start)])

    mixed = ir.IRModule({"scale": scale, "normalize": Model["normalize"]})
    together, alone = tvm.compile(mixed, "llvm"), tvm.compile(scale, "llvm")
    assert functions(together) == functions(alone)


def test_fusion_leaves_tile_programs_alone():
    module = relax.transform.LegalizeOps()(Model)
    with Target(SM90A):
        passes = (
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        )
        for step in passes:
            module = step(module)
    programs = [f for f in module.functions.values() if is_tile_program(f)]
    assert [str(f.attrs["global_symbol"]) for f in programs] == ["normalize"]


def test_a_pipeline_of_ones_own_is_told_what_to_add():
    tvm.tirx.register_tir_pipeline("of_my_own", default_s_tir_pipeline)
    with pytest.raises(NoLowering) as caught:
        tvm.compile(Model["normalize"], Target(SM90A), tir_pipeline="of_my_own")
    message = str(caught.value)
    assert "the tile operator tvmtile.copy has come to TVM's code generator" in message
    assert 'compile with tir_pipeline="tvmtile"' in message
    lowered = LowerTilePrograms(SM90A)(ir.IRModule({"normalize": Model["normalize"]}))
    tvm.compile(lowered, Target(SM90A), tir_pipeline="of_my_own")
