"""Sound upper bounds on the epsilon and the delta of a composition, by its privacy loss distribution on a grid.

Letters: L the privacy loss, λ the tilt, K(λ) = ln E_P[e^{λL}] summed over rounds.

The tilt is chosen from a few hundred losses of each law, and the mesh h from the tilt. Splitting a loss on the mesh adds the
variance h²/6, so the answer for n rounds is too high by n·(a + 1)·h²/12 if −δ' falls as e^{−aε}. At the saddle point a is λ;
elsewhere it may be larger. The answer is an upper bound for every tilt and mesh; they decide how tight it is.

Source: the moments' bound is Canonne, Kamath and Steinke 2020, Proposition 12, https://arxiv.org/abs/2004.00010; else see
:mod:`hubbub.accounting.pairs` and :mod:`hubbub.accounting.fft_composition`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hubbub._util.checks import Array
from hubbub._util.roots import bracket, grown
from hubbub.accounting.fft_composition import Composed, WindowError, composed
from hubbub.accounting.pairs import LossLaw

# How far an answer may lie above the truth, in epsilon: the greatest of the three, but at most a hundredth of a small answer.
TOLERANCE = 1e-4
_RELATIVE_TOLERANCE = 1e-5
_LEAST_TOLERANCE = 1e-7
_MOST_POINTS = 2**19
# Above this epsilon a coarser mesh is enough.
_LARGE = 100.0
_MOST_EPSILON = 1e30
_MOST_TRIALS = 10
_SAME_TILT = 1e-3
# The law of more rounds is smooth.
_MANY = 64
# Below this logarithm a mass underflows.
_LEAST_LOG = -700.0
# e^−9 is small against 1.
_FAR = 9.0
_TILTS = np.exp(np.linspace(math.log(1e-5), math.log(1e6), 80))
Rounds = Sequence[tuple[LossLaw, int]]


def tolerance(near: float) -> float:
    """How far an answer near an epsilon may lie above the truth, where memory and rounding allow."""
    return max(_RELATIVE_TOLERANCE * near, min(TOLERANCE, 1e-2 * near), _LEAST_TOLERANCE)


@dataclass(frozen=True)
class _Cumulant:
    """An approximation of K, from some hundred losses of each law: enough to choose a tilt."""

    # Losses, the logarithms of their masses, and the number of rounds.
    laws: list[tuple[Array, Array, int]]

    @classmethod
    def of(cls, rounds: Rounds, log_tail: float) -> "_Cumulant":
        sampled = [(*law.sampled(log_tail), count) for law, count in rounds]
        with np.errstate(divide="ignore"):
            return cls([(losses, np.log(mass), count) for losses, mass, count in sampled])

    def at(self, tilts: Array) -> tuple[Array, Array]:
        """K and its slope at each tilt."""
        value, slope = np.zeros(len(tilts)), np.zeros(len(tilts))
        for losses, log, count in self.laws:
            exponents = log + tilts[:, None] * losses
            top = exponents.max(axis=1)
            weights = np.exp(exponents - top[:, None])
            total = weights.sum(axis=1)
            value += count * (top + np.log(total))
            slope += count * (weights @ losses / total)
        return value, slope

    def exceeds(self, loss: float) -> bool:
        """Whether all but some 1e-4 of the mass lies far above a loss (Chernoff's bound): then delta is next to 1."""
        values = self.at(-_TILTS)[0] + _TILTS * (loss + _FAR)
        return float(values.min()) < -_FAR

    def saddle(self, loss: float) -> float:
        """The tilt whose law has its mean at a loss."""
        return float(np.exp(np.interp(loss, np.maximum.accumulate(self.at(_TILTS)[1]), np.log(_TILTS))))


def _slack(tilts: Array) -> Array:
    """The term of the moments' bound in addition to K: λ ln λ − (1 + λ) ln(1 + λ)."""
    return tilts * np.log(tilts) - (1 + tilts) * np.log1p(tilts)


def epsilon(rounds: Rounds, delta: float, enough: float = 0.0) -> float:
    """The least epsilon that the composition in this direction is shown to have at ``delta``.

    An answer of at most ``enough`` need not be near the truth. ``rounds`` has the law of each kind of round and how many there
    are.

    Example:
        >>> from hubbub.accounting.pairs import Law, Pair
        >>> gaussian = Pair(q=1.0, a=0.5, b=0.0)
        >>> round(epsilon([(Law(gaussian, gaussian), 4)], delta=1e-6), 3)
        4.887
    """
    if sum(count for _, count in rounds) == 1:
        return _single(rounds[0][0], delta)
    target = math.log(delta)
    log_tail = _log_tail(rounds, target)
    cumulant = _Cumulant.of(rounds, log_tail)

    def bounds(tilts: Array) -> Array:
        return np.asarray((cumulant.at(tilts)[0] + _slack(tilts) - target) / tilts)

    tilt, near = _best(bounds)
    search = _Search(rounds, cumulant, tilt, log_tail, near)
    best = math.inf
    for loose in (256.0, 16.0, 1.0) if enough else (1.0,):
        best = min(best, search.answer(delta, loose, enough))
        if best <= enough:
            break
    return max(0.0, best)


def delta(rounds: Rounds, epsilon: float) -> float:
    """The least delta that the composition in this direction is shown to have at ``epsilon``."""
    if sum(count for _, count in rounds) == 1:
        return min(1.0, rounds[0][0].delta(epsilon))
    log_tail, best = _LEAST_LOG, 1.0
    for _ in range(_MOST_TRIALS):
        cumulant = _Cumulant.of(rounds, log_tail)
        if cumulant.exceeds(epsilon):
            return best

        def bounds(tilts: Array, cumulant: _Cumulant = cumulant) -> Array:
            return np.asarray(cumulant.at(tilts)[0] + _slack(tilts) - tilts * epsilon)

        tilt, near = _best(bounds)
        if near < _LEAST_LOG:
            # Delta underflows: any tilt that shows it is enough.
            tilt = float(_TILTS[int(np.argmax(bounds(_TILTS) < _LEAST_LOG))])
        guess = min(near - 5, math.log(best)) if best > 0 else near
        log_tail = _log_tail(rounds, min(guess, 0.0))
        search = _Search(rounds, cumulant, tilt, log_tail, max(epsilon, 1e-2))
        before, saddle = best, cumulant.saddle(epsilon)
        for _ in range(4):
            law = search.composed(min(tolerance(search.near), max(1e-3 / tilt, _LEAST_TOLERANCE)))
            found = law.delta(epsilon)
            best = min(best, found)
            if law.holds(epsilon, found):
                again = search.too_coarse(law, epsilon)
            else:
                again, search.tilt = search.tilt != saddle, saddle
            if not again:
                break
        # The tail mass and the tilt depend on delta: they are chosen again until delta falls no more.
        if best > before * (1 - 1e-4) or best == 0:
            break
        log_tail = _log_tail(rounds, math.log(best))
    return best


def _best(bounds: Callable[[Array], Array]) -> tuple[float, float]:
    """The tilt at which a bound is least, and the bound."""
    coarse = _least(bounds(_TILTS))
    tilts = np.geomspace(_TILTS[max(coarse - 1, 0)], _TILTS[min(coarse + 1, len(_TILTS) - 1)], 33)
    values = bounds(tilts)
    at = _least(values)
    return float(tilts[at]), float(values[at])


def _least(values: Array) -> int:
    return int(np.argmin(np.where(np.isfinite(values), values, np.inf)))


def _log_tail(rounds: Rounds, log_delta: float) -> float:
    """The mass of a round that may count as infinite loss: e^-20 of delta, shared among the rounds."""
    return max(log_delta - math.log(sum(count for _, count in rounds)) - 20, _LEAST_LOG)


@dataclass
class _Search:
    """The search for a mesh that is fine enough for a tolerance.

    ``near`` is an epsilon that is not below the answer, ``steepness`` the steepest profile met so far.
    """

    rounds: Rounds
    cumulant: _Cumulant
    tilt: float
    log_tail: float
    near: float
    steepness: float = 0.0

    def answer(self, delta: float, loose: float, enough: float) -> float:
        """The least epsilon shown, by a mesh so fine that a finer one changes little, or one that is at most ``enough``."""
        best, settled, finer = math.inf, math.inf, 1.0
        for _ in range(_MOST_TRIALS):
            law = self.composed(tolerance(self.near) * loose * finer)
            found = law.epsilon(delta)
            best = min(best, law.bound(delta), found)
            if best <= enough or best <= 0:
                break
            if not law.holds(found, delta):
                tilt = self.tilt * 2 if math.isinf(found) else self.cumulant.saddle(min(found, best))
                if abs(tilt / self.tilt - 1) > _SAME_TILT:
                    self.tilt = tilt
                    continue
            before, self.near = tolerance(self.near), min(self.near, best)
            steep = self.too_coarse(law, found)
            if steep or tolerance(self.near) < before / 2:
                continue
            # The law of few rounds is not smooth: only a finer mesh shows its error.
            if sum(count for _, count in self.rounds) > _MANY or settled - found <= tolerance(self.near) * loose:
                break
            settled, finer = found, finer / 4
        return best

    def composed(self, tolerance: float) -> Composed:
        """The composition on a mesh that answers too high by about the tolerance, or more where memory does not allow it."""
        count = sum(number for _, number in self.rounds)
        spans = [law.span(self.log_tail) for law, _ in self.rounds]
        # 12, but for the second stage of the composition, which may add a quarter of the first one's error.
        mesh = min(math.sqrt(9.6 * tolerance / (count * (max(self.tilt, self.steepness) + 1))), 0.5 / self.tilt)
        points = _MOST_POINTS if self.near < _LARGE else _MOST_POINTS // 4
        mesh = max(mesh, max(high - low for low, high in spans) / points)
        while True:
            losses = [(law.discretized(mesh, self.log_tail), number) for law, number in self.rounds]
            try:
                return composed(losses, mesh, self.tilt)
            except WindowError:
                mesh *= 2

    def too_coarse(self, law: Composed, epsilon: float) -> bool:
        """Whether the profile falls so much more steeply there than the tilt says that the mesh must be finer."""
        before, self.steepness = max(self.tilt, self.steepness), max(self.steepness, law.steepness(epsilon))
        return self.steepness > 1.3 * before


def _single(law: LossLaw, delta: float) -> float:
    """Epsilon of one round, by bisection of its profile."""

    def holds(epsilon: float) -> bool:
        return law.delta(epsilon, enough=delta) <= delta

    if holds(0.0):
        return 0.0
    less, enough = grown(holds, 0.0, 1.0, at_most=_MOST_EPSILON)
    return enough if enough == math.inf else bracket(holds, less, enough, within=2e-16)[1]
