"""Packing of many fixed-point numbers into one plaintext, so that one encrypted addition adds them all.

A plaintext is one whole number, from its lowest bits upwards::

    slot 0 | slot 1 | … | slot k−1 | fence | contributions | padding

A slot is w bits wide, the b bits of a value and guard bits: the sum of ``max_clients`` values and the noise reserved lies
within ±2^(w−1), so that no slot overflows. A negative value borrows from the slot above; adding 2^(w−1) to every slot once,
after decryption, restores all values. Every contribution adds 1 to the counter of every plaintext, so that one that is missing,
doubled or beyond ``max_clients`` is detected. The fence, 8 bits that are otherwise zero, keeps an overflow of the top slot
out of the counter. The padding is the number of unused slots. The whole stays below 2^(key_bits−3), less than half the modulus,
and never wraps around.

The counter detects mistakes, not attacks: a hostile client may write any number anywhere. Such a sum is refused only if a slot
is beyond the reach of honest clients.

A value is clipped to ±clip and rounded to the nearest whole multiple of step = clip/(2^(bits−1) − 1). The clip is public and
the same for all; values have no exponent, which would reveal their magnitude.

Source: Zhang et al. 2020, "BatchCrypt", https://www.usenix.org/conference/atc20/presentation/zhang-chengliang (many quantised
values in one plaintext, with guard bits for their sum); phe, docs/caveats (what a public exponent discloses).
"""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import gmpy2
import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from hubbub._util.checks import integer, scale, shown

__all__ = ["FixedPoint", "Packing"]

_MOST_BITS = 32
# With 32 bits a quotient is below 2³¹, and the floats on the way there and back are off by less than 2⁻²⁰ steps together.
_FLOATING_POINT = 2.0**-19
_MOST_CLIENTS = 2**20
# Sums up to here are exact in float64.
_LARGEST_SUM = 2**52
# P < 2^(key_bits−3) < n/3, as n has its highest bit set: a plaintext is positive, whether negative ones end at n/2 or n/3.
_TOP_BITS = 3
# Up to 256 times too many contributions are detected.
_FENCE_BITS = 8


