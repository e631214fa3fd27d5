"""The findings of an audit: lower bounds against the stated epsilon, tests of the noise, and one verdict."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hubbub._util import rounded_down
from hubbub._util.checks import Array
from hubbub._util.strict_json import finite_or_none
from hubbub.accounting.statement import PrivacyGuarantee, rounded_up
from hubbub.audit.bounds import LowerBound
from hubbub.audit.whitening import Check

# Bounds are shown at the usual confidence; the verdict needs the second.
SHOWN, CERTAIN = 0.95, 1 - 1e-6


@dataclass(frozen=True)
class Comparison:
    """A lower bound against the stated epsilon.

    Args:
        what: The method, and which epsilon it bounds.
        stated: The upper bound by accounting.
        shown: The lower bound at a confidence of 95 %.
        certain: The lower bound at a confidence of 1 − 10⁻⁶, which decides the verdict.

    Example:
        >>> from hubbub.audit import GuessCount, one_run_epsilon
        >>> bounds = [one_run_epsilon([GuessCount(100, 50, 49)], delta=1e-5, confidence=c) for c in (0.95, 1 - 1e-6)]
        >>> Comparison("guesses of one run", 8.0, *bounds).holds
        True
    """

    what: str
    stated: float
    shown: LowerBound
    certain: LowerBound

    @property
    def holds(self) -> bool:
        """Whether the lower bound is at most the stated epsilon."""
        return self.certain.epsilon <= self.stated

    def as_json(self) -> dict[str, Any]:
        """As strict JSON values."""
        bounds = {name: getattr(self, name) for name in ("shown", "certain")}
        return {
            "what": self.what,
            "stated_epsilon": finite_or_none(self.stated),
            "holds": self.holds,
            **{name: {**asdict(bound), "statement": bound.statement} for name, bound in bounds.items()},
        }


def compared(what: str, stated: float, bound: Callable[..., LowerBound]) -> Comparison:
    """The comparison for a bound as a function of its ``confidence``."""
    return Comparison(what, stated, bound(confidence=SHOWN), bound(confidence=CERTAIN))


@dataclass(frozen=True, eq=False)
class Audit:
    """The findings of an audit.

    Args:
        stated: The guarantee of the audited rounds, of this run alone.
        comparisons: Lower bounds against it.
        checks: Tests, each with the probability that a correct system fails it.
        present: Scores of the present canaries, in standard deviations of the noise.
        absent: Scores of the absent canaries.
        means: The expected value of each present score.
        canaries: Canaries in each run.
        runs: Number of runs, each with new keys of noise and cohorts.
        rounds: Rounds of each run.
        notes: Limits of these numbers, one sentence each.

    Example:
        >>> from hubbub.accounting import unprotected
        >>> import numpy as np
        >>> check = Check("null standard deviation", value=1.4, low=0.8, high=1.2, false_alarm=1e-6)
        >>> scores = np.zeros(4)
        >>> found = Audit(unprotected(4, 1e-5), (), (check,), scores, scores, scores, canaries=8, runs=1, rounds=4)
        >>> found.holds, found.faults
        (False, ('null standard deviation: 1.4, in a correct system from 0.8 to 1.2',))
    """

    stated: PrivacyGuarantee
    comparisons: tuple[Comparison, ...]
    checks: tuple[Check, ...]
    present: Array
    absent: Array
    means: Array
    canaries: int
    runs: int
    rounds: int
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no lower bound exceeds the stated epsilon and every test passed."""
        return all(one.holds for one in self.comparisons) and all(check.passed for check in self.checks)

    @property
    def faults(self) -> tuple[str, ...]:
        """Each failure in one line."""
        disproved = [
            f"{one.what}: epsilon is at least {rounded_down(one.certain.epsilon, 4)}, "
            f"the stated epsilon is {rounded_up(one.stated)}"
            for one in self.comparisons
            if not one.holds
        ]
        failed = [
            f"{check.name}: {check.value:.4g}, in a correct system "
            + (f"{check.high:.4g}" if check.low == check.high else f"from {check.low:.4g} to {check.high:.4g}")
            for check in self.checks
            if not check.passed
        ]
        return (*disproved, *failed)

    def sentence(self) -> str:
        """The verdict."""
        if self.holds:
            runs, rounds = _count(self.runs, "run"), _count(self.rounds, "round")
            return (
                f"holds: {_count(self.canaries * self.runs, 'canary', 'canaries')} in {runs} of {rounds} did not "
                f"disprove the stated epsilon, and all {len(self.checks)} tests of the system passed. "
                "This is no proof of privacy."
            )
        alarm = len(self.comparisons) * (1 - CERTAIN) + math.fsum(check.false_alarm for check in self.checks)
        most = f"{math.ceil(1e6 * alarm) / 1e6:.2g}"
        return f"BROKEN: {'; '.join(self.faults)}. A correct system fails this audit with a probability of at most {most}."

    def as_json(self) -> dict[str, Any]:
        """As strict JSON values, scores included."""
        return {
            "verdict": "holds" if self.holds else "BROKEN",
            "sentence": self.sentence(),
            "stated": {
                "epsilon": finite_or_none(self.stated.epsilon),
                "delta": self.stated.delta,
                "neighboring_relation": self.stated.neighboring_relation,
                "privacy_unit": self.stated.privacy_unit,
                "mechanism": self.stated.mechanism,
                "rounds": self.rounds,
                "epsilon_without_amplification": finite_or_none(self.stated.unamplified_epsilon),
                "gdp_mu": finite_or_none(self.stated.unamplified_mu),
            },
            "canaries": self.canaries,
            "runs": self.runs,
            "comparisons": [one.as_json() for one in self.comparisons],
            "checks": [{**asdict(check), "low": finite_or_none(check.low), "passed": check.passed} for check in self.checks],
            "notes": list(self.notes),
            "scores": {name: getattr(self, name).tolist() for name in ("present", "absent", "means")},
        }


def _count(number: int, thing: str, things: str = "") -> str:
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
