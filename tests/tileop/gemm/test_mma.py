"""mma.sync: where its elements lie, how operands are loaded, and what it needs no memory for."""

import itertools
import re

import pytest
import torch
from tvm import DataType, ir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

import tvmtile
import tvmtile.language as T
from tests.running import gemm
from tvmtile.instructions.mma import ATOMS, SPARSE_ATOMS
from tvmtile.ir.operands import as_region
from tvmtile.ir.rewriting import substitute
from tvmtile.tileop.gemm.mma_operands import MmaOperand, in_runs, place_of

INSTRUCTIONS = [(dtypes, atom) for dtypes, atoms in ATOMS.items() for atom in atoms]
SPARSE = [(dtypes, atom) for dtypes, atoms in SPARSE_ATOMS.items() for atom in atoms]


def place(axes, lane, element):
    indices = place_of(axes, tirx.const(lane, "int32"), element)
    return tuple(int(Analyzer().simplify(index)) for index in indices)


def elements(axes):
    count = 1
    for digit in itertools.chain(*axes):
        count *= 1 if digit.is_thread else digit.extent
    return count


@pytest.mark.parametrize(("dtypes", "atom"), INSTRUCTIONS + SPARSE)
def test_lanes_hold_what_the_ptx_isa_says(dtypes, atom):
    """Every element of a matrix is held, and once.

    PTX ISA, "Matrix Fragments for mma.m8n8k4/.m16n8k8/.m16n8k16/.m16n8k32" and for sparse mma: each
    lane of four has a word of a row's elements; what follows is eight rows, then four words further.
    """
    word = max(1, 32 // DataType(dtypes[0]).bits)
    stored = atom.k // 2 if atom.sparse else atom.k
    sizes = {"a": atom.m * stored, "b": atom.k * atom.n, "c": atom.m * atom.n}
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        wanted = {
            "a": lambda w, e: (group + w % 2 * 8, (w // 2 * 4 + thread) * word + e),
            "b": lambda w, e: ((w * 4 + thread) * word + e, group),
            "c": lambda w, e: (group + w * 8, thread * 2 + e),
        }
        for name, size in sizes.items():
            axes, each = getattr(atom, name), 2 if name == "c" else word
            assert elements(axes) == size // 32
            for i in range(elements(axes)):
                assert place(axes, lane, i) == wanted[name](*divmod(i, each))


@pytest.mark.full(but=7)
@pytest.mark.parametrize("packed", [2, 4, 6])
@pytest.mark.parametrize("dtypes", list(ATOMS), ids="-".join)
def test_packed_instructions_have_a_lanes_elements_side_by_side_along_k(dtypes, packed):
    atom = ATOMS[dtypes][0]
    for axes, k_axis, extents in (
        (atom.a, 1, (atom.m, atom.k * packed)),
        (atom.b, 0, (atom.k * packed, atom.n)),
    ):
        runs = in_runs(axes, k_axis, packed)
        run = packed * atom.k // 4
        places = [[place(runs, lane, e) for e in range(elements(runs))] for lane in range(32)]
        assert sorted(itertools.chain(*places)) == list(itertools.product(*map(range, extents)))
        for held in places:
            along = [where[k_axis] for where in held[:run]]
            assert along == list(range(along[0], along[0] + run))
            assert len({where[1 - k_axis] for where in held[:run]}) == 1


def test_what_a_packed_fragment_is_multiplied_with_is_loaded_by_vectors():
    @T.prim_func
    def main(A: T.Tensor((16, 64), "float16"), B: T.Tensor((64, 64), "uint8")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((16, 64), "float16"), T.alloc_shared((64, 64), "uint8")
            decoded = T.alloc_fragment((64, 64), "float16")
            sums = T.alloc_fragment((16, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            for i, j in T.Parallel(64, 64):
                decoded[i, j] = T.cast(b[i, j], "float16") - 128
            T.gemm(a, decoded, sums, transpose_B=True, clear_accum=True, k_pack=4)
            T.copy(sums, A)

    text = source(main, "sm_90a")
    assert "ldmatrix_sync" not in text.split("__global__", 1)[1]
    loads = re.findall(r"\*\(uint(\d)\*\)\(a_ptr", text)
    assert loads == ["4"] * 4  # 16 elements of each of two rows
    assert text.count("*(uint4*)(((uint*)b_vector_ptr") == 2  # all of a thread's two rows of B


def loaded_by_matrices(operand, origin):
    """For each register that `ldmatrix` loads, the elements at the addresses of its eight rows.

    Lane l gets four bytes, from 4 * (l % 4) on, of row l // 4 of a matrix, whose address lane
    8 * matrix + row gives (PTX ISA, "ldmatrix").
    """
    lane = tirx.Var("lane", "int32")
    addresses = []
    for statement in operand.loads(origin, lane):
        call = statement.value
        loads = []
        structural_walk(call, (ir.TensorLoad, loads.append))
        (address,) = [load for load in loads if load.source.name == "tile"]
        for word in range(len(loads) - 1):
            rows = []
            for row in range(8):
                at = {lane: tirx.const(8 * word + row, "int32")}
                rows.append(
                    [int(Analyzer().simplify(substitute(index, at))) for index in address.indices]
                )
            addresses.append(rows)
    return addresses


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_matrices_are_loaded_to_where_the_instruction_wants_them(name, dtype, number, count):
    """Of tiles whose rows run along K."""
    atom = ATOMS[dtype, dtype][number]
    bytes_of = DataType(dtype).bits // 8
    buffer = tirx.decl_buffer((128, 128), dtype, name="tile", scope="shared.dyn")
    region = as_region(buffer)
    is_a = name == "a"
    axes, step = (atom.a, atom.m) if is_a else (atom.b, atom.n)
    operand = MmaOperand(region, axes, count, name, transposed=not is_a, k_axis=1 if is_a else 0)
    found = loaded_by_matrices(operand, lambda n: (n * step, 0) if is_a else (0, n * step))
    per_word = 4 // bytes_of
    words = elements(axes) // per_word
    assert len(found) == words * count
    for word, lane in itertools.product(range(len(found)), range(32)):
        row, column = found[word][lane // 4]
        start = (row, column + lane % 4 * per_word)
        wanted = place(axes, lane, word % words * per_word)
        along, k = wanted if is_a else reversed(wanted)
        assert start == (along + word // words * step, k)


def source(program, arch="sm_89"):
    return tvmtile.compile(program, target={"kind": "cuda", "arch": arch}).get_kernel_source()


@pytest.mark.full(but=1)
@pytest.mark.parametrize("transposes", [*itertools.product((False, True), repeat=2)])
def test_operands_of_16_bits_are_loaded_by_matrices(transposes):
    text = source(gemm(128, 128, 128, block=(64, 64, 64), transposes=transposes))
    plain, swapped = (f"m8n8.x4{trans}.shared.b16 " in text for trans in ("", ".trans"))
    # A register's elements follow each other along K, as a row of [M, K] or [N, K] does.
    assert plain == (not transposes[0] or transposes[1])
    assert swapped == (transposes[0] or not transposes[1])


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "stages"), [("float16", 0), ("float8_e4m3fn", 2)])
def test_tiles_that_need_more_memory_than_a_kernel_may_declare_ask_for_it(dtype, stages):
    dtypes = (dtype, "float32", "float32")
    program = gemm(128, 128, 128, block=(128, 128, 128), dtypes=dtypes, stages=stages)
    assert "extern __shared__" in source(program)


def test_operands_in_registers_lie_where_instructions_read_them():
    """The loops that a product stands for have no say in the layouts then: nothing is staged."""

    @T.prim_func
    def main(A: T.Tensor((32, 32), "int8"), B: T.Tensor((32, 32), "int8")):
        with T.Kernel(1, threads=32):
            a = T.alloc_fragment((32, 32), "int8")
            b = T.alloc_shared((32, 32), "int8")
            c = T.alloc_fragment((32, 32), "int32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            for i, j in T.Parallel(32, 32):
                B[i, j] = T.cast(c[i, j], "int8")

    assert "mma.sync" in source(main, "sm_80")  # a warning would be an error


@pytest.mark.full
@pytest.mark.parametrize("K", [32, 48, 64])
@pytest.mark.parametrize(
    ("dtype", "out", "arch"), [("int8", "int32", "sm_80"), ("float8_e4m3fn", "float32", "sm_89")]
)
def test_operands_of_a_byte_are_read_without_conflicts(dtype, out, arch, K):
    block, dtypes = (64, 64, K), (dtype, out, out)
    program = gemm(*block, block=block, dtypes=dtypes, transposes=(False, True))
    target = {"kind": "cuda", "arch": arch}
    kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
    text = kernel.get_kernel_source()
    assert "ldmatrix" in text
    assert "mma.sync" in text
    tensors = (
        torch.zeros(64, n, dtype=getattr(torch, t)) for n, t in ((K, dtype), (K, dtype), (64, out))
    )
    assert kernel.profile(*tensors).statistics.bank_conflicts == 0
