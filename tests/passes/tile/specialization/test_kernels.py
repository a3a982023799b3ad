"""Kernels with two roles: who waits for what, and the numbers of the same kernel with one role."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import tvmtile
from tests.passes.tile.specialization.ahead_kernels import AHEAD
from tests.passes.tile.specialization.computed_kernels import COMPUTED
from tests.passes.tile.specialization.kernels import KERNELS as WHOLE
from tests.passes.tile.specialization.kernels import WITH_ONE_ROLE
from tests.passes.tile.specialization.masked_kernels import MASKED
from tests.passes.tile.test_warp_specialize import specialised

HOPPER = {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"}
OUTLINES = Path(__file__).with_name("outlines.txt")
KERNELS = {**WHOLE, **MASKED, **COMPUTED, **AHEAD}
SEEDS = range(3)
ONE_ROLE = {"tl.disable_warp_specialized": True}

_CALL = re.compile(r'T\.Call\("tvmtile\.(\w+)", \[(.*)\], attrs=\{(.*)\}, ret_ty="void"\)$')
_TILE = re.compile(r"T\.tile\.(\w+)\((.*)\)$")
_LEFT_OUT = re.compile(
    r"T\.(attr\(|tvm_storage_sync|tile\.(async_signal|warp_specialization)|Call\(\"tvmtile\.init)"
)
_SHORTER = [
    (r'T\.Cast\("int32", (.*)\)', r"\1"),
    (r"\b0:\d+", ":"),
    (r'with T\.attr\(.*, "tvmtile\.asynchronous", "(\S+)"\):', r"\1:"),
    (r", unroll=False", ""),
    (r', annotations=\{"tvmtile\.\S+ .*?\}', ""),
    (r"T\.serial\((.*)\):", r"\1:"),
    (r": T\.let\[T\.\w+\]", ""),
    (r"T\.(float32|FloorMod|FloorDiv|max|min|parallel)\b", r"\1"),
]


def outline(program):
    """What the roles of a specialised program do, in short, from the mbarriers on."""
    text = specialised(program).script()
    body = textwrap.dedent(text[re.search(r"^ +if tx < \d+:$", text, re.MULTILINE).start() :])
    return "\n".join(filter(None, map(_short, body.splitlines())))


def _short(line):
    words = line.lstrip()
    indent = " " * ((len(line) - len(words)) // 2)
    if _LEFT_OUT.match(words):
        return ""
    call = _CALL.match(words)
    found = call or _TILE.match(words)
    name, operands = found.groups()[:2] if found else ("", "")
    if name == "set_max_registers":
        words = "registers " + re.search(r'"count": (\d+)', call[3])[1]
    elif name == "mbarrier" and call and "arrive_when_copied" in call[3]:
        words = "arrive when copied " + operands.removesuffix(", 1")
    elif name == "mbarrier" and call:
        words = "wait " + operands
    elif name == "mbarrier":
        words = "arrive " + operands.removesuffix(", 1")
    elif name:
        words = f"{name} {operands}"
    for pattern, replacement in _SHORTER:
        words = re.sub(pattern, replacement, words)
    return indent + words


def test_who_waits_for_what(request):
    """The outlines of all kernels are those of the file, which is there to be read."""
    found = "".join(f"{name}\n{outline(run().program)}\n\n" for name, run in KERNELS.items())
    if request.config.getoption("--update-golden"):
        OUTLINES.write_text(found)
    assert found == OUTLINES.read_text()


@pytest.mark.parametrize("name", KERNELS)
def test_the_numbers_are_those_of_one_role_and_of_a_cpu(name):
    run = KERNELS[name]()
    split = tvmtile.compile(run.program, **HOPPER)
    (loops, *more) = [choice.chosen for choice in split.choices if choice.operator == "Pipelined"]
    assert all("two roles" in chosen for chosen in (loops, *more))
    assert all(("computing producer" in chosen) == (name in COMPUTED) for chosen in (loops, *more))
    for seed in SEEDS:
        split.adapter.seed = seed
        run.check(split)
    whole = tvmtile.compile(run.program, **HOPPER, pass_configs=ONE_ROLE)
    assert "setmaxnreg" not in whole.get_kernel_source()
    assert "cp_async_bulk_tensor_g2s" not in whole.get_kernel_source()
    run.check(whole)
    run.check(tvmtile.compile(run.program, target="llvm"))


@pytest.mark.parametrize("name", WITH_ONE_ROLE)
@pytest.mark.filterwarnings("ignore:no warps are specialised|.* is not pipelined")
def test_a_kernel_that_is_no_candidate_is_pipelined_and_says_why(name):
    make, reason = WITH_ONE_ROLE[name]
    run = make()
    kernel = tvmtile.compile(run.program, **HOPPER)
    (loop,) = [choice for choice in kernel.choices if choice.operator == "Pipelined"]
    assert loop.chosen == "one role"
    assert reason in dict(loop.declined)["two roles"]
    for seed in SEEDS:
        kernel.adapter.seed = seed
        run.check(kernel)
    run.check(tvmtile.compile(run.program, target="llvm"))
