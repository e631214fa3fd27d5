"""The compiled kernel, where this machine has one: powers and products of long numbers, eight at a time; else ``None``.

It is optional and changes no result; :mod:`hubbub.compiled` builds and loads it. It is taken only after it has answered like
GMP in this process, on numbers that are hard on carries.
"""

import ctypes
import hashlib
from pathlib import Path

import gmpy2
import numpy as np
from gmpy2 import mpz

from hubbub.compiled import Gain, Kernel, least_microseconds
from hubbub.errors import ConfigError
from hubbub.secagg import kernel_arithmetic
from hubbub.secagg.kernel_arithmetic import LONGEST, MOST_DIGITS, MOST_PARTS, Comb

__all__ = ["FEWEST", "KERNEL", "comb", "combines", "measured", "powers", "require_right"]

# GMP raises fewer numbers as fast: the kernel takes as long for one as for eight.
FEWEST = 3
# The sizes of keys, and the lengths at which a limb more is needed.
_SIZES = (64, 204, 206, 207, 1024, 2048, 4096, 6144)
# Of the powers that are measured: bits of the modulus, and how many at a time.
_MEASURED, _TOGETHER = (2048, 4096), 8


def powers(units: list[mpz], exponent: int, modulus: mpz) -> list[mpz] | None:
    """Each number to one power, which may be secret; ``None`` where GMP is to do it.

    Args:
        units: From 0 to the modulus less 1.
        exponent: From 0.
        modulus: From 3.
    """
    library = KERNEL.library()
    if library is None or len(units) < FEWEST or modulus % 2 == 0 or modulus.bit_length() > LONGEST:
        return None
    return kernel_arithmetic.powers(library, units, exponent, modulus)


def comb(residues: list[list[mpz]], slopes: list[list[mpz]], root: mpz, parts: list[int]) -> Comb | None:
    """A table of powers mod root², as :class:`Comb` takes it; ``None`` where GMP is to do it."""
    library = KERNEL.library()
    if library is None or not combines(root * root) or len(parts) > MOST_PARTS or max(parts) > MOST_DIGITS:
        return None
    return Comb(library, residues, slopes, root, parts)


def combines(modulus: mpz) -> bool:
    """Whether tables of powers modulo this square are for the kernel."""
    return KERNEL.library() is not None and modulus % 2 == 1 and modulus > 3 and modulus.bit_length() <= LONGEST


def measured() -> list[Gain]:
    """What one power takes, of eight at a time, by the kernel and by GMP.

    Raises:
        ConfigError: The kernel is not in use.
    """
    KERNEL.in_use()
    return [_gain(bits) for bits in _MEASURED]


def require_right(library: ctypes.CDLL) -> None:
    """Refuse a library that does not answer like GMP.

    Raises:
        ConfigError: It does not.
    """
    for bits in _SIZES:
        modulus = _number(f"modulus {bits}", bits) | 1 | 1 << bits - 1
        for m in (modulus, mpz(2) ** bits - 1):
            # A third is a root of 0 where 9 divides 2^bits - 1: the one number that comes out as m before the end.
            units = [mpz(0), mpz(1), m - 1, m // 2, m // 3, *(_number(f"unit {i}", bits) % m for i in range(3))]
            for exponent in (0, int(_number("exponent", 43))):
                if kernel_arithmetic.powers(library, units, exponent, m) != [gmpy2.powmod(u, exponent, m) for u in units]:
                    raise ConfigError(f"the kernel raises to a power wrongly mod a number of {bits} bits: it is not used")
        _require_right_comb(library, modulus)


def _require_right_comb(library: ctypes.CDLL, n: mpz) -> None:
    rows = [[(mpz(1), mpz(0)), *((_number(f"u {b} {i}", 8192) % n, n - 1 - i) for i in range(3))] for b in range(5)]
    table = Comb(library, [[u for u, _ in row] for row in rows], [[t for _, t in row] for row in rows], n, [5, 3])
    digits = np.array([[(i >> 2 * k) % 4 for k in range(8)] for i in (0, 1, 0x1B1B, 0xFFFF, 0xE4E4)], dtype=np.uint16)
    for row, product in zip(digits.tolist(), table.products(digits), strict=True):
        expected = mpz(1)
        for place, digit in enumerate(row):
            u, t = rows[place % 5][digit]
            expected = (expected * expected if place == 5 else expected) * u * (1 + n * t) % (n * n)
        if product != expected:
            raise ConfigError(f"the kernel multiplies wrongly mod a square of {2 * n.bit_length()} bits: it is not used")


def _number(name: str, bits: int) -> mpz:
    """A number of at most so many bits, always the same."""
    return mpz(int.from_bytes(hashlib.shake_256(name.encode()).digest(-(-bits // 8)), "little") % 2**bits)


def _gain(bits: int) -> Gain:
    modulus = mpz(2) ** bits - 1
    units, exponent = [modulus // (3 + 2 * i) for i in range(_TOGETHER)], mpz(2) ** (bits // 2) - 1
    ours = least_microseconds(lambda: powers(units, exponent, modulus))
    gmp = least_microseconds(lambda: gmpy2.powmod_base_list(units, exponent, modulus))
    return Gain(f"a power mod a number of {bits} bits", ours / _TOGETHER, gmp / _TOGETHER)


def _declare(library: ctypes.CDLL) -> None:
    """The types of its functions.

    Raises:
        ConfigError: This processor lacks what they need.
    """
    if not library.hubbub_supported():
        raise ConfigError("this processor has no AVX-512 IFMA: the kernel needs it; everything works without, more slowly")
    long, word, data = ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p
    library.hubbub_powers.argtypes = [data, data, word, long, long, data, long, data, data, long]
    library.hubbub_powers.restype = ctypes.c_int
    library.hubbub_combine.argtypes = [data, data, word, long, long, data, long, data, data, long, data, data, long, long]
    library.hubbub_combine.restype = ctypes.c_int
    library.hubbub_split.argtypes = [data, long, long, data, long]
    library.hubbub_split.restype = None


KERNEL = Kernel("encryption", Path(__file__).with_name("ifma.c"), _declare, require_right)
