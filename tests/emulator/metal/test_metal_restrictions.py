"""The emulator refuses what Apple's compiler refuses."""

import re

import numpy as np
import pytest

from tvmtile.emulator.lexer import tokenize
from tvmtile.emulator.machine.compiler import is_clang
from tvmtile.emulator.metal import compile_msl
from tvmtile.emulator.metal.address_spaces import check_address_spaces
from tvmtile.errors import MetalCompileError, MetalEmulationError

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def kernel(body, parameters="device int* out [[buffer(0)]]"):
    return f"{HEADER}kernel void k({parameters}) {{\n{body}\n}}"


REFUSED = {
    # Overloads: several conversions, none better.
    "out[0] = select(1, (char)2, true);": "select",
    "out[0] = max(1, 2u);": "max",
    "out[0] = min((short)1, 2);": "min",
    "out[0] = clamp((uchar)1, 0, 2l);": "clamp",
    "out[0] = sqrt(2);": "sqrt",
    "out[0] = pow(2.0f, (half)2) > 0;": "deleted",
    "out[0] = max((half)1, 2.0f) > 0;": "deleted",
    "out[0] = clamp((half)1, 0.0f, 2.0f) > 0;": "deleted",
    "out[0] = fma(1.0f, (half)1, 2.0f) > 0;": "deleted",
    "out[0] = abs(true) + popcount(1.5f);": "popcount",
    "out[0] = undeclared;": "'undeclared'",
    "out[0] = as_type<uint>(half(1));": "as_type keeps the size",
    "const float4 v = float4(1, 2);": "as many components as it has",
    "threadgroup float x[4] = {1};": "a threadgroup variable has no initial value",
    # Functions that Metal has not.
    "out[0] = ldexpf(1.0f, 2);": "ldexpf",
    "out[0] = erf(1.0f);": "erf",
    "out[0] = isnanf(1.0f);": "isnanf",
    # bfloat
    "bfloat b = bfloat(1.5f); out[0] = int(ceil(b));": "ceil",
    "bfloat b = bfloat(1.5f); out[0] = int(float(max(b, b)));": "max",
    "bfloat b = bfloat(1.5f); out[0] = int(float(select(b, b, true)));": "select",
    "bfloat b = bfloat(1.5f); out[0] = int(fma(b, b, b));": "fma",
    "bfloat b = 1.5f;": "conversion",
    "bfloat b = half(1.5f);": "conversion",
    "half h = bfloat(1.5f);": "conver",
    "out[0] = int(bfloat(1.5f) + half(1.5f));": None,
    # Functions of a simdgroup
    "out[0] = simd_shuffle(5l, 1);": "no long",
    "out[0] = simd_shuffle_xor(5ul, 1);": "no long",
    "out[0] = int(float(simd_shuffle_down(bfloat(1.0f), 1)));": "no long, bool or bfloat",
    "out[0] = simd_sum(5l);": "no long",
    # Vectors do not convert by themselves.
    "float4 f = int4(1);": "convers",
    "half4 h = float4(1);": "convers",
    # What Metal lacks
    "double d = 1.0;": "no 'double'",
    "long long n = 1;": "no long long",
    "ulong n = 1ULL;": "1ULL: Metal has no long long",
    "goto end; end: out[0] = 1;": "no 'goto'",
    "int half = 3; out[0] = half;": "'half' is the name of a type",
    "float uint4[2]; out[0] = uint4[0];": "'uint4' is the name of a type",
    # Atomics
    "threadgroup atomic_float x;": "atomic_float is for device memory",
    "atomic_fetch_max_explicit((device atomic_float*)out, 1.0f, memory_order_relaxed);": "fetch_max",
    "atomic_fetch_add_explicit((device atomic_ulong*)out, 1, memory_order_relaxed);": "fetch_add",
    "device atomic<short>* p = (device atomic<short>*)out; p->value = 1;": "atomic types are",
    # Matrices
    "simdgroup_bfloat8x8 m; threadgroup half s[64]; simdgroup_load(m, s);": "simdgroup_load",
    "simdgroup_bfloat8x8 c(bfloat(0.0f)); simdgroup_half8x8 a(1.0h);"
    " simdgroup_multiply_accumulate(c, a, a, c);": "half and bfloat matrices",
}


