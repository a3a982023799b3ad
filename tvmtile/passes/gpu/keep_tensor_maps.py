"""KeepTensorMaps: the host encodes a tensor map once for a tensor and a shape."""

from __future__ import annotations

import re

from tvm import tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.kept_maps import keep_name, kept_maps, recall_name
from tvmtile.ir.kernels import importing_llvm, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.ir.tensor_maps import is_encoder


@prim_func_pass("KeepTensorMaps", requires=(Property.NO_TILE_OPERATORS,))
def KeepTensorMaps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Look for a map that an earlier launch has encoded before it is encoded.

    What the map is made of is compared: the tensor's address and all numbers that differ between calls.
    A kernel gets its maps by value, so that a launch that waits in a stream or a graph has its own.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((64, 64), "float16"), n: T.int32):
        A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed(
            "runtime.cuTensorMapEncodeTiled",
            A_map, "float16", 2, A.data, 64, n, 128, 32, 32, 1, 1, 0, 2, 2, 0,
        )
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            T.evaluate(T.address_of(A_map))
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((64, 64), "float16"), n: T.int32):
        with T.attr(T.int32(0), "pragma_import_llvm", kept_maps("main_0", 1)):
            A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
            if (
                T.call_extern(
                    "int32", "tvmtile_recall_map_main_0", A_map, A.data, T.Cast("int64", n)
                )
                == 0
            ):
                T.call_packed(
                    "runtime.cuTensorMapEncodeTiled",
                    A_map, "float16", 2, A.data, 64, n, 128, 32, 32, 1, 1, 0, 2, 2, 0,
                )
                T.evaluate(
                    T.call_extern(
                        "int32", "tvmtile_keep_map_main_0", A_map, A.data, T.Cast("int64", n)
                    )
                )
            for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
                T.evaluate(T.address_of(A_map))
    ```
    """
    texts: list[str] = []
    name = re.sub(r"\W", "_", str(func.attrs["global_symbol"]))

    def kept(stmt: tirx.Evaluate) -> tirx.Stmt:
        call = stmt.value
        if not is_encoder(call):
            return stmt
        _, memory, _, _, data, *numbers = call.args
        unknown = [number.astype("int64") for number in numbers if constant(number) is None]
        site = f"{name}_{len(texts)}"
        texts.append(kept_maps(site, len(unknown)))
        found = tirx.call_extern("int32", recall_name(site), memory, data, *unknown)
        keep = tirx.call_extern("int32", keep_name(site), memory, data, *unknown)
        return tirx.IfThenElse(found == 0, seq([stmt, tirx.Evaluate(keep)]), None)

    body = mapped(func.body, (tirx.Evaluate, kept))
    return with_body(func, importing_llvm(body, texts)) if texts else func
