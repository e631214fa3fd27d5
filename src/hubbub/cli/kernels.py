"""``hubbub paillier kernel``: the compiled kernel of this machine, built, checked, measured or removed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import gmpy2
from gmpy2 import mpz

from hubbub.cli.output import console, print_json, say
from hubbub.errors import ConfigError
from hubbub.secagg import kernel, kernel_library

__all__ = ["build", "remove"]

_REPEATS, _TOGETHER = 3, 8


@dataclass(frozen=True)
class _Power:
    """Microseconds of one power, of many at a time.

    Args:
        bits: Of the modulus; the exponent has half as many.
        kernel: By the kernel.
        gmp: By GMP.
    """

    bits: int
    kernel: float
    gmp: float


def build(*, as_json: bool) -> None:
    """Build the kernel, and print what it gains.

    Raises:
        ConfigError: It cannot be built, loaded or used here.
    """
    path = kernel.build()
    measured = [_measured(bits) for bits in (2048, 4096)]
    if as_json:
        rows = [{"bits": row.bits, "kernel_us": row.kernel, "gmp_us": row.gmp} for row in measured]
        print_json({"path": str(path), "powers": rows})
        return
    screen = console()
    say(screen, f"Wrote {path}")
    say(screen, "  It answers as GMP does, and is used from now on wherever it is faster; HUBBUB_KERNEL=off switches it off.")
    for row in measured:
        say(screen, f"  A power mod a number of {row.bits} bits: {row.kernel:,.0f} µs, {row.gmp:,.0f} µs by GMP.")


def remove(*, as_json: bool) -> None:
    """Delete the kernel, in all its versions."""
    gone = [str(path) for path in kernel_library.remove()]
    kernel.forget()
    if as_json:
        print_json({"removed": gone})
        return
    for path in gone:
        say(console(), f"Removed {path}")
    if not gone:
        say(console(), f"There is none in {kernel_library.folder()}")


def _measured(bits: int) -> _Power:
    modulus = mpz(2) ** bits - 1
    units, exponent = [modulus // (3 + 2 * i) for i in range(_TOGETHER)], mpz(2) ** (bits // 2) - 1

    def powers() -> object:
        made = kernel.powers(units, exponent, modulus)
        if made is None:
            raise ConfigError(f"the kernel was built, but it is {kernel.standing()}")
        return made

    return _Power(bits, _least(powers), _least(lambda: gmpy2.powmod_base_list(units, exponent, modulus)))


def _least(call: Callable[[], object]) -> float:
    """The least microseconds of CPU time for one of the numbers."""
    spent = []
    for _ in range(_REPEATS):
        begin = time.process_time()
        call()
        spent.append(time.process_time() - begin)
    return 1e6 * min(spent) / _TOGETHER
