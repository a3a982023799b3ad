"""mma.sp: where the bits that describe its elements lie; `gemm_of_half_a_tile` has the numbers."""

import numpy as np
import pytest
import tvm
from tvm import DataType, tirx

from tvmtile.instructions.mma import SPARSE_ATOMS
from tvmtile.ir.operands import as_region
from tvmtile.ir.rewriting import for_loop
from tvmtile.tileop.gemm_sp import GemmSp
from tvmtile.tileop.gemm_sp.mma import metadata


def words_of_the_lanes(op, atom, k, E):
    """The words that the lanes compute for an instruction, on the CPU."""
    lane = tirx.Var("lane", "int32")
    words = tirx.decl_buffer((32,), "uint32", name="words")
    value = metadata(op, atom, lane, tirx.const(0, "int32"), k)
    body = for_loop(lane, 32, tirx.BufferStore(words, value, [lane]))
    result = tvm.runtime.tensor(np.zeros(32, np.uint32))
    func = tirx.PrimFunc([op.E.source, words], body).with_attr("global_symbol", "main")
    tvm.tirx.build(func, "llvm")(tvm.runtime.tensor(E), result)
    return result.numpy()


@pytest.mark.parametrize("meta", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_the_words_of_the_lanes_hold_every_bit_where_the_ptx_isa_says(dtype, meta):
    """For each lane and bit of the second instruction along K: a row of E, and a bit of that row."""
    (atom,) = SPARSE_ATOMS[dtype, dtype]
    row_bits = {"float16": 32, "float32": 32, "int8": 64}[dtype]
    width = DataType(meta).bits
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (16, 2 * row_bits)).astype(np.uint8)
    E = np.packbits(bits, axis=1, bitorder="little").view(meta)
    operands = {
        "A": ((16, atom.k), dtype),
        "E": ((16, 2 * row_bits // width), meta),
        "B": ((2 * atom.k, 8), dtype),
        "C": ((16, 8), atom.sums),
    }
    buffers = {
        name: as_region(tirx.decl_buffer(shape, kind, name=name, scope="global"))
        for name, (shape, kind) in operands.items()
    }
    op = GemmSp(**buffers)
    for lane, word in enumerate(words_of_the_lanes(op, atom, 1, E)):
        group, thread = lane // 4, lane % 4
        for bit in range(32):
            if row_bits == 32:  # two lanes, each half of two rows
                row, column = group + bit // 16 * 8, thread % 2 * 16 + bit % 16
            else:  # four lanes, each half of one row
                row, column = group + thread % 2 * 8, thread // 2 * 32 + bit
            assert int(word) >> bit & 1 == bits[row, row_bits + column]
