"""Published calibrations of one Gaussian release: their formulas, proved ranges, and attained delta.

All but two formulas are one family: noise σ = Δ·(b + √(b² + ε)) / (ε√2) puts x = εσ/Δ − Δ/2σ at b√2, and more noise than that
of the exact b is private too. So each formula is a bound on b, and the other way round claims ε = h(h/2 + b√2) for h = Δ/σ.

Letters: b as above, a the exact b, A = e^ε erfc(√ε), Δ the sensitivity.

Source: Zhao et al. 2019, "Reviewing and Improving the Gaussian Mechanism for Differential Privacy", Theorems 3 to 5,
https://arxiv.org/abs/1911.12060; each formula names its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from scipy.special import erfcinv, erfcx

from hubbub._util import to_digits
from hubbub._util.checks import one_of, open_unit, scale
from hubbub._util.roots import bracket
from hubbub.mechanism.gaussian import exact

__all__ = ["NAMES", "Calibration", "Claim", "calibrate", "claimed_epsilon", "computed", "shown", "why_not_proved"]

_ROOT_2 = math.sqrt(2)


@dataclass(frozen=True)
class Formula:
    """The formula of a calibration, the budgets for which it is proved, and its source.

    Args:
        source: Author, year, theorem, link.
        b: The bound b, from epsilon and delta; ``None`` for the exact one.
        factor: For formulas σ = Δ·factor/ε, the factor, from delta.
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

    def noise(self, epsilon: float, delta: float, sensitivity: float) -> float:
        """The standard deviation of the formula."""
        if self.factor is not None:
            return self.factor(delta) / epsilon * sensitivity
        if self.b is None:
            return exact.noise_multiplier(epsilon, delta, sensitivity)
        b = self.b(epsilon, delta)
        # Rounded up: where epsilon is huge, zhao1 and the exact noise are the same float64.
        return (b + math.sqrt(b * b + epsilon)) / (epsilon * _ROOT_2) * (1 + 2.0**-49) * sensitivity

    def epsilon(self, delta: float, noise_multiplier: float, exactly: float) -> float:
        """The epsilon that the formula claims at sensitivity 1; ``exactly`` is the true one."""
        if self.factor is not None:
            return self.factor(delta) / noise_multiplier
        if self.b is None:
            return exactly
        # ε = h(h/2 + b(ε)√2), which noise of 1/h meets exactly.
        b, h = self.b, 1 / noise_multiplier
        limit = max(b(math.inf, delta), 0.0)
        most = h * (h / 2 + _ROOT_2 * limit)
        if b(most, delta) == limit:
            return most
        return bracket(lambda epsilon: epsilon >= h * (h / 2 + _ROOT_2 * b(epsilon, delta)), 0.0, most)[1]

    def covers(self, epsilon: float) -> bool:
        """Whether the theorem covers this epsilon."""
        return epsilon < self.epsilon_limit or (self.epsilon_closed and epsilon == self.epsilon_limit)

    def require_delta(self, name: str, delta: float) -> None:
        """Refuse a delta for which the formula is undefined."""
        if delta > self.delta_limit or (delta == self.delta_limit and not self.delta_closed):
            rule = "at most" if self.delta_closed else "below"
            raise ValueError(
                f"delta = {delta!r}: the calibration {name!r} is for delta {rule} {self.delta_limit!r}; use 'analytic'"
            )


def _zhao_1(epsilon: float, delta: float) -> float:
    a_0 = float(erfcx(math.sqrt(epsilon)))
    if 2 - a_0 <= 2 * delta:
        return 0.0
    w = float(erfcinv(2 * delta + a_0))
    # e^ε erfc(√(w² + ε)), without its huge and its tiny factor.
    part = float(erfcx(math.sqrt(w * w + epsilon))) * math.exp(-w * w) / (2 * delta + a_0)
    return float(erfcinv(2 * delta / (1 - part)))


def _root(square: float) -> float:
    return math.sqrt(max(0.0, square))


