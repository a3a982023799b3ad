"""The kernels that the benchmarks list: machine code for three generations, no spills on Hopper."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

import tvmtile
from tvmtile.errors import TileError
from tvmtile.jit.cuda import compile_source
from tvmtile.jit.resources import resources_of_log

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HOPPER = "sm_90a"
OTHERS = ("sm_80", pytest.param("sm_100a", marks=pytest.mark.nightly))  # of one source
LISTED = (
    *("gemm", "gemm_epilogue", "gemm_few_rows", "block_sparse_gemm"),
    *("int4_gemm", "int4_gemm_many_rows", "mxfp4_gemm"),
    *("fp8_gemm", "fp8_gemm_blocks", "grouped_gemm_fp8"),
    *("attention", "attention_backward", "decode_attention"),
    *("softmax", "rms_norm", "moe_gemm", "compact", "copy"),
)


@cache
def all_cases():
    """The cases, and the programs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCHMARKS))
        from gpu_cases import cases
        from gpu_programs import PROGRAMS
    return list(cases()), PROGRAMS


def first_cases():
    """The first case of each program."""
    return {case.program: case for case in reversed(all_cases()[0])}


def measured(case):
    """The configuration that was the fastest on an H200; the first one if it is not tried any more."""
    rows = json.loads((BENCHMARKS / "h200/gpu.json").read_text())["speed"]
    (row,) = [row for row in rows if row["case"] == case.name]
    shown = row["configurations"]["tvmtile"]
    by_text = {" ".join(f"{k} {v}" for k, v in c.items()): c for c in case.configurations}
    return by_text.get(shown, case.configurations[0])


def machine_code(case, configuration, arch):
    """NVRTC's log of a case's kernel; an error of the compiler where there is none."""
    program = all_cases()[1][case.program](**case.arguments, **configuration)
    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": arch})
    return compile_source(kernel.get_kernel_source(kernel_only=True), arch).log


def test_every_program_is_listed():
    assert set(first_cases()) == set(LISTED)


@pytest.mark.full
@pytest.mark.parametrize("name", LISTED)
def test_on_hopper_registers_suffice_and_products_overlap(name):
    case = first_cases()[name]
    log = machine_code(case, measured(case), HOPPER)
    for used in resources_of_log(log).values():
        assert (used.spills, used.stack) == (0, 0), used
    assert not re.search(r"C75\d\d", log), "products of wgmma wait for each other"


@pytest.mark.full
@pytest.mark.parametrize("rows", [16, 64])
def test_products_of_few_rows_overlap_whatever_the_configuration(rows):
    name = f"gemm bfloat16 {rows} x 8192 x 8192 nt"
    (case,) = [case for case in all_cases()[0] if case.name == name]
    for configuration in case.configurations:
        log = machine_code(case, configuration, HOPPER)
        assert not re.search(r"C75\d\d", log), configuration


@pytest.mark.full
@pytest.mark.parametrize("arch", OTHERS)
@pytest.mark.parametrize("name", LISTED)
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_other_generations_have_older_instructions(name, arch):
    """One of the configurations fits there, at least: blocks have less shared memory."""
    case = first_cases()[name]
    problems = []
    for configuration in case.configurations:
        try:
            assert machine_code(case, configuration, arch)
        except TileError as error:
            problems.append(error.message)
        else:
            return
    pytest.fail("\n".join(problems))
