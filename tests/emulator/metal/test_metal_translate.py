"""The driver's reading of Metal source: tokens, signatures, threadgroup variables."""

import numpy as np

from tvmtile.emulator.lexer import text_of, tokenize
from tvmtile.emulator.metal import compile_msl
from tvmtile.emulator.metal.signature import find_kernels
from tvmtile.emulator.metal.translate import translate

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def translated(source):
    tokens = tokenize(source)
    return translate(tokens, find_kernels(tokens))


def test_tokens_joined_are_the_source():
    source = 'a[b[0]] /* [[ */ x::y->z "\\"]]" 1.5e-3f 0x1p-3 // end\n#define M \\\n (a)\n[[k]] ('
    tokens = tokenize(source)
    assert text_of(tokens) == source
    assert [t.text for t in tokens if t.kind == "number"] == ["0", "1.5e-3f", "0x1p-3"]
    assert [t.text for t in tokens if t.text in {"[[", "]]", "]"}] == ["]", "]", "[[", "]]"]
    assert tokens[-1].line == 4


def test_threadgroup_variables_and_pointers_to_them():
    """The machine has each variable, of its size; pointers and references stay as they are."""
    body = """
      threadgroup half a[64];
      threadgroup half4 b[4][N + 1];
      threadgroup float x;
      threadgroup float c[2], d;
      threadgroup unsigned char e[16];
      threadgroup vec<half, 4> f[2];
      threadgroup metal::atomic_int n;
      threadgroup half* p = a;
      threadgroup const half4* q[2] = {b[0], (threadgroup half4*)a};
      for (threadgroup half* r = a; r != p + 2; ++r) *r = 1;
      threadgroup float& y = x;
      y = c[0] = d = 2;
      auto g = static_cast<threadgroup half*>(p);
      e[0] = 3, f[1] = half4(4);
      atomic_store_explicit(&n, 5, memory_order_relaxed);
      out[0] = g[1] + x + *(threadgroup float*)(c) + d + e[0] + f[1].x + (q[1] == q[1]);
    """
    source = f"{HEADER}#define N 5\nkernel void k(device float* out [[buffer(0)]]) {{{body}}}"
    out = np.zeros(1, np.float32)
    statistics = compile_msl(source).kernel("k")(out, grid=1, threads=1)
    assert out[0] == 1 + 2 + 2 + 2 + 3 + 4 + 1
    assert statistics.threadgroup_memory == 128 + 192 + 6 * 16  # each in multiples of 16


def test_lines_stay_where_they_are():
    source = "void f() {\n  threadgroup half\n    A[2]\n  [3];\n  here();\n}"
    body = translated(source).split("\n", 1)[1]
    assert body.splitlines().index("  here();") == source.splitlines().index("  here();")


def test_signature_of_a_kernel():
    source = """
    struct P { int n; };
    [[kernel]] void k(const device half4 *A [[ buffer(2) ]], device float* out,
        constant P &p [[buffer(0)]], threadgroup float* shared [[threadgroup(0)]],
        ushort2 at [[thread_position_in_grid]], device float *const last) {}
    """
    (kernel,) = find_kernels(tokenize(source))
    assert kernel.name == "k"
    # Buffers without an index take the lowest that is free, in order.
    assert [(p.name, p.index) for p in kernel.buffers] == [
        ("p", 0),
        ("out", 1),
        ("A", 2),
        ("last", 3),
    ]
    assert [p.is_const for p in kernel.buffers] == [True, False, True, False]
    assert [p.declared for p in kernel.buffers] == ["P", "float", "half4", "float"]
    assert [p.name for p in kernel.threadgroup_buffers] == ["shared"]
    assert kernel.parameters[4].attribute == "thread_position_in_grid"


def test_structs_with_functions_are_no_arguments_of_tvm():
    source = """
    struct Twice { static int apply(int x) { if (x) {}; return 2 * x; } };
    struct Pair { int first; half second[2]; };
    kernel void k(device int* a [[buffer(0)]]) { a[0] = Twice::apply(a[0]); }"""
    a = np.array([21], np.int32)
    assert find_kernels(tokenize(source))[0].name == "k"
    compile_msl(HEADER + source).kernel("k")(a, grid=1, threads=1)
    assert a[0] == 42


def test_kernel_in_a_comment_or_a_string_is_none():
    source = '// kernel void a() {}\n/* kernel void b() {} */ constant char c[] = "kernel void d(";'
    assert find_kernels(tokenize(source)) == []


def test_two_variables_of_one_name_are_two():
    source = (
        HEADER
        + """
    kernel void k(device int* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
      { threadgroup int tile[32]; tile[i] = 1; out[i] = tile[i]; }
      { threadgroup int tile[64]; tile[i + 32] = 2; out[i] += tile[i + 32]; }
    }"""
    )
    out = np.zeros(32, np.int32)
    statistics = compile_msl(source).kernel("k")(out, grid=1, threads=32)
    assert (out == 3).all()
    assert statistics.threadgroup_memory == 96 * 4


def test_macros_and_several_kernels_of_a_source():
    source = (
        HEADER
        + """
    #define SIZE 16
    #define STEP(k) \\
      for (int n = 0; n < k; ++n) x += tile[n];
    kernel void sum(device float* out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
      threadgroup float tile[SIZE];
      tile[i] = i;
      threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
      float x = 0;
      STEP(SIZE)
      out[i] = x;
    }
    kernel void twice(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
      out[i] *= 2;
    }"""
    )
    module = compile_msl(source)
    assert module.kernel_names == ("sum", "twice")
    out = np.zeros(16, np.float32)
    module.kernel("sum")(out, grid=1, threads=16)
    module.kernel("twice")(out, grid=2, threads=8)
    assert (out == 240).all()
