"""The meaning of programs, by the numbers they compute; each is read back as it is printed.

The rows of traced.txt are written as those of tests/messages are; behind `> ` stands what is equal.
`run` calls the kernel and gives what is written into its last tensor; the -1 at its end are those that
stood there before. `error` is the message of a call.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import tvm

from tests.messages.table import rows
from tests.running import runnable

JOBS = [
    pytest.param(row, target, id=f"{row}-{target}", marks=[pytest.mark.full] if at else [])
    for row in rows(Path(__file__).with_name("traced.txt"))
    for at, target in enumerate(row.targets())
]


def of_parameter(parameter, given=None):
    """The argument of a kernel: a list as a tensor, and one of -1 where nothing is given."""
    shape = getattr(parameter.ty, "shape", None)
    if shape is None or isinstance(given, torch.Tensor):
        return given
    dtype = getattr(
        torch, {"handle": "int64"}.get(str(parameter.ty.dtype), str(parameter.ty.dtype))
    )
    if given is None:
        return torch.full([int(extent) for extent in shape], -1, dtype=dtype)
    return torch.tensor(given).to(dtype)


@pytest.mark.parametrize(("row", "target"), JOBS)
def test_program(row, target, tmp_path):
    file, scope = tmp_path / "program.py", {"torch": torch, "tvm": tvm}
    file.write_text(row.program("none"))
    exec(compile(file.read_text(), file, "exec"), scope)
    named = {"kind": "cuda", "arch": target} if target.startswith("sm_") else target

    @functools.cache
    def compiled(kernel):
        return runnable(kernel, named)

    def run(*given, of=scope["kernel"]):
        *inputs, out = map(of_parameter, of.params, [*given, None])
        compiled(of)(*inputs, out)
        written = out.tolist()
        while written and written[-1] == -1:
            written.pop()
        return written

    def error(*given):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the row has its text
            run(*given)
        return str(caught.value)

    for line in row.message.splitlines():
        found, _, expected = line.removeprefix("> ").partition(" == ")
        scope |= {"run": run, "error": error}
        assert eval(found, scope) == eval(expected, scope)
    if "# TVM does not read it back" in row.code:
        return
    program = scope["kernel"]
    tvm.tirx.analysis.verify_well_formed(program)
    again = tvm.script.from_source(program.script())
    tvm.ir.assert_structural_equal(again, program)
    assert again.script() == program.script()
