"""Transfers, copies and products of tensor memory against their maps (`tensor_memory.cu`)."""

import itertools
from functools import cache

import numpy as np
import pytest
from tvm.backend.cuda.ptx.table import TABLE

from tests.emulator.cuda.sources import with_mbarriers
from tvmtile.emulator.cuda import compile_cuda
from tvmtile.emulator.cuda.instructions import ROWS
from tvmtile.errors import CudaEmulationError
from tvmtile.instructions.tensor_memory import COPIES, DATAPATHS, TRANSFERS

LANES, COLUMNS, HALF = 128, 128, 16384
SPLIT = 24
FORMS = {
    "f16": "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;",
    "of some lanes": "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, {%5, %5, %6, %6}, p;",
    "scaled": "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p, 3;",
    "A in tensor memory": "tcgen05.mma.cta_group::1.kind::f16 [%0], [%5], %2, %3, p;",
    "stationary": "tcgen05.mma.ws.cta_group::1.kind::f16 [%0], %1, %2, %3, p;",
    "f8f6f4": "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], %1, %2, %3, p;",
    **{copy.name: f"tcgen05.cp.cta_group::1.{copy.name} [%0], %1;" for copy in COPIES},
}
LEFT = 0x0000FFFF  # lanes that a product leaves alone, of each 32 of the first 64
A_COLUMN = 96


def transfer(name, count, packs):
    """A kernel that loads what tensor memory has by a shape, and stores it back elsewhere."""
    shape = TRANSFERS[name]
    registers = count * len(shape.places[0])
    listed = ", ".join(f"%{i}" for i in range(registers))
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(registers))
    inputs = outputs.replace('"=r"', '"r"')
    split = f", {SPLIT}" if shape.is_split else ""
    pack, unpack = (".pack::16b", ".unpack::16b") if packs else ("", "")
    suffix = f"sync.aligned.{name}.x{count}"
    number = list(TRANSFERS).index(name)
    return (
        f'extern "C" __global__ void transfer_{number}_{count}_{int(packs)}'
        "(unsigned* out, unsigned* words) {\n"
        f"  with_tensor_memory(out, {COLUMNS}, false, [&](unsigned, unsigned own) {{\n"
        f"    unsigned r[{registers}];\n"
        f'    asm volatile("tcgen05.ld.{suffix}{pack}.b32 {{{listed}}}, [%{registers}]{split};"'
        f' : {outputs} : "r"(own));\n'
        "    wait_ld();\n"
        f"    for (int i = 0; i < {registers}; ++i) words[threadIdx.x * {registers} + i] = r[i];\n"
        f'    asm volatile("tcgen05.st.{suffix}{unpack}.b32 [%{registers}]{split}, {{{listed}}};"'
        f' : : {inputs}, "r"(own + 64));\n'
        "    wait_st();\n  });\n}\n"
    )


CHOSEN = [(name, count, packs) for name in TRANSFERS for count in (1, 2) for packs in (False, True)]


@cache
def module():
    source = with_mbarriers("tensor_memory.cu")
    cases = "\n".join(
        f'  if (form == {i}) asm volatile("{{ .reg .pred p; setp.ne.b32 p, %4, 0; {text} }}"'
        f' : : "r"(to), "l"(a), "l"(b), "r"(what), "r"(adds), '
        f'"r"({f"to + {A_COLUMN}" if "[%5]" in text else f"{LEFT}u"}), "r"(0u) : "memory");'
        for i, text in enumerate(FORMS.values())
    )
    run = (
        "__device__ void run(int form, unsigned to, unsigned long long a, unsigned long long b,\n"
        f"                    unsigned what, int adds) {{\n{cases}\n}}\n"
    )
    transfers = "\n".join(transfer(*chosen) for chosen in CHOSEN)
    return compile_cuda(source.replace("TRANSFERS", transfers + run), arch="sm_100a")


