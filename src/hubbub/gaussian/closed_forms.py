"""Calibrations of the Gaussian mechanism by the names under which they were published, each with the delta that it attains."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from hubbub._checks import one_of, open_unit, scale
from hubbub.gaussian import exact
from hubbub.gaussian.formulas import FORMULAS

__all__ = ["NAMES", "Calibration", "Claim", "calibrate", "claimed_epsilon", "computed", "shown", "why_not_proved"]

NAMES = tuple(FORMULAS)


@dataclass(frozen=True)
class Calibration:
    """The noise that a formula chooses for a budget, and the delta that this noise attains.

    Args:
        name: Of the calibration, one of ``NAMES``.
        epsilon: The budget.
        delta: The budget's claim.
        sensitivity: L2, in the unit of the noise multiplier.
        noise_multiplier: Standard deviation of the noise, in the unit of the sensitivity.
        attained_delta: The exact delta of that noise at epsilon, rounded up.
        proved: Whether the formula's theorem covers this budget.
        source: Author, year, theorem, link.
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
    """The epsilon that a formula claims for given noise, beside the exact one.

    Args:
        name: Of the calibration, one of ``NAMES``.
        delta: Of both epsilons.
        sensitivity: L2, in the unit of the noise multiplier.
        noise_multiplier: Standard deviation of the noise, in the unit of the sensitivity.
        claimed_epsilon: What the formula says, whether or not its theorem covers it.
        exact_epsilon: What is true, rounded up.
        proved: Whether the theorem covers the claim.
        source: Author, year, theorem, link.
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
        epsilon: From 1e-12 to 1e12, and within what the theorem covers.
        delta: Strictly between 0 and 1, and within what the theorem covers.
        sensitivity: L2, from 1e-12 to 1e12, in the unit in which the noise is answered.

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
    """In words, where a theorem does not cover a budget."""
    formula = FORMULAS[answer.name]
    rule = "at most" if formula.epsilon_closed else "below"
    claimed = f"less than the claimed {answer.delta!r}, by luck" if answer.holds else f"more than the claimed {answer.delta!r}"
    noise, attained = shown(answer.noise_multiplier, 6), shown(answer.attained_delta, 3)
    return (
        f"the calibration {answer.name!r} is proved only for epsilon {rule} {formula.epsilon_limit:g}: its noise "
        f"{noise} attains delta {attained} here, {claimed}"
    )


def shown(value: float, digits: int) -> str:
    """A number above 0 with so many digits, which never say less noise or less delta than there is.

    Example:
        >>> shown(4.1137e-08, 3), shown(2.470432, 6), shown(0.5, 3)
        ('4.12e-08', '2.47044', '0.5')
    """
    exact_value = Decimal(value)
    up = exact_value.quantize(Decimal(1).scaleb(exact_value.adjusted() - digits + 1), rounding=ROUND_CEILING)
    text = f"{float(up):.{digits}g}"
    # Where float64 has no digits left, its nearest number may be below.
    return text if Decimal(text) >= exact_value else f"{up:e}"


def computed(name: str, epsilon: float, delta: float, sensitivity: float = 1.0) -> Calibration:
    """What a formula computes, even for an epsilon that its theorem does not cover: see ``proved``, ``attained_delta``.

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
    sigma = exact.noise_multiplier(eps, claim, size) if name == "analytic" else formula.noise(eps, claim) * size
    attained = exact.delta(eps, sigma, size)
    return Calibration(name, eps, claim, size, sigma, attained, formula.covers(eps), formula.source)


def claimed_epsilon(name: str, delta: float, noise_multiplier: float, sensitivity: float = 1.0) -> Claim:
    """The epsilon that a formula claims for given noise, and the exact one.

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
    claim = truth if name == "analytic" else formula.epsilon(given, sigma / size)
    return Claim(name, given, size, sigma, claim, truth, formula.covers(claim), formula.source)
