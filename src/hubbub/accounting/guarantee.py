"""From a mechanism to a guarantee: what is promised, to whom, and under which assumptions."""

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context, Decimal

from hubbub._checks import integer, one_of, open_unit
from hubbub.accounting.charge import event_of, stated_relation
from hubbub.accounting.composition import ACCOUNTANTS, epsilon
from hubbub.accounting.events import FixedSizeSampled, NeighboringRelation, PoissonSampled
from hubbub.accounting.wording import assumptions, describe
from hubbub.mechanism import Mechanism

__all__ = ["PrivacyGuarantee", "guarantee", "rounded_up", "unprotected"]


@dataclass(frozen=True)
class PrivacyGuarantee:
    """An (epsilon, delta) guarantee that names its unit, its neighboring relation and its assumptions.

    Args:
        epsilon: Rounded up; infinite where nothing is promised.
        delta: As asked for.
        zcdp_rho: Of zero-concentrated DP, where the whole run is one Gaussian release; else ``None``.
        l2_sensitivity: Of C to the participation pattern under the zero-out relation; ``None`` where nothing is promised.
        sensitivity_exact: Whether that is exact, or a bound from above.
        noise_multiplier: Standard deviation of z over clip norm × largest column norm.
        clip_noise_multiplier: Standard deviation of z over the clip norm alone.
        neighboring_relation: What "one unit" may change.
        privacy_unit: Whose contribution is hidden.
        mechanism: In words.
        accountant: Who computed epsilon.
        rounds: How many rounds it covers.
        assumptions: What must hold for it.
        simulation: Whether cohorts and noise came from a known seed: then it is what a real run would have, not a guarantee.
    """

    epsilon: float
    delta: float
    zcdp_rho: float | None
    l2_sensitivity: float | None
    sensitivity_exact: bool
    noise_multiplier: float | None
    clip_noise_multiplier: float | None
    neighboring_relation: NeighboringRelation
    privacy_unit: str
    mechanism: str
    accountant: str
    rounds: int
    assumptions: tuple[str, ...]
    simulation: bool = False

    @property
    def private(self) -> bool:
        """Whether anything is promised at all."""
        return math.isfinite(self.epsilon)

    def sentence(self) -> str:
        """The guarantee in one sentence."""
        if not self.private:
            return f"This run has no privacy guarantee: epsilon is infinite for every {self.privacy_unit} ({self.mechanism})."
        return (
            f"({rounded_up(self.epsilon)}, {self.delta:g})-differential privacy for each {self.privacy_unit} "
            f"({self.neighboring_relation} relation) over {self.rounds} rounds, by {self.mechanism}."
            + (" Simulation, not for release: cohorts and noise come from a known seed." if self.simulation else "")
        )

    def as_json(self) -> dict[str, object]:
        """All fields as strict JSON values: an infinite epsilon is ``None`` beside ``"private": False``."""
        fields = asdict(self)
        fields["private"] = self.private
        fields["assumptions"] = list(self.assumptions)
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in fields.items()}


def rounded_up(epsilon: float) -> str:
    """Epsilon with four digits, rounded up: a statement may be too high, never too low.

    Example:
        >>> rounded_up(3.42400727), rounded_up(8.0), rounded_up(1407.97), rounded_up(math.inf)
        ('3.425', '8', '1408', '∞')
    """
    if not math.isfinite(epsilon):
        return "∞"
    if epsilon == 0:
        return "0"
    exact = Decimal(epsilon)
    up = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 3), rounding=ROUND_CEILING, context=Context(prec=60))
    return f"{up.normalize():f}"


def guarantee(
    mechanism: Mechanism,
    delta: float,
    neighboring_relation: str | None = None,
    *,
    rounds: int | None = None,
    accountant: str = "tight",
    privacy_unit: str = "client",
) -> PrivacyGuarantee:
    """The guarantee of a mechanism, for all of its rounds or the first few.

    After t rounds of correlated noise it is that of the Gaussian with the sensitivity of the leading t × t part of C and the
    noise of the whole run. It may be stated for a run that stops there only if t did not depend on the data.

    Args:
        mechanism: What the run promises.
        delta: Strictly between 0 and 1.
        neighboring_relation: By default that of :func:`hubbub.accounting.charge.default_relation`.
        rounds: From 0 to the mechanism's; by default all.
        accountant: ``"tight"`` or ``"pld"``.
        privacy_unit: Whose contribution is clipped as one.

    Raises:
        ConfigError: Random cohorts together with correlated noise, for which no theorem is implemented.
        ValueError: A number out of range, an unknown word, or a relation that no theorem covers.

    Source: Denisov et al. 2022, Theorem 2.1 (adaptivity of correlated noise), https://arxiv.org/abs/2202.08312; for random
    cohorts see :mod:`hubbub.accounting.events`.
    """
    open_unit("delta", delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    stated = stated_relation(mechanism.participation, neighboring_relation)
    done = mechanism.rounds if rounds is None else integer("rounds", rounds, at_least=0, at_most=mechanism.rounds)
    event, count = event_of(mechanism, done)
    eps = epsilon([(event, count)], delta, stated, accountant)
    sampled = isinstance(event, PoissonSampled | FixedSizeSampled)
    factor = 4 if stated == "replace-one" else 1
    mu = mechanism.mu_after(done) if done and not sampled else 0.0
    sensitivity = min(mechanism.sensitivity_after(max(done, 1)), mechanism.sensitivity, key=lambda s: s.value)
    return PrivacyGuarantee(
        epsilon=eps,
        delta=float(delta),
        zcdp_rho=None if sampled else factor * mu**2 / 2,
        l2_sensitivity=1.0 if sampled else sensitivity.value if done else 0.0,
        sensitivity_exact=sampled or sensitivity.exact or not done,
        noise_multiplier=mechanism.noise_multiplier,
        clip_noise_multiplier=mechanism.stddev,
        neighboring_relation=stated,
        privacy_unit=privacy_unit,
        mechanism=describe(mechanism),
        accountant=accountant,
        rounds=done,
        assumptions=assumptions(mechanism.participation),
    )


def unprotected(rounds: int, delta: float, privacy_unit: str = "client") -> PrivacyGuarantee:
    """The statement of a run without privacy: epsilon is infinite."""
    return PrivacyGuarantee(
        epsilon=math.inf,
        delta=float(delta),
        zcdp_rho=None,
        l2_sensitivity=None,
        sensitivity_exact=False,
        noise_multiplier=None,
        clip_noise_multiplier=None,
        neighboring_relation="zero-out",
        privacy_unit=privacy_unit,
        mechanism="no mechanism: updates are neither clipped nor noised",
        accountant="none",
        rounds=rounds,
        assumptions=(),
    )
