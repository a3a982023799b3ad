"""The interpreter of the fuzzer against programs whose results are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.interpret import Interpreter
from tests.fuzz.program import mismatch
from tests.fuzz.values import Invalid, Value, binary, cast, compare, literal, monotone, select


def interpreted(body, tensors, dtype="float32", sizes=None):
    """The contents of the tensors after the body of a kernel of two blocks."""
    shapes = {name: np.shape(value) for name, value in tensors.items()}
    notes = [f'{n}: T.Tensor(({", ".join(map(str, s))},), "{dtype}")' for n, s in shapes.items()]
    lines = "\n".join("        " + line for line in body.strip("\n").splitlines())
    source = (
        f"@T.prim_func\ndef main({', '.join(notes)}):\n    with T.Kernel(2, threads=32) as bx:\n"
    )
    return Interpreter(source + lines, sizes or {}, tensors).run()


def data(buffer):
    return buffer.data.reshape(buffer.shape).tolist()


def test_copies_read_zero_outside_a_tensor_and_do_not_write_there():
    body = """
s = T.alloc_shared((4,), "float32")
T.copy(A[bx * 4 - 1], s)
T.copy(s, B[bx * 4])
"""
    results = interpreted(body, {"A": [1, 2, 3, 4, 5], "B": [9] * 6})
    assert data(results["B"]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        ("float16", "float32", "float32"),
        ("int64", "float16", "float16"),
        ("uint8", "int16", "int16"),
        ("int8", "uint8", "uint8"),
        ("bool", "int8", "int8"),
    ],
)
def test_of_two_dtypes_the_one_that_holds_more_wins(left, right, dtype):
    for a, b in ((left, right), (right, left)):
        assert binary("+", literal(1, a), literal(1, b)).dtype == dtype


def test_a_copy_reads_its_source_before_it_writes():
    body = """
s = T.alloc_shared((4,), "float32")
T.copy(A, s)
T.copy(s[0:3], s[1:4])
if bx == 0:
    T.copy(s, B)
"""
    results = interpreted(body, {"A": [1, 2, 3, 4], "B": [0] * 4})
    assert data(results["B"]) == [1, 1, 2, 3]


def test_bits_of_numbers_that_are_not_known_exactly_may_be_others():
    """A rounding on the way from a float decides whether an integer is 3 or 4."""
    from tests.fuzz.operators import _combined

    exact, unsure = np.zeros((2, 2)), np.array([[0.0, 0.0], [1.0, 0.0]])
    for error, expected in ((exact, [0, 0]), (unsure, [16, 0])):
        result = _combined(Value(np.array([[1, 1], [3, 2]]), error, "int32"), "bitxor", 0)
        assert result.data.tolist() == [2, 3]
        assert result.error.tolist() == expected


def test_views_are_names_of_one_memory():
    body = """
s = T.alloc_shared((2, 2), "float32")
flat = T.reshape(s, (4,))
bits = T.view(s, (2, 2), "int32")
T.copy(A, flat)
for i in T.Parallel(2):
    bits[0, i] = bits[0, i] ^ T.int32(-2147483648)
if bx == 0:
    T.copy(flat, B)
"""
    results = interpreted(body, {"A": [1, 2, 3, 4], "B": [0] * 4})
    assert data(results["B"]) == [-1, -2, 3, 4]


def test_elements_that_another_name_writes_are_not_read_at_a_time():
    body = """
