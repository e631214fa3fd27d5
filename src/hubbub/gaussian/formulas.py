"""Published formulas for the noise of one Gaussian release, and the budgets for which each is proved.

All but two are one family: noise σ = Δ·(b + √(b² + ε)) / (ε√2) puts x = εσ/Δ − Δ/2σ at b√2, and more noise than that of the
exact b is private too. So each formula is a bound on b, and the other way round claims ε = h(h/2 + b√2) for h = Δ/σ.

Letters: b as above, a the exact b, A = e^ε erfc(√ε), Δ the sensitivity.

Source: Zhao et al. 2019, "Reviewing and Improving the Gaussian Mechanism for Differential Privacy", Theorems 3 to 5,
https://arxiv.org/abs/1911.12060; each formula names its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import erfcinv, erfcx

from hubbub.gaussian import exact
from hubbub.roots import bracket

__all__ = ["FORMULAS", "Formula"]

_ROOT_2 = math.sqrt(2)


@dataclass(frozen=True)
class Formula:
    """How a calibration computes, for which budgets it is proved, and by whom.

    Args:
        source: Author, year, theorem, link.
        b: Of the family, from epsilon and delta.
        factor: Of the formulas σ = Δ·factor/ε, from delta.
        delta_limit: Delta must be below it (or at most it, where ``delta_closed``): beyond, the formula has no value.
        delta_closed: Whether the limit itself is allowed.
        epsilon_limit: As for delta; beyond, the formula has a value that is not proved.
        epsilon_closed: Whether the limit itself is allowed.
    """

    source: str
    b: Callable[[float, float], float] | None = None
    factor: Callable[[float], float] | None = None
    delta_limit: float = 1.0
    delta_closed: bool = False
    epsilon_limit: float = math.inf
    epsilon_closed: bool = False

    def noise(self, epsilon: float, delta: float) -> float:
        """For sensitivity 1."""
        if self.factor is not None:
            return self.factor(delta) / epsilon
        if self.b is None:
            return exact.noise_multiplier(epsilon, delta)
        b = self.b(epsilon, delta)
        # Rounded up: where epsilon is huge, zhao1 and the exact noise are the same float64.
        return (b + math.sqrt(b * b + epsilon)) / (epsilon * _ROOT_2) * (1 + 2.0**-49)

    def epsilon(self, delta: float, noise_multiplier: float) -> float:
        """What it claims for sensitivity 1."""
        if self.factor is not None:
            return self.factor(delta) / noise_multiplier
        if self.b is None:
            return exact.epsilon(delta, noise_multiplier)
        return _fixed_point(self.b, delta, 1 / noise_multiplier)

    def covers(self, epsilon: float) -> bool:
        """Whether the theorem does."""
        return epsilon < self.epsilon_limit or (self.epsilon_closed and epsilon == self.epsilon_limit)

    def require_delta(self, name: str, delta: float) -> None:
        """Refuse a delta for which the formula has no value."""
        if delta > self.delta_limit or (delta == self.delta_limit and not self.delta_closed):
            rule = "at most" if self.delta_closed else "below"
            raise ValueError(
                f"delta = {delta!r}: the calibration {name!r} is for delta {rule} {self.delta_limit!r}; use 'analytic'"
            )


def _fixed_point(b: Callable[[float, float], float], delta: float, h: float) -> float:
    """The epsilon at which ε = h(h/2 + b(ε)√2), which noise of 1/h meets exactly."""
    limit = max(b(math.inf, delta), 0.0)
    most = h * (h / 2 + _ROOT_2 * limit)
    if b(most, delta) == limit:
        return most
    _, enough = bracket(lambda epsilon: epsilon >= h * (h / 2 + _ROOT_2 * b(epsilon, delta)), 0.0, most)
    return enough


def _zhao_1(epsilon: float, delta: float) -> float:
    a_0 = float(erfcx(math.sqrt(epsilon)))
    if 2 - a_0 <= 2 * delta:
        return 0.0
    w = float(erfcinv(2 * delta + a_0))
    # e^ε erfc(√(w² + ε)), without its huge and its tiny factor.
    part = float(erfcx(math.sqrt(w * w + epsilon))) * math.exp(-w * w) / (2 * delta + a_0)
    return float(erfcinv(2 * delta / (1 - part)))


def _simple(epsilon: float, delta: float) -> float:
    return float(erfcinv(2 * delta))


def _zhao_2(epsilon: float, delta: float) -> float:
    # 2/(√(16δ + 1) − 1), without its difference; logarithms apart, because no quotient by a tiny delta is a float64.
    return math.sqrt(max(0.0, math.log((math.sqrt(16 * delta + 1) + 1) / 8) - math.log(delta)))


def _extended(epsilon: float, delta: float) -> float:
    return math.sqrt(max(0.0, math.log(2 / math.pi) / 2 - math.log(delta)))


def _vinterbo(epsilon: float, delta: float) -> float:
    return math.sqrt(max(0.0, -math.log(delta) - math.log(4 * (1 - delta))))


def _zcdp(epsilon: float, delta: float) -> float:
    return math.sqrt(-math.log(delta))


def _classical(delta: float) -> float:
    return math.sqrt(2 * (math.log(1.25) - math.log(delta)))


def _dwork_2006(delta: float) -> float:
    return math.sqrt(2 * (math.log(2) - math.log(delta)))


_ZHAO = "https://arxiv.org/abs/1911.12060"
FORMULAS = {
    "analytic": Formula("Balle and Wang 2018, Theorem 8, https://arxiv.org/abs/1805.06530"),
    "zhao1": Formula(f"Zhao et al. 2019, Theorem 4, {_ZHAO}", _zhao_1),
    "simple": Formula(f"Zhao et al. 2019, Theorem 3 with its second term left out, {_ZHAO}", _simple, delta_limit=0.5),
    "zhao2": Formula(f"Zhao et al. 2019, Theorem 5, {_ZHAO}", _zhao_2, delta_limit=0.5),
    "vinterbo": Formula("Vinterbo 2020, https://arxiv.org/abs/2012.10523", _vinterbo, delta_limit=0.5, delta_closed=True),
    "extended": Formula(
        "Phan et al. 2019, Theorem 2, https://arxiv.org/abs/1906.01444",
        _extended,
        delta_limit=math.sqrt(2 / math.pi),
        delta_closed=True,
    ),
    "zcdp": Formula("Bun and Steinke 2016, Proposition 1.3, https://arxiv.org/abs/1605.02065", _zcdp),
    "classical": Formula(
        "Dwork and Roth 2014, Theorem 3.22, https://doi.org/10.1561/0400000042", factor=_classical, epsilon_limit=1.0
    ),
    "dwork2006": Formula(
        "Dwork et al. 2006, https://doi.org/10.1007/11761679_29", factor=_dwork_2006, epsilon_limit=1.0, epsilon_closed=True
    ),
}