_ZHAO = "https://arxiv.org/abs/1911.12060"
FORMULAS = {
    "analytic": Formula("Balle and Wang 2018, Theorem 8, https://arxiv.org/abs/1805.06530"),
    "zhao1": Formula(f"Zhao et al. 2019, Theorem 4, {_ZHAO}", _zhao_1),
    "simple": Formula(
        f"Zhao et al. 2019, Theorem 3 with its second term left out, {_ZHAO}",
        lambda _, delta: float(erfcinv(2 * delta)),
        delta_limit=0.5,
    ),
    "zhao2": Formula(
        f"Zhao et al. 2019, Theorem 5, {_ZHAO}",
        # 2/(√(16δ + 1) − 1), without its difference; logarithms apart, because no quotient by a tiny delta is a float64.
        lambda _, delta: _root(math.log((math.sqrt(16 * delta + 1) + 1) / 8) - math.log(delta)),
        delta_limit=0.5,
    ),
    "vinterbo": Formula(
        "Vinterbo 2020, https://arxiv.org/abs/2012.10523",
        lambda _, delta: _root(-math.log(delta) - math.log(4 * (1 - delta))),
        delta_limit=0.5,
        delta_closed=True,
    ),
    "extended": Formula(
        "Phan et al. 2019, Theorem 2, https://arxiv.org/abs/1906.01444",
        lambda _, delta: _root(math.log(2 / math.pi) / 2 - math.log(delta)),
        delta_limit=math.sqrt(2 / math.pi),
        delta_closed=True,
    ),
    "zcdp": Formula(
        "Bun and Steinke 2016, Proposition 1.3, https://arxiv.org/abs/1605.02065", lambda _, delta: _root(-math.log(delta))
    ),
    "classical": Formula(
        "Dwork and Roth 2014, Theorem 3.22, https://doi.org/10.1561/0400000042",
        factor=lambda delta: _root(2 * (math.log(1.25) - math.log(delta))),
        epsilon_limit=1.0,
    ),
    "dwork2006": Formula(
        "Dwork et al. 2006, https://doi.org/10.1007/11761679_29",
        factor=lambda delta: _root(2 * (math.log(2) - math.log(delta))),
        epsilon_limit=1.0,
        epsilon_closed=True,
    ),
}

NAMES = tuple(FORMULAS)


@dataclass(frozen=True)
class Calibration:
    """The noise of a formula for a budget, and the delta that this noise attains.

    Args:
        name: Of the calibration, one of ``NAMES``.
        epsilon: The budget.
        delta: The delta of the budget.
        sensitivity: L2, in the unit of the noise multiplier.
        noise_multiplier: Standard deviation of the noise, in the unit of the sensitivity.
        attained_delta: The exact delta of that noise at epsilon, rounded up.
        proved: Whether the formula's theorem covers this budget.
        source: Author, year, theorem, link.

    Example:
        >>> answer = calibrate("classical", epsilon=0.5, delta=1e-5)
        >>> round(answer.noise_multiplier, 2), answer.proved, answer.holds, answer.attained_delta < 2e-8
        (9.69, True, True, True)
    """

    name: str
    epsilon: float
    delta: float
    sensitivity: float
    noise_multiplier: float
    attained_delta: float
    proved: bool
    source: str

    @property
    def holds(self) -> bool:
        """Whether the claim is true."""
        return self.attained_delta <= self.delta


@dataclass(frozen=True)
class Claim:
    """The epsilon that a formula claims for given noise, and the exact one.

    Args:
        name: Of the calibration, one of ``NAMES``.
        delta: Of both epsilons.
        sensitivity: L2, in the unit of the noise multiplier.
        noise_multiplier: Standard deviation of the noise, in the unit of the sensitivity.
        claimed_epsilon: The epsilon of the formula, proved or not.
        exact_epsilon: The true epsilon, rounded up.
        proved: Whether the theorem covers the claim.
        source: Author, year, theorem, link.

    Example:
        >>> claim = claimed_epsilon("classical", delta=1e-5, noise_multiplier=10.0)
        >>> round(claim.claimed_epsilon, 3), round(claim.exact_epsilon, 3), claim.holds
        (0.484, 0.341, True)
    """

    name: str
    delta: float
    sensitivity: float
    noise_multiplier: float
    claimed_epsilon: float
    exact_epsilon: float
    proved: bool
    source: str

    @property
    def holds(self) -> bool:
        """Whether the claim is true, to 12 digits."""
        return self.claimed_epsilon >= self.exact_epsilon * (1 - 1e-12)


