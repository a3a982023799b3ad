"""Barriers, and copies that go on while threads do: cp.async, mbarriers, bulk copies, tensor maps."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tvmtile.emulator.cuda.row import Instruction, hopper


def asynchronous_rows() -> list[Instruction]:
    """All of them."""
    return [
        *_copies(),
        *_barriers(),
        *_mbarriers(),
        *_bulk_copies(),
    ]


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
            hopper(f"barrier.cluster.arrive{order}{aligned}", f"cluster_arrive({{line}}, {by})", 0)
            for order, by in releases.items()
        ]
        rows += [
            hopper(f"barrier.cluster.wait{order}{aligned}", "cluster_wait({line})", 0)
            for order in ("", ".acquire")
        ]
    rows += [
        hopper(
            f"st.shared::cluster.b{8 * size}", f"remote_store({{line}}, {{0}}, {{1}}, {size})", 2
        )
        for size in (1, 2, 4, 8)
    ]
    rows += [
        hopper(
            f"st.async{weak}.shared::cluster.{_COMPLETES}{vector}.b{bits}",
            "async_store({line}, {0}, {1}, {2})",
            3,
        )
        for weak, vector, bits in itertools.product(("", ".weak"), ("", ".v2", ".v4"), (32, 64))
        if (vector, bits) != (".v4", 64)
    ]
    mapa = "{0} = ::emulator::ptx::mapa({line}, {1}, {2})"
    return [*rows, Instruction("mapa.shared::cluster.u32", mapa, 3, 90)]


_MBARRIER_SPACES = ("shared", "shared::cta")


def _mbarriers() -> list[Instruction]:
    rows = []
    for space, order in itertools.product(_MBARRIER_SPACES, ("", ".release.cta")):
        arrive = f"mbarrier.arrive{order}.{space}.b64"
        expect = f"mbarrier.arrive.expect_tx{order}.{space}.b64"
        rows += [
            hopper(arrive, "mbarrier_arrive({line}, {0})", 1),
            hopper(arrive, "mbarrier_arrive({line}, {0}, {1})", 2),
            hopper(expect, "mbarrier_expect_tx({line}, {0}, {1}, true)", 2),
        ]
    for order, publishes in (("", "false"), (".release.cluster", "true")):
        arrive = f"mbarrier.arrive{order}.shared::cluster.b64"
        rows += [
            hopper(arrive, f"mbarrier_arrive({{line}}, {{0}}, 1, {publishes})", 1),
            hopper(arrive, f"mbarrier_arrive({{line}}, {{0}}, {{1}}, {publishes})", 2),
            hopper(
                arrive.replace("arrive", "arrive.expect_tx"),
                f"mbarrier_expect_tx({{line}}, {{0}}, {{1}}, true, {publishes})",
                2,
            ),
        ]
    for space in _MBARRIER_SPACES:
        relaxed = f"mbarrier.expect_tx.relaxed.cta.{space}.b64"
        rows += [
            hopper(f"mbarrier.init.{space}.b64", "mbarrier_init({line}, {0}, {1})", 2),
            hopper(f"mbarrier.inval.{space}.b64", "mbarrier_inval({line}, {0})", 1),
            hopper(relaxed, "mbarrier_expect_tx({line}, {0}, {1}, false)", 2),
            hopper(
                f"cp.async.mbarrier.arrive.noinc.{space}.b64",
                "mbarrier_arrive_when_copied({line}, {0})",
                1,
            ),
        ]
    fences = ("proxy.async", "proxy.async.shared::cta")
    return [
        *rows,
        *(hopper(f"fence.{name}", "fence_proxy_async()", 0) for name in fences),
        hopper("fence.mbarrier_init.release.cluster", "fence_mbarrier_init({line})", 0),
    ]


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
        hopper(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
            "remote_copy({line}, {0}, {1}, {2}, {3})",
            4,
        ),
        *(row for row in hinted if ".prefetch" not in row.name),
        *(
            replace(
                row,
                name=f"{row.name}.cta_group::{n}",
                call=row.call.replace("{line}, 1", f"{{line}}, {n}"),
                since=100,
            )
            for row in rows
            for n in (1, 2)
            if _loads_a_tensor(row)
        ),
        hopper("prefetch.tensormap", "tensor_prefetch({line}, {0})", 1),
        hopper("cp.async.bulk.commit_group", "bulk_commit()", 0),
        hopper("cp.async.bulk.wait_group", "bulk_wait({line}, {0}, false)", 1),
        hopper("cp.async.bulk.wait_group.read", "bulk_wait({line}, {0}, true)", 1),
    ]


def _loads_a_tensor(row: Instruction) -> bool:
    return ".tensor." in row.name and _COMPLETES in row.name


_HINT = ".L2::cache_hint"


_COMPLETES = "mbarrier::complete_tx::bytes"


_COORDINATES = "(const std::int32_t*)"


_LOAD = f"({{line}}, 1, {{1}}, {_COORDINATES}{{2}}, {{0}}, {{3}})"


_STORE = f"({{line}}, {{0}}, {_COORDINATES}{{1}}, {{2}})"


def _tensor_copies(axes: str) -> list[Instruction]:
    """The copies of boxes. Those of im2col are no row: nobody has their boxes."""
    rows = []
    head = f"cp.async.bulk.tensor.{axes}"
    for tile in ("", ".tile"):
        rows += [
            hopper(f"{head}.{to}.global{tile}.{_COMPLETES}", f"tensor_load{_LOAD}", 4)
            for to in ("shared::cluster", "shared::cta")
        ]
        to_blocks = f"{head}.shared::cluster.global{tile}.{_COMPLETES}.multicast::cluster"
        several = f"tensor_load{_LOAD}".replace("{3})", "{3}, {4})")
        prefetch = f"cp.async.bulk.prefetch.tensor.{axes}.L2.global{tile}"
        rows += [
            hopper(f"{head}.global.shared::cta{tile}.bulk_group", f"tensor_store{_STORE}", 3),
            hopper(to_blocks, several, 5),
            hopper(prefetch, "tensor_prefetch({line}, {0})", 2),
        ]
        for name, reduction in _REDUCTIONS.items():
            reduce = (
                f"cp.reduce.async.bulk.tensor.{axes}.global.shared::cta.{name}{tile}.bulk_group"
            )
            call = f"tensor_reduce{_STORE}".replace("{line},", f"{{line}}, {reduction},")
            rows.append(hopper(reduce, call, 3))
    return rows


def _copies_of_rows() -> list[Instruction]:
    """The copies of four rows of a tensor, which Blackwell copies at once."""
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
        hopper(f"cp.async.bulk.{to}.global.{_COMPLETES}", load, 4)
        for to in ("shared::cluster", "shared::cta")
    ]
    rows.append(hopper("cp.async.bulk.global.shared::cta.bulk_group", store, 3))
    for (name, reduction), (type_, element) in itertools.product(
        _REDUCTIONS.items(), _ELEMENTS.items()
    ):
        if element in _FLOATS and name not in _OF_FLOATS[type_]:
            continue
        exact = ".noftz" if name == "add" and type_ in {"f16", "bf16"} else ""
        what = f"{reduction}, ::emulator::Element::{element}"
        reduce = store.replace("bulk_store({line}", f"bulk_reduce({{line}}, {what}")
        whole = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{name}{exact}.{type_}"
        rows.append(hopper(whole, reduce, 3))
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
