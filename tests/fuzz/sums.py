"""Sums of floats in any order: how far they may be from the sum without rounding."""

from __future__ import annotations

import numpy as np

from tests.fuzz.values import EPSILON, Value, cast, is_float, rounded

__all__ = ["is_coarse", "order_error", "sum_of", "summed_in"]

_QUANTUM = 2.0**-10


def summed_in(dtype: str) -> str:
    """Floats narrower than 32 bits are summed in float32."""
    return dtype if not is_float(dtype) or dtype == "float64" else "float32"


def is_coarse(data: np.ndarray) -> np.ndarray:
    """Numbers that are multiples of one quantum, so that their sums are exact as long as they fit."""
    return np.rint(data / _QUANTUM) * _QUANTUM == data


def order_error(
    absolute: np.ndarray, error: np.ndarray, coarse: np.ndarray, count: np.ndarray | int, via: str
) -> np.ndarray:
    """The error of roundings in sums of `count` terms, in the order that gives most.

    Parameters
    ----------
    absolute, error, coarse : ndarray
        Of each sum: the sum of its terms' absolute values, that of their errors, and whether all terms
        are multiples of the quantum.
    count : ndarray or int
        How many terms it has.
    via : str
        The dtype in which it is taken.
    """
    fits = coarse & (error == 0) & (absolute / _QUANTUM < 2 / EPSILON[via])
    return np.where(fits, 0.0, np.asarray(count) * EPSILON[via] * (absolute + error))


def sum_of(terms: Value, axis: int, dtype: str) -> Value:
    """The sum along an axis, rounded to `dtype` at its end.

    Products and narrow floats are summed in float32.
    """
    data, error = terms.data, np.broadcast_to(terms.error, terms.data.shape)
    via = summed_in(terms.dtype)
    total, errors = data.sum(axis=axis), error.sum(axis=axis)
    if not is_float(via):
        return cast(rounded(total, errors, via), dtype)
    absolute = np.abs(data).sum(axis=axis)
    coarse = is_coarse(data).all(axis=axis)
    errors = errors + order_error(absolute, errors, coarse, data.shape[axis], via)
    result = rounded(total, errors, via) if via == dtype else Value(total, errors, via)
    return cast(result, dtype)