s = T.alloc_shared((4,), "float32")
again = T.reshape(s, (2, 2))
T.copy(A, s)
for i in T.Parallel(4):
    again[i // 2, i % 2] = s[3 - i]
"""
    with pytest.raises(Invalid, match="at a time"):
        interpreted(body, {"A": [1, 2, 3, 4]})


def test_conditions_continue_and_inner_loops():
    body = """
for i in T.Parallel(4):
    t = T.alloc_var("float32", init=1)
    for q in T.serial(3):
        if q == i:
            continue
        t = t + T.cast(q, "float32")
    if i % 2 == 0:
        if bx == 1:
            continue
        B[bx, i] = t
    else:
        B[bx, i] = -t
"""
    results = interpreted(body, {"B": np.full((2, 4), 7)})
    assert data(results["B"]) == [[4, -3, 2, -4], [7, -3, 7, -4]]


def test_loops_that_are_left_and_that_differ_from_lane_to_lane():
    body = """
n = T.alloc_var("int32", init=0)
while n < bx + 1:
    n = n + 1
for i in T.Parallel(4):
    t = T.alloc_var("int32", init=0)
    for q in T.serial(i):
        if q > 1:
            break
        t = t + 10
    B[bx, i] = T.cast(t + n, "float32")
"""
    results = interpreted(body, {"B": np.full((2, 4), 7)})
    assert data(results["B"]) == [[1, 11, 21, 21], [2, 12, 22, 22]]


def test_reductions_scans_and_products():
    body = """
s = T.alloc_shared((2, 3), "float32")
r = T.alloc_fragment((2,), "float32")
c = T.alloc_fragment((2, 2), "float32")
T.copy(A[bx * 2, 0], s)
T.reduce_max(s, r, dim=1)
T.copy(r, M[bx * 2])
T.gemm(s, s, c, transpose_B=True, clear_accum=True)
T.copy(c, P[bx * 2, 0])
T.cumsum(s, dim=1, reverse=True)
T.copy(s, C[bx * 2, 0])
"""
    a = np.arange(12).reshape(4, 3) - 3.0
    tensors = {"A": a, "M": np.zeros(4), "P": np.zeros((4, 2)), "C": np.zeros((4, 3))}
    results = interpreted(body, tensors)
    assert data(results["M"]) == a.max(1).tolist()
    assert data(results["C"]) == a[:, ::-1].cumsum(1)[:, ::-1].tolist()
    assert data(results["P"]) == np.concatenate([a[:2] @ a[:2].T, a[2:] @ a[2:].T]).tolist()
    assert not results["P"].error.any()


def test_blocks_and_iterations_add_atomically():
    body = """
for i in T.Parallel(5):
    T.atomic_add(B[i % 2], i + 1)
"""
    results = interpreted(body, {"B": [10, 20]}, dtype="int32")
    assert data(results["B"]) == [10 + 2 * (1 + 3 + 5), 20 + 2 * (2 + 4)]


def test_iterations_accumulate_in_a_fragment_one_after_the_other():
    body = """
f = T.alloc_fragment((2,), "int32")
T.clear(f)
for i in T.Parallel(5):
    f[i % 2] += A[i]
for i in T.Parallel(5):
    f[i % 2] = T.max(f[i % 2], i * 2)
for i in T.Parallel(2):
    B[bx * 2 + i] = f[i]
"""
    results = interpreted(body, {"A": [1, 2, 3, 4, 5], "B": [0] * 4}, dtype="int32")
    assert data(results["B"]) == [9, 6] * 2


def test_persistent_blocks_visit_each_tile_once():
    body = """
for i, j in T.Persistent([3, 2], 2, bx):
    B[i, j] = B[i, j] + 1
"""
    assert data(interpreted(body, {"B": np.zeros((3, 2))})["B"]) == np.ones((3, 2)).tolist()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('s = T.alloc_shared((4,), "float32")\nT.copy(s, A[bx * 4])', "read before it is written"),
        (
            "for i in T.Parallel(3):\n    A[i + 4 * bx] = A[i + 1 + 4 * bx]",
            "read and written by two",
        ),
        ("for i in T.Parallel(4):\n    A[4 * bx] = i", "written by two at a time"),
        ("A[0] = bx", "written by two at a time"),  # blocks
        ("for i in T.Parallel(1):\n    T.atomic_add(A[0], 1.0)\nA[0] = 1.0", "updated"),
        (
            's = T.alloc_shared((4,), "float32")\nfor i in T.Parallel(4):\n    s[i + 1] = 0.0',
            "outside",
        ),
        ("A[bx * 4] = T.float16(1) + T.bfloat16(1)", "float16 meets bfloat16"),
        ("A[bx + T.cast(A[1] / 3.0 * 3.0, 'int32')] = 1.0", "not exact"),
        ("A[bx] = 2.5 * bx", "2.5 meets int32"),
        (
            "n = T.alloc_var('int32', init=0)\nfor i, j in T.Persistent([2, 2], 1, 0):\n    n = n + i",
            "n is read before it is written",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(body, message):
    with pytest.raises(Invalid, match=message):
        interpreted(body, {"A": [1.0] * 8})


def test_an_error_grows_only_where_a_number_is_rounded():
    third = binary("/", literal(1.0, "float32"), literal(3.0, "float32"))
    assert 0 < third.error < 1e-6
    assert binary("*", literal(1.5, "float16"), literal(2.5, "float16")).error == 0
    assert cast(literal(1.0009765625, "float32"), "float16").error == 0
    assert 0 < cast(literal(1.0001, "float64"), "float16").error < 2e-3
    assert cast(literal(-2.5, "float32"), "int32").data == -2
    assert cast(literal(300, "int32"), "uint8").data == 44


def test_a_comparison_that_rounding_decides_is_uncertain():
    third = binary("/", literal(1.0, "float32"), literal(3.0, "float32"))
    near = compare("<", binary("*", third, literal(3.0)), literal(1.0))
    assert near.error == 1
    chosen = select(near, literal(5.0, "float32"), literal(1.0, "float32"))
    assert chosen.error == 4
    assert compare("<", third, literal(1.0)).error == 0
    assert select(compare("<", third, literal(1.0)), literal(5.0), literal(1.0)).error == 0


def test_functions_carry_the_errors_of_their_arguments():
    about_two = Value(np.asarray(2.0), np.asarray(0.5), "float32")
    assert monotone(np.floor, about_two, 0).error == pytest.approx(1)
    root = monotone(np.sqrt, about_two, 2**-23)
    assert np.sqrt(2.0) - np.sqrt(1.5) < root.error < 0.2


def test_a_mismatch_names_the_first_element_that_is_wrong():
    buffer = interpreted("A[bx] = 2 * bx", {"A": [7.0, 7.0, 7.0]})["A"]
    assert mismatch(buffer, np.array([0.0, 2.0, 7.0], np.float32)) == ""
    text = "A[1] is 2.5, not 2.0 (+-0.0e+00); 2 of 3 elements differ"
    assert mismatch(buffer, np.array([0.0, 2.5, np.nan], np.float32)) == text


def test_numbers_of_the_text_are_computed_with():
    """As where an index counts down from the last of some blocks."""
    body = """
last = T.ceildiv(5, 4) - 1
if bx == last:
    B[0] = A[(T.ceildiv(5, 2) - 1 - bx) * 1]
"""
    assert data(interpreted(body, {"A": [1, 2, 3, 4], "B": [0]})["B"]) == [2]


def test_several_may_write_one_value_that_none_of_them_reads():
    body = """
for i in T.Parallel(4):
    A[i // 2] = i // 2
for i in T.Parallel(4):
    if i % 2 == bx:
        A[3] = 7
"""
    assert data(interpreted(body, {"A": [9, 9, 9, 9]})["A"]) == [0, 1, 9, 7]
    for wrong in ("A[1] = i % 2", "A[1] = 2\n    B[i] = A[1]"):
        with pytest.raises(Invalid, match="by two at a time"):
            interpreted(f"for i in T.Parallel(4):\n    {wrong}", {"A": [1, 2], "B": [0] * 4})


def test_groups_of_threads_come_one_after_the_other():
    body = """
tx = T.get_thread_binding()
s = T.alloc_shared((32,), "float32")
if tx >= 4:
    A[0] = 5
    if tx % 8 == 3:
        A[1] = 6
else:
    A[2] = 7
if tx > 40:
    A[3] = 8
s[tx] = tx
A[4 + 4 * bx] = s[31 - 4 * bx]
T.atomic_add(A[6], 1.0)
"""
    results = interpreted(body, {"A": [0] * 10})
    assert data(results["A"]) == [5, 6, 7, 0, 31, 0, 64, 0, 27, 0]
