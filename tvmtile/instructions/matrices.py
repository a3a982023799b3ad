"""The 8x8 matrices of words that `ldmatrix`, `stmatrix` and `movmatrix` move.

Lane `l` holds word `l % 4` of row `l // 4` in one register; with `.trans` the elements of 16 bits at
the mirrored places (PTX ISA, "ldmatrix", "stmatrix", "movmatrix").
"""

from __future__ import annotations

from tvmtile.layout.fragment import REGISTER, THREAD, Digit

MATRIX_ROWS = 8
"""Rows of a matrix, of 16 bytes each."""
MATRICES = 4
"""Matrices that an instruction moves at most."""
ALONG_ROWS = ((Digit(8, THREAD, 4),), (Digit(4, THREAD, 1), Digit(2, REGISTER, 1)))
"""Where elements of 16 bits lie: the digits of rows and of columns."""
ALONG_COLUMNS = ALONG_ROWS[::-1]
"""The same with `.trans`."""
