"""Kernels for Hopper written by hand in TIR, instruction by instruction, through TVM's own source.

A warp of producers fills rings of tiles by bulk tensor copies; warpgroups multiply what is there by
wgmma and hand the stages back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import tvm
from tvm.script import tirx as T

from tests.emulator.cuda.planted import Subject
from tvmtile.emulator.cuda import tensor_map
from tvmtile.emulator.cuda.signature import find_kernels
from tvmtile.emulator.lexer import tokenize

HOPPER = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
STMATRIX = "stmatrix.sync.aligned.m8n8.x4.shared.b16"
TILE, STAGES, WARPGROUP = 64, 2, 128
ROW = 128  # bytes of a row of a tile, as wide as the swizzle
ATOM = 8 * ROW // 16  # a descriptor counts 16 bytes
KERNELS: dict[str, Callable[[], Subject]] = {}


def kernel(function: Callable[[], Subject]) -> Callable[[], Subject]:
    KERNELS[function.__name__] = function
    return function


def _map(tensor: torch.Tensor, rows: int, swizzle: int = 3) -> tuple[list[int], Any]:
    """A map of boxes of so many rows of 128 bytes: as the driver is told, and as the emulator is."""
    height, width = tensor.shape
    size = tensor.element_size()
    told = [width, height, width * size, ROW // size, rows, 1, 1, 0, swizzle, 2, 0]
    return told, tensor_map(tensor, (width, height), (width * size,), (ROW // size, rows), swizzle)


def _subject(
    function: Any,
    result: torch.Tensor,
    expected: torch.Tensor,
    named: dict[str, Any],
    **launch: Any,
) -> Subject:
    """The kernel of a function; its arguments by the names that they have in the source."""
    with HOPPER:
        module = tvm.tirx.build(function, target=HOPPER, pipeline="s_tir")
    source = module.imports[0].inspect_source("cuda")
    name = f"{function.attrs['global_symbol']}_kernel"
    parameters = find_kernels(tokenize(source))[0].parameters
    arguments = tuple(named[p.name.removesuffix("_ptr")] for p in parameters)
    return Subject(source, name, "sm_90a", arguments, launch, result, expected)


def _registers(buffer: Any, first: int, count: int) -> list[Any]:
    return [buffer[first + i] for i in range(count)]


@kernel
def product() -> Subject:
    """float16, several tiles of one block; a product is in flight while the next one is issued."""
    M, N, K = 2 * TILE, TILE, 5 * TILE
    a, b = (torch.randint(-3, 4, (rows, K)).half() for rows in (M, N))
    c = torch.empty(M, N).half()
    maps = [_map(x, TILE, swizzle) for x, swizzle in ((a, 3), (b, 3), (c, 0))]
    (A_map, _), (B_map, _), (C_map, _) = maps
    STEPS, BYTES = K // TILE, TILE * ROW
    MMA = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
    SHARED = (2 * STAGES + 1) * BYTES + 16 * STAGES

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        C: T.Buffer((M, N), "float16"),
    ):
        T.func_attr({"global_symbol": "product"})
        Am: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Am, "float16", 2, A.data, *A_map)
        Bm: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Bm, "float16", 2, B.data, *B_map)
        Cm: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Cm, "float16", 2, C.data, *C_map)
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(2 * WARPGROUP, thread="threadIdx.x"):
                memory = T.alloc_buffer((SHARED,), "uint8", scope="shared.dyn", align=1024)
                a_tiles = T.decl_buffer(
                    (STAGES, TILE, TILE), "float16", data=memory.data, scope="shared.dyn"
                )
                b_tiles = T.decl_buffer(
                    (STAGES, TILE, TILE),
                    "float16",
                    data=memory.data,
                    elem_offset=STAGES * TILE * TILE,
                    scope="shared.dyn",
                )
                c_tile = T.decl_buffer(
                    (TILE, TILE),
                    "float16",
                    data=memory.data,
                    elem_offset=2 * STAGES * TILE * TILE,
                    scope="shared.dyn",
                )
                full = T.decl_buffer(
                    (STAGES,),
                    "uint64",
                    data=memory.data,
                    elem_offset=(2 * STAGES + 1) * BYTES // 8,
                    scope="shared.dyn",
                )
                empty = T.decl_buffer(
                    (STAGES,),
                    "uint64",
                    data=memory.data,
                    elem_offset=(2 * STAGES + 1) * BYTES // 8 + STAGES,
                    scope="shared.dyn",
                )
                if tx == 0:
                    for i in T.unroll(STAGES):
                        T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), T.uint32(1))
                        T.ptx.mbarrier.init.shared.b64(empty.ptr_to([i]), T.uint32(4))
                    T.ptx.fence.mbarrier_init.release.cluster()
                T.cuda.cta_sync()
                if tx < WARPGROUP:
                    sums = T.alloc_buffer((32,), "float32", scope="local")
                    da = T.alloc_buffer((1,), "uint64", scope="local")
                    db = T.alloc_buffer((1,), "uint64", scope="local")
                    words = T.alloc_buffer((4,), "uint32", scope="local")
                    T.ptx["setmaxnreg.inc.sync.aligned.u32"](240)
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(da[0]), a_tiles.ptr_to([0, 0, 0]), 1, ATOM, 3
                    )
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(db[0]), b_tiles.ptr_to([0, 0, 0]), 1, ATOM, 3
                    )
                    for tile in T.serial(2):
                        for k in T.serial(STEPS, annotations={"disable_unroll": 1}):
                            T.cuda.mbarrier_wait(
                                full.ptr_to([(tile * STEPS + k) % STAGES]),
                                (tile * STEPS + k) // STAGES % 2,
                            )
                            T.ptx.wgmma.fence.sync.aligned()
                            for i in T.unroll(4):
                                T.ptx[MMA](
                                    *_registers(sums, 0, 32),
                                    da[0]
                                    + T.Cast(
                                        "uint64",
                                        (tile * STEPS + k) % STAGES * (BYTES // 16) + i * 2,
                                    ),
                                    db[0]
                                    + T.Cast(
                                        "uint64",
                                        (tile * STEPS + k) % STAGES * (BYTES // 16) + i * 2,
                                    ),
                                    T.ptx.pred(T.Cast("int32", tvm.tirx.any(k > 0, i > 0))),
                                    1,
                                    1,
                                    0,
                                    0,
                                )
                            T.ptx.wgmma.commit_group.sync.aligned()
                            T.ptx.wgmma.wait_group.sync.aligned(1)
                            if tvm.tirx.all(k > 0, tx % 32 == 0):
                                T.ptx.mbarrier.arrive.shared.b64(
                                    empty.ptr_to([(tile * STEPS + k + STAGES - 1) % STAGES])
                                )
                        T.ptx.wgmma.wait_group.sync.aligned(0)
                        if tx % 32 == 0:
                            T.ptx.mbarrier.arrive.shared.b64(
                                empty.ptr_to([(tile * STEPS + STEPS - 1) % STAGES])
                            )
                        if tx == 0:
                            T.ptx.cp.async_.bulk.wait_group.read(0)
                        T.ptx.bar.sync(T.uint32(1), T.uint32(WARPGROUP))
                        for j in T.unroll(4):
                            for r in T.unroll(4):
                                T.ptx["cvt.rn.f16x2.f32"](
                                    words[r], sums[j * 8 + r * 2 + 1], sums[j * 8 + r * 2]
                                )
                            T.ptx[STMATRIX](
                                c_tile.ptr_to(
                                    [tx // 32 * 16 + tx % 16, j * 16 + tx % 32 // 16 * 8]
                                ),
                                *_registers(words, 0, 4),
                            )
                        T.ptx.fence.proxy.async_.shared__cta()
                        T.ptx.bar.sync(T.uint32(1), T.uint32(WARPGROUP))
                        if tx == 0:
                            T.ptx[STORE](T.address_of(Cm), 0, tile * TILE, c_tile.ptr_to([0, 0]))
                            T.ptx.cp.async_.bulk.commit_group()
                    if tx == 0:
                        T.ptx.cp.async_.bulk.wait_group(0)
                else:
                    T.ptx["setmaxnreg.dec.sync.aligned.u32"](24)
                    if tx == WARPGROUP:
                        for k in T.serial(2 * STEPS, annotations={"disable_unroll": 1}):
                            T.cuda.mbarrier_wait(empty.ptr_to([k % STAGES]), k // STAGES % 2 ^ 1)
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                                full.ptr_to([k % STAGES]), T.uint32(2 * BYTES)
                            )
                            T.ptx[LOAD](
                                a_tiles.ptr_to([k % STAGES, 0, 0]),
                                T.address_of(Am),
                                k % STEPS * TILE,
                                k // STEPS * TILE,
                                full.ptr_to([k % STAGES]),
                            )
                            T.ptx[LOAD](
                                b_tiles.ptr_to([k % STAGES, 0, 0]),
                                T.address_of(Bm),
                                k % STEPS * TILE,
                                0,
                                full.ptr_to([k % STAGES]),
                            )

    expected = a.double() @ b.double().T
    named = dict(zip(("Am", "Bm", "Cm"), (m for _, m in maps), strict=True))
    return _subject(main, c, expected, named, grid=1, block=2 * WARPGROUP, shared_bytes=SHARED)


@kernel
def attention() -> Subject:
    """Two warpgroups of consumers, the weights in registers; Q's tile takes the output."""
    ROWS, LENGTH = 2 * TILE, 5 * TILE
    q = torch.randn(ROWS, TILE).half()
    k, v = (torch.randn(LENGTH, TILE).half() for _ in range(2))
    output = torch.empty(ROWS, TILE).half()
    maps = [_map(q, TILE), _map(k, TILE), _map(v, TILE), _map(output, TILE, 0)]
    (Q_map, _), (K_map, _), (V_map, _), (O_map, _) = maps
    STEPS, BYTES, WORDS = LENGTH // TILE, TILE * ROW, TILE * ROW // 16
    MMA = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
    SCALE = math.log2(math.e) / math.sqrt(TILE)
    MBARRIERS = (2 + 2 * STAGES) * BYTES
    SHARED = MBARRIERS + 8 * (1 + 4 * STAGES)
    # Of keys and of values, by stage.
    FULL, EMPTY = 1, 1 + 2 * STAGES

    @T.prim_func(s_tir=True)
    def main(
        Q: T.Buffer((ROWS, TILE), "float16"), K: T.Buffer((LENGTH, TILE), "float16"),
        V: T.Buffer((LENGTH, TILE), "float16"), O: T.Buffer((ROWS, TILE), "float16"),
    ):  # fmt: skip
        T.func_attr({"global_symbol": "attention"})
        Qm: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Qm, "float16", 2, Q.data, *Q_map)
        Km: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Km, "float16", 2, K.data, *K_map)
        Vm: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Vm, "float16", 2, V.data, *V_map)
        Om: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Om, "float16", 2, O.data, *O_map)
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(3 * WARPGROUP, thread="threadIdx.x"):
                memory = T.alloc_buffer((SHARED,), "uint8", scope="shared.dyn", align=1024)
                q_tiles = T.decl_buffer(
                    (2, TILE, TILE), "float16", data=memory.data, scope="shared.dyn"
                )
                tiles = T.decl_buffer(
                    (STAGES, 2, TILE, TILE),
                    "float16",
                    data=memory.data,
                    elem_offset=BYTES,
                    scope="shared.dyn",
                )
                mbarriers = T.decl_buffer(
                    (1 + 4 * STAGES,),
                    "uint64",
                    data=memory.data,
                    elem_offset=MBARRIERS // 8,
                    scope="shared.dyn",
                )
                if tx == 0:
                    for i in T.unroll(1 + 2 * STAGES):
                        T.ptx.mbarrier.init.shared.b64(mbarriers.ptr_to([i]), T.uint32(1))
                    for i in T.unroll(2 * STAGES):
                        T.ptx.mbarrier.init.shared.b64(mbarriers.ptr_to([EMPTY + i]), T.uint32(2))
                    T.ptx.fence.mbarrier_init.release.cluster()
                T.cuda.cta_sync()
                if tx >= 2 * WARPGROUP:
                    T.ptx["setmaxnreg.dec.sync.aligned.u32"](24)
                    if tx == 2 * WARPGROUP:
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                            mbarriers.ptr_to([0]), T.uint32(2 * BYTES)
                        )
                        T.ptx[LOAD](
                            q_tiles.ptr_to([0, 0, 0]), T.address_of(Qm), 0, 0, mbarriers.ptr_to([0])
                        )
                        T.ptx[LOAD](
                            q_tiles.ptr_to([1, 0, 0]),
                            T.address_of(Qm),
                            0,
                            TILE,
                            mbarriers.ptr_to([0]),
                        )
                        for i in T.serial(STEPS, annotations={"disable_unroll": 1}):
                            T.cuda.mbarrier_wait(
                                mbarriers.ptr_to([EMPTY + i % STAGES]), i // STAGES % 2 ^ 1
                            )
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                                mbarriers.ptr_to([FULL + i % STAGES]), T.uint32(BYTES)
                            )
                            T.ptx[LOAD](
                                tiles.ptr_to([i % STAGES, 0, 0, 0]),
                                T.address_of(Km),
                                0,
                                i * TILE,
                                mbarriers.ptr_to([FULL + i % STAGES]),
                            )
                            T.cuda.mbarrier_wait(
                                mbarriers.ptr_to([EMPTY + STAGES + i % STAGES]), i // STAGES % 2 ^ 1
                            )
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                                mbarriers.ptr_to([FULL + STAGES + i % STAGES]), T.uint32(BYTES)
                            )
                            T.ptx[LOAD](
                                tiles.ptr_to([i % STAGES, 1, 0, 0]),
                                T.address_of(Vm),
                                0,
                                i * TILE,
                                mbarriers.ptr_to([FULL + STAGES + i % STAGES]),
                            )
                else:
                    T.ptx["setmaxnreg.inc.sync.aligned.u32"](240)
                    scores = T.alloc_buffer((32,), "float32", scope="local")
                    sums = T.alloc_buffer((32,), "float32", scope="local")
                    weights = T.alloc_buffer((16,), "uint32", scope="local")
                    largest = T.alloc_buffer((2,), "float32", scope="local")
                    before = T.alloc_buffer((2,), "float32", scope="local")
                    total = T.alloc_buffer((2,), "float32", scope="local")
                    scale = T.alloc_buffer((1,), "float32", scope="local")
                    words = T.alloc_buffer((4,), "uint32", scope="local")
                    dq = T.alloc_buffer((1,), "uint64", scope="local")
                    dk = T.alloc_buffer((1,), "uint64", scope="local")
                    dv = T.alloc_buffer((1,), "uint64", scope="local")
                    group = T.meta_var(tx // WARPGROUP)
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(dq[0]), q_tiles.ptr_to([group, 0, 0]), 1, ATOM, 3
                    )
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(dk[0]), tiles.ptr_to([0, 0, 0, 0]), 1, ATOM, 3
                    )
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(dv[0]), tiles.ptr_to([0, 1, 0, 0]), 1, ATOM, 3
                    )
                    for i in T.unroll(32):
                        sums[i] = T.float32(0)
                    for r in T.unroll(2):
                        largest[r] = T.float32(-1e30)
                        total[r] = T.float32(0)
                    T.cuda.mbarrier_wait(mbarriers.ptr_to([0]), 0)
                    for i in T.serial(STEPS, annotations={"disable_unroll": 1}):
                        T.cuda.mbarrier_wait(mbarriers.ptr_to([FULL + i % STAGES]), i // STAGES % 2)
                        T.ptx.wgmma.fence.sync.aligned()
                        for j in T.unroll(4):
                            T.ptx[MMA](
                                *_registers(scores, 0, 32),
                                dq[0] + T.uint64(j * 2),
                                dk[0] + T.Cast("uint64", i % STAGES * (2 * WORDS) + j * 2),
                                T.ptx.pred(T.int32(1) if j > 0 else T.int32(0)),
                                1,
                                1,
                                0,
                                0,
                            )
                        T.ptx.wgmma.commit_group.sync.aligned()
                        T.ptx.wgmma.wait_group.sync.aligned(0)
                        T.ptx.bar.sync(T.uint32(1) + T.Cast("uint32", group), T.uint32(WARPGROUP))
                        if tx % WARPGROUP == 0:
                            T.ptx.mbarrier.arrive.shared.b64(mbarriers.ptr_to([EMPTY + i % STAGES]))
                        for r in T.unroll(2):
                            before[r] = largest[r]
                            for c in T.unroll(8):
                                largest[r] = T.max(
                                    largest[r],
                                    T.max(scores[c * 4 + r * 2], scores[c * 4 + r * 2 + 1]),
                                )
                            largest[r] = T.max(
                                largest[r],
                                T.tvm_warp_shuffle_xor(T.uint32(0xFFFFFFFF), largest[r], 1, 32, 32),
                            )
                            largest[r] = T.max(
                                largest[r],
                                T.tvm_warp_shuffle_xor(T.uint32(0xFFFFFFFF), largest[r], 2, 32, 32),
                            )
                            T.ptx["ex2.approx.ftz.f32"](
                                scale[0], (before[r] - largest[r]) * T.float32(SCALE)
                            )
                            total[r] = total[r] * scale[0]
                            for c in T.unroll(8):
                                for b in T.unroll(2):
                                    sums[c * 4 + r * 2 + b] = sums[c * 4 + r * 2 + b] * scale[0]
                                    T.ptx["ex2.approx.ftz.f32"](
                                        scores[c * 4 + r * 2 + b],
                                        (scores[c * 4 + r * 2 + b] - largest[r]) * T.float32(SCALE),
                                    )
                                    total[r] = total[r] + scores[c * 4 + r * 2 + b]
                        for c in T.unroll(16):
                            T.ptx["cvt.rn.f16x2.f32"](weights[c], scores[c * 2 + 1], scores[c * 2])
                        T.cuda.mbarrier_wait(
                            mbarriers.ptr_to([FULL + STAGES + i % STAGES]), i // STAGES % 2
                        )
                        T.ptx.wgmma.fence.sync.aligned()
                        for j in T.unroll(4):
                            T.ptx[MMA](
                                *_registers(sums, 0, 32),
                                *_registers(weights, j * 4, 4),
                                dv[0]
                                + T.Cast("uint64", i % STAGES * (2 * WORDS) + j * (16 * ROW // 16)),
                                T.ptx.pred(T.int32(1)),
                                1,
                                1,
                                1,
                            )
                        T.ptx.wgmma.commit_group.sync.aligned()
                        T.ptx.wgmma.wait_group.sync.aligned(0)
                        T.ptx.bar.sync(T.uint32(1) + T.Cast("uint32", group), T.uint32(WARPGROUP))
                        if tx % WARPGROUP == 0:
                            T.ptx.mbarrier.arrive.shared.b64(
                                mbarriers.ptr_to([EMPTY + STAGES + i % STAGES])
                            )
                    for r in T.unroll(2):
                        total[r] = total[r] + T.tvm_warp_shuffle_xor(
                            T.uint32(0xFFFFFFFF), total[r], 1, 32, 32
                        )
                        total[r] = total[r] + T.tvm_warp_shuffle_xor(
                            T.uint32(0xFFFFFFFF), total[r], 2, 32, 32
                        )
                    for j in T.unroll(4):
                        for r in T.unroll(4):
                            T.ptx["cvt.rn.f16x2.f32"](
                                words[r],
                                sums[j * 8 + r * 2 + 1] / total[r % 2],
                                sums[j * 8 + r * 2] / total[r % 2],
                            )
                        T.ptx[STMATRIX](
                            q_tiles.ptr_to(
                                [
                                    group,
                                    tx % WARPGROUP // 32 * 16 + tx % 16,
                                    j * 16 + tx % 32 // 16 * 8,
                                ]
                            ),
                            *_registers(words, 0, 4),
                        )
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.ptx.bar.sync(T.uint32(1) + T.Cast("uint32", group), T.uint32(WARPGROUP))
                    if tx % WARPGROUP == 0:
                        T.ptx[STORE](
                            T.address_of(Om), 0, group * TILE, q_tiles.ptr_to([group, 0, 0])
                        )
                        T.ptx.cp.async_.bulk.commit_group()
                        T.ptx.cp.async_.bulk.wait_group.read(0)

    expected = torch.softmax(q.double() @ k.double().T / math.sqrt(TILE), 1) @ v.double()
    named = dict(zip(("Qm", "Km", "Vm", "Om"), (m for _, m in maps), strict=True))
    return _subject(main, output, expected, named, grid=1, block=3 * WARPGROUP, shared_bytes=SHARED)


@kernel
def block_scaled_product() -> Subject:
    """float8 with a scale for each row and 128 elements of K: sums of one step are added apart."""
    M, N, K = TILE, TILE, 5 * ROW
    STEPS, A_BYTES, B_BYTES = K // ROW, TILE * ROW, TILE * ROW
    a, b = (torch.randn(rows, K).to(torch.float8_e4m3fn) for rows in (M, N))
    a_scales, b_scales = torch.rand(STEPS, M) + 0.5, torch.rand(STEPS) + 0.5
    c = torch.empty(M, N)
    (A_map, a_tensor), (B_map, b_tensor) = (_map(x, TILE) for x in (a, b))
    MMA = "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"
    MBARRIERS = STAGES * (A_BYTES + B_BYTES)
    SHARED = MBARRIERS + 16 * STAGES

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((M, K), "float8_e4m3fn"), B: T.Buffer((N, K), "float8_e4m3fn"),
        A_scales: T.Buffer((STEPS, M), "float32"), B_scales: T.Buffer((STEPS,), "float32"),
        C: T.Buffer((M, N), "float32"),
    ):  # fmt: skip
        T.func_attr({"global_symbol": "block_scaled_product"})
        Am: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Am, "float8_e4m3fn", 2, A.data, *A_map)
        Bm: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", Bm, "float8_e4m3fn", 2, B.data, *B_map)
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(WARPGROUP + 32, thread="threadIdx.x"):
                memory = T.alloc_buffer((SHARED,), "uint8", scope="shared.dyn", align=1024)
                a_tiles = T.decl_buffer(
                    (STAGES, TILE, ROW), "float8_e4m3fn", data=memory.data, scope="shared.dyn"
                )
                b_tiles = T.decl_buffer(
                    (STAGES, TILE, ROW),
                    "float8_e4m3fn",
                    data=memory.data,
                    elem_offset=STAGES * A_BYTES,
                    scope="shared.dyn",
                )
                full = T.decl_buffer(
                    (STAGES,),
                    "uint64",
                    data=memory.data,
                    elem_offset=MBARRIERS // 8,
                    scope="shared.dyn",
                )
                empty = T.decl_buffer(
                    (STAGES,),
                    "uint64",
                    data=memory.data,
                    elem_offset=MBARRIERS // 8 + STAGES,
                    scope="shared.dyn",
                )
                if tx == 0:
                    for i in T.unroll(STAGES):
                        T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), T.uint32(1))
                        T.ptx.mbarrier.init.shared.b64(empty.ptr_to([i]), T.uint32(4))
                    T.ptx.fence.mbarrier_init.release.cluster()
                T.cuda.cta_sync()
                if tx == WARPGROUP:
                    for k in T.serial(STEPS, annotations={"disable_unroll": 1}):
                        T.cuda.mbarrier_wait(empty.ptr_to([k % STAGES]), k // STAGES % 2 ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                            full.ptr_to([k % STAGES]), T.uint32(A_BYTES + B_BYTES)
                        )
                        T.ptx[LOAD](
                            a_tiles.ptr_to([k % STAGES, 0, 0]),
                            T.address_of(Am),
                            k * ROW,
                            0,
                            full.ptr_to([k % STAGES]),
                        )
                        T.ptx[LOAD](
                            b_tiles.ptr_to([k % STAGES, 0, 0]),
                            T.address_of(Bm),
                            k * ROW,
                            0,
                            full.ptr_to([k % STAGES]),
                        )
                if tx < WARPGROUP:
                    sums = T.alloc_buffer((32,), "float32", scope="local")
                    part = T.alloc_buffer((32,), "float32", scope="local")
                    da = T.alloc_buffer((1,), "uint64", scope="local")
                    db = T.alloc_buffer((1,), "uint64", scope="local")
                    row = T.meta_var(tx // 32 * 16 + tx % 32 // 4)
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(da[0]), a_tiles.ptr_to([0, 0, 0]), 1, ATOM, 3
                    )
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(db[0]), b_tiles.ptr_to([0, 0, 0]), 1, ATOM, 3
                    )
                    for i in T.unroll(32):
                        sums[i] = T.float32(0)
                    for k in T.serial(STEPS, annotations={"disable_unroll": 1}):
                        T.cuda.mbarrier_wait(full.ptr_to([k % STAGES]), k // STAGES % 2)
                        T.ptx.wgmma.fence.sync.aligned()
                        for i in T.unroll(4):
                            T.ptx[MMA](
                                *_registers(part, 0, 32),
                                da[0] + T.Cast("uint64", k % STAGES * (A_BYTES // 16) + i * 2),
                                db[0] + T.Cast("uint64", k % STAGES * (B_BYTES // 16) + i * 2),
                                T.ptx.pred(T.int32(1) if i > 0 else T.int32(0)),
                                1,
                                1,
                            )
                        T.ptx.wgmma.commit_group.sync.aligned()
                        T.ptx.wgmma.wait_group.sync.aligned(0)
                        if tx % 32 == 0:
                            T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([k % STAGES]))
                        for i in T.unroll(32):
                            sums[i] = sums[i] + part[i] * (
                                A_scales[k, row + i // 2 % 2 * 8] * B_scales[k]
                            )
                    for i in T.unroll(32):
                        C[row + i // 2 % 2 * 8, i // 4 * 8 + tx % 4 * 2 + i % 2] = sums[i]

    scaled = [
        (x.double().view(-1, STEPS, ROW) * s).flatten(1)
        for x, s in ((a, a_scales.T[..., None]), (b, b_scales[:, None]))
    ]
    named = {"Am": a_tensor, "Bm": b_tensor, "A_scales": a_scales, "B_scales": b_scales, "C": c}
    expected = scaled[0] @ scaled[1].T
    return _subject(main, c, expected, named, grid=1, block=WARPGROUP + 32, shared_bytes=SHARED)
