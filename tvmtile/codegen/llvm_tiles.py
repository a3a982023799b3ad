"""Products of tiles by Intel's AMX, as functions in LLVM's intermediate language.

A function adds the product of 32 rows of A and 32 columns of B to 32 x 32 sums, by two tile registers
of each and four of sums. A lies as it is, B in words of neighbours along K, [steps * 16, 32], as the
dot products of `tvmtile.codegen.llvm_dots` take it; a step is 64 bytes of a row of A. LLVM configures
the registers.
"""

from __future__ import annotations

from functools import cache

BLOCK = 32
"""Rows and columns of sums that a function adds to."""
STEP_BYTES = 64
"""Of a row of A, that a step multiplies."""
TILE_PRODUCTS = {
    "tdpbf16ps": ("bfloat16", "bfloat16", "float32"),
    "tdpbssd": ("int8", "int8", "int32"),
    "tdpbsud": ("int8", "uint8", "int32"),
    "tdpbusd": ("uint8", "int8", "int32"),
    "tdpbuud": ("uint8", "uint8", "int32"),
}
"""The dtypes of A, of B and of the sums, by the instruction's name."""

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
ALLOW_TILES = (
    "tvmtile_allow_tiles",
    f"""\
@tvmtile_tiles_allowed = internal global i64 1

define i32 @tvmtile_allow_tiles() {{
  %before = load i64, ptr @tvmtile_tiles_allowed
  %is.known = icmp ne i64 %before, 1
  br i1 %is.known, label %done, label %ask
ask:
  %result = call i64 asm sideeffect "syscall", \
"={{rax}},{{rax}},{{rdi}},{{rsi}},~{{rcx}},~{{r11}},~{{memory}}"\
(i64 {_ARCH_PRCTL}, i64 {_REQUEST}, i64 {_TILE_DATA})
  store i64 %result, ptr @tvmtile_tiles_allowed
  br label %done
done:
  ret i32 0
}}
""",
)
"""The name and the text of a function that asks Linux for tile registers, once.

It is called before memory is allocated for B: LLVM configures the registers behind such a call.
"""
_ARGUMENTS = "ptr %c, i64 %c.row, ptr %a, i64 %a.row, ptr %b, i64 %b.row, i64 %steps"


@cache
def tile_function(name: str, clear: bool) -> tuple[str, str]:
    """An instruction as a function: of addresses and bytes of a row of C, A and B, and of the steps.

    With `clear` the sums begin with zero. Returned are the name of the function, whose value is an
    int32, and its text.
    """
    function = f"tvmtile_{name}_{'set' if clear else 'add'}"
    places = [(i, j) for i in (0, 1) for j in (0, 1)]
    load = "call x86_amx @llvm.x86.tileloadd64.internal(i16 16, i16 64, ptr"
    zero = "call x86_amx @llvm.x86.tilezero.internal(i16 16, i16 64)"
    begin = [
        f"  %c{i}{j} = {zero if clear else f'{load} %c.{i}{j}, i64 %c.row)'}" for i, j in places
    ]
    lines = [
        "declare x86_amx @llvm.x86.tilezero.internal(i16, i16)",
        "declare x86_amx @llvm.x86.tileloadd64.internal(i16, i16, ptr, i64)",
        "declare void @llvm.x86.tilestored64.internal(i16, i16, ptr, i64, x86_amx)",
        f"declare x86_amx @llvm.x86.{name}.internal(i16, i16, i16, x86_amx, x86_amx, x86_amx)",
        "",
        f"define i32 @{function}({_ARGUMENTS}) alwaysinline {{",
        "entry:",
        "  %c.half = shl i64 %c.row, 4",
        "  %a.half = shl i64 %a.row, 4",
        "  %b.step = shl i64 %b.row, 4",
        "  %c.00 = getelementptr i8, ptr %c, i64 0",
        "  %c.01 = getelementptr i8, ptr %c, i64 64",
        "  %c.10 = getelementptr i8, ptr %c, i64 %c.half",
        "  %c.11 = getelementptr i8, ptr %c.10, i64 64",
        *begin,
        "  br label %loop",
        "loop:",
        "  %step = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %s{i}{j} = phi x86_amx [ %c{i}{j}, %entry ], [ %t{i}{j}, %loop ]" for i, j in places),
        f"  %a.place = mul i64 %step, {STEP_BYTES}",
        "  %b.place = mul i64 %step, %b.step",
        "  %a.0 = getelementptr i8, ptr %a, i64 %a.place",
        "  %a.1 = getelementptr i8, ptr %a.0, i64 %a.half",
        "  %b.0 = getelementptr i8, ptr %b, i64 %b.place",
        "  %b.1 = getelementptr i8, ptr %b.0, i64 64",
        *(f"  %{x}{i} = {load} %{x}.{i}, i64 %{x}.row)" for x in "ab" for i in (0, 1)),
        *(
            f"  %t{i}{j} = call x86_amx @llvm.x86.{name}.internal"
            f"(i16 16, i16 64, i16 64, x86_amx %s{i}{j}, x86_amx %a{i}, x86_amx %b{j})"
            for i, j in places
        ),
        "  %next = add i64 %step, 1",
        "  %more = icmp ult i64 %next, %steps",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *(
            "  call void @llvm.x86.tilestored64.internal"
            f"(i16 16, i16 64, ptr %c.{i}{j}, i64 %c.row, x86_amx %t{i}{j})"
            for i, j in places
        ),
        "  ret i32 0",
        "}",
    ]
    return function, "\n".join(lines) + "\n"
