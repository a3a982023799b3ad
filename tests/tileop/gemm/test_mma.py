"""mma.sync: where its elements lie, which instruction a product uses, and what it declines."""

import itertools
import re
import shutil
import subprocess
import warnings

import pytest
import torch
from tvm import DataType, ir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

import tvmtile
import tvmtile.language as T
from tests.metal.programs import gemm
from tvmtile.errors import TileWarning
from tvmtile.instructions.mma import ATOMS, SPARSE_ATOMS
from tvmtile.ir.operands import as_region
from tvmtile.ir.rewriting import substitute
from tvmtile.tileop.gemm.mma_operands import Operand, in_runs, place_of

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a")


def place(axes, lane, element):
    indices = place_of(axes, tirx.const(lane, "int32"), element)
    return tuple(int(Analyzer().simplify(index)) for index in indices)


def elements(axes):
    count = 1
    for digit in itertools.chain(*axes):
        count *= 1 if digit.is_thread else digit.extent
    return count


@pytest.mark.parametrize(
    ("dtype", "atom"),
    [(a, atom) for (a, _), atoms in (*ATOMS.items(), *SPARSE_ATOMS.items()) for atom in atoms],
)
def test_lanes_hold_what_the_ptx_isa_says(dtype, atom):
    """Elements of a word are neighbours along K; words of A are eight rows apart in turn."""
    word = max(32 // DataType(dtype).bits, 1)
    says = {
        "a": lambda group, lane, i: (
            group + i // word % 2 * 8,
            lane * word + i % word + i // (2 * word) * 4 * word,
        ),
        "b": lambda group, lane, i: (lane * word + i % word + i // word * 4 * word, group),
        "c": lambda group, lane, i: (group + i // 2 * 8, lane * 2 + i % 2),
    }
    for name, where in says.items():
        axes = getattr(atom, name)
        for lane, e in itertools.product(range(32), range(elements(axes))):
            assert place(axes, lane, e) == where(*divmod(lane, 4), e)


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


def words_loaded(source):
    """How many elements of shared memory each load into registers of A and B takes."""
    return [int(n) for n in re.findall(r"\*\(uint(\d)\*\)\(a_ptr", source)]


def test_what_a_packed_fragment_is_multiplied_with_is_loaded_by_vectors():
    @T.prim_func
    def main(
        A: T.Tensor((16, 64), "float16"),
        B: T.Tensor((64, 64), "uint8"),
        C: T.Tensor((16, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((16, 64), "float16")
            b = T.alloc_shared((64, 64), "uint8")
            decoded = T.alloc_fragment((64, 64), "float16")
            sums = T.alloc_fragment((16, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            for i, j in T.Parallel(64, 64):
                decoded[i, j] = T.cast(b[i, j], "float16") - 128
            T.gemm(a, decoded, sums, transpose_B=True, clear_accum=True, k_pack=4)
            T.copy(sums, C)

    kernel = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_90a"})
    source = kernel.get_kernel_source()
    assert "ldmatrix_sync" not in source.split("__global__", 1)[1]
    assert words_loaded(source) == [4] * 4  # 16 elements of each of two rows
    assert source.count("*(uint4*)(((uint*)b_vector_ptr") == 2  # all of a thread's two rows of B


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
    operand = Operand(region, axes, count, name, transposed=not is_a, k_axis=1 if is_a else 0)
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


def test_fragments_of_tf32_lie_where_the_ptx_isa_says():
    # PTX ISA, "Matrix Fragments for mma.m16n8k8", .tf32
    atom = ATOMS["float32", "float32"][0]
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        for i in range(4):
            row = group if i in (0, 2) else group + 8
            assert place(atom.a, lane, i) == (row, thread if i < 2 else thread + 4)
        for i in range(2):
            assert place(atom.b, lane, i) == (thread if i == 0 else thread + 4, group)


def product(
    dtype="float16", accum="float32", transposes=(False, False), block=(64, 64, 64), stages=0
):
    """A product of [128, 128, 128]."""
    dtypes = (dtype, accum, accum)
    return gemm(128, 128, 128, block=block, dtypes=dtypes, transposes=transposes, stages=stages)


def source(program, arch="sm_89"):
    kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": arch})
    return kernel.get_kernel_source()


@pytest.mark.full(but=1)
@pytest.mark.parametrize("transposes", [(a, b) for a in (False, True) for b in (False, True)])
def test_operands_of_16_bits_are_loaded_by_matrices(transposes):
    text = source(product(transposes=transposes))
    plain, swapped = (f"m8n8.x4{trans}.shared.b16 " in text for trans in ("", ".trans"))
    # A register's elements follow each other along K, as a row of [M, K] or [N, K] does.
    assert plain == (not transposes[0] or transposes[1])
    assert swapped == (transposes[0] or not transposes[1])


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "accum"), [("int8", "int32"), ("float8_e4m3fn", "float32")])
def test_bytes_that_no_instruction_takes_are_multiplied_with_a_warning(dtype, accum):
    program = gemm(64, 64, 80, block=(64, 64, 40), dtypes=(dtype, accum, accum))
    with pytest.warns(TileWarning, match="element by element.* K = 40 is not a multiple of 16"):
        source(program)


@pytest.mark.full
def test_an_architecture_without_the_instruction_multiplies_element_by_element():
    with pytest.warns(TileWarning, match="float8_e4m3fn needs sm_89, the target is sm_80"):
        text = source(product("float8_e4m3fn"), "sm_80")
    assert "mma.sync" not in text


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "stages"), [("float16", 0), ("float8_e4m3fn", 2)])
def test_tiles_that_need_more_memory_than_a_kernel_may_declare_ask_for_it(dtype, stages):
    text = source(product(dtype, block=(128, 128, 128), stages=stages))
    assert "extern __shared__" in text


@pytest.mark.full(but=2)
@pytest.mark.parametrize("threads", [96, 128, 256])
def test_warps_that_are_too_many_for_a_tile_repeat_what_others_do(threads):
    program = gemm(32, 32, 32, block=(16, 16, 32), threads=threads)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "mma.sync" in source(program)


def test_no_warp_repeats_a_product_that_is_added_in_memory():
    """Each of them would add it."""

    @T.prim_func
    def main(A: T.Tensor((16, 16), "float16"), C: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((16, 16), "float16")
            c = T.alloc_shared((16, 16), "float32")
            T.copy(A, a)
            T.clear(c)
            T.gemm(a, a, c)
            T.copy(c, C)

    with pytest.warns(TileWarning, match="4 warps .* can't share"):
        assert "mma.sync" not in source(main)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_nvcc_takes_a_product_and_keeps_it_in_registers(arch, dtype, tmp_path):
    accum = "int32" if dtype == "int8" else "float32"
    (tmp_path / "product.cu").write_text(source(product(dtype, accum, stages=2), arch))
    command = ["nvcc", f"-arch={arch}", "-cubin", "-Xptxas=-v", "-w", "-o", "product.cubin"]
    result = subprocess.run(
        [*command, "product.cu"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "0 bytes spill stores" in result.stderr


@pytest.mark.full
@pytest.mark.parametrize("K", [32, 48, 64])
@pytest.mark.parametrize(
    ("dtype", "out", "arch"), [("int8", "int32", "sm_80"), ("float8_e4m3fn", "float32", "sm_89")]
)
def test_operands_of_a_byte_are_read_without_conflicts(dtype, out, arch, K):
    @T.prim_func
    def product(
        A: T.Tensor((64, K), dtype), B: T.Tensor((64, K), dtype), C: T.Tensor((64, 64), out)
    ):
        with T.Kernel(1, threads=128):
            left, right = T.alloc_shared((64, K), dtype), T.alloc_shared((64, K), dtype)
            sums = T.alloc_fragment((64, 64), out)
            T.copy(A, left)
            T.copy(B, right)
            T.gemm(left, right, sums, transpose_B=True, clear_accum=True)
            T.copy(sums, C)

    with warnings.catch_warnings():
        warnings.simplefilter("error", TileWarning)
        kernel = tvmtile.compile(
            product,
            out_idx=-1,
            target={"kind": "cuda", "arch": arch},
            execution_backend="emulator",
        )
    assert "ldmatrix" in kernel.get_kernel_source()
    assert "mma.sync" in kernel.get_kernel_source()
    a, b = (torch.randint(-8, 8, (64, K)).to(getattr(torch, dtype)) for _ in "ab")
    assert torch.equal(kernel(a, b).double(), a.double() @ b.double().T)
    assert kernel.profile(a, b).statistics.bank_conflicts == 0