def calibrate(name: str, epsilon: float, delta: float, sensitivity: float = 1.0) -> Calibration:
    """The noise of a calibration by its name, and the exact delta that it attains.

    Args:
        name: ``"classical"``, ``"dwork2006"``, ``"analytic"`` (the least noise), ``"zhao1"``, ``"zhao2"``, ``"extended"``,
            ``"simple"``, ``"vinterbo"`` or ``"zcdp"``.
        epsilon: From 1e-12 to 1e12, and covered by the theorem.
        delta: Strictly between 0 and 1, and covered by the theorem.
        sensitivity: L2, from 1e-12 to 1e12, in the unit of the noise.

    Raises:
        ValueError: A number out of range, or a budget that the theorem does not cover; the message then states the exact delta
            that the formula's noise would attain.

    Example:
        >>> answer = calibrate("zhao2", epsilon=2.0, delta=1e-5)
        >>> round(answer.noise_multiplier, 4), f"{answer.attained_delta:.2e}"
        (2.3563, '2.71e-07')
    """
    answer = computed(name, epsilon, delta, sensitivity)
    if not answer.proved:
        raise ValueError(f"epsilon = {epsilon!r}: {why_not_proved(answer)}; use 'analytic'")
    return answer


def why_not_proved(answer: Calibration) -> str:
    """The sentence for a budget that a theorem does not cover."""
    formula = FORMULAS[answer.name]
    rule = "at most" if formula.epsilon_closed else "below"
    claimed = f"{'less' if answer.holds else 'more'} than the claimed {answer.delta!r}"
    noise, attained = shown(answer.noise_multiplier, 6), shown(answer.attained_delta, 3)
    return (
        f"the calibration {answer.name!r} is proved only for epsilon {rule} {formula.epsilon_limit:g}: its noise "
        f"{noise} attains delta {attained} here, {claimed}"
    )


def shown(value: float, digits: int) -> str:
    """A number above 0 with a given number of digits, rounded up."""
    up = to_digits(value, digits, "ROUND_CEILING")
    text = f"{float(up):.{digits}g}"
    # Near the smallest float64, the nearest number may be below.
    return text if Decimal(text) >= up else f"{up:e}"


def computed(name: str, epsilon: float, delta: float, sensitivity: float = 1.0) -> Calibration:
    """The noise of a formula, even for an epsilon that its theorem does not cover: see ``proved``, ``attained_delta``.

    Args:
        name: As for :func:`calibrate`.
        epsilon: From 1e-12 to 1e12.
        delta: As for :func:`calibrate`.
        sensitivity: As for :func:`calibrate`.

    Raises:
        ValueError: A number out of range, or a delta for which the formula has no value.

    Example:
        >>> computed("classical", epsilon=20.0, delta=1e-5).holds
        False
    """
    formula = FORMULAS[one_of("name", name, FORMULAS)]
    eps, claim, size = scale("epsilon", epsilon), open_unit("delta", delta), scale("sensitivity", sensitivity)
    formula.require_delta(name, claim)
    sigma = formula.noise(eps, claim, size)
    attained = exact.delta(eps, sigma, size)
    return Calibration(name, eps, claim, size, sigma, attained, formula.covers(eps), formula.source)


def claimed_epsilon(name: str, delta: float, noise_multiplier: float, sensitivity: float = 1.0) -> Claim:
    """The epsilon that a formula claims for given noise, and the exact one.

    Below an epsilon of 0.02 and above a delta of 0.005 ``"zhao1"`` asks for the same noise at two epsilons; this is one.

    Args:
        name: As for :func:`calibrate`.
        delta: As for :func:`calibrate`.
        noise_multiplier: Standard deviation of the noise, in the unit of the sensitivity.
        sensitivity: As for :func:`calibrate`.

    Raises:
        ValueError: A number out of range, or a delta for which the formula has no value.

    Example:
        >>> claim = claimed_epsilon("classical", delta=1e-3, noise_multiplier=0.1)
        >>> round(claim.claimed_epsilon, 2), round(claim.exact_epsilon, 2), claim.holds
        (37.76, 80.03, False)
    """
    formula = FORMULAS[one_of("name", name, FORMULAS)]
    given, size = open_unit("delta", delta), scale("sensitivity", sensitivity)
    sigma = scale("noise_multiplier", noise_multiplier)
    formula.require_delta(name, given)
    truth = exact.epsilon(given, sigma, size)
    claim = formula.epsilon(given, sigma / size, truth)
    return Claim(name, given, size, sigma, claim, truth, formula.covers(claim), formula.source)
