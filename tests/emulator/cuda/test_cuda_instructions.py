"""Each row of the table of instructions means what its lane map and a reference in numpy say."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tvmtile.emulator import cuda
from tvmtile.emulator.cuda import compile_cuda
from tvmtile.emulator.cuda.instructions import ROWS
from tvmtile.instructions.matrices import ALONG_COLUMNS, ALONG_ROWS
from tvmtile.instructions.mma import ATOMS, SPARSE_ATOMS, lane_map, metadata_map

DENSE = [atom for atoms in ATOMS.values() for atom in atoms]
SPARSE = [atom for atoms in SPARSE_ATOMS.values() for atom in atoms]
TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "u8": torch.uint8,
    "float32": torch.float32,
    "float64": torch.float64,
    "int32": torch.int32,
}
# Constraint and type of a register that holds elements of a type.
REGISTERS = {"f64": ("d", "double"), "float64": ("d", "double"), "float32": ("f", "float")}
LANES = 32


def test_an_instruction_is_a_row_and_one_function():
    """Functions that rows call stand in one place of the runtime, declared nowhere else."""
    files = [
        file for file in Path(cuda.__file__).parent.glob("*/**/*.*") if file.suffix in (".cc", ".h")
    ]
    sources = "".join(file.read_text() for file in files)
    for name in {name for row in ROWS for name in re.findall(r"ptx::(\w+)\(", row.call)}:
        heads = re.findall(
            rf"^(?:inline )?[a-z][\w:&*<> ]* {name}\([^;{{}}]*\)( \{{|;)", sources, re.M
        )
        assert " {" in heads, name
        assert ";" not in heads or name == "mapa", name  # which another source calls


def words(axes, dtype):
    """Registers that a lane has of a matrix."""
    elements = len(lane_map(axes)[0])
    return elements if dtype in REGISTERS else elements * TORCH[dtype].itemsize // 4


def kernel_of(number, atom):
    """A kernel of one instruction; each lane's registers are a row of an array."""
    operands, loads = [], []
    groups = []
    for name, axes, dtype in (
        ("d", atom.c, atom.sums),
        ("a", atom.a, atom.dtypes[0]),
        ("b", atom.b, atom.dtypes[1]),
        ("c", atom.c, atom.sums),
    ):
        constraint, type_ = REGISTERS.get(dtype, ("r", "unsigned"))
        count = words(axes, dtype)
        first = len(operands)
        groups.append("{" + ", ".join(f"%{first + i}" for i in range(count)) + "}")
        output = "=" if name == "d" else ""
        operands += [(f'"{output}{constraint}"({name}[{i}])', name) for i in range(count)]
        loads.append(f"  {type_} {name}[{count}];")
        if name != "d":
            loads.append(
                f"  for (int i = 0; i < {count}; ++i) "
                f"{name}[i] = (({type_}*){name}_)[threadIdx.x * {count} + i];"
            )
    text = ", ".join(groups)
    if atom.sparse:
        text += f", %{len(operands)}, 0x0"
        operands.append(('"r"(e_[threadIdx.x])', "e"))
    outputs = ", ".join(o for o, name in operands if name == "d")
    inputs = ", ".join(o for o, name in operands if name != "d")
    count, (_, type_) = words(atom.c, atom.sums), REGISTERS.get(atom.sums, ("r", "unsigned"))
    body = "\n".join(loads)
    return (
        f'extern "C" __global__ void k{number}'
        "(void* a_, void* b_, void* c_, void* d_, unsigned* e_) {\n"
        f"{body}\n"
        f'  asm volatile("{atom.instruction} {text};" : {outputs} : {inputs});\n'
        f"  for (int i = 0; i < {count}; ++i) (({type_}*)d_)[threadIdx.x * {count} + i] = d[i];\n"
        "}\n"
    )


@cache
def module():
    kernels = (kernel_of(number, atom) for number, atom in enumerate(DENSE + SPARSE))
    return compile_cuda("".join(kernels))


