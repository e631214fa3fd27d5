"""What an audit found: lower bounds against what is stated, tests of the noise, and one verdict."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hubbub._util.checks import Array
from hubbub._util.strict_json import finite_or_none
from hubbub.accounting.guarantee import PrivacyGuarantee
from hubbub.accounting.statement import rounded_up
from hubbub.audit.bounds import LowerBound
from hubbub.audit.whitening import Check

__all__ = ["CERTAIN", "SHOWN", "Audit", "Comparison", "compared"]

# Lower bounds are shown at the confidence that is usual; only one that is this certain says that a system is broken.
SHOWN, CERTAIN = 0.95, 1 - 1e-6


@dataclass(frozen=True)
class Comparison:
    """A lower bound against the epsilon that it must not exceed.

    Args:
        what: Whose epsilon, and by which method.
        stated: From the accounting; an upper bound.
        shown: At a confidence of 95 %.
        certain: At a confidence of 1 − 10⁻⁶: it decides.
    """

    what: str
    stated: float
    shown: LowerBound
    certain: LowerBound

    @property
    def holds(self) -> bool:
        """Whether nothing was disproved."""
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


def compared(what: str, stated: float, bound: Callable[[float], LowerBound]) -> Comparison:
    """A comparison, from the bound at any confidence."""
    return Comparison(what, stated, bound(SHOWN), bound(CERTAIN))


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found.

    Args:
        stated: The guarantee of what was audited, which may be fewer rounds than the run has, and of this run alone.
        comparisons: Lower bounds against it.
        checks: Tests that a right system fails with at most the probability that each states.
        present: Scores of the canaries that contributed, in units in which the noise is 1.
        absent: Of those that did not.
        means: Of each present score, as the cohorts and the guarantee have it.
        canaries: In each run.
        runs: How often the rounds were run, with new keys each time.
        rounds: Of each run.
        notes: What the numbers leave out, one sentence each.
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
        """Whether no bound passes what is stated and every test is passed."""
        return all(one.holds for one in self.comparisons) and all(check.passed for check in self.checks)

    @property
    def faults(self) -> tuple[str, ...]:
        """What was found, one line each."""
        passed = [
            f"{one.what}: epsilon is at least {one.certain.epsilon:.4f}, and {one.stated:.4f} is stated"
            for one in self.comparisons
            if not one.holds
        ]
        failed = [
            f"{check.name}: {check.value:.4g}, which a right system has "
            + (f"at {check.high:.4g}" if check.low == check.high else f"from {check.low:.4g} to {check.high:.4g}")
            for check in self.checks
            if not check.passed
        ]
        return (*passed, *failed)

    def sentence(self) -> str:
        """The verdict."""
        if self.holds:
            runs, rounds = _count(self.runs, "run"), _count(self.rounds, "round")
            return (
                f"holds: {_count(len(self.present) + len(self.absent), 'canary', 'canaries')} in {runs} of {rounds} disproved "
                f"nothing of what is stated, and all {len(self.checks)} tests of the system passed. "
                "That is no proof of privacy."
            )
        alarm = len(self.comparisons) * (1 - CERTAIN) + math.fsum(check.false_alarm for check in self.checks)
        return (
            f"BROKEN: {'; '.join(self.faults)}. A system that does what it states fails this audit with a "
            f"probability of at most {alarm:.1g}."
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """In a notebook: the verdict as a card, with each bound against what is stated."""
        from hubbub._util.card import bundle

        rows = [
            (
                f"epsilon, {one.what}",
                f"at most {rounded_up(one.stated)} stated; at least {_down(one.shown)} (95 %), {_down(one.certain)} (1 − 10⁻⁶)",
            )
            for one in self.comparisons
        ]
        return bundle(self.sentence(), rows, good=self.holds)

    def as_json(self) -> dict[str, Any]:
        """As strict JSON values, scores included."""
        return {
            "verdict": "holds" if self.holds else "BROKEN",
            "sentence": self.sentence(),
            "stated": {
                "epsilon": self.stated.epsilon,
                "delta": self.stated.delta,
                "neighboring_relation": self.stated.neighboring_relation,
                "privacy_unit": self.stated.privacy_unit,
                "mechanism": self.stated.mechanism,
                "rounds": self.rounds,
                "epsilon_without_amplification": finite_or_none(self.stated.unamplified_epsilon),
                "gdp_mu": self.stated.unamplified_mu,
            },
            "canaries": self.canaries,
            "runs": self.runs,
            "comparisons": [one.as_json() for one in self.comparisons],
            "checks": [{**asdict(check), "low": finite_or_none(check.low), "passed": check.passed} for check in self.checks],
            "notes": list(self.notes),
            "scores": {name: getattr(self, name).tolist() for name in ("present", "absent", "means")},
        }


def _down(bound: LowerBound) -> str:
    return f"{math.floor(bound.epsilon * 1e3) / 1e3:.3f}"


def _count(number: int, thing: str, things: str = "") -> str:
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
