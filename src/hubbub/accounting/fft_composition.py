"""Laws of privacy losses composed by a convolution under an exponential change of measure.

Letters: L the loss, λ the tilt, h the mesh, K(λ) = ln E_P[e^{λL}] summed over rounds. Under the tilted measure P·e^{λL − K(λ)}
the sum of the losses has its bulk where δ is decided, so that the rounding of the FFT stays relative to δ, and δ = 1e-100 is no
harder than 1e-5. Many equal rounds are composed in two stages: some on the fine mesh, then those sums on a coarser one, to
which their mass is split as a loss is to a mesh, which again only raises the profile.

Source: the tilt is the saddle point of the moments accountant (Alghamdi et al. 2023, https://arxiv.org/abs/2208.09595).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from hubbub._util.checks import Array
from hubbub.accounting.pairs import Loss

ComplexArray = npt.NDArray[np.complex128]

_MOST_POINTS = 2**20
# Above this many points two stages are cheaper than one.
_ONE_STAGE = 2**16
# Mass of a tilted law that may lie outside its window on either side; it counts against delta.
_TAIL = 1e-15
# Rates tried for Chernoff's bound, relative to that of a Gaussian; smaller ones suit single rare rounds.
_RATES = np.outer([-1, 1], np.geomspace(1 / 4096, 2, 20)).ravel()
# Rounding of one FFT and its inverse, and of each factor of a power, relative to the tilted law's total of 1; it counts
# against delta.
_FFT_ERROR = 1e-12
_FACTOR_ERROR = 1e-15
# The part of delta that rounding may be before another tilt is tried.
_LITTLE = 1e-3
# Mass cut off at either end of a first stage's law; it counts against delta.
_TRIMMED = 1e-13


class WindowError(Exception):
    """A law has more points than fit into memory."""


@dataclass(frozen=True)
class _Tilted:
    """A tilted law of total 1: ``weight[j]`` at (``first`` + j)·h, for ``count`` rounds."""

    first: int
    weight: Array
    count: int

    def moments(self, mesh: float) -> tuple[float, float]:
        """Mean and variance of one round."""
        at = (self.first + np.arange(len(self.weight))) * mesh
        mean = float(self.weight @ at)
        return mean, float(self.weight @ np.square(at - mean))


@dataclass(frozen=True)
class Composed:
    """The sum of all rounds' losses under the tilted measure: masses ``law`` at the losses ``mean`` + ``offsets``.

    ``mean`` and ``width`` are mean and standard deviation of the tilted law, ``log_scale`` is K(λ) − λ·mean, ``infinite`` the
    mass of infinite loss under P, ``error`` the largest total error of the masses, ``blur`` the standard deviation that the
    mesh adds.
    """

    law: Array
    offsets: Array
    mean: float
    width: float
    tilt: float
    log_scale: float
    infinite: float
    error: float
    blur: float

    def epsilon(self, delta: float) -> float:
        """The loss at which δ(ε) falls to ``delta``, from above; the window's lower end where it has fallen before."""
        if delta <= self.infinite:
            return math.inf
        target = math.exp(min(700.0, math.log(delta - self.infinite) - self.log_scale))
        above, beside, offsets = self._tails
        # A wrong mass counts as much as one at the crossing does.
        wrong = self.error * np.exp(-self.tilt * offsets)
        higher = np.flatnonzero(above[1:] - _scaled(offsets[:-1], beside[1:]) + wrong[:-1] > target)
        at = int(higher[-1]) + 1 if higher.size else 0
        if at == len(offsets) - 1:
            return math.inf
        left = above[at] + wrong[max(at - 1, 0)] - target
        if not higher.size or beside[at] == 0 or left <= 0:
            return float(self.mean + offsets[at])
        return float(self.mean + min(math.log(left) - math.log(beside[at]), offsets[at]))

    def delta(self, epsilon: float) -> float:
        """δ(ε), from above."""
        above, beside, offsets = self._tails
        if epsilon - self.mean < offsets[0] and len(offsets) < len(self.offsets):
            # Far below the mean the weights overflow.
            return 1.0
        at = int(np.searchsorted(offsets, epsilon - self.mean, side="right"))
        relative = self.error * math.exp(min(-self.tilt * (epsilon - self.mean), 600.0))
        if at < len(offsets):
            relative += max(0.0, float(above[at] - _scaled(np.array([epsilon - self.mean]), beside[at : at + 1])[0]))
        finite = math.exp(min(math.log(relative) + self.log_scale, 1.0)) if relative > 0 else 0.0
        return min(1.0, finite + self.infinite)

    def bound(self, delta: float) -> float:
        """Epsilon by the moments accountant at order 1 + λ (Canonne, Kamath and Steinke 2020, Proposition 12)."""
        if delta <= self.infinite:
            return math.inf
        slack = self.tilt * math.log(self.tilt) - (1 + self.tilt) * math.log1p(self.tilt) - math.log(delta - self.infinite)
        return (self.log_scale + self.tilt * self.mean + slack + self.error) / self.tilt

    def holds(self, epsilon: float, delta: float) -> bool:
        """Whether this tilt resolves a point of the profile: near its mean, and with little of delta taken by rounding."""
        if not math.isfinite(epsilon) or abs(epsilon - self.mean) > 5 * self.width:
            return False
        rounding = math.log(self.error) - self.tilt * (epsilon - self.mean) + self.log_scale
        return delta > 0 and rounding <= math.log(_LITTLE * delta)

    def steepness(self, epsilon: float) -> float:
        """a, where −δ'(ε) falls as e^{−aε}, over the width of the blur."""
        _, beside, offsets = self._tails
        ends = np.searchsorted(offsets, epsilon - self.mean + np.array([-2, 2]) * self.blur)
        low, high = (min(int(end), len(offsets) - 1) for end in ends)
        if low == high or beside[high] <= 0 or beside[low] <= 0:
            return 0.0
        return float((math.log(beside[low]) - math.log(beside[high])) / (offsets[high] - offsets[low])) - 1

    @cached_property
    def _tails(self) -> tuple[Array, Array, Array]:
        """The masses under P and Q from each offset on, over the scale; further left weights would overflow.

        Those under Q overflow first: there none is subtracted, which only raises the profile.
        """
        kept, least = (int(np.searchsorted(self.offsets, -600 / rate)) for rate in (self.tilt, 1 + self.tilt))
        law, offsets = self.law[kept:], self.offsets[kept:]
        above = np.cumsum((law * np.exp(-self.tilt * offsets))[::-1])[::-1]
        beside = np.zeros(len(law))
        right = self.offsets[least:]
        beside[least - kept :] = np.cumsum((self.law[least:] * np.exp(-(self.tilt + 1) * right))[::-1])[::-1]
        return above, beside, offsets


