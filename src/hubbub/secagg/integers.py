"""Whole numbers as a flat list and a shape, and back; and work on a list of them in threads."""

import operator
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz

# Threads or processes that share a piece of work.
MOST_WORKERS = 1024


def whole(name: str, value: object) -> int:
    """A whole number as a Python integer; floats, text and booleans are refused without showing them: they may be secret."""
    try:
        return _index(value)
    except TypeError:
        raise TypeError(
            f"{name} is a {type(value).__name__}: must be a whole number, or a list or NumPy array of them (floats are "
            f"first made whole numbers, by hubbub.secagg.packing)"
        ) from None


def _index(value: Any) -> int:
    """As ``operator.index``, which takes truth values for 0 and 1."""
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def flatten(name: str, values: object) -> tuple[list[int], tuple[int, ...]]:
    """Whole numbers, gmpy2's among them, in C order, and their shape; ``()`` for a single one."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "iuO":
        raise TypeError(f"{name} has dtype {values.dtype}: must be whole numbers, such as int64")
    if not isinstance(values, list | tuple | np.ndarray):
        return [whole(name, values)], ()
    try:
        array = np.array(values, dtype=object)
    except ValueError:
        raise TypeError(f"{name} is a list of lists of different lengths: must have one shape") from None
    flat = array.ravel().tolist()
    try:
        return [_index(value) for value in flat], array.shape
    except TypeError:
        return [whole(where(name, i, array.shape), value) for i, value in enumerate(flat)], array.shape


def where(name: str, index: int, shape: tuple[int, ...]) -> str:
    """``values[2, 0]``, the name of an entry by its place in C order."""
    if not shape:
        return name
    return f"{name}[{', '.join(str(int(i)) for i in np.unravel_index(index, shape))}]"


def nest(flat: Iterable[int], shape: Sequence[int]) -> Any:
    """Lists of lists of the given shape; for the shape ``()`` the only number."""
    return np.array(list(flat), dtype=object).reshape(shape).tolist()


def in_threads(work: Callable[[list[mpz]], list[mpz]], numbers: list[mpz], threads: int) -> list[mpz]:
    """The results of all numbers in order; GMP's longer calls run in parallel."""
    if min(threads, len(numbers)) < 2:
        return work(numbers)

    def released(part: list[mpz]) -> list[mpz]:
        # A gmpy2 context of each thread: without it only calls on whole lists release Python's lock.
        with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
            return work(part)

    size = -(-len(numbers) // threads)
    parts = [numbers[i : i + size] for i in range(0, len(numbers), size)]
    with ThreadPoolExecutor(len(parts)) as pool:
        return [result for part in pool.map(released, parts) for result in part]
