"""Argument checks that name the argument, show its value and state the rule.

Each returns the value in plain Python form, so that a checked number is a ``float`` or an ``int`` from here on: some
accountants do not take ``numpy.float32`` or ``int`` for ``float``, and NaN compares with nothing.
"""

import difflib
import math
import numbers
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_LARGEST_ENTRY = 1e100
# Of a value in a message.
_LONGEST = 100
_DIGEST = re.compile(r"[0-9a-f]{64}")


def shown(value: object) -> str:
    """The value for a message, cut to its beginning if it is long."""
    try:
        text = repr(value).replace("\n", " ")
    except ValueError:
        # Python does not print whole numbers of thousands of digits.
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else object.__repr__(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def finite(name: str, value: object) -> float:
    """Any finite real number."""
    if type(value) is not float and (isinstance(value, bool | np.timedelta64) or not isinstance(value, numbers.Real)):
        raise TypeError(f"{name} = {shown(value)}: must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} = {shown(value)}: must be finite")
    return number


def plain_numbers(spec: object, **checks: Callable[[str, object], object]) -> None:
    """Put Python's numbers in place of others in a new frozen dataclass, some by a check of theirs, and tuples for lists.

    NumPy's wrap and round to few digits, and neither they nor fractions are JSON; a list is still its caller's. What is
    ``None`` by default may be ``None``.
    """
    for name, value in list(vars(spec).items()):
        if name in checks and (value is not None or getattr(type(spec), name, checks) is not None):
            object.__setattr__(spec, name, checks[name](name, value))
        elif type(value) is not bool and isinstance(value, numbers.Integral):
            object.__setattr__(spec, name, int(value))
        elif isinstance(value, np.floating | Fraction):
            object.__setattr__(spec, name, float(value) if isinstance(value, np.floating) else finite(name, value))
        elif isinstance(value, list):
            object.__setattr__(spec, name, tuple(value))


def number(name: str, value: object, holds: Callable[[float], bool], rule: str) -> float:
    """A finite number that holds to a rule, such as "be above 0"."""
    found = finite(name, value)
    if not holds(found):
        raise ValueError(f"{name} = {shown(value)}: must {rule}")
    return found


def positive(name: str, value: object) -> float:
    """A finite number above zero."""
    return number(name, value, lambda x: x > 0, "be above 0")


def scale(name: str, value: object) -> float:
    """A number from 1e-12 to 1e12, the range in which float64 computes guarantees.

    Example:
        >>> scale("noise_multiplier", 1e20)
        Traceback (most recent call last):
        ValueError: noise_multiplier = 1e+20: must be from 1e-12 to 1e12
    """
    positive(name, value)
    return number(name, value, lambda x: 1e-12 <= x <= 1e12, "be from 1e-12 to 1e12")


def non_negative(name: str, value: object) -> float:
    """A finite number, zero allowed."""
    return number(name, value, lambda x: x >= 0, "not be negative")


def open_unit(name: str, value: object) -> float:
    """A number strictly between 0 and 1, such as delta."""
    return number(name, value, lambda x: 0 < x < 1, "lie strictly between 0 and 1")


def probability(name: str, value: object) -> float:
    """A number above 0 and at most 1, such as a sampling probability."""
    return number(name, value, lambda x: 0 < x <= 1, "be above 0 and at most 1")


def integer(name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
    """A whole number in a range."""
    # The slow check of kinds is skipped for int: a ledger has millions. Spans of time are whole numbers to NumPy.
    if type(value) is not int and (isinstance(value, bool | np.timedelta64) or not isinstance(value, numbers.Integral)):
        raise TypeError(f"{name} = {shown(value)}: must be a whole number, not {type(value).__name__}")
    number = int(value)
    if number < at_least:
        raise ValueError(f"{name} = {shown(value)}: must be at least {at_least}")
    if at_most is not None and number > at_most:
        raise ValueError(f"{name} = {shown(value)}: must be at most {at_most}")
    return number


def positive_integer(name: str, value: object) -> int:
    """A whole number of at least 1."""
    return integer(name, value, at_least=1)


def rounds_count(name: str, value: object) -> int:
    """A number of rounds that fits in memory."""
    return integer(name, value, at_least=1, at_most=10**7)


def lattice_bits(name: str, value: object) -> int:
    """The bits of a lattice, from 8 to 24: its step is the power of two at or below 2^−bits clip norms."""
    return integer(name, value, at_least=8, at_most=24)


def boolean(name: str, value: object) -> bool:
    """``True`` or ``False``."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {shown(value)}: must be True or False, not {type(value).__name__}")
    return value


def one_of(name: str, value: object, options: Iterable[str]) -> str:
    """One of a few words; the nearest is offered for a misspelt one."""
    known = tuple(options)
    if not isinstance(value, str):
        raise TypeError(f"{name} = {shown(value)}: must be text, one of {', '.join(known)}")
    if value not in known:
        raise ValueError(f"{name} = {shown(value)}: must be one of {', '.join(known)}{nearest(value, known)}")
    return value


def table(name: str, value: object) -> dict[str, Any]:
    """A table of names and values, as JSON has them."""
    if not isinstance(value, dict):
        raise TypeError(f"{name} = {shown(value)}: must be a table")
    return value


def digest(name: str, value: object) -> str:
    """A SHA-256 as 64 hexadecimal digits."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(f"{name} = {shown(value)}: must be 64 hexadecimal digits")
    return value


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the known word that is closest, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def numbers_within(name: str, values: npt.ArrayLike, rule: str, holds: Callable[[float], bool]) -> Array:
    """One or more numbers, each of which holds to a rule such as "from 0 to 1", ``(numbers,)``.

    Example:
        >>> numbers_within("rates", (0.1, 3), "from 0 to 1", lambda rate: 0 <= rate <= 1)
        Traceback (most recent call last):
        ValueError: rates[1] = 3: must be from 0 to 1
    """
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise TypeError(f"{name} = {shown(values)}: must be a sequence of numbers {rule}")
    if not len(values):
        raise ValueError(f"{name} is empty: give at least one number {rule}")
    return np.array([number(f"{name}[{i}]", value, holds, f"be {rule}") for i, value in enumerate(values)])


def as_array(name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    """The value as an array; rows of several lengths are refused by name."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} = {shown(value)}: has rows of several lengths; give as many numbers in each") from error


def real_array(name: str, value: npt.ArrayLike, *, ndim: int, at_most: float = _LARGEST_ENTRY) -> Array:
    """A read-only float64 copy, row by row, with the given number of axes, every entry finite."""
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "biufO":
            raise TypeError(f"{given.dtype} holds no real numbers")
        array = np.array(given, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} = {shown(value)}: must be an array of real numbers of {ndim} axes ({error})") from error
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}: must have {ndim} axes")
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: must not be empty")
    huge = f"at most {at_most:g}, or its square overflows"
    for wrong, rule in ((~np.isfinite(array), "finite"), (np.abs(array) > at_most, huge)):
        for where in np.argwhere(wrong)[:1].tolist():
            raise ValueError(f"{name}{where or ''} = {array[tuple(where)]}: must be {rule}")
    array.setflags(write=False)
    return array


class Rebuilt:
    """A dataclass whose copies and pickles are made by its constructor, which checks them, and whose arrays are read-only."""

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), tuple(getattr(self, part.name) for part in fields(self))  # type: ignore[arg-type] # a dataclass
