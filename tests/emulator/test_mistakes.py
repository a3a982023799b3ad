"""Mistakes that the emulators find: `mistakes/*.txt` hold kernels with one mistake each.

A row is a kernel, or what stands in its frame at `...`, and behind `> ` what the emulator says of it:
its sentence at least, then the block, and the help. The message names the lines that end with `<--`.
`// launch:` says what a launch gets, over what the frame says; `seeds` is how many there are. With
`// right:` it is right, and what stands behind `->` holds then. All kernels of a file are one source;
a frame without a hole stands in front of them.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
import signal
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.messages.table import HOLE, Row, rows, write
from tests.messages.test_messages import pattern
from tvmtile.emulator.cuda import compile_cuda, tensor_map
from tvmtile.emulator.metal import compile_msl
from tvmtile.errors import CudaCompileError, CudaEmulationError, EmulationError

FOLDER = Path(__file__).parent / "mistakes"
METAL = """
#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
"""
ARCHITECTURES = {"cuda": "sm_90a", "blackwell": "sm_100a"}
ROWS = [row for name in ("metal", *ARCHITECTURES) for row in rows(FOLDER / f"{name}.txt")]
KINDS = {"never written": "uninitialized", "not emulated": "unsupported"}
NAMES: dict[str, Any] = {
    "each": lambda *values: Each(values),
    **{name: getattr(np, name) for name in ("int8", "int32", "int64", "float16", "all")},
    "zeros": lambda count, dtype=np.float32: np.zeros(count, dtype),
    "ones": lambda count, dtype=np.float32: np.ones(count, dtype),
    "arange": lambda count, dtype=np.float32: np.arange(count, dtype=dtype),
    "tensor_map": tensor_map,
    "array": lambda values: np.array(values, np.int32),
}


def name_of(row: Row) -> str:
    lines = [line for line in row.code.splitlines() if not line.startswith("//")]
    marked = [line for line in lines if line.endswith("<--")]
    return f"{row.file.stem}: {re.sub(' *//.*', '', (marked or lines)[0]).strip()}"


def kernel_of(row: Row) -> str:
    text = row.code
    if " NAME(" not in text:
        text = HOLE.sub(lambda hole: textwrap.indent(row.code, hole[1]), row.frame)
    return text.replace("NAME", f"row{row.index}")


@cache
def compiled(file: Path) -> Any:
    """All kernels of a file."""
    shared = file.read_text().split("---\n", 1)[0]
    text = "\n".join(kernel_of(row) for row in ROWS if row.file == file)
    if not HOLE.search(shared):
        text = shared + text
    if file.stem in ARCHITECTURES:
        return compile_cuda(text, arch=ARCHITECTURES[file.stem])
    return compile_msl(METAL + text)


class Each(tuple):
    """Values of which a launch gets each."""

    __slots__ = ()


def launches(row: Row, what: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The arguments of each launch of a row, and conditions behind, for "launch" or "right"."""
    texts = re.findall("^// launch: (.*)$", row.code, re.MULTILINE)
    if " NAME(" not in row.code:
        texts = re.findall("^// launch: (.*)$", row.frame, re.MULTILINE) + texts
    rights = re.findall("^// right: (.*?)(?: -> (.*))?$", row.code, re.MULTILINE)
    for given, holds in rights if what == "right" else [("", "")]:
        options = functools.partial(eval, " | ".join(f"dict({t})" for t in (*texts, given)), NAMES)
        several = {key: value for key, value in options().items() if isinstance(value, Each)}
        for chosen in itertools.product(*several.values()):
            yield options() | dict(zip(several, chosen, strict=True)), holds or "True"


def launch(row: Row, options: dict[str, Any]) -> dict[str, Any]:
    """Launch the kernel of a row; its arguments by their names."""
    kernel = compiled(row.file).kernel(f"row{row.index}")
    named = getattr(kernel.signature, "buffers", kernel.signature.parameters)
    arguments = {p.name: options.pop(p.name) for p in named}
    kernel(*arguments.values(), **{"grid": 1, **options})
    return arguments


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_mistake_is_found(row, pytestconfig):
    for given, holds in launches(row, "right"):
        assert eval(holds, NAMES | launch(row, given)), holds
    for given, _ in launches(row, "launch"):
        before = copy.deepcopy(given)
        with pytest.raises(EmulationError) as caught:
            launch(row, given)
        np.testing.assert_equal(given, {k: before[k] for k in given})  # nothing has changed

        error = caught.value
        text = re.sub(r"\n  --> .*\n   \|  .*", "", str(error)).partition(": ")[2]
        shown = re.findall(r"^  line \d+: (.*)$", text, re.MULTILINE)
        marked = [line.strip() for line in kernel_of(row).splitlines() if line.endswith("<--")]
        assert not marked or sorted(shown) == sorted(marked)
        text = re.sub(r"\n  line .*", "", text)
        if pytestconfig.getoption("update_golden") and row.message == ">\n":
            row.message = re.sub(r"line \d+", "line ...", f"> {text.splitlines()[0]}\n")
            write(row, row.message[2:-1])
        expected = pattern(re.sub("^> ", "", row.message, flags=re.MULTILINE).rstrip())
        assert re.fullmatch(rf"{expected}(\n.*)*", text), text

        kind = text.partition(":")[0]
        assert error.kind == KINDS.get(kind, kind.replace(" ", "_").replace("-", "_"))
        if error.buffer is not None:
            place = rf"\b{error.buffer}\b"
            if error.index is not None:
                place = rf"{place}\[{error.index}\]|index {error.index} of {place}"
            assert re.search(place, text)
        assert kind == "not uniform" or all(str(thread) in text for thread in error.threads)
        assert f"block {error.block}\n" in text.replace("threadgroup", "block") + "\n"


def test_a_loop_of_collectives_has_its_line_whenever_its_time_is_up():
    (row,) = [row for row in ROWS if "simd_any" in row.code]
    ((given, _),) = launches(row, "launch")
    for _ in range(20):
        with pytest.raises(EmulationError) as caught:
            launch(row, given | {"seconds": 0.01})
        assert caught.value.line is not None


def test_handlers_of_others_are_put_back():
    (row,) = [row for row in ROWS if "100 / a[i]" in row.code]
    before = signal.signal(signal.SIGFPE, signal.SIG_IGN)
    try:
        with pytest.raises(EmulationError):
            launch(row, next(launches(row, "launch"))[0])
        assert signal.getsignal(signal.SIGFPE) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGFPE, before)


ASM = '__global__ void k() {\n  asm volatile("%s [%%0], [%%1];" : : "r"(1), "r"(2));\n}'
IM2COL = "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        (ASM % "cp.magic", 2, "`cp.magic [%0], [%1];`"),
        (ASM % IM2COL, 2, "global.im2col"),
        ("__shared__ int a[32];\n__global__ void k() { a[0] = 1; }", 1, "outside of a function"),
        ("__global__ void k(float* a) {\n  nonsense(a);\n}", None, "line 2: nonsense(a);"),
    ],
)
def test_source_in_cuda_that_is_not_emulated(source, line, text):
    with pytest.raises(CudaEmulationError if line else CudaCompileError) as caught:
        compile_cuda(source)
    assert text in str(caught.value)
    assert line is None or (caught.value.kind, caught.value.line) == ("unsupported", line)