@pytest.mark.full(but=9)
@pytest.mark.parametrize("body", REFUSED)
def test_a_source_that_apples_compiler_refuses(body):
    with pytest.raises(MetalCompileError, match="the Metal source does not compile") as error:
        compile_msl(kernel(body))
    assert f"line 4: {body}" in str(error.value)
    assert REFUSED[body] is None or REFUSED[body] in str(error.value)


TAKEN = """
  char c = 5, d = 3;
  out[0] = select(d, char(c / d), c > d);
  out[1] = int(float(bfloat(1.5f)) + 0.5f);
  bfloat b = 1, e = bfloat(2.5f);
  b = b * e + e;
  float f = b;
  out[2] = int(f) + int(b < e) + int(b > 1.0f) + int(half(b) == 5.0h);
  out[3] = as_type<long>(simd_shuffle_xor(as_type<uint2>(7l), 1));
  out[4] = ldexp(3.0f, 2) + ldexp(1.0h, 1) + abs((short)-2) + max(c, d) + min(2ul, 3ul);
  out[5] = int4(float4(1.5f))[0] + select(int2(1), int2(2), bool2(true, false))[1] - 1;
"""


def test_a_source_that_it_takes():
    out = np.zeros(6, np.int32)
    compile_msl(kernel(TAKEN)).kernel("k")(out, grid=1, threads=32, check_device_races=False)
    assert out.tolist() == [1, 2, 7, 7, 23, 1]


@pytest.mark.parametrize("index", [30, 31])
def test_the_last_buffer_is_number_30(index):
    source = kernel("out[0] = 1;", f"device int* out [[buffer({index})]]")
    if index == 30:
        assert compile_msl(source).kernel_names == ("k",)
        return
    with pytest.raises(MetalCompileError, match=re.escape("[[buffer(31)]], where 30 is the last")):
        compile_msl(source)


def test_extents_of_matmul2d_that_the_emulator_does_not_know():
    source = """
    #include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
    using namespace mpp::tensor_ops;
    kernel void k() {
      constexpr auto descriptor = matmul2d_descriptor(32, 32, 16, false, false, false);
      matmul2d<descriptor, execution_simdgroup> op;
      auto left = op.get_left_input_cooperative_tensor<half, half, float>();
    }"""
    with pytest.raises(MetalCompileError, match="the emulator multiplies 16x16 by 16x32"):
        compile_msl(HEADER + source)


@pytest.mark.skipif(is_clang(), reason="clang does not say which function calls which")
@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("int f(int n) { return n < 2 ? 1 : n * f(n - 1); }", 3),
        (
            """template <typename T> T g(T n);
template <typename T> T f(T n) { return n < 2 ? n : g(n); }
template <typename T> T g(T n) { return f(n - 1); }""",
            4,
        ),
    ],
)
def test_recursion(function, line):
    source = kernel("out[0] = f(out[0]);").replace("kernel void", f"{function}\nkernel void")
    with pytest.raises(MetalCompileError, match="calls itself") as error:
        compile_msl(source)
    text = source.splitlines()[line - 1]
    assert f"calls itself\n  line {line}: {text}\n" in str(error.value)


def test_a_function_of_another_number_or_type_is_another_one():
    functions = """
    template <int n> int f(int x) { if constexpr (n > 0) { return 2 * f<n - 1>(x); } return x; }
    int g(int x) { return f<3>(x); }
    int g(float x) { return g(int(x)); }
    """
    source = kernel("out[0] = g(1.5f);").replace("kernel void", f"{functions}\nkernel void")
    out = np.zeros(1, np.int32)
    compile_msl(source).kernel("k")(out, grid=1, threads=1)
    assert out.tolist() == [8]


