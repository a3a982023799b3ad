"""The cost of generated Metal kernels, counted by the emulator: tvmtile beside TileLang and MLX.

    python benchmarks/metal_static.py                      # prints the table, of tvmtile only
    python benchmarks/metal_static.py --mlx CHECKOUT --tilelang PYTHON --write

CHECKOUT is a clone of https://github.com/ml-explore/mlx, whose steel kernels are instantiated by the
lines below and counted from their own source. PYTHON is an interpreter that has TileLang, which
can't be installed beside apache-tvm; it compiles the same programs to Metal on any machine.
`--write` rewrites metal_static.md.

These are counts, no times. Nothing here runs on a GPU. Each kernel is emulated with two lengths of its
loop: the difference is what a step of the loop costs. Its results are compared with torch's float64.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import torch
import tvm
from metal_static_programs import BK, BM, BN, PROGRAMS, M, N

import tvmtile
from tvmtile.emulator.metal import MetalStatistics, compile_msl

HERE = Path(__file__).resolve().parent
LANES = 32
LENGTHS = (128, 256)  # of K, or of the keys
HEADS = (64, 128)
# A head of 128 leaves threadgroup memory for 32 keys at a time, one of 64 for 64.
KEYS_OF_A_STEP = {64: 64, 128: 32}

Run = Callable[[int], MetalStatistics]
"""Runs a kernel whose loop has the length that is given."""


@dataclass(frozen=True)
class Row:
    """The cost of one kernel."""

    kernel: str
    threads: int
    matrices: str
    threadgroup_memory: int
    barriers: float
    device_bytes: float
    device_bytes_a_multiply: float
    threadgroup_bytes: float
    loads: float
    instructions: float


COLUMNS = {
    "kernel": "kernel",
    "threads": "threads",
    "matrices": "simdgroup matrices held",
    "threadgroup_memory": "threadgroup memory, bytes",
    "barriers": "barriers a step",
    "device_bytes": "device bytes a step",
    "device_bytes_a_multiply": "device bytes a multiply",
    "threadgroup_bytes": "threadgroup bytes moved a multiply",
    "loads": "loads of matrices a multiply",
    "instructions": "instructions a multiply",
}


def row(kernel: str, threads: int, matrices: str, steps: int, groups: int, run: Run) -> Row:
    """Count a kernel: `steps` is by how many the two lengths differ, in each of `groups`."""
    short, long = (asdict(run(length)) for length in LENGTHS)
    per_loop = {name: long[name] - short[name] for name in short}
    multiplies = per_loop["matrix_multiplies"]
    accesses = sum(
        per_loop[f"{space}_{what}"]
        for space in ("device", "threadgroup")
        for what in ("reads", "writes")
    )
    issued = per_loop["matrix_loads"] + per_loop["simd_functions"] + multiplies + accesses / LANES
    moved = per_loop["threadgroup_bytes_read"] + per_loop["threadgroup_bytes_written"]
    return Row(
        kernel,
        threads,
        matrices,
        long["threadgroup_memory"],
        per_loop["threadgroup_barriers"] / steps / groups,
        per_loop["device_bytes_read"] / steps / groups,
        per_loop["device_bytes_read"] / multiplies,
        moved / multiplies,
        per_loop["matrix_loads"] / multiplies,
        issued / multiplies,
    )


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, rtol=2e-3, atol=2e-2)


def gemm_arguments(k: int, out: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(k)
    a, b = (torch.randn(shape, generator=generator).half() for shape in ((M, k), (k, N)))
    return a, b, torch.zeros(M, N, dtype=out)


def attention_arguments(queries: int, keys: int, head: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(keys)
    q, k, v = (
        torch.randn(rows, head, generator=generator).half() for rows in (queries, keys, keys)
    )
    return q, k, v, torch.zeros(queries, head, dtype=torch.float16)


def check_gemm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    check(c, a.double() @ b.double())


def check_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    check(out, torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double()))


# tvmtile and TileLang: the same programs ----------------------------------------------------------


def cases() -> list[tuple[str, str, dict[str, int], str]]:
    """The programs: what to call them, the program, its arguments, and which of them is the length."""
    gemms = [
        (
            f"gemm {BM}x{BN}x{BK}, num_stages={stages}",
            "gemm",
            {"threads": threads, "stages": stages},
            "k",
        )
        for threads in (128, 256)
        for stages in (0, 2)
    ]
    attentions = [
        (
            f"attention, head {head}, 64 queries, {keys} keys a step",
            "attention",
            {"head": head, "block_k": keys},
            "keys",
        )
        for head, keys in KEYS_OF_A_STEP.items()
    ]
    return gemms + attentions


def held(source: str) -> str:
    """The matrices that the source declares: those that live longest first."""
    found = re.findall(r"simdgroup_\w+8x8 (\w+)\[(\d+)\]", source)
    counts = dict.fromkeys(name for name, _ in found)
    return " + ".join(str(max(int(n) for name, n in found if name == kept)) for kept in counts)


def program_row(
    label: str,
    name: str,
    arguments: dict[str, int],
    length: str,
    run: Callable[..., MetalStatistics],
) -> Row:
    """Count a program; `run(kernel_arguments, program_arguments)` compiles it and runs it."""
    source = ""

    def at(extent: int) -> MetalStatistics:
        nonlocal source
        if name == "gemm":
            tensors = gemm_arguments(extent, torch.float32)
        else:
            tensors = attention_arguments(64, extent, arguments["head"])
        source, statistics = run(tensors, {**arguments, length: extent})
        (check_gemm if name == "gemm" else check_attention)(*tensors)
        return statistics

    step, groups = (BK, M // BM * N // BN) if name == "gemm" else (arguments["block_k"], 1)
    threads = arguments.get("threads", 128)
    counted = row(label, threads, "", (LENGTHS[1] - LENGTHS[0]) // step, groups, at)
    return Row(**{**asdict(counted), "matrices": held(source)})


def tvmtile_rows() -> list[Row]:
    rows = []
    for label, name, arguments, length in cases():

        def run(tensors: tuple, given: dict[str, int], name: str = name) -> tuple:
            kernel = tvmtile.compile(
                PROGRAMS[name](**given), target="metal", execution_backend="emulator"
            )
            kernel(*tensors)
            return kernel.get_kernel_source(), kernel.adapter.statistics

        rows.append(program_row(f"tvmtile {label}", name, arguments, length, run))
    return rows


def tilelang_rows(python: str) -> tuple[list[Row], list[str], str]:
    """The cost of TileLang's sources, why it has none for some programs, and its version."""
    programs = [
        (name, {**arguments, length: extent})
        for _, name, arguments, length in cases()
        for extent in LENGTHS
    ]
    command = [python, str(HERE / "metal_static_programs.py"), json.dumps(programs)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env={}).stdout
    answer = json.loads(printed.splitlines()[-1])
    made = {
        json.dumps(program): result
        for program, result in zip(programs, answer["made"], strict=True)
    }
    rows, missing = [], []
    for label, name, arguments, length in cases():
        result = made[json.dumps((name, {**arguments, length: LENGTHS[0]}))]
        if "error" in result:
            missing.append(result["error"].partition(" for {")[0])
            continue

        def run(tensors: tuple, given: dict[str, int], name: str = name) -> tuple:
            source = made[json.dumps((name, given))]["source"]
            # The emulator's parser knows the keyword, not the attribute.
            plain = re.sub(r"\[\[kernel, [^\]]*\]\]", "kernel", source)
            module = compile_msl(plain)
            kernel = module.kernel(module.kernel_names[0])
            return source, kernel(*tensors, grid=(N // BN, M // BM), threads=given["threads"])

        rows.append(program_row(f"TileLang {label}", name, arguments, length, run))
    return rows, missing, answer["version"]


# MLX: its steel kernels, from its own source --------------------------------------------------------

_STEEL = "mlx/backend/metal/kernels/steel"
# What the kernels use of headers that need more of a GPU than the emulator models.
_PRELUDE = """\
#include <metal_stdlib>
using namespace metal;
#define METAL_FUNC inline
#define STEEL_CONST static constexpr const
#define STEEL_PRAGMA_UNROLL
#define STEEL_PRAGMA_NO_UNROLL
struct complex64_t { float real, imag; };
template <typename T> struct Limits { static constexpr T finite_min = -3.402823466e+38f; };
"""
_GEMM = """
kernel void steel(const device half* A [[buffer(0)]], const device half* B [[buffer(1)]],
                  device half* D [[buffer(2)]],
                  const constant mlx::steel::GEMMParams* params [[buffer(3)]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint3 group [[threadgroup_position_in_grid]],
                  uint3 thread_position [[thread_position_in_threadgroup]]) {{
  using gemm = mlx::steel::GEMMKernel<half, half, {bm}, {bn}, {bk}, {wm}, {wn},
                                      false, false, true, true>;
  threadgroup half As[gemm::tgp_mem_size_a];
  threadgroup half Bs[gemm::tgp_mem_size_b];
  gemm::run(A, B, D, params, As, Bs, lane, simdgroup, group, thread_position);
}}
"""
_ATTENTION = """
kernel void steel(const device half* Q [[buffer(0)]], const device half* K [[buffer(1)]],
                  const device half* V [[buffer(2)]], device half* O [[buffer(3)]],
                  const constant mlx::steel::AttnParams* params [[buffer(4)]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint3 group [[threadgroup_position_in_grid]],
                  uint3 thread_position [[thread_position_in_threadgroup]]) {{
  attention<half, {bq}, {bk}, {head}, 4, 1, half>(Q, K, V, O, params, nullptr, nullptr, nullptr,
                                                  lane, simdgroup, group, thread_position);
}}
"""
# As mlx/backend/metal/scaled_dot_product_attention.cpp chooses: keys a step, for a head size.
_MLX_KEYS = {64: 32, 128: 16}
_MLX_QUERIES = 32


def flattened(checkout: Path, path: str, seen: set[str]) -> str:
    """A header of MLX with the headers of MLX that it includes."""
    if path in seen or path.endswith("steel/defines.h"):
        return ""
    seen.add(path)
    lines = []
    for line in (checkout / path).read_text(encoding="utf-8").splitlines():
        included = re.match(r'\s*#include\s+"(mlx/[^"]+)"', line)
        if included:
            lines.append(flattened(checkout, included[1], seen))
        elif line.strip() != "#pragma once":
            lines.append(line)
    return "\n".join(lines)


def steel(checkout: Path, path: str) -> str:
    """The source of a steel kernel as the emulator takes it."""
    source = _PRELUDE + flattened(checkout, f"{_STEEL}/{path}", set())
    # One specialisation an address space, of which the emulator's compiler sees one.
    source = re.sub(
        r"template <typename T>\s*struct pointer_element<(device|constant|threadgroup) T\*> \{.*?\};",
        "",
        source,
        flags=re.DOTALL,
    )
    for name, value in {
        "align_Q": 1,
        "align_K": 1,
        "has_mask": 0,
        "do_causal": 0,
        "has_sinks": 0,
    }.items():
        source = re.sub(
            rf"constant bool {name} \[\[.*?\]\];", f"constexpr bool {name} = {value};", source
        )
    head, kernel, body = source.partition(
        "[[kernel, max_total_threads_per_threadgroup(WM * WN * 32)]]"
    )
    parameters, brace, body = body.partition(") {")
    return head + re.sub(r"\[\[.*?\]\]", "", parameters) + brace + body if kernel else source


def mlx_gemm(checkout: Path, bm: int, bn: int, bk: int, wm: int, wn: int) -> Row:
    text = steel(checkout, "gemm/gemm.h") + _GEMM.format(bm=bm, bn=bn, bk=bk, wm=wm, wn=wn)
    kernel = compile_msl(text).kernel("steel")

    def run(k: int) -> MetalStatistics:
        a, b, c = gemm_arguments(k, torch.float16)
        grid, threads = (N // bn, M // bm), wm * wn * LANES
        parameters = struct.pack("<8i3q3i4x", M, N, k, k, N, N, *grid, 0, 0, 0, 0, k // bk, 0)
        statistics = kernel(a, b, c, parameters, grid=grid, threads=threads)
        check_gemm(a, b, c)
        return statistics

    rows, columns = bm // (8 * wm), bn // (8 * wn)
    steps = (LENGTHS[1] - LENGTHS[0]) // bk
    return row(
        f"MLX steel gemm {bm}x{bn}x{bk}, wm={wm}, wn={wn}",
        wm * wn * LANES,
        f"{rows * columns} + {rows} + {columns}",
        steps,
        M // bm * N // bn,
        run,
    )


def mlx_attention(checkout: Path, head: int) -> Row:
    bk = _MLX_KEYS[head]
    text = steel(checkout, "attn/kernels/steel_attention.h")
    kernel = compile_msl(text + _ATTENTION.format(bq=_MLX_QUERIES, bk=bk, head=head)).kernel(
        "steel"
    )

    def run(keys: int) -> MetalStatistics:
        q, k, v, out = attention_arguments(_MLX_QUERIES, keys, head)
        strides = [
            extent * head
            for rows in (_MLX_QUERIES, keys, keys, _MLX_QUERIES)
            for extent in (rows, rows, 1)
        ]
        blocks = (1, keys // bk, 1, keys // bk, 0, 0, 0)
        parameters = struct.pack(
            "<6if7i12q", 1, 1, head, _MLX_QUERIES, keys, 1, head**-0.5, *blocks, *strides
        )
        statistics = kernel(q, k, v, out, parameters, grid=1, threads=(LANES, 4, 1))
        check_attention(q, k, v, out)
        return statistics

    return row(
        f"MLX steel attention, head {head}, {_MLX_QUERIES} queries, {bk} keys a step",
        4 * LANES,
        f"{head // 8} + {bk // 8} + 1 + {bk // 8} + 1",
        (LENGTHS[1] - LENGTHS[0]) // bk,
        1,
        run,
    )


def mlx_rows(checkout: Path) -> tuple[list[Row], str]:
    """The cost of MLX's kernels: with tiles as tvmtile's, and with those that MLX itself takes."""
    header = (checkout / "mlx/version.h").read_text(encoding="utf-8")
    version = ".".join(re.findall(r"#define MLX_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"],
        capture_output=True,
        text=True,
        check=False,  # a checkout without git has no commit to name
    ).stdout.strip()
    tiles = [(BM, BN, BK, 2, 2), (BM, BN, BK, 2, 4), (64, 64, 16, 2, 2)]
    rows = [mlx_gemm(checkout, *tile) for tile in tiles]
    rows += [mlx_attention(checkout, head) for head in HEADS]
    return rows, f"{version} ({commit})" if commit else version


# The page ----------------------------------------------------------------------------------------

_PAGE = """\
# What generated Metal costs

Made by `{command}` on {date}, with {versions}.

These are counts that the emulator (`tvmtile.emulator.metal`) makes while it runs the Metal source of
each kernel on a CPU. They are **not times**, and nothing was measured on a GPU: a kernel with lower
counts may be slower. Every kernel's result was compared with torch's float64.

## GEMM

float16 operands, float32 accumulators, a result of [{m}, {n}]. tvmtile and TileLang get the same
program. A step is one tile along K.

{gemm}

## Flash attention, forward, not causal

A step is one tile of keys and values. The tiles differ, so compare what is given for a multiply.

{attention}

## How to read it

- *simdgroup matrices held*: 8x8 matrices in the registers of a simdgroup, the accumulators first, then
  what is loaded of A and of B for a step of 8 along K. Of tvmtile and TileLang they are what the
  source declares; of MLX they follow from the template's arguments (`BlockMMA` in
  `steel/gemm/mma.h`, the tiles of `steel/attn/kernels/steel_attention.h`, which hold everything in
  float32).
- *barriers*, *device bytes* (read) are those of one threadgroup.
- *multiply*: one 8x8x8 `simdgroup_multiply_accumulate`.
- *instructions*: those multiplies, `simdgroup_load`, shuffles, and loads and stores of threads, of 16
  bytes at most each and 32 threads at a time. Address arithmetic and elementwise steps are not
  counted. MLX's kernels fill matrices element by element through `thread_elements()`: each counts as
  one load of 2 bytes, two of which a compiler may join, so the number is an upper bound.
{notes}"""

_NOTES = """\
- MLX pads each row of a tile in threadgroup memory by 16 bytes, so that the elements of a column lie in
  different banks. tvmtile does so where a threadgroup has room, which is not the case with 32768 bytes:
  there it is behind MLX. TileLang does not pad. Bank conflicts are not counted here.
- MLX holds fewer matrices with the tiles that it takes, 24 a simdgroup; with tiles of 128x128 over 128
  threads all three declare 80 and more, whose registers limit how many simdgroups run at once.
- MLX does not instantiate 128x128x32: those rows are its template with tvmtile's tile. 64x64x16 is what
  it takes by itself on a medium GPU (`GEMM_TPARAM_MACRO` in `mlx/backend/metal/matmul.cpp`).
"""


def table(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "|" + " --- |" * len(COLUMNS)]
    for one in rows:
        cells = [shown(getattr(one, name)) for name in COLUMNS]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shown(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mlx", type=Path, help="a checkout of MLX")
    parser.add_argument("--tilelang", help="a Python interpreter that has TileLang")
    parser.add_argument("--write", action="store_true", help="rewrite metal_static.md")
    options = parser.parse_args()
    rows, notes = tvmtile_rows(), ""
    versions = [f"tvmtile {tvmtile.__version__}", f"apache-tvm {tvm.__version__}"]
    if options.tilelang:
        more, missing, version = tilelang_rows(options.tilelang)
        rows += more
        notes += "".join(
            f"- TileLang makes no Metal of some programs: `{reason}`.\n"
            for reason in dict.fromkeys(missing)
        )
        versions.append(f"TileLang {version}")
    if options.mlx:
        more, version = mlx_rows(options.mlx)
        rows += more
        notes += _NOTES
        versions.append(f"MLX {version}")
    page = _PAGE.format(
        command="python benchmarks/metal_static.py --mlx CHECKOUT --tilelang PYTHON --write",
        date=date.today().isoformat(),
        versions=", ".join(versions),
        m=M,
        n=N,
        gemm=table([one for one in rows if " gemm " in one.kernel]),
        attention=table([one for one in rows if " attention" in one.kernel]),
        notes=notes,
    )
    if options.write:
        (HERE / "metal_static.md").write_text(page, encoding="utf-8")
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
