"""Instructions on registers: conversions, pairs, reductions of a warp, approximations."""

from __future__ import annotations

import itertools

from tvmtile.emulator.cuda.row import Instruction


def arithmetic_rows() -> list[Instruction]:
    """All of them."""
    return [
        *_conversions(),
        *_of_pairs(),
        *_reductions(),
        *_approximations(),
        *_dot_products(),
    ]


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