@pytest.mark.full(but=2)
@pytest.mark.parametrize(("name", "count", "packs"), CHOSEN)
def test_transfers_move_what_their_maps_say(name, count, packs):
    shape = TRANSFERS[name]
    each = len(shape.places[0])
    out, words = np.zeros((LANES, COLUMNS), np.uint32), np.zeros((LANES, count * each), np.uint32)
    number = list(TRANSFERS).index(name)
    kernel = module().kernel(f"transfer_{number}_{count}_{int(packs)}")
    kernel(out, words, grid=1, block=LANES)
    had = np.arange(LANES, dtype=np.uint32)[:, None] << 16 | np.arange(COLUMNS, dtype=np.uint32)
    stored = had.copy()
    width = 1 + packs
    for thread in range(LANES):
        for i in range(count * each):
            lane, column = shape.places[thread % 32][i % each]
            half = shape.is_split and column
            column = (0 if shape.is_split else column) + i // each * shape.columns
            lane, column = lane + thread // 32 * 32, column * width + SPLIT * bool(half)
            word = had[lane, column]
            if packs:
                word = word & 0xFFFF | had[lane, column + 1] << 16
                stored[lane, 64 + column + 1] = had[lane, column + 1] & 0xFFFF
            stored[lane, 64 + column] = word & 0xFFFF if packs else word
            assert words[thread, i] == word
    np.testing.assert_array_equal(out, stored)


