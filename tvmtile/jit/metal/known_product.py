"""A product whose result is known: whether a GPU holds the elements of `matmul2d` where kernels do.

Apple does not promise which lane holds which element of a cooperative tensor, and where it is another
one than `tvmtile.tileop.gemm.matmul2d` says, results are wrong without a word.
"""

from __future__ import annotations

import functools
from typing import Any

from tvmtile.codegen.metal import MATMUL2D
from tvmtile.errors import NoLowering, import_optional

_ROWS, _COLUMNS, _LANES = 16, 32, 32


def check_matmul2d(source: str, device: str) -> None:
    """Compute the product, once, if a kernel multiplies by `matmul2d`.

    Raises
    ------
    NoLowering
        If the result is another one.
    """
    if MATMUL2D in source and not _is_right(device):
        raise NoLowering(
            "this GPU, or its compiler, holds the elements of matmul2d elsewhere than kernels for "
            "Metal 4 do: a product came out wrong",
            help='compile for target="metal"',
        )


@functools.cache
def _is_right(device: str) -> bool:
    torch: Any = import_optional("torch", "torch", "execution_backend='torch'")
    name, source = _kernel()
    generator = torch.Generator().manual_seed(0)
    # Sums of small integers are exact, and no row or column is another one.
    a, b = (torch.randint(-8, 8, (_ROWS, n), generator=generator) for n in (_ROWS, _COLUMNS))
    result = torch.zeros(_ROWS, _COLUMNS, device=device)
    product = getattr(torch.mps.compile_shader(source), name)
    threads = [_LANES, 1, 1]
    given = (x.to(device, torch.float16) for x in (a, b))
    product(*given, result, threads=threads, group_size=threads)
    return bool(torch.equal(result.cpu(), (a @ b).float()))


def _kernel() -> tuple[str, str]:
    """The name of the kernel, and its source."""
    import tvmtile.language as T
    from tvmtile.jit.compiler import compile

    @T.prim_func
    def known_product(
        A: T.Tensor((_ROWS, _ROWS), "float16"),
        B: T.Tensor((_ROWS, _COLUMNS), "float16"),
        C: T.Tensor((_ROWS, _COLUMNS), "float32"),
    ) -> None:
        with T.Kernel(1, threads=_LANES):
            total = T.alloc_fragment((_ROWS, _COLUMNS), "float32")
            T.gemm(A, B, total, clear_accum=True)
            T.copy(total, C)

    kernel: Any = compile(known_product, target="metal4", execution_backend="torch")
    ((name, source),) = kernel.adapter.sources.items()
    return name, source