# Pointers in a wrong address space are found in the source, before anything is compiled.
POINTERS = """
struct Pair {{ int first, second; }}; inline half put(threadgroup half* p, int i) {{ return p[i]; }}
template <typename T> inline T get(T x, device const half* q) {{ return x + q[0]; }}
inline half get(int i, threadgroup half* q) {{ return q[i]; }}
inline void set(thread int& x) {{ x = 1; }}
kernel void k(device half* A [[buffer(0)]], const device float* B [[ buffer(1) ]],
              constant int& n [[buffer(2)]], threadgroup float* given [[threadgroup(0)]],
              uint i [[thread_position_in_grid]]) {{
  threadgroup half S[64], R[4][8];
  thread half4 L[2];
  {}
}}
"""


def error_of(statement):
    with pytest.raises(MetalEmulationError) as caught:
        check_address_spaces(tokenize(POINTERS.format(statement)))
    return caught.value


@pytest.mark.parametrize(
    ("statement", "buffer", "space"),
    [
        ("half4 v = *(device half4*)(S + i * 4);", "S", "threadgroup"),
        ("half4 v = *(threadgroup half4*)(A + i * 4);", "A", "device"),
        ("*(device half4*)(&(S[i])) = L[0];", "S", "threadgroup"),
        ("*(device half*)(&R[1][2]) = 0;", "R", "threadgroup"),
        ("*(device half*)(R[1]) = 0;", "R", "threadgroup"),
        ("*(threadgroup const half4*)(L + 1);", "L", "thread"),
        ("*(device float4*)B + 1; *(threadgroup float4*)(i + B);", "B", "device"),
        ("*(device uint*)((threadgroup char*)S + 4);", "S", "threadgroup"),
        ("*(device int*)&n;", "n", "constant"),
        ("*(device float*)given;", "given", "threadgroup"),
        ("*reinterpret_cast<device uint4*>(S);", "S", "threadgroup"),
        ("*static_cast<threadgroup half*>(&A[i]);", "A", "device"),
        ("device half* p = S;", "S", "threadgroup"),
        ("threadgroup const half* p = &A[2];", "A", "device"),
        ("for (device half* p = S + 1;;) {}", "S", "threadgroup"),
        ("device half* p = A; { threadgroup half* q = p; }", "p", "device"),
        ("device half* p = A; p = S + i;", "S", "threadgroup"),
        ("half x = put(A + i, 1);", "A", "device"),
        ("put(&A[i], put(S, 1));", "A", "device"),
        ("put(S, put(B + 2, 1));", "B", "device"),
        ("half own[4]; put(own, 1);", "own", "thread"),
        ("half x = 1; if (i) { put(&x, 1); }", "x", "thread"),
        ("Pair x; device Pair* p = &x;", "x", "thread"),
    ],
)
def test_pointer_to_another_address_space(statement, buffer, space):
    error = error_of(statement)
    assert (error.kind, error.kernel, error.buffer) == ("address_space", "k", buffer)
    assert error.line == 11
    assert f"made from {buffer!r}, which is in {space} memory" in str(error)
    assert f"write `{space}` in the pointer's type" in str(error)


@pytest.mark.parametrize("statement", ["*(half4*)(S);", "*(float4*)&B[i];", "*(half4 *)(A + 4);"])
def test_pointer_without_an_address_space(statement):
    error = error_of(statement)
    assert error.kind == "address_space"
    assert "a cast to a pointer without an address space" in str(error)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("float* p = &x;", "a pointer to float"),
        ("const float4 *p;", "a pointer to float4"),
        ("auto p = [](uint3 const& q) { return q.x; };", "a reference to uint3"),
        ("*(half*)(n > 0 ? A : A + 1);", "a pointer to half"),
        ("struct Node { Pair* next; };", "a pointer to Pair"),
    ],
)
def test_pointers_and_references_say_where_they_point(statement, what):
    error = error_of(statement)
    assert (error.kind, error.line) == ("address_space", 11)
    assert f"kernel 'k': {what} without an address space\n  line 11: {statement}" in str(error)
    assert "write `device`, `threadgroup`, `thread` or `constant` in front" in str(error)


