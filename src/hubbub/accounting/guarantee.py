"""From a mechanism to its guarantee: what is promised, to whom, and under which assumptions."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hubbub._util.checks import integer, one_of, open_unit
from hubbub.accounting.composition import ACCOUNTANTS, certain_zcdp_rho, epsilon_once, unamplified_mu
from hubbub.accounting.events import NeighboringRelation
from hubbub.accounting.events_of_mechanism import covered_relations, mechanism_events, stated_relation
from hubbub.accounting.runs import RunCharge, events_of, require_together, run_assumptions, run_participations
from hubbub.accounting.statement import PrivacyGuarantee, Restated, rounded_up
from hubbub.accounting.wording import (
    FIXED_RUNS,
    UNITS,
    assumptions,
    cohorts_of,
    describe,
    not_covered,
    private_evaluations,
    stopped,
)
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import RandomParticipation
from hubbub.mechanism.sensitivity import Sensitivity

__all__ = ["PrivacyGuarantee", "Restated", "covered_relations", "guarantee", "rounded_up", "unprotected"]


def guarantee(
    mechanism: Mechanism,
    delta: float,
    neighboring_relation: str | None = None,
    *,
    rounds: int | None = None,
    accountant: str = "tight",
    privacy_unit: str = "client",
    earlier: Sequence[RunCharge] = (),
    evaluation: tuple[Mechanism, int] | None = None,
    pattern_kept_by: str = "ledger",
) -> PrivacyGuarantee:
    """The guarantee of a mechanism, for all of its rounds or the first few.

    After t rounds of correlated noise it is that of the Gaussian with the sensitivity of the leading t × t part of C and the
    noise of the whole run. It may be stated for a run that stops there only if t did not depend on the data.

    Args:
        mechanism: What the run promises.
        delta: Strictly between 0 and 1.
        neighboring_relation: By default that of :func:`hubbub.accounting.events_of_mechanism.default_relation`.
        rounds: From 0 to the mechanism's; by default all.
        accountant: ``"tight"`` or ``"rdp"``.
        privacy_unit: Whose contribution is clipped as one, ``"client"`` or ``"example"``.
        earlier: Runs over the same people whose cost is counted, too.
        evaluation: How the private evaluations of the run are hidden, and how many of them are counted.
        pattern_kept_by: Who sees to it that a participation pattern is kept: ``"ledger"``, the server's, or ``"devices"``.

    Raises:
        ConfigError: Random cohorts together with correlated noise for which no theorem holds (see
            :func:`.mechanism_events`), or an earlier run of another unit, or one that the relation does not cover.
        ValueError: A number out of range, an unknown word, or a relation that no theorem covers.

    Example:
        >>> from hubbub.mechanism.participation import PoissonSampling
        >>> from hubbub.mechanism.strategies import Identity
        >>> answer = guarantee(Mechanism(Identity(100), PoissonSampling(0.1), noise_multiplier=1.5), delta=1e-5)
        >>> rounded_up(answer.epsilon), rounded_up(answer.unamplified_epsilon), answer.neighboring_relation
        ('3.536', '49.89', 'add-or-remove-one')

    Source: Denisov et al. 2022, Theorem 2.1 (adaptivity of correlated noise), https://arxiv.org/abs/2202.08312; for random
    cohorts see :mod:`hubbub.accounting.events`.
    """
    open_unit("delta", delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    one_of("privacy_unit", privacy_unit, UNITS)
    stated = stated_relation(mechanism.participation, neighboring_relation)
    done = mechanism.rounds if rounds is None else integer("rounds", rounds, at_least=0, at_most=mechanism.rounds)
    require_together(earlier, privacy_unit, stated)
    before = events_of(earlier)
    measured, times = (None, 0) if evaluation is None else evaluation
    evaluations = () if measured is None else mechanism_events(measured, times)
    events = None if before is None else (*before, *mechanism_events(mechanism, done), *evaluations)
    random = isinstance(mechanism.participation, RandomParticipation)
    sensitivity, moved = _stated_sensitivity(mechanism, done, stated)
    least = None if mechanism.shares is None else mechanism.shares.clients
    kept_by = one_of("pattern_kept_by", pattern_kept_by, ("ledger", "devices"))
    own = assumptions(mechanism.participation, stated, shares_of=least, privacy_unit=privacy_unit, pattern_kept_by=kept_by)
    others = [assumption for run in earlier for assumption in run_assumptions(run, stated)]
    ended = (stopped(done),) if done < mechanism.rounds else ()
    covered = covered_relations(mechanism.participation)
    words = describe(mechanism, privacy_unit)
    if measured is not None:
        stated_relation(measured.participation, stated)
        own = (*own, *assumptions(measured.participation, stated, privacy_unit=privacy_unit))
        words += f"; and {private_evaluations(times)} by {describe(measured, privacy_unit)}"
    drawn = () if measured is None else (measured.participation,)
    cohorts = (
        mechanism.participation,
        *drawn,
        *(kind for run in earlier for kind in run_participations(run.events, run.rounds)),
    )
    unhidden = not_covered(privacy_unit, cohorts, stated)
    return PrivacyGuarantee(
        epsilon=math.inf if events is None else epsilon_once(events, delta, stated, accountant),
        delta=float(delta),
        zcdp_rho=certain_zcdp_rho(events, stated),
        l2_sensitivity=sensitivity.stated(moved),
        sensitivity_exact=sensitivity.exact,
        noise_multiplier=mechanism.noise_multiplier,
        clip_noise_multiplier=mechanism.stddev,
        neighboring_relation=stated,
        privacy_unit=privacy_unit,
        mechanism=words,
        accountant=accountant,
        rounds=done,
        assumptions=tuple(dict.fromkeys((*own, *ended, *others, *((FIXED_RUNS,) if earlier else ())))),
        simulation=any(run.simulation for run in earlier),
        events=events,
        relations=tuple(r for r in covered if all(r in run.relations for run in earlier)),
        not_covered=tuple(dict.fromkeys((*unhidden, *(what for run in earlier for what in run.not_covered)))),
        earlier=tuple(earlier),
        cohorts=cohorts_of(mechanism, privacy_unit),
        sensitivity_of="one round" if random else "the whole run",
    )


def _stated_sensitivity(mechanism: Mechanism, rounds: int, relation: NeighboringRelation) -> tuple[Sensitivity, float]:
    """Of the first rounds of a pattern, or of one round of random cohorts, and by what a relation multiplies it."""
    if isinstance(mechanism.participation, RandomParticipation):
        # What one round costs at noise of one column norm: what the accountant counts for it, if participation is known.
        moved = unamplified_mu(mechanism_events(replace(mechanism, noise_multiplier=1.0), 1), relation)
        return mechanism.column_sensitivity, moved
    if rounds == 0:
        return Sensitivity(0.0, True, "nothing is released"), 1.0
    return mechanism.least_sensitivity(rounds), 2.0 if relation == "replace-one" else 1.0


def unprotected(rounds: int, delta: float, privacy_unit: str = "client") -> PrivacyGuarantee:
    """The statement of a run without privacy: epsilon is infinite.

    Example:
        >>> unprotected(rounds=8, delta=1e-5).private
        False
    """
    one_of("privacy_unit", privacy_unit, UNITS)
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
        mechanism=f"no mechanism: {'gradients' if privacy_unit == 'example' else 'updates'} are neither clipped nor noised",
        accountant="none",
        rounds=rounds,
        assumptions=(),
        not_covered=not_covered(privacy_unit, (), "zero-out"),
    )
