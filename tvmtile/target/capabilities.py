"""Capabilities of targets: the one place that asks for an architecture's number."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm.target import Target, codegen

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import UnknownTarget
from tvmtile.ir.threads import MAX_THREADS, WARP_SIZE


@dataclass(frozen=True)
class CpuCapability:
    """The vector registers of a CPU."""

    vector_bits: int
    """Width of a vector register."""
    vector_registers: int
    """How many of them there are."""
    truncates_masked: bool = False
    """LLVM has an instruction that truncates elements and stores those of a mask."""
    dots: tuple[str, ...] = ()
    """Its dot products of narrow elements, names of `tvmtile.codegen.llvm_dots`."""
    tiles: tuple[str, ...] = ()
    """Its products of tiles, names of `tvmtile.codegen.llvm_tiles`."""
    matrices: tuple[str, ...] = ()
    """Its products of pairs of rows and columns, names of `tvmtile.codegen.llvm_dots`."""

    def lanes(self, bits: int) -> int:
        """Elements of `bits` bits in a vector register."""
        return max(1, self.vector_bits // max(8, bits))


# Most specific first. TVM's llvm_get_vector_width answers 512 for every x86-64 target, so the
# features that LLVM derives from triple, mcpu and mattr are asked instead.
_CPU_BY_FEATURE = (
    ("avx512f", CpuCapability(512, 32, truncates_masked=True)),
    ("avx", CpuCapability(256, 16)),
    ("sse2", CpuCapability(128, 16)),
    ("neon", CpuCapability(128, 32)),
)


_CPU_DOTS: dict[str, dict[str, tuple[str, ...]]] = {
    "avx512f": {"avx512bf16": ("vdpbf16ps",), "avx512vnni": ("vpdpbusd",)},
    "avx": {"avxvnni": ("vpdpbusd",), "avxvnniint8": ("vpdpbssd", "vpdpbuud")},
    "neon": {"bf16": ("bfdot",), "dotprod": ("sdot", "udot"), "i8mm": ("usdot",)},
}
"""By the feature of the vectors, the features with dot products."""


_CPU_TILES: dict[str, dict[str, tuple[str, ...]]] = {
    "avx512f": {
        "amx-bf16": ("tdpbf16ps",),
        "amx-int8": ("tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud"),
    },
}
"""And those with products of tiles."""


_CPU_MATRICES: dict[str, dict[str, tuple[str, ...]]] = {
    "neon": {"bf16": ("bfmmla",), "i8mm": ("smmla", "ummla", "usmmla")},
}
"""And of pairs of rows and columns."""


def cpu(target: Target) -> CpuCapability:
    """The vector registers of a target of kind `llvm`."""
    for feature, capability in _CPU_BY_FEATURE:
        if codegen.target_has_features(feature, target):
            tables = (_CPU_DOTS, _CPU_TILES, _CPU_MATRICES)
            dots, tiles, matrices = (_names(table.get(feature, {}), target) for table in tables)
            return replace(capability, dots=dots, tiles=tiles, matrices=matrices)
    return CpuCapability(128, 16)  # LLVM splits 128-bit vectors where there are none


def _names(instructions: Mapping[str, tuple[str, ...]], target: Target) -> tuple[str, ...]:
    """The instructions of a table by features that a target has."""
    has = (names for f, names in instructions.items() if codegen.target_has_features(f, target))
    return tuple(itertools.chain(*has))


@dataclass(frozen=True)
class GpuCapability:
    """The limits of a block of a GPU, and the instructions that it has."""

    name: str
    """The target, as messages show it."""
    group_size: int
    """Threads that execute together: a warp, a simdgroup."""
    max_threads: int
    """Threads of a block."""
    shared_memory: int
    """Bytes of shared memory that a block may opt into."""
    most_blocks: int = 2**31 - 1
    """Blocks of a grid in y and in z."""
    shared_alignment: int = 16
    """Bytes: a shared tile begins at a multiple of it. The widest access asks for 16; on CUDA,
    where swizzled rows repeat after 128 bytes, a tile begins where they do.
    """
    lacks: tuple[str, ...] = ()
    """Dtypes that it can't compute with."""
    has_matmul2d: bool = False
    """Whether it multiplies matrices by Metal 4's `matmul2d`, on units of their own."""
    compute_capability: int = 0
    """Of an NVIDIA GPU its architecture's number, which messages show; 0 of others."""
    stores_matrices: bool = False
    """Whether a warp stores matrices from registers to shared memory together (`stmatrix`)."""
    has_async_copies: bool = False
    """Whether elements move from global to shared memory while threads go on (`cp.async`)."""
    has_bulk_copies: bool = False
    """Whether boxes of tensors move at once between global and shared memory, as tensor maps
    describe them, and mbarriers count the bytes (TMA).
    """
    has_clusters: bool = False
    """Whether neighbouring blocks may be launched together."""
    multiprocessors: int = 0
    """How many blocks run at once that fill one each; 0 where that is not known. A GPU with another
    number of them is not as well used.
    """
    moves_rows: bool = False
    """Whether a bulk copy takes four rows that indices name (`gather4`, `scatter4`)."""
    has_warpgroup_products: bool = False
    """Whether 128 threads together start products of matrices in shared memory (`wgmma`)."""
    overlaps_launches: bool = False
    """Whether a kernel may begin while the one before it in a stream ends (`griddepcontrol`)."""
    max_buffers: int | None = None
    """Tensors that a kernel takes, its scalars counted as one; None: as many as there are."""
    runs_blocks_at_once: bool = False
    """Whether a launch can have all blocks of a grid run at the same time, so that they may wait
    for each other.
    """
    shuffles_some_lanes: bool = False
    """Whether lanes of a warp may exchange values while others do something else."""
    named_barriers: int = 0
    """Barriers of a block that any of its warps may wait at, that of the whole block among them."""
    vectors: tuple[tuple[int, int], ...] = ()
    """The bits of elements, and how many of them the widest vector has that TVM's generator prints.
    """

    def why_no_factors(self, dtype: str) -> str | None:
        """The reason why no warps multiply factors of a dtype (`mma.sync`); None where they do."""
        since, own = _CUDA_MATRIX_DTYPES.get(dtype), self.compute_capability
        if since is None or not own:
            return f"{self.name} has no mma.sync of {dtype}"
        return None if since <= own else f"{dtype} needs sm_{since}, the target is sm_{own}"