def random(rows, columns, dtype):
    if not TORCH[dtype].is_floating_point:
        low = 0 if dtype == "u8" else -128
        return torch.randint(low, 128, (rows, columns)).to(TORCH[dtype])
    values = torch.randint(-8, 9, (rows, columns)) / 4  # products and sums are exact
    return values.to(TORCH[dtype])


def spread(matrix, axes):
    """The bytes of a matrix that each lane holds."""
    places = torch.tensor(lane_map(axes))
    as_bits = matrix.view(torch.uint8) if matrix.element_size() == 1 else matrix
    return as_bits[places[..., 0], places[..., 1]].contiguous()


def gathered(held, axes, rows, columns):
    matrix = torch.empty(rows, columns, dtype=held.dtype)
    places = torch.tensor(lane_map(axes))
    matrix[places[..., 0], places[..., 1]] = held
    return matrix


def run(number, atom, a, b, c, metadata):
    result = torch.empty_like(spread(c, atom.c))
    module().kernel(f"k{number}")(
        spread(a, atom.a), spread(b, atom.b), spread(c, atom.c), result, metadata, grid=1, block=32
    )
    return gathered(result, atom.c, atom.m, atom.n)


@pytest.mark.full(but=8)
@pytest.mark.parametrize("number", range(len(DENSE)), ids=[atom.instruction for atom in DENSE])
def test_products(number):
    atom = DENSE[number]
    a = random(atom.m, atom.k, atom.dtypes[0])
    b = random(atom.k, atom.n, atom.dtypes[1])
    c = random(atom.m, atom.n, atom.sums)
    d = run(number, atom, a, b, c, torch.zeros(LANES, dtype=torch.int32))
    expected = c.double() + a.double() @ b.double()
    torch.testing.assert_close(d.double(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("number", range(len(SPARSE)), ids=[atom.instruction for atom in SPARSE])
def test_sparse_products(number):
    atom = SPARSE[number]
    stored = random(atom.m, atom.stored_k, atom.dtypes[0])
    whole, metadata = _expanded(atom, stored)
    b = random(atom.k, atom.n, atom.dtypes[1])
    c = random(atom.m, atom.n, atom.sums)
    d = run(len(DENSE) + number, atom, stored, b, c, metadata)
    expected = c.double() + whole @ b.double()
    torch.testing.assert_close(d.double(), expected, rtol=0, atol=0)


def _expanded(atom, stored):
    """Random places for the stored elements: the whole matrix, and the words of the lanes."""
    generator = np.random.default_rng(0)
    whole = torch.zeros(atom.m, atom.k, dtype=torch.float64)
    bits = [0] * atom.m
    for row in range(atom.m):
        for e in range(0, atom.stored_k, 4 // atom.place_bits):
            if atom.place_bits == 4:
                place = int(generator.integers(2))
                whole[row, 2 * e + place] = stored[row, e].double()
                bits[row] |= (0xE if place else 0x4) << 4 * e
                continue
            places = sorted(generator.choice(4, 2, replace=False))
            for i, place in enumerate(places):
                whole[row, e * 2 + place] = stored[row, e + i].double()
                bits[row] |= int(place) << 2 * (e + i)
    lanes = np.zeros(LANES, np.uint32)
    for piece in metadata_map(atom):
        value = bits[piece.row] >> piece.first & (1 << piece.bits) - 1
        lanes[piece.lane] |= np.uint32(value << piece.shift)
    return whole, torch.from_numpy(lanes.view(np.int32))


def test_tf32_takes_no_notice_of_the_lower_bits():
    number = next(i for i, atom in enumerate(DENSE) if atom.dtypes[0] == "tf32")
    atom = DENSE[number]
    a = torch.full((atom.m, atom.k), 1 + 2**-10 + 2**-12)
    b, c = torch.eye(atom.k, atom.n), torch.zeros(atom.m, atom.n)
    d = run(number, atom, a, b, c, torch.zeros(LANES, dtype=torch.int32))
    np.testing.assert_array_equal(d.numpy(), 1 + 2**-10)


# Matrices of 8x8 -----------------------------------------------------------------------------------

SHAPES = [(count, trans) for count in (1, 2, 4) for trans in (False, True)]


def matrix_kernel(count, trans):
    """Load matrices of shared memory, and store them elsewhere in shared memory."""
    suffix = f"m8n8.x{count}{'.trans' * trans}.shared.b16"
    group = "{" + ", ".join(f"%{i}" for i in range(count)) + "}"
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    source = "{" + ", ".join(f"%{i + 1}" for i in range(count)) + "}"
    inputs = ", ".join(f'"r"(r[{i}])' for i in range(count))
    return f"""
extern "C" __global__ void move_{count}_{int(trans)}(unsigned short* in, unsigned* words,
                                                     unsigned short* out) {{
  __shared__ alignas(16) unsigned short from[256], to[256];
  for (int i = 0; i < 8; ++i) from[threadIdx.x * 8 + i] = in[threadIdx.x * 8 + i];
  for (int i = 0; i < 8; ++i) to[threadIdx.x * 8 + i] = 0;
  __syncwarp();
  unsigned r[{count}];
  unsigned row = threadIdx.x % (8 * {count});
  asm volatile("ldmatrix.sync.aligned.{suffix} {group}, [%{count}];"
               : {outputs} : "r"((unsigned)__cvta_generic_to_shared(from + row * 8)) : "memory");
  for (int i = 0; i < {count}; ++i) words[threadIdx.x * {count} + i] = r[i];
  asm volatile("stmatrix.sync.aligned.{suffix} [%0], {source};"
               : : "r"((unsigned)__cvta_generic_to_shared(to + row * 8)), {inputs} : "memory");
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = to[threadIdx.x * 8 + i];
}}
"""


MOVE = """
extern "C" __global__ void transpose(unsigned* in, unsigned* out) {
  unsigned r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(in[threadIdx.x]));
  out[threadIdx.x] = r;
}
"""


@cache
def matrix_module():
    return compile_cuda(MOVE + "".join(matrix_kernel(*shape) for shape in SHAPES))


@pytest.mark.parametrize(("count", "trans"), SHAPES)
def test_matrices_are_loaded_and_stored(count, trans):
    matrices = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    words, out = np.zeros((LANES, count), np.uint32), np.zeros_like(matrices)
    kernel = matrix_module().kernel(f"move_{count}_{int(trans)}")
    statistics = kernel(matrices, words, out, grid=1, block=LANES)
    places = np.array(lane_map(ALONG_COLUMNS if trans else ALONG_ROWS))
    held = matrices[:count, places[..., 0], places[..., 1]]  # matrix, lane, half
    np.testing.assert_array_equal(
        words.view(np.uint16).reshape(LANES, count, 2).swapaxes(0, 1), held
    )
    np.testing.assert_array_equal(out[:count], matrices[:count])
    assert not out[count:].any()
    assert (statistics.matrix_loads, statistics.matrix_stores) == (1, 1)


def test_movmatrix_transposes():
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    places = np.array(lane_map(ALONG_ROWS))
    words = np.ascontiguousarray(matrix[places[..., 0], places[..., 1]])
    out = np.zeros(LANES, np.uint32)
    matrix_module().kernel("transpose")(words.view(np.uint32).ravel(), out, grid=1, block=LANES)
    expected = matrix.T[places[..., 0], places[..., 1]]
    np.testing.assert_array_equal(out.view(np.uint16).reshape(LANES, 2), expected)


def test_all_that_lowering_multiplies_by_is_in_the_table():
    names = {row.name for row in ROWS}
    assert {atom.instruction for atom in DENSE + SPARSE} <= names
