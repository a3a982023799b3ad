"""The kernels of `programs.txt`, without the barriers that InsertBarriers puts there and with them.

=== What is shown.
threads: 128                    (64 where absent; also `blocks`, 1 where absent, `target`,
                                `ignored`, a tensor without order)
X, Y: 1, 2 | 3, 4               (a program for each: what stands for these words)
the body of the kernel, where
+ block                         is inserted: the name of a barrier, and `?` where what data decides
                                or an address makes it necessary
- apart()                       is taken away
> a message                     is the error: a regular expression
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tvm
from tvm import ir, tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm_ffi import structural_map

from tests.passes.gpu.barriers.oracle import Run
from tvmtile._tvm import nodes_in
from tvmtile.ir.annotations import APART, ARRIVE_COUNT, BARRIER_ID, EXCHANGES_TENSORS
from tvmtile.ir.barriers import is_barrier
from tvmtile.passes import InsertBarriers

_HEAD = """
@T.prim_func
def main(
    A: T.Buffer((8, 64), "float32"), B: T.Buffer((64,), "int32"), n: T.int32,
    C: T.Buffer((9, 64), "float32"), D: T.Buffer((64,), "int32"), H: T.Buffer((64, 8), "float16"),
    W: T.Buffer((8, 384), "float32"), L: T.Buffer((128, 64), "float32"),
):
    for bx in T.thread_binding({blocks}, "blockIdx.x", annotations={{"tvmtile.kernel": True}}):
        for tx in T.thread_binding({threads}, "threadIdx.x"):
"""


def _sync(scope="shared", **attrs):
    sync = T.tvm_storage_sync(scope)
    return ir.Call(sync.op, sync.args, attrs or None, ret_ty=sync.ty)


def numbered(number, count):
    return _sync(**{BARRIER_ID: number, ARRIVE_COUNT: count})


def _issue(target, source, size=16):
    kind = "cg" if size == 16 else "ca"
    copy = T.ptx[f"cp.async.{kind}.shared.global"]
    return copy(T.address_of(target), T.address_of(source), size)


_NAMES = {
    "T": T,
    "shared": lambda shape, dtype="float32": T.alloc_buffer(shape, dtype, scope="shared"),
    "matrix": lambda: T.alloc_buffer((64,), "float32", scope="metal.simdgroup"),
    "words_of_a_thread": lambda: T.alloc_buffer((4,), "uint32", scope="local"),
    "scalar": lambda: T.alloc_buffer((1,), "int32", scope="local"),
    "view": lambda of, shape, dtype="float32": T.decl_buffer(
        shape, dtype, data=of.data, scope="shared"
    ),
    "behind": lambda of, start, shape, dtype: T.decl_buffer(
        shape, dtype, data=T.ptr_byte_offset(of.data, start, dtype), scope="shared"
    ),
    "atomic": lambda place, value: T.Call("tvmtile.atomic", [place, value], ret_ty="int32"),
    "issue": _issue,
    "commit": T.ptx["cp.async.commit_group"],
    "wait": T.ptx["cp.async.wait_group"],
    "matrices": lambda r, row: T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
        r[0], r[1], r[2], r[3], T.address_of(row)
    ),
    "group": lambda first, count: T.attr(first, "tvmtile.group", count),
    "apart": lambda: _sync(**{ARRIVE_COUNT: 128, APART: True}),
    "each_warpgroup": lambda tx: _sync(
        **{ARRIVE_COUNT: 128, APART: True, BARRIER_ID: 1 + tx // 128 % 2}
    ),
    "await_all": lambda: T.tvmtile.async_wait("cp.async", 0),
    "signal": lambda: T.tvmtile.async_signal("cp.async"),
    "number": numbered,
    "block": _sync,
    "warp": lambda: _sync("warp"),
    "device": lambda: T.call_extern("void", "tvmtile_threadgroup_barrier"),
    "simdgroup": lambda: T.call_extern("void", "tvmtile_simdgroup_barrier"),
}


_VALUES = {"B": np.arange(64)[::-1], "n": 4}
_UNKNOWN = re.compile(
    "while|T.serial|issue|group|address_of|number|matri|words_of|scalar|break|\\batomic\\(D\\[S"
)
"""Statements that the oracle does not run: of groups, copies in flight, addresses, instructions."""


@dataclass(frozen=True)
class Kernel:
    """A program of the table."""

    name: str
    lines: tuple[str, ...]
    """Of its body, with their marks."""
    error: str
    options: dict[str, str]

    def __str__(self):
        return self.name

    @property
    def is_always_needed(self):
        """Whatever the data, no barrier is there in vain."""
        return not any(line.endswith(" ?") for line in self.lines)

    def before(self):
        return self._function("-")

    def after(self):
        """With barriers, and without the regions of groups."""
        func = self._function("+")
        return func.with_body(structural_map(func.body, (tirx.AttrStmt, lambda s: s.body)))

    @property
    def is_runnable(self):
        """Tell whether the oracle knows its statements."""
        return not self.error and not any(map(_UNKNOWN.search, self.lines))

    def run(self, func, missed=None):
        """The oracle, when it has run a function with the program's parameters."""
        return Run(func, _VALUES, self.options.get("ignored", ""), missed)

    def _function(self, sign):
        head = _HEAD.format(**{"blocks": 1, "threads": 64, **self.options})
        body = (" " * 12 + line for line in map(partial(self._line, sign), self.lines) if line)
        func = tvm.script.from_source(head + "\n".join(body), _NAMES)
        is_for_metal = self.options.get("target") == "metal"
        return func.with_attr("target", Target("metal")) if is_for_metal else func

    @staticmethod
    def _line(sign, line):
        mark = re.fullmatch(r"( *)([+-]) (\w+)(.*?)( \?)?", line)
        if mark is None:
            return line
        indent, has, name, arguments, _ = mark.groups()
        call = name + (arguments if "(" in arguments else f"({arguments})")
        return indent + call if has == sign else ""


def _kernels():
    text = (Path(__file__).parent / "programs.txt").read_text()
    for part in re.split(r"(?m)^=== ", text)[1:]:
        title, *lines = part.rstrip().splitlines()
        option, variants = (
            r"(blocks|threads|target|ignored): (\w+)",
            r"([A-Z, ]+): (.* \| .*)",
        )
        options = dict(found.groups() for line in lines if (found := re.fullmatch(option, line)))
        error = "".join(line[2:] for line in lines if line.startswith("> "))
        marked = rf"> .*|{option}|{variants}"
        body = "\n".join(line for line in lines if not re.fullmatch(marked, line))
        named = [found.groups() for line in lines if (found := re.fullmatch(variants, line))]
        for names, all_values in named or [("", "")]:
            for values in all_values.split(" | "):
                each = values.split(", ") if ", " in names else [values]
                words = dict(zip(names.split(", "), each, strict=True))
                word = partial(
                    re.sub, r"\b[A-Z]+\b", lambda found, words=words: words.get(found[0], found[0])
                )
                chosen = {key: word(value) for key, value in options.items()}
                name = f"{title} {values}".rstrip()
                yield Kernel(name, tuple(word(body).splitlines()), error, chosen)


KERNELS = list(_kernels())


def with_pass(func):
    """The function with its barriers; that it exchanges tensors a program of the catalogue shows."""
    return InsertBarriers(ir.IRModule({"main": func}))["main"].without_attr(EXCHANGES_TENSORS)


def barriers_in(func):
    return [stmt for stmt in nodes_in(func.body, tirx.Evaluate) if is_barrier(stmt)]