def _scaled(offsets: Array, masses: Array) -> Array:
    """e^offset · mass. Beyond e^600 nothing is subtracted, which only raises the profile."""
    return np.where(offsets < 600, np.exp(np.minimum(offsets, 600)), 0) * masses


def composed(losses: Sequence[tuple[Loss, int]], mesh: float, tilt: float) -> Composed:
    """The composition of discretized losses, each with its number of rounds; a :class:`WindowError` if it would not fit."""
    parts, cumulant = [], 0.0
    for loss, count in losses:
        with np.errstate(divide="ignore"):
            exponents = np.log(loss.mass)
        exponents += tilt * mesh * (loss.first + np.arange(len(loss.mass)))
        top = float(exponents.max())
        weight = np.exp(exponents - top)
        total = float(weight.sum())
        parts.append(_Tilted(loss.first, weight / total, count))
        cumulant += count * (top + math.log(total))
    rounds = sum(count for _, count in losses)
    blur = math.sqrt(rounds / 6) * mesh
    infinite = math.fsum(loss.infinite * count for loss, count in losses)
    low, high, mean, width = _window(parts, mesh)
    error = _FFT_ERROR + _FACTOR_ERROR * rounds + 2 * _TAIL
    if high - low > _ONE_STAGE and rounds > 4 * len(parts):
        parts, factor, gained = _coarser(parts, mesh, tilt, (high - low) * mesh / _ONE_STAGE)
        mesh, cumulant = mesh * factor, cumulant + gained
        # Each stage-one law is off by as much as the last one may be, and enters as often as it is composed.
        error += sum(part.count for part in parts) * (_FFT_ERROR + 2 * _TAIL + 2 * _TRIMMED)
        low, high, mean, width = _window(parts, mesh)
    law = _convolved(parts, low, high)
    offsets = np.multiply(low + np.arange(len(law)), mesh, dtype=np.float64) - mean
    return Composed(law, offsets, mean, width, tilt, cumulant - tilt * mean, infinite, error, blur)


def _window(parts: Sequence[_Tilted], mesh: float) -> tuple[int, int, float, float]:
    """Between which multiples of the mesh the sum lies, but for masses of ``_TAIL`` (Chernoff); its mean and its deviation."""
    moments = [part.moments(mesh) for part in parts]
    mean = math.fsum(part.count * m for part, (m, _) in zip(parts, moments, strict=True))
    width = math.sqrt(math.fsum(part.count * v for part, (_, v) in zip(parts, moments, strict=True)))
    rates = math.sqrt(-2 * math.log(_TAIL)) / max(width, mesh) * _RATES
    log_masses = np.zeros(len(rates))
    for part, (centre, _) in zip(parts, moments, strict=True):
        log_masses += part.count * _log_moments(part, mesh, centre, rates)
    reaches = (log_masses - math.log(_TAIL)) / rates
    low, high = mean + float(reaches[rates < 0].max()), mean + float(reaches[rates > 0].min())
    return math.floor(low / mesh), math.ceil(high / mesh), mean, width