@pytest.mark.parametrize(
    "statement",
    [
        "*(device half4*)(A + i * 4) = *(threadgroup half4*)(S + i);",
        "device half* p = A + 3; threadgroup half* q = &S[2];",
        "*(device uint*)((device char*)A + 4);",
        "threadgroup half* q = R[2] + 1; const threadgroup half* r = q;",
        # What is loaded from memory is a value, wherever it came from.
        "float x = (float)(S[i]) * (half)(A[0]); thread float* p = &x;",
        "thread half* p = (thread half*)L; p[0] = A[i];",
        "{ threadgroup float A[4]; *(threadgroup float4*)A; } *(device half4*)A;",
        "int j = (int)n * (int)(B[0]); device const float* b = B + n * j;",
        "device half* p = n > 0 ? A : A + 1;",
        "half x = put(S + 1, 2) * get(half(2), A) * get(3, S) + put(S, S[0] > 1 ? i : n);",
        "float A = 2; thread float* p = &A; *p = A * 2; S[0] = A; int x; set(x); Pair y[2];",
        "threadgroup half* q; q = S; if (i == n) q = &R[1][i]; thread const Pair* const r = nullptr;",
        "half device* p = A; auto f = [&](ushort j, const thread half& h) { return h * half(j); };",
    ],
)
def test_pointers_that_are_right(statement):
    check_address_spaces(tokenize(POINTERS.replace("{}", statement).replace("{{", "{")))


def test_variables_belong_to_their_function():
    source = """
    float first(threadgroup float* p) { return *(threadgroup float*)p; }
    float second(device float* p) { return *(device float*)p; }
    kernel void k(device float* p [[buffer(0)]]) { *(device float*)p = 1; }
    """
    check_address_spaces(tokenize(source))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            "device int* out [[buffer(0)]], device int* x [[buffer(0)]]",
            "'out' and 'x' have one index, 0",
        ),
        (
            "device int* out, uint a [[amplification_id]]",
            "parameter 'a' of 'k' asks for 'amplification_id', which the emulator does not know",
        ),
        (
            "device int* out, uint a",
            "parameter 'a' of 'k' is neither a buffer nor has an attribute",
        ),
        (
            """device int* out, uint a [[thread_index_in_simdgroup]],
               uint i [[thread_position_in_threadgroup]], uint3 b [[threads_per_grid]]""",
            "'i' of 'k' has 1 of a grid's components and 'b' 3: positions and extents have one",
        ),
    ],
)
def test_parameters_that_no_launch_can_fill(parameters, message):
    with pytest.raises(MetalCompileError, match=re.escape(message)):
        compile_msl(kernel("out[0] = 1;", parameters))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "constant bool flag [[function_constant(0)]];\n",
            "function constants, which a host gives",
        ),
        (
            'template [[host_name("f")]] [[kernel]] decltype(twice<float>) twice<float>;\n',
            "kernels that are instances of templates",
        ),
    ],
)
def test_what_a_host_decides(source, message):
    with pytest.raises(MetalCompileError, match=f"does not know {message}"):
        compile_msl("#include <metal_stdlib>\nusing namespace metal;\n" + source)


def test_threads_know_their_quadgroup():
    out = np.zeros(12, np.int32)
    taken = "device int* out, uint q [[quadgroup_index_in_threadgroup]], "
    source = kernel("out[q * 4 + i] = q * 4 + i;", taken + "uint i [[thread_index_in_quadgroup]]")
    compile_msl(source).kernel("k")(out, grid=1, threads=12)
    assert out.tolist() == [*range(12)]


def test_a_shift_is_no_template_argument():
    out = np.zeros(2, np.int32)
    body = "threadgroup int x[1 << 2], y[2]; x[3] = 1; y[1] = 2; out[0] = x[3]; out[1] = y[1];"
    compile_msl(kernel(body, "device int* out")).kernel("k")(out, grid=1, threads=1)
    assert out.tolist() == [1, 2]


def test_a_function_of_metal_is_inline():
    source = kernel("out[0] = more(1);", "device int* out")
    source = source.replace(
        "kernel void", "METAL_FUNC int more(int x) { return x + 1; }\nkernel void"
    )
    out = np.zeros(1, np.int32)
    compile_msl(source).kernel("k")(out, grid=1, threads=1)
    assert out.tolist() == [2]