# KB of shared memory of a block: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability".
_CUDA_SHARED_KB = {
    "sm_70": 96,
    "sm_72": 96,
    "sm_75": 64,
    "sm_80": 163,
    "sm_86": 99,
    "sm_87": 163,
    "sm_89": 99,
    "sm_90": 227,
    "sm_100": 227,
    "sm_103": 227,
    "sm_120": 99,
}
_CUDA_LETTERS = {"sm_90": "a", "sm_100": "af", "sm_103": "af", "sm_120": "af"}
ARCHITECTURES = tuple(
    f"{name}{letter}" for name in _CUDA_SHARED_KB for letter in ("", *_CUDA_LETTERS.get(name, ""))
)
"""Of NVIDIA's GPUs, with the letters that give access to instructions of one, or of its family."""
_CUDA_MATRIX_DTYPES = {
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64", "int8", "uint8"), 80),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 89),
}
"""The dtypes of factors that NVIDIA's matrix units have, and the first architecture with each."""
_CUDA_WITH_WARPGROUP_PRODUCTS = ("sm_90a",)
"""Not `sm_90`, whose code runs on later architectures, which have no `wgmma`."""
_MOVE_ROWS = ("sm_100a", "sm_100f", "sm_103a", "sm_103f")
_MULTIPROCESSORS = {90: 132, 100: 148}
"""Of H100 SXM, H200 and B200."""
_ARCH_WITHOUT_GPU = "sm_50"
"""TVM's architecture of `Target("cuda")` where there is no GPU."""

HALF_BYTES = ("int4", "uint4")
"""Integers that no memory holds one by one; GPUs do not compute with them either."""

METAL4_KEY = "metal4"
"""A key that says what no option of TVM's does: the GPU is an M5 or later, and runs Metal 4."""
# Metal Feature Set Tables, family Apple7 on; Metal Shading Language Specification, "Scalar Data Types".
_METAL = GpuCapability(
    "Metal",
    WARP_SIZE,
    MAX_THREADS,
    32 * 1024,
    lacks=("float64", *HALF_BYTES),
    max_buffers=31,
    vectors=tuple((bits, 4) for bits in (8, 16, 32, 64)),
)
_METAL4 = replace(_METAL, name="Metal 4", has_matmul2d=True)
CUDA_MOST_BLOCKS = 65_535
"""Of a grid in y and in z."""
CUDA_NAMED_BARRIERS = 16
"""PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier"."""


def compute_capability(target: Target) -> int:
    """The number of an NVIDIA architecture: 90 for `sm_90a`."""
    return int(str(target.attrs["arch"]).removeprefix("sm_").rstrip("af"))


def gpu(target: Target | None) -> GpuCapability | None:
    """The capability of a target for blocks, or None for a target that is no GPU, or not known.

    Raises
    ------
    UnknownTarget
        If it is a CUDA architecture whose limits are not known.
    """
    if target is None:
        return None
    if target.kind.name == "metal":
        return _METAL4 if METAL4_KEY in target.keys else _METAL
    if target.kind.name != "cuda":
        return None
    arch = str(target.attrs.get("arch", ""))
    if arch == _ARCH_WITHOUT_GPU and not has_gpu():
        raise no_gpu()
    if arch not in ARCHITECTURES:
        raise UnknownTarget(
            f"the limits of the CUDA architecture {arch!r} are not known",
            help=f"the architectures are {', '.join(ARCHITECTURES)}",
        )
    number = compute_capability(target)
    return GpuCapability(
        f"CUDA {arch}",
        WARP_SIZE,
        MAX_THREADS,
        _CUDA_SHARED_KB[arch.rstrip("af")] * 1024,
        lacks=HALF_BYTES if number >= 80 else ("bfloat16", *HALF_BYTES),
        most_blocks=CUDA_MOST_BLOCKS,
        shared_alignment=128,
        compute_capability=number,
        stores_matrices=number >= 90,
        has_async_copies=number >= 80,
        has_bulk_copies=number >= 90,
        has_clusters=number >= 90,
        multiprocessors=_MULTIPROCESSORS.get(number, 0),
        moves_rows=arch in _MOVE_ROWS,
        has_warpgroup_products=arch in _CUDA_WITH_WARPGROUP_PRODUCTS,
        overlaps_launches=number >= 90,
        runs_blocks_at_once=True,
        shuffles_some_lanes=True,
        named_barriers=CUDA_NAMED_BARRIERS,
        vectors=((8, 16), (16, 8), (32, 8), (64, 4)),
    )


def no_gpu() -> UnknownTarget:
    """The error that this machine has no GPU of NVIDIA's."""
    # TVM compiles for sm_50 then, which has no tensor cores, and says so in its log only.
    return UnknownTarget(
        "target 'cuda' is the GPU of this machine, and no NVIDIA GPU is found here",
        help='target="sm_90a" compiles for one that is elsewhere, and with execution_backend='
        f'"emulator" runs here; the architectures are {", ".join(ARCHITECTURES)}',
    )