def k_major(values):
    """Rows along K, in groups of eight, without a swizzle; and its strides, in 16 bytes."""
    rows, data = values.shape[0], np.ascontiguousarray(values).view(np.uint8)
    chunks = data.reshape(rows // 8, 8, -1, 16).transpose(2, 0, 1, 3)
    return chunks.tobytes(), rows, 8


def mn_major(values):
    """Eight elements along the rows, in eight steps of K, without a swizzle."""
    rows, k = values.shape
    chunks = values.reshape(rows // 8, 8, k // 8, 8).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(chunks).tobytes(), rows, 8


def narrow(codes, bits):
    """16 elements of less than 8 bits in each 16 bytes, and the rest of these unused."""
    rows, k = codes.shape
    places = codes[:, :, None] >> np.arange(bits) & 1
    packed = np.packbits(places.reshape(rows, k // 16, -1).astype(np.uint8), -1, bitorder="little")
    return np.pad(packed, ((0, 0), (0, 0), (0, 16 - packed.shape[-1]))).reshape(rows, -1)


FILLED = np.arange(LANES * COLUMNS, dtype=np.float32).reshape(LANES, COLUMNS)


def multiplied(form, a, b, what, *, adds=0, a_column=0):
    """All of tensor memory's first columns behind an instruction."""
    (a_bytes, a_step, a_group), (b_bytes, b_step, b_group) = a, b
    data = np.zeros(2 * HALF, np.uint8)
    data[: len(a_bytes)] = np.frombuffer(a_bytes, np.uint8)
    data[HALF : HALF + len(b_bytes)] = np.frombuffer(b_bytes, np.uint8)
    out = np.zeros((LANES, COLUMNS), np.float32)
    numbers = (list(FORMS).index(form), what, a_step, b_step, a_group, b_group, 0, adds, a_column)
    kernel = module().kernel("multiply")
    kernel(data, out.view(np.uint32), *numbers, grid=1, block=LANES)
    return out


def told(m, n, sums=1, **bits):
    names = {"a_type": 7, "b_type": 10, "a_negated": 13, "a_outer": 15, "b_outer": 16}
    return m >> 4 << 24 | n >> 3 << 17 | sums << 4 | sum(v << names[k] for k, v in bits.items())


def integers(*extents, dtype=np.float16):
    return np.random.default_rng(0).integers(-3, 4, extents).astype(dtype)


def expected(product, m, n, *, stationary=False, base=FILLED):
    """Tensor memory behind a product: its sums, and elsewhere what it had."""
    path, after = DATAPATHS[m, 1, stationary], base.copy()
    for i in range(m):
        for j in range(n):
            after[path.place(i, j, n)] = product[i, j]
    return after


@pytest.mark.parametrize(("m", "n"), [(64, 40), (128, 24)])
@pytest.mark.parametrize("outer", [False, True])
def test_sums_lie_where_the_datapath_says(m, n, outer):
    a, b = integers(m, 16), integers(n, 16)
    laid = mn_major if outer else k_major
    what = told(m, n, a_outer=int(outer), b_outer=int(outer))
    np.testing.assert_array_equal(
        multiplied("f16", laid(a), laid(b), what), expected(a.astype(float) @ b.T, m, n)
    )


@pytest.mark.parametrize("m", [32, 64, 128])
def test_stationary_products_split_columns(m):
    a, b = integers(m, 16), integers(64, 16)
    result = multiplied("stationary", k_major(a), k_major(b), told(m, 64))
    np.testing.assert_array_equal(result, expected(a.astype(float) @ b.T, m, 64, stationary=True))


def test_products_negate_and_keep_lanes_and_scale_what_they_add_to():
    a, b = integers(128, 16), integers(64, 16)
    product = a.astype(float) @ b.T
    operands = k_major(a), k_major(b), told(128, 64)
    negated = multiplied("f16", *operands[:2], told(128, 64, a_negated=1))
    np.testing.assert_array_equal(negated, expected(-product, 128, 64))
    added = multiplied("scaled", *operands, adds=1)
    np.testing.assert_array_equal(added, expected(product + FILLED[:, :64] / 8, 128, 64))
    kept = expected(product, 128, 64)
    left = [lane for lane in range(64) if LEFT >> lane % 32 & 1]
    kept[left] = FILLED[left]
    np.testing.assert_array_equal(multiplied("of some lanes", *operands), kept)
    halves = multiplied("f16", *operands[:2], told(128, 64, sums=0)).view(np.uint16)[:, :128]
    np.testing.assert_array_equal(halves[:, ::2].view(np.float16), product)
    assert not halves[:, 1::2].any()


def test_a_may_lie_in_tensor_memory():
    a, b = integers(128, 16), integers(64, 16)
    rows = a.tobytes(), 1, 1
    result = multiplied("A in tensor memory", rows, k_major(b), told(128, 64), a_column=A_COLUMN)
    product = expected(a.astype(float) @ b.T, 128, 64)
    np.testing.assert_array_equal(result[:, :64], product[:, :64])


# Bits, and values by code, of the formats that are mixed with those of 8 bits.
NARROW = {
    5: (4, 1, 2, 1),
    3: (6, 3, 2, 1),
    4: (6, 2, 3, 3),
}  # by number: bits, mantissa, exponent, bias


@pytest.mark.parametrize("number", NARROW)
def test_narrow_floats_are_padded_in_shared_memory(number):
    width, mantissa, exponent, bias = NARROW[number]
    codes = np.random.default_rng(0).integers(0, 1 << width, (128, 32))
    power, rest = (
        codes >> mantissa & (1 << exponent) - 1,
        (codes & (1 << mantissa) - 1) / 2**mantissa,
    )
    values = np.where(power == 0, rest * 2.0 ** (1 - bias), (1 + rest) * 2.0 ** (power - bias))
    values = np.where(codes >> width - 1, -values, values)
    b = np.random.default_rng(1).choice([0x00, 0x38, 0x40, 0xB8], (64, 32)).astype(np.uint8)
    b_values = np.select([b == 0x38, b == 0x40, b == 0xB8], [1.0, 2.0, -1.0], 0.0)
    operands = k_major(narrow(codes, width)), k_major(b)
    result = multiplied("f8f6f4", *operands, told(128, 64, a_type=number))
    np.testing.assert_array_equal(result, expected(values @ b_values.T, 128, 64))


@pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.name)
def test_copies_reach_the_lanes_of_their_map(copy):
    words = copy.bits // 32
    rows = np.random.default_rng(0).integers(1, 1000, (max(copy.rows, 8), words)).astype(np.float32)
    result = multiplied(copy.name, k_major(rows), (b"", 1, 1), 0)
    after = FILLED.copy()
    for row, lanes in enumerate(copy.lanes):
        after[list(lanes), :words] = rows[row]
    np.testing.assert_array_equal(result, after)


P = "alloc(&p); __syncwarp(); "
MISTAKES = {
    P + "store(p + (1 << 21), 1);": "from lane 32 on, by a warp that has lanes 0 to 32",
    P + "load(p + 512);": "column 512 of tensor memory, which is not allocated",
    P + "load(p + 7);": "reads lane 0, column 7 of tensor memory, which no thread",
    P + "store(p, 1); load(p);": "race: tcgen05.ld .* reads lane 0, column 0",
    P + "store(p, 1); wait_ld(); load(p);": "race: tcgen05.ld .* reads lane 0",
    "alloc(&p); alloc(&p);": "deadlock: thread .* waits in tcgen05.alloc",
    "RELINQUISH alloc(&p);": "gave up the right to allocate",
    "SMALL alloc(&p);": "more columns than the one before it",
    "ODD": "no power of 2 from 32 to 512",
    "PAIR": "a pair of blocks in a cluster of one",
    P + "dealloc(p + 32);": "columns that were not allocated so",
    P + "dealloc(p); load(p);": "column 0 of tensor memory, which is not allocated",
}
ASM = {
    "RELINQUISH": 'asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");',
    "SMALL": 'asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.b32 [%0], 32;" : : "l"(&p));',
    "ODD": 'asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.b32 [%0], 96;" : : "l"(&p));',
    "PAIR": 'asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.b32 [%0], 64;" : : "l"(&p));',
}


def spelled(entry):
    """The names that an entry of TVM's table stands for."""
    choices = (("",) * slot.optional + tuple(slot.choices) for slot in entry.slots)
    for chosen in itertools.product(*choices):
        told = {slot.name: choice for slot, choice in zip(entry.slots, chosen, strict=True)}
        if entry.check is None or entry.check(told) is None:
            yield ".".join((entry.mnemonic, *filter(None, chosen)))


def test_what_tvm_emits_for_blackwell_is_in_the_table():
    entries = [e for e in TABLE.values() if (e.mnemonic, e.cert_arch) == ("tcgen05", "sm_100a")]
    names = set(itertools.chain.from_iterable(map(spelled, entries)))
    missing = names - {row.name for row in ROWS}
    assert len(names) > 300
    assert all(".b8x16." in name for name in missing), sorted(missing)  # copies that decompress


@cache
def mistakes():
    source = with_mbarriers("tensor_memory.cu")
    bodies = "\n".join(f"  if (which == {i}) {{ {body} }}" for i, body in enumerate(MISTAKES))
    for name, text in ASM.items():
        bodies = bodies.replace(name, text)
    kernel = (
        f'extern "C" __global__ void wrong(int which) {{\n  __shared__ unsigned p;\n{bodies}\n}}\n'
    )
    head = source[: source.index("TRANSFERS")]
    return compile_cuda(head + kernel, arch="sm_100a").kernel("wrong")


@pytest.mark.parametrize("which", range(len(MISTAKES)), ids=list(MISTAKES))
def test_what_tensor_memory_forbids_is_an_error(which):
    with pytest.raises(CudaEmulationError, match=list(MISTAKES.values())[which]):
        mistakes()(which, grid=1, block=32)


def test_the_address_of_an_allocation_is_that_of_each_warps_lanes():
    source = r"""
extern "C" __global__ void kernel_(unsigned* out) {
  __shared__ unsigned place;
  const unsigned own = threadIdx.x / 32 << 21;
  unsigned x;
  if (threadIdx.x < 32)
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;"
                 : : "r"((unsigned)__cvta_generic_to_shared(&place)) : "memory");
  __syncthreads();
  asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};"
               : : "r"(place + (own << 0)), "r"(threadIdx.x) : "memory");
  asm volatile("tcgen05.wait::st.sync.aligned;" : : : "memory");
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(x) : "r"(place));
  asm volatile("tcgen05.wait::ld.sync.aligned;" : : : "memory");
  out[threadIdx.x] = x;
  __syncthreads();
  if (threadIdx.x < 32)
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" : : "r"(place) : "memory");
}"""
    out = np.zeros(128, np.uint32)
    compile_cuda(source, arch="sm_100a").kernel("kernel_")(out, grid=1, block=128)
    assert out.tolist() == [*range(128)]