@dataclass(frozen=True)
class FixedPoint:
    """The whole multiples of ``step`` from −``clip`` to ``clip``.

    Args:
        bits: Of one whole number, its sign included, from 2 to 32.
        clip: The largest absolute value, from 1e-12 to 1e12; larger values are clipped.

    Example:
        >>> FixedPoint(bits=8, clip=1.0).encode([0.5, -3.0]).tolist()
        [64, -127]
    """

    bits: int
    clip: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", integer("bits", self.bits, at_least=2, at_most=_MOST_BITS))
        object.__setattr__(self, "clip", scale("clip", self.clip))

    @property
    def limit(self) -> int:
        """The largest whole number: 2^(bits−1) − 1."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def step(self) -> float:
        """The distance of neighbouring values."""
        return self.clip / self.limit

    @property
    def error_bound(self) -> float:
        """The largest rounding error of a value from −``clip`` to ``clip``: half a step, rounded up.

        It bounds the error of one value and of the mean of several; that of a sum of m values is at most m times as large.
        """
        return math.nextafter(self.step * (0.5 + _FLOATING_POINT), math.inf)

    def encode(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Values in steps, clipped, ties to the even neighbour.

        Args:
            values: Any shape, real and finite.

        Returns:
            ``(size,)``, row by row, from −``limit`` to ``limit``.

        Raises:
            ValueError: A value is NaN or infinite (its place is named, not the value), or there are no values.
            TypeError: The values are no real numbers.
        """
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"values has dtype {array.dtype}: must be real numbers")
        if array.size == 0:
            raise ValueError(f"values has shape {array.shape}: must not be empty")
        flat = array.astype(np.float64).ravel()
        bad = np.flatnonzero(~np.isfinite(flat))
        if bad.size:
            raise ValueError(f"values[{bad[0]}] is NaN or infinite: must be finite ({bad.size} of {flat.size} are not)")
        return np.rint(np.clip(flat, -self.clip, self.clip) / self.step).astype(np.int64)

    def decode(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Whole numbers of steps as real numbers; sums below 2⁵³ lose nothing but the last rounding."""
        return steps.astype(np.float64) * self.step


@dataclass(frozen=True)
class Packing:
    """The layout of values in plaintexts, the same for all clients and holders, and public.

    Args:
        bits: Of one value, its sign included, from 2 to 32.
        clip: The largest absolute value; larger ones are clipped.
        max_clients: The most contributions in one sum, from 1 to 2²⁰. If contributions are multiplied by whole weights, the
            largest sum of weights.
        key_bits: The length of the modulus.
        noise: The largest absolute value, in steps, of all noise together in a slot of the sum.

    Raises:
        ValueError: Not one slot fits into a plaintext, or a sum would not be exact.

    Example:
        >>> packing = Packing(bits=16, clip=1.0, max_clients=100, key_bits=2048)
        >>> packing.slot_bits, packing.slots
        (23, 87)
        >>> total = [one + other for one, other in zip(packing.pack([0.5, -1]), packing.pack([0.25, 0]), strict=True)]
        >>> packing.contributions(total), packing.unpack(total, contributions=2).round(3).tolist()
        (2, [0.75, -1.0])
    """

    bits: int = 16
    clip: float = 1.0
    max_clients: int = 100
    key_bits: int = 3072
    noise: int = 0

    def __post_init__(self) -> None:
        point = FixedPoint(self.bits, self.clip)
        object.__setattr__(self, "bits", point.bits)
        object.__setattr__(self, "clip", point.clip)
        for name, least, most in (("max_clients", 1, _MOST_CLIENTS), ("key_bits", 64, 2**16), ("noise", 0, None)):
            object.__setattr__(self, name, integer(name, getattr(self, name), at_least=least, at_most=most))
        if self.largest_sum > _LARGEST_SUM:
            raise ValueError(
                f"max_clients = {self.max_clients} and noise = {shown(self.noise)}: with {self.bits} bits a sum may exceed "
                f"2^52 steps and is not exact; take fewer bits, or less noise"
            )
        if self.slots < 1:
            raise ValueError(
                f"key_bits = {self.key_bits}: not one slot of {self.slot_bits} bits fits next to the counter; take a "
                f"longer key, or fewer bits"
            )

    @cached_property
    def fixed_point(self) -> FixedPoint:
        """The fixed-point numbers of the values."""
        return FixedPoint(self.bits, self.clip)

    @property
    def step(self) -> float:
        """The distance of neighbouring values."""
        return self.fixed_point.step

    @property
    def error_bound(self) -> float:
        """The largest error of a mean of values within ±``clip``: half a step; of a sum, times the contributions."""
        return self.fixed_point.error_bound

    @property
    def largest_sum(self) -> int:
        """The largest absolute value, in steps, that a slot of an honest sum can have."""
        return self.max_clients * self.fixed_point.limit + self.noise

    @property
    def guard_bits(self) -> int:
        """The bits of a slot beyond those of one value."""
        return max((self.max_clients - 1).bit_length(), self.largest_sum.bit_length() + 1 - self.bits)

    @property
    def slot_bits(self) -> int:
        """The bits of a slot, w."""
        return self.bits + self.guard_bits

    @property
    def slots(self) -> int:
        """The number of values in one plaintext."""
        room = self.key_bits - _TOP_BITS - _FENCE_BITS - self._counter_bits
        slots = room // self.slot_bits
        while slots > 0 and slots * self.slot_bits + (self.max_clients * (slots - 1)).bit_length() > room:
            slots -= 1
        return slots

    def plaintexts(self, size: int) -> int:
        """The number of plaintexts for ``size`` values."""
        return -(-integer("size", size, at_least=1) // self.slots)

    def pack(self, values: npt.ArrayLike, noise: npt.ArrayLike | None = None) -> list[int]:
        """One client's contribution: plaintexts to encrypt.

        Args:
            values: Any shape, real and finite; secret. Clipped to ±``clip``.
            noise: As many whole numbers of steps, the client's share of the noise, each at most ``noise // max_clients``.

        Returns:
            ``(plaintexts(size),)`` whole numbers from 0 to below 2^(``key_bits`` − 3); secret.

        Raises:
            ValueError: A value is NaN or infinite, or the noise is more than the slots have room for.
        """
        return self.pack_steps(self.fixed_point.encode(values), noise)

    def pack_steps(self, steps: npt.NDArray[np.int64], noise: npt.ArrayLike | None = None) -> list[int]:
        """As :meth:`pack`, for values in whole steps.

        Args:
            steps: ``(size,)`` int64, from −(2^(bits−1) − 1) to 2^(bits−1) − 1; secret.
            noise: As for :meth:`pack`.

        Returns:
            As :meth:`pack`.

        Raises:
            ValueError: A value or the noise does not fit; the place is named, not the value.
        """
        steps = np.asarray(steps)
        if steps.dtype != np.int64 or steps.ndim != 1 or steps.size == 0:
            raise ValueError(f"steps has shape {steps.shape} and {steps.dtype}: must be one vector of int64, and not empty")
        beyond = np.flatnonzero((steps > self.fixed_point.limit) | (steps < -self.fixed_point.limit))
        if beyond.size:
            raise ValueError(f"steps[{beyond[0]}] does not fit: {self.bits} bits hold up to {self.fixed_point.limit} steps")
        if noise is not None:
            steps = steps + self._noise(noise, steps.size, self.noise // self.max_clients)
        whole = joined(steps, self.slot_bits, self.slots)
        tail = 1 << (self.slots * self.slot_bits + _FENCE_BITS)
        padding = len(whole) * self.slots - steps.size
        whole = [number + tail for number in whole]
        whole[-1] += (padding * tail) << self._counter_bits
        return whole

    def pack_noise(self, noise: npt.ArrayLike) -> list[int]:
        """Noise for the sum, instead of noise shares of clients; it does not count as a contribution.

        Args:
            noise: ``(size,)`` whole numbers of steps, at most ``noise`` each; secret.

        Returns:
            ``(plaintexts(size),)`` whole numbers, negative ones too; secret.
        """
        array = np.asarray(noise)
        return joined(self._noise(array, array.size, self.noise), self.slot_bits, self.slots)

    def contributions(self, plaintexts: Iterable[int]) -> int:
        """The number of contributions in a sum, the same in each of its plaintexts.

        Raises:
            ValueError: The plaintexts are no sum of contributions, or not of the same ones.
        """
        return self._opened(plaintexts)[1]

    def unpack(self, plaintexts: Iterable[int], contributions: int | None = None) -> npt.NDArray[np.float64]:
        """The sums of the values, slot by slot. Divide by the number of clients for the mean.

        Args:
            plaintexts: The decrypted sum of contributions of :meth:`pack`.
            contributions: The expected number; a sum of fewer or more is refused.

        Returns:
            ``(size,)``, as many as each contribution had.

        Raises:
            ValueError: The plaintexts are no sum of that many contributions; nothing of them is returned.
        """
        return self.fixed_point.decode(self.unpack_steps(plaintexts, contributions))

    def unpack_steps(self, plaintexts: Iterable[int], contributions: int | None = None) -> npt.NDArray[np.int64]:
        """As :meth:`unpack`, in whole steps: exact."""
        slots, count, padding = self._opened(plaintexts)
        if contributions is not None and count != integer("contributions", contributions, at_least=1, at_most=self.max_clients):
            what = "fewer: one dropped out" if count < contributions else "more: one is counted twice"
            raise ValueError(f"contributions = {contributions}: the plaintexts hold {count}, {what}")
        steps = taken_apart(slots, self.slot_bits, self.slots)
        bad = np.flatnonzero(np.abs(steps) > count * self.fixed_point.limit + self.noise)
        if bad.size:
            raise ValueError(
                f"slot {bad[0]} lies beyond what {count} clipped values reach: a client did not keep to the packing"
            )
        size = steps.size - padding
        # Noise is of values alone, too.
        if np.any(steps[size:]):
            raise ValueError(f"a slot behind the last of {size} values is not empty: a client did not keep to the packing")
        return steps[:size]

    @property
    def _counter_bits(self) -> int:
        return self.max_clients.bit_length() + _FENCE_BITS

    def _noise(self, noise: npt.ArrayLike, size: int, most: int) -> npt.NDArray[np.int64]:
        array = np.asarray(noise)
        if array.dtype.kind not in "iu":
            raise TypeError(f"noise has dtype {array.dtype}: must be whole numbers of steps")
        if array.size != size or size == 0:
            raise ValueError(f"noise has {array.size} numbers: must be one for each of {size} values")
        if int(array.max()) > most or int(array.min()) < -most:
            raise ValueError(f"noise exceeds {most} steps, the room in a slot: plan with Packing(noise=...) at least as large")
        return array.astype(np.int64).ravel()

    def _opened(self, plaintexts: Iterable[int]) -> tuple[list[int], int, int]:
        """The lifted slots of each plaintext, the contributions and the padding."""
        bias, width = _bias(self.slot_bits, self.slots), self.slots * self.slot_bits
        # int: a gmpy2 number has no to_bytes.
        lifted = [int(operator.index(number)) + bias for number in plaintexts]
        if not lifted:
            raise ValueError("plaintexts is empty: must be the decrypted sum of contributions")
        tails = [self._tail(index, number >> width) for index, number in enumerate(lifted)]
        count, padding = tails[-1]
        for index, (others, unused) in enumerate(tails[:-1]):
            if others != count:
                raise ValueError(
                    f"plaintexts[{index}] holds {others} contributions, the last one {count}: one is missing or doubled in part"
                )
            if unused:
                raise ValueError(f"plaintexts[{index}] is the last of its contributions: the plaintexts are not in order")
        return [number & ((1 << width) - 1) for number in lifted], count, padding

    def _tail(self, index: int, tail: int) -> tuple[int, int]:
        """The contributions and the padding, from what lies above the slots."""
        counted, fence = divmod(tail, 1 << _FENCE_BITS)
        paddings, count = divmod(counted, 1 << self._counter_bits)
        if fence or not 1 <= count <= self.max_clients:
            raise ValueError(f"plaintexts[{index}] is no sum of 1 to max_clients = {self.max_clients} contributions")
        padding, rest = divmod(paddings, count)
        if rest or not 0 <= padding < self.slots:
            raise ValueError(f"plaintexts[{index}] is no sum of contributions of one size")
        return count, padding


def _bias(width: int, count: int) -> int:
    """2^(width−1) in each of ``count`` slots, which makes their numbers non-negative."""
    return int(gmpy2.pack([1 << (width - 1)] * count, width))


def joined(numbers: npt.NDArray[np.int64], width: int, count: int) -> list[int]:
    """Σ numbers[j]·2^(width·j) of ``count`` numbers after another, the last one filled with zeros; negative where the last are.

    The numbers, ``(size,)``, are from −2^(width−1) to 2^(width−1) − 1, for slots of up to 63 bits.

    Example:
        >>> joined(np.array([1, -2, 3]), width=8, count=2)
        [-511, 3]
    """
    bias, lifted = _bias(width, count), np.pad(numbers, (0, -numbers.size % count)) + (1 << (width - 1))
    return [int(gmpy2.pack(row.tolist(), width)) - bias for row in lifted.reshape(-1, count)]


def taken_apart(lifted: list[int], width: int, count: int) -> npt.NDArray[np.int64]:
    """``(len(lifted) · count,)``: the numbers in integers to which the bias was added, each below 2^(width·count)."""
    numbers = np.zeros((len(lifted), count), dtype=np.int64)
    for own, whole in zip(numbers, lifted, strict=True):
        # gmpy2 leaves out the slots above the last that is not zero.
        row = gmpy2.unpack(mpz(whole), width)
        own[: len(row)] = list(map(int, row))
    return numbers.ravel() - (1 << (width - 1))
