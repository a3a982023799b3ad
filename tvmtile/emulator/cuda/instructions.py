"""PTX instructions that the emulator knows: one row an instruction.

A row is an instruction's name and the C++ call that does what it means. In the call, `{0}`, `{1}`, ...
are the operands as they stand in the text, those in braces together as an array; `{line}` is where the
kernel asks for it. An instruction that no row has is an error that names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tvmtile.emulator.cuda.row import NUMBERS, Instruction
from tvmtile.emulator.cuda.tensor_cores import tensor_core_rows
from tvmtile.instructions.matrices import ALONG_COLUMNS, ALONG_ROWS, MATRICES
from tvmtile.instructions.mma import ATOMS, SPARSE_ATOMS, Atom, lane_map, metadata_map
from tvmtile.instructions.wgmma import FAMILIES, Family, Wgmma, sum_map

__all__ = ["ROWS", "Instruction", "find"]


def _places(name: str, axes: tuple[Sequence[object], Sequence[object]]) -> str:
    """A lane map as an array: row and column by lane and element."""
    places = itertools.chain.from_iterable(lane_map(axes))  # type: ignore[arg-type]
    pairs = ", ".join(f"{{{row}, {column}}}" for row, column in places)
    return f"static const std::uint8_t {name}[][2] = {{{pairs}}};\n"


# Matrices of 8x8 -----------------------------------------------------------------------------------


@cache
def _matrix_places() -> str:
    return _places("emulator_rows", ALONG_ROWS) + _places("emulator_columns", ALONG_COLUMNS)


def _matrices() -> list[Instruction]:
    rows = []
    powers = [count for count in (1, 2, 4) if count <= MATRICES]
    for count, trans in itertools.product(powers, (False, True)):
        suffix = f"m8n8.x{count}{'.trans' * trans}"
        places = "emulator_columns" if trans else "emulator_rows"
        for space in ("shared", "shared::cta"):
            load = f"::emulator::ptx::ldmatrix({{line}}, {places}, {{0}}, {count}, {{1}})"
            store = f"::emulator::ptx::stmatrix({{line}}, {places}, {{0}}, {{1}}, {count})"
            rows += [
                Instruction(
                    f"{name}.sync.aligned.{suffix}.{space}.b16", call, 2, since, _matrix_places
                )
                for name, call, since in (("ldmatrix", load, 75), ("stmatrix", store, 90))
            ]
    move = "::emulator::ptx::movmatrix({line}, emulator_columns, emulator_rows, {0}, {1})"
    rows.append(Instruction("movmatrix.sync.aligned.m8n8.trans.b16", move, 2, 75, _matrix_places))
    return rows


# Products of matrices ------------------------------------------------------------------------------

_SUMS = {"float32": "f32", "float64": "f64", "int32": "s32"}


def _elements(axes: object) -> int:
    return len(lane_map(axes)[0])  # type: ignore[arg-type]


def _definition_of(name: str, atom: Atom) -> str:
    maps = {"a": atom.a, "b": atom.b, "sums": atom.c}
    text = "".join(_places(f"{name}_{part}", axes) for part, axes in maps.items())
    pieces = metadata_map(atom) if atom.sparse else []
    if pieces:
        listed = ", ".join(f"{{{p.row}, {p.first}, {p.lane}, {p.shift}, {p.bits}}}" for p in pieces)
        text += f"static const ::emulator::MetadataPiece {name}_metadata[] = {{{listed}}};\n"
    fields = [
        f'"{atom.instruction}"',
        *map(str, (atom.m, atom.n, atom.k, atom.stored_k)),
        *(f"::emulator::Number::{NUMBERS[t]}" for t in (*atom.dtypes, _SUMS[atom.sums])),
        *(str(_elements(axes)) for axes in maps.values()),
        *(f"{name}_{part}" for part in maps),
        f"{name}_metadata" if pieces else "nullptr",
        str(len(pieces)),
        str(atom.place_bits),
    ]
    return f"{text}static const ::emulator::Mma {name} = {{{', '.join(fields)}}};\n"


def _products() -> list[Instruction]:
    tables = (*ATOMS.values(), *SPARSE_ATOMS.values())
    rows = []
    for number, atom in enumerate(itertools.chain.from_iterable(tables)):
        name = f"emulator_mma_{number}"
        operands = "{0}, {1}, {2}, {3}" + ", {4}, {5}" * atom.sparse
        rows.append(
            Instruction(
                atom.instruction,
                f"::emulator::ptx::mma({{line}}, {name}, {operands})",
                6 if atom.sparse else 4,
                definitions=lambda name=name, atom=atom: _definition_of(name, atom),  # type: ignore[misc]
            )
        )
    return rows


# Copies and barriers -------------------------------------------------------------------------------


def _copies() -> list[Instruction]:
    rows = []
    hints = ("", ".L2::64B", ".L2::128B", ".L2::256B")
    for level, hint in itertools.product(("ca", "cg"), hints):
        for space in ("shared", "shared::cta"):
            name = f"cp.async.{level}.{space}.global{hint}"
            call = f'::emulator::ptx::cp_async({{line}}, "cp.async.{level}", {{0}}, {{1}}, {{2}}, '
            rows += [Instruction(name, call + "{2})", 3), Instruction(name, call + "{3})", 4)]
    return [
        *rows,
        Instruction("cp.async.commit_group", "::emulator::ptx::cp_async_commit()", 0),
        Instruction("cp.async.wait_group", "::emulator::ptx::cp_async_wait({line}, {0})", 1),
        Instruction("cp.async.wait_all", "::emulator::ptx::cp_async_wait_all({line})", 0),
    ]


def _barriers() -> list[Instruction]:
    rows = []
    for name in ("bar", "barrier", "bar.cta", "barrier.cta"):
        for suffix in ("sync", "sync.aligned"):
            call = "::emulator::ptx::bar_sync({line}, {0}"
            rows += [
                Instruction(f"{name}.{suffix}", f"{call})", 1),
                Instruction(f"{name}.{suffix}", f"{call}, {{1}})", 2),
            ]
        for suffix in ("arrive", "arrive.aligned"):
            call = "::emulator::ptx::bar_arrive({line}, {0}, {1})"
            rows.append(Instruction(f"{name}.{suffix}", call, 2))
    return [
        *rows,
        *_cluster_barriers(),
        Instruction("bar.warp.sync", "__syncwarp({0}, {line})", 1),
    ]


def _cluster_barriers() -> list[Instruction]:
    releases = {"": "true", ".release": "true", ".relaxed": "false"}
    rows = []
    for aligned in ("", ".aligned"):
        rows += [
            _hopper(f"barrier.cluster.arrive{order}{aligned}", f"cluster_arrive({{line}}, {by})", 0)
            for order, by in releases.items()
        ]
        rows += [
            _hopper(f"barrier.cluster.wait{order}{aligned}", "cluster_wait({line})", 0)
            for order in ("", ".acquire")
        ]
    rows += [
        _hopper(
            f"st.shared::cluster.b{8 * size}", f"remote_store({{line}}, {{0}}, {{1}}, {size})", 2
        )
        for size in (1, 2, 4, 8)
    ]
    rows += [
        _hopper(
            f"st.async{weak}.shared::cluster.{_COMPLETES}{vector}.b{bits}",
            "async_store({line}, {0}, {1}, {2})",
            3,
        )
        for weak, vector, bits in itertools.product(("", ".weak"), ("", ".v2", ".v4"), (32, 64))
        if (vector, bits) != (".v4", 64)
    ]
    mapa = "{0} = ::emulator::ptx::mapa({line}, {1}, {2})"
    return [*rows, Instruction("mapa.shared::cluster.u32", mapa, 3, 90)]


# Asynchronous work of Hopper ------------------------------------------------------------------------

_MBARRIER_SPACES = ("shared", "shared::cta")


def _mbarriers() -> list[Instruction]:
    rows = []
    for space, order in itertools.product(_MBARRIER_SPACES, ("", ".release.cta")):
        arrive = f"mbarrier.arrive{order}.{space}.b64"
        expect = f"mbarrier.arrive.expect_tx{order}.{space}.b64"
        rows += [
            _hopper(arrive, "mbarrier_arrive({line}, {0})", 1),
            _hopper(arrive, "mbarrier_arrive({line}, {0}, {1})", 2),
            _hopper(expect, "mbarrier_expect_tx({line}, {0}, {1}, true)", 2),
        ]
    for order in ("", ".release.cluster"):
        arrive = f"mbarrier.arrive{order}.shared::cluster.b64"
        rows += [
            _hopper(arrive, "mbarrier_arrive({line}, {0})", 1),
            _hopper(arrive, "mbarrier_arrive({line}, {0}, {1})", 2),
            _hopper(
                arrive.replace("arrive", "arrive.expect_tx"),
                "mbarrier_expect_tx({line}, {0}, {1}, true)",
                2,
            ),
        ]
    for space in _MBARRIER_SPACES:
        relaxed = f"mbarrier.expect_tx.relaxed.cta.{space}.b64"
        rows += [
            _hopper(f"mbarrier.init.{space}.b64", "mbarrier_init({line}, {0}, {1})", 2),
            _hopper(f"mbarrier.inval.{space}.b64", "mbarrier_inval({line}, {0})", 1),
            _hopper(relaxed, "mbarrier_expect_tx({line}, {0}, {1}, false)", 2),
            _hopper(
                f"cp.async.mbarrier.arrive.noinc.{space}.b64",
                "mbarrier_arrive_when_copied({line}, {0})",
                1,
            ),
        ]
    # That of initial mbarriers is as good as one of all writes: nothing else comes in front of it.
    fences = ("proxy.async", "proxy.async.shared::cta", "mbarrier_init.release.cluster")
    return rows + [_hopper(f"fence.{name}", "fence_proxy_async()", 0) for name in fences]


def _bulk_copies() -> list[Instruction]:
    rows = [
        *itertools.chain.from_iterable(_tensor_copies(f"{rank}d") for rank in range(1, 6)),
        *_copies_of_rows(),
        *_copies_of_bytes(),
    ]
    hinted = [replace(r, name=f"{r.name}{_HINT}", operands=r.operands + 1) for r in rows]
    return [
        *rows,
        *(
            Instruction(f"createpolicy.fractional.L2::{kept}.b64", "{0} = 0", 1)
            for kept in ("evict_first", "evict_last")
        ),
        _hopper(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
            "remote_copy({line}, {0}, {1}, {2}, {3})",
            4,
        ),
        *(row for row in hinted if ".prefetch" not in row.name),
        *(
            replace(row, name=f"{row.name}.cta_group::{n}", since=100)
            for row in rows
            for n in (1, 2)
            if _loads_a_tensor(row)
        ),
        _hopper("prefetch.tensormap", "tensor_prefetch({line}, {0})", 1),
        _hopper("cp.async.bulk.commit_group", "bulk_commit()", 0),
        _hopper("cp.async.bulk.wait_group", "bulk_wait({line}, {0}, false)", 1),
        _hopper("cp.async.bulk.wait_group.read", "bulk_wait({line}, {0}, true)", 1),
    ]


def _loads_a_tensor(row: Instruction) -> bool:
    return ".tensor." in row.name and _COMPLETES in row.name


_HINT = ".L2::cache_hint"
_COMPLETES = "mbarrier::complete_tx::bytes"
_COORDINATES = "(const std::int32_t*)"
_LOAD = f"({{line}}, {{1}}, {_COORDINATES}{{2}}, {{0}}, {{3}})"
_STORE = f"({{line}}, {{0}}, {_COORDINATES}{{1}}, {{2}})"


def _tensor_copies(axes: str) -> list[Instruction]:
    """Of boxes. Those of im2col are no row: nobody has their boxes."""
    rows = []
    head = f"cp.async.bulk.tensor.{axes}"
    for tile in ("", ".tile"):
        rows += [
            _hopper(f"{head}.{to}.global{tile}.{_COMPLETES}", f"tensor_load{_LOAD}", 4)
            for to in ("shared::cluster", "shared::cta")
        ]
        to_blocks = f"{head}.shared::cluster.global{tile}.{_COMPLETES}.multicast::cluster"
        several = f"tensor_load{_LOAD}".replace("{3})", "{3}, {4})")
        prefetch = f"cp.async.bulk.prefetch.tensor.{axes}.L2.global{tile}"
        rows += [
            _hopper(f"{head}.global.shared::cta{tile}.bulk_group", f"tensor_store{_STORE}", 3),
            _hopper(to_blocks, several, 5),
            _hopper(prefetch, "tensor_prefetch({line}, {0})", 2),
        ]
        for name, reduction in _REDUCTIONS.items():
            reduce = (
                f"cp.reduce.async.bulk.tensor.{axes}.global.shared::cta.{name}{tile}.bulk_group"
            )
            call = f"tensor_reduce{_STORE}".replace("{line},", f"{{line}}, {reduction},")
            rows.append(_hopper(reduce, call, 3))
    return rows


def _copies_of_rows() -> list[Instruction]:
    """Of four rows of a tensor, which Blackwell copies at once."""
    head = "cp.async.bulk.tensor.2d"
    load, store = (
        f"::emulator::ptx::tensor_gather{_LOAD}",
        f"::emulator::ptx::tensor_scatter{_STORE}",
    )
    return [
        *(
            Instruction(f"{head}.{to}.global.tile::gather4.{_COMPLETES}", load, 4, 100)
            for to in ("shared::cluster", "shared::cta")
        ),
        Instruction(f"{head}.global.shared::cta.tile::scatter4.bulk_group", store, 3, 100),
    ]


def _copies_of_bytes() -> list[Instruction]:
    load = "bulk_load({line}, {0}, (const void*){1}, {2}, {3})"
    store = "bulk_store({line}, (const void*){0}, {1}, {2})"
    rows = [
        _hopper(f"cp.async.bulk.{to}.global.{_COMPLETES}", load, 4)
        for to in ("shared::cluster", "shared::cta")
    ]
    rows.append(_hopper("cp.async.bulk.global.shared::cta.bulk_group", store, 3))
    for (name, reduction), (type_, element) in itertools.product(
        _REDUCTIONS.items(), _ELEMENTS.items()
    ):
        if element in _FLOATS and name not in _OF_FLOATS[type_]:
            continue
        exact = ".noftz" if name == "add" and type_ in {"f16", "bf16"} else ""
        what = f"{reduction}, ::emulator::Element::{element}"
        reduce = store.replace("bulk_store({line}", f"bulk_reduce({{line}}, {what}")
        whole = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{name}{exact}.{type_}"
        rows.append(_hopper(whole, reduce, 3))
    return rows


_REDUCTIONS = {
    name: f"::emulator::Reduction::k{name.capitalize()}"
    for name in ("add", "min", "max", "inc", "dec", "and", "or", "xor")
}
_ELEMENTS = {"u32": "kU32", "s32": "kS32", "u64": "kU64", "s64": "kS64"}
_ELEMENTS |= {"f16": "kF16", "bf16": "kBf16", "f32": "kF32", "f64": "kF64"}
_OF_FLOATS = {"f16": ("add", "min", "max"), "bf16": ("add", "min", "max"), "f32": ("add",)}
_OF_FLOATS |= {"f64": ("add",)}
_FLOATS = {_ELEMENTS[type_] for type_ in _OF_FLOATS}


def _operands_of(family: Family) -> tuple[int, ...]:
    """How many: d, a, b, predicate, scales of floats, and of 16 bits which in memory are transposed."""
    if family.sums == "int32":
        return (4,)
    return (7, 8) if family.transposes else (6,)


def _of_warpgroups() -> list[Instruction]:
    rows = []
    for family in FAMILIES.values():
        for row in family:
            name = f"emulator_wgmma_{row.n}_{'_'.join(row.names)}"
            for operands in _operands_of(family):
                listed = ", ".join(
                    ["(std::uint32_t* const*){0}", *(f"{{{i}}}" for i in range(1, operands))]
                )
                rows.append(
                    Instruction(
                        row.instruction,
                        f"::emulator::ptx::wgmma({{line}}, {name}, {listed})",
                        operands,
                        90,
                        lambda name=name, row=row: _wgmma_definition(name, row),  # type: ignore[misc]
                        is_background=True,
                    )
                )
    return [
        *rows,
        _hopper("wgmma.fence.sync.aligned", "wgmma_fence()", 0),
        _hopper("wgmma.commit_group.sync.aligned", "wgmma_commit({line})", 0),
        _hopper("wgmma.wait_group.sync.aligned", "wgmma_wait({line}, {0})", 1),
        *(
            _hopper(f"griddepcontrol.{n}", "launch_order()", 0)
            for n in ("wait", "launch_dependents")
        ),
        *(
            _hopper(
                f"setmaxnreg.{way}.sync.aligned.u32", f"set_registers({{line}}, {{0}}, {more})", 1
            )
            for way, more in (("inc", "true"), ("dec", "false"))
        ),
    ]


def _wgmma_definition(name: str, row: Wgmma) -> str:
    places = itertools.chain.from_iterable(sum_map(row))
    listed = ", ".join(f"{{{i}, {j}}}" for i, j in places)
    of_a = next(atom for atom in ATOMS[row.dtypes] if atom.k == row.k)
    types = ", ".join(f"::emulator::Number::{NUMBERS[t]}" for t in (*row.names, _SUMS[row.sums]))
    return (
        f"{_places(f'{name}_a', of_a.a)}"
        f"static const ::emulator::Place {name}_sums[] = {{{listed}}};\n"
        f"static const ::emulator::Wgmma {name} = "
        f'{{"{row.instruction}", {row.n}, {row.k}, {types}, {name}_a, {name}_sums}};\n'
    )


def _hopper(name: str, call: str, operands: int) -> Instruction:
    return Instruction(name, f"::emulator::ptx::{call}", operands, 90)


def _conversions() -> list[Instruction]:
    pack = "{0} = ::emulator::pack<{{type}}>({1}, {2})"
    return [
        Instruction(f"cvt.rn.{name}.f32", pack.replace("{{type}}", type_), 3)
        for name, type_ in (("f16x2", "__half"), ("bf16x2", "__nv_bfloat16"))
    ] + [
        Instruction("mov.u32", "{0} = {1}", 2),
        # Words of the parts of one, and the other way around.
        *(Instruction(f"mov.b{bits}", "::emulator::move({0}, {1})", 2) for bits in (32, 64)),
        Instruction("lop3.b32", "{0} = ::emulator::lop3({1}, {2}, {3}, {4})", 5),
        Instruction("prmt.b32", "{0} = ::emulator::prmt({1}, {2}, {3})", 4),
    ]


def _of_pairs() -> list[Instruction]:
    """Arithmetic of two halves in a word, as CUDA's headers define it on the host."""
    types = {"f16x2": "__half2", "bf16x2": "__nv_bfloat162"}
    calls = {"add": "__hadd2", "sub": "__hsub2", "mul": "__hmul2", "fma": "::emulator::fused_pair"}
    calls |= {"min": "__hmin2", "max": "__hmax2"}
    rows = []
    for (name, type_), (operation, call) in itertools.product(types.items(), calls.items()):
        spelled = (operation,) if operation in {"min", "max"} else (f"{operation}.rn", operation)
        count = 4 if operation == "fma" else 3
        values = ", ".join(f"::emulator::as<{type_}>({{{i}}})" for i in range(1, count))
        text = f"{{0}} = ::emulator::as<std::uint32_t>({call}({values}))"
        heads = spelled[:1] if operation == "fma" else spelled
        rows += [Instruction(f"{head}.{name}", text, count) for head in heads]
    return rows


