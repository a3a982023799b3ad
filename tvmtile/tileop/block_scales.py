"""Scales of blocks of narrow floats: `T.e8m0_to_float`, and how the scales of an operand lie.

The formats are those of OCP's Microscaling Formats (MX) 1.0, of NVFP4, and float32 scales of 1x128 and
128x128 blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile.errors import InvalidValue, UnsupportedDtype
from tvmtile.frontend.dtypes import as_dtype, cast
from tvmtile.frontend.values import as_expr, ceildiv

__all__ = ["BlockScaledLayout", "e8m0_to_float"]


_E8M0 = "float8_e8m0fnu"


_FLOATS = ("float16", "bfloat16", "float32")


_SCALES = (_E8M0, "uint8", "float8_e4m3fn", *_FLOATS)


_BLOCKS = (16, 32, 64, 128)


_ROWS = (1, 128)


def e8m0_to_float(byte: Any, zero_codes: bool = False) -> ir.Expr:
    """The float32 value of a scale without sign and mantissa, `2^(byte - 127)`.

    The byte is of uint8 or float8_e8m0fnu. 0xFF is NaN and 0 is 2^-127 (OCP MX 1.0); with `zero_codes`,
    the other convention in use, both are 0.

    Raises
    ------
    InvalidValue
        If a constant is not within 0 to 255.
    UnsupportedDtype
        If it is of another dtype.
    """
    if isinstance(byte, int) and not 0 <= byte <= 0xFF:
        raise InvalidValue(f"T.e8m0_to_float: {byte} is no byte", help="the codes are 0 to 255")
    code = tirx.const(byte, "uint8") if isinstance(byte, int) else as_expr(byte)
    if str(code.ty.dtype) == _E8M0:
        code = tirx.reinterpret("uint8", code)
    if str(code.ty.dtype) != "uint8":
        raise UnsupportedDtype(
            f"T.e8m0_to_float: {code} is of {code.ty.dtype}",
            help=f"a code is of uint8 or {_E8M0}",
        )
    value = tirx.Cast("float32", tirx.reinterpret(_E8M0, code))
    if not zero_codes:
        return value
    # 0xFF + 1 is 0: both codes are at most 1 then.
    is_zero = code + tirx.const(1, "uint8") <= tirx.const(1, "uint8")
    return tirx.Select(is_zero, tirx.const(0, "float32"), value)


@dataclass(frozen=True)
class BlockScaledLayout:
    """The layout of scales: one for each block along the axis that is summed over.

    A is (M, K) and its scales are (M, K / block_size); B's are (N, K / block_size), whichever way B is
    stored. An operand whose rows all have the same scales may have those of one row, (K / block_size,).

    Attributes
    ----------
    scale_dtype : str
        Of the scales. A uint8 is the code of a float8_e8m0fnu.
    block_size : int
        Elements along K that share a scale; the last block may be shorter.
    a_rows, b_rows : int
        Rows of A, and columns of A @ B, that share a scale. With 128 of B, 1 of A and blocks of 128,
        these are DeepSeek's: 1x128 of A, 128x128 of B.
    zero_codes : bool
        The convention of e8m0 scales, see `e8m0_to_float`.

    Raises
    ------
    InvalidValue
        If there is no such layout; the message says what is allowed.

    Examples
    --------
    >>> layout = BlockScaledLayout.e8m0_k32()
    >>> layout.a_scale_shape(300, 128), layout.scale_index(96)
    ((300, 4), 3)
    >>> BlockScaledLayout("float32", 128, b_rows=128).b_scale_shape(512, 1024)
    (4, 8)
    """

    scale_dtype: str = _E8M0
    block_size: int = 32
    a_rows: int = 1
    b_rows: int = 1
    zero_codes: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale_dtype", str(as_dtype(self.scale_dtype)))
        _check("scale_dtype", self.scale_dtype, _SCALES)
        _check("block_size", self.block_size, _BLOCKS)
        _check("a_rows", self.a_rows, _ROWS)
        _check("b_rows", self.b_rows, _ROWS)
        if self.zero_codes and not self.is_e8m0:
            raise InvalidValue(
                f"BlockScaledLayout: zero_codes with scales of {self.scale_dtype}",
                help=f"only scales of {_E8M0} (or their codes, uint8) have codes that may be zero",
            )

    @classmethod
    def e8m0_k32(cls, zero_codes: bool = False) -> BlockScaledLayout:
        """The scales of MXFP8 and MXFP4: powers of two for blocks of 32."""
        return cls(_E8M0, 32, zero_codes=zero_codes)

    @classmethod
    def nvfp4_k16(cls) -> BlockScaledLayout:
        """The scales of NVFP4: float8_e4m3fn for blocks of 16."""
        return cls("float8_e4m3fn", 16)

    @property
    def is_e8m0(self) -> bool:
        """Tell whether the scales are powers of two without sign."""
        return self.scale_dtype in (_E8M0, "uint8")

    def scale_blocks(self, K: Any) -> Any:
        """Blocks along an axis of `K` elements."""
        return ceildiv(K, self.block_size)

    def scale_index(self, k: Any) -> Any:
        """The block of the element `k` of the axis."""
        return k // self.block_size

    def a_scale_shape(self, M: Any, K: Any) -> tuple[Any, Any]:
        """The shape of the scales of A, (M, K)."""
        return ceildiv(M, self.a_rows), self.scale_blocks(K)

    def b_scale_shape(self, N: Any, K: Any) -> tuple[Any, Any]:
        """The shape of the scales of B, (K, N) or (N, K)."""
        return ceildiv(N, self.b_rows), self.scale_blocks(K)

    def decode(self, scale: Any) -> Any:
        """The float32 value of a scale, an element of a tensor of scales."""
        if self.is_e8m0:
            return e8m0_to_float(scale, self.zero_codes)
        return cast(scale, "float32")

    def validate(
        self,
        M: int,
        N: int,
        K: int,
        *,
        a_scale: tuple[Any, Sequence[int]] | None = None,
        b_scale: tuple[Any, Sequence[int]] | None = None,
    ) -> None:
        """Check the dtypes and shapes of scales.

        A scale is its dtype and its shape.

        Raises
        ------
        InvalidValue
            If they do not fit; the message says what is allowed.
        """
        blocks = self.scale_blocks(K)
        for name, scale, shape in (
            ("A", a_scale, self.a_scale_shape(M, K)),
            ("B", b_scale, self.b_scale_shape(N, K)),
        ):
            if scale is not None:
                self._check_scale(name, str(as_dtype(scale[0])), tuple(scale[1]), shape, (blocks,))

    def _check_scale(
        self, name: str, dtype: str, shape: tuple[int, ...], *allowed: tuple[int, ...]
    ) -> None:
        dtypes = (_E8M0, "uint8") if self.is_e8m0 else (self.scale_dtype,)
        if dtype not in dtypes:
            raise InvalidValue(
                f"BlockScaledLayout: the scales of {name} are of {dtype}",
                help=f"this layout has scales of {' or '.join(dtypes)}",
            )
        if shape not in allowed:
            raise InvalidValue(
                f"BlockScaledLayout: the scales of {name} have the shape {shape}",
                help=f"they are {allowed[0]}, or {allowed[1]} for all rows alike",
            )


def _check(name: str, value: object, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise InvalidValue(
            f"BlockScaledLayout: {name}={value!r}",
            help=f"it is one of {', '.join(map(str, allowed))}",
        )