def _log_moments(part: _Tilted, mesh: float, centre: float, rates: Array) -> Array:
    """ln E[e^{rate·(L − centre)}] under the tilted law, from above: each block's mass is put to its ends, its mean kept."""
    block = max(1, len(part.weight) // 512)
    rows = _in_rows(part.weight, block)
    upper = rows @ (np.arange(block) / block)
    ends = np.append(rows.sum(axis=1) - upper, 0.0)
    ends[1:] += upper
    at = (part.first + block * np.arange(len(ends))) * mesh - centre
    with np.errstate(divide="ignore"):
        exponents = np.log(np.maximum(ends, 0)) + rates[:, None] * at
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


def _convolved(parts: Sequence[_Tilted], low: int, high: int) -> Array:
    """The law of the sum at the multiples from ``low`` to ``high`` of the mesh; mass outside is wrapped into it."""
    if high - low > _MOST_POINTS:
        raise WindowError
    size = next_fast_len(max(high - low + 2, 8), real=True)
    spectrum, offset = None, 0
    for part in parts:
        weight = part.weight if len(part.weight) <= size else _in_rows(part.weight, size).sum(axis=0)
        factor = _power(rfft(weight, size), part.count)
        spectrum = factor if spectrum is None else np.multiply(spectrum, factor, out=spectrum)
        offset += part.first * part.count
    return np.asarray(np.maximum(np.roll(irfft(spectrum, size), (offset - low) % size), 0))


def _in_rows(weight: Array, length: int, before: int = 0) -> Array:
    """The weights in rows of that length, after ``before`` zeros and with zeros at the end of the last."""
    return np.pad(weight, (before, -(before + len(weight)) % length)).reshape(-1, length)


def _power(base: ComplexArray, exponent: int) -> ComplexArray:
    """A whole power, by squaring: several times faster than the general one."""
    result = None
    while True:
        if exponent & 1:
            result = base.copy() if result is None else np.multiply(result, base, out=result)
        exponent >>= 1
        if not exponent:
            return base if result is None else result
        base = base * base


def _coarser(parts: Sequence[_Tilted], mesh: float, tilt: float, target: float) -> tuple[list[_Tilted], int, float]:
    """Sums of several rounds on a coarser mesh: the parts, the factor, and the increase of the cumulant."""
    groups: list[_Tilted] = []
    for part in parts:
        root = math.isqrt(part.count)
        # Near the root, and without a rest where that can be.
        together = min(range(max(1, root // 2), root + 1), key=lambda size: (part.count % size > 0, root - size))
        sums, rest = divmod(part.count, together)
        groups += [_summed(part, size, number, mesh) for size, number in ((together, sums), (rest, 1)) if size]
    # The error of a stage grows with its rounds and the square of its mesh: the second gets a quarter of the first.
    rounds, later = sum(part.count for part in parts), sum(group.count for group in groups)
    # A coarser mesh must stay fine for the tilt, too.
    factor = max(1, min(math.ceil(target / mesh * 8), math.isqrt(rounds // later) // 2, int(min(0.5 / (tilt * mesh), 1e9))))
    coarse, gained = [], 0.0
    for group in groups:
        split, total = _split(group, mesh, tilt, factor)
        coarse.append(split)
        gained += group.count * math.log(total)
    return coarse, factor, gained


def _summed(part: _Tilted, together: int, count: int, mesh: float) -> _Tilted:
    """The law of the sum of several rounds, itself a part."""
    if together == 1:
        return _Tilted(part.first, part.weight, count)
    one = [_Tilted(part.first, part.weight, together)]
    low, high, _, _ = _window(one, mesh)
    law = _convolved(one, low, high)
    sums = np.cumsum(law)
    begin, end = np.searchsorted(sums, [_TRIMMED, sums[-1] - _TRIMMED])
    return _Tilted(low + int(begin), law[begin : end + 1], count)


def _split(part: _Tilted, mesh: float, tilt: float, factor: int) -> tuple[_Tilted, float]:
    """The law on a mesh ``factor`` times coarser, each mass split so that those under P and Q are kept, and its total."""
    if factor == 1:
        # Nothing is split, and a tilt by a whole step of the mesh may be more than float64 holds.
        total = float(part.weight.sum())
        return _Tilted(part.first, part.weight / total, part.count), total
    first, before = divmod(part.first, factor)
    offset = np.arange(factor) * mesh
    wide = factor * mesh
    share = -np.expm1(-offset) / -math.expm1(-wide)
    rows = _in_rows(part.weight, factor, before)
    weight = np.zeros(len(rows) + 1)
    weight[:-1] = rows @ ((1 - share) * np.exp(-tilt * offset))
    weight[1:] += rows @ (share * np.exp(tilt * (wide - offset)))
    total = float(weight.sum())
    return _Tilted(first, weight / total, part.count), total