def _reductions() -> list[Instruction]:
    """`redux.sync`, of all lanes of a mask."""
    types = {"u32": "unsigned", "s32": "int", "b32": "unsigned"}
    operations: dict[str, tuple[str, ...]] = dict.fromkeys(("add", "min", "max"), ("u32", "s32"))
    operations |= dict.fromkeys(("and", "or", "xor"), ("b32",))
    return [
        Instruction(
            f"redux.sync.{operation}.{type_}",
            f"{{0}} = __reduce_{operation}_sync({{2}}, ({types[type_]}){{1}}, {{line}})",
            3,
        )
        for operation, chosen in operations.items()
        for type_ in chosen
    ]


def _approximations() -> list[Instruction]:
    """Functions of which the hardware computes some bits: here the host's, which are nearer."""
    functions = {"ex2": "exp2f({1})", "lg2": "log2f({1})", "rcp": "1.0f / {1}"}
    functions |= {"rsqrt": "rsqrtf({1})", "sin": "sinf({1})", "cos": "cosf({1})"}
    tanh = Instruction("tanh.approx.f32", "{0} = tanhf({1})", 2)
    return [tanh] + [
        Instruction(f"{name}.approx{flush}.f32", f"{{0}} = {function}", 2)
        for name, function in functions.items()
        for flush in ("", ".ftz")
    ]


def _dot_products() -> list[Instruction]:
    bytes_of = {"s32": "std::int8_t", "u32": "std::uint8_t"}
    return [
        Instruction(f"dp4a.{a}.{b}", f"{{0}} = ::emulator::dp4a<{A}, {B}>({{1}}, {{2}}, {{3}})", 4)
        for (a, A), (b, B) in itertools.product(bytes_of.items(), repeat=2)
    ]


ROWS: tuple[Instruction, ...] = (
    *_matrices(),
    *_products(),
    *_copies(),
    *_barriers(),
    *_mbarriers(),
    *_bulk_copies(),
    *_of_warpgroups(),
    *tensor_core_rows(),
    *_conversions(),
    *_of_pairs(),
    *_reductions(),
    *_approximations(),
    *_dot_products(),
)
"""All instructions, each with a number of operands once."""
_BY_NAME = {(row.name, row.operands): row for row in ROWS}
if len(_BY_NAME) != len(ROWS):
    raise ValueError("two rows are for the same instruction")


def find(name: str, operands: int) -> Instruction | None:
    """The row of an instruction with so many groups of operands."""
    return _BY_NAME.get((name, operands))
