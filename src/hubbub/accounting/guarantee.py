"""From a mechanism to its guarantee: what is promised, to whom, and under which assumptions."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hubbub._util.checks import integer, one_of, open_unit, shown
from hubbub.accounting import wording
from hubbub.accounting.composition import ACCOUNTANTS, by_divergences, certain_zcdp_rho, epsilon_once, unamplified_mu
from hubbub.accounting.events import RELATIONS, NeighboringRelation
from hubbub.accounting.events_of_mechanism import covered_relations, mechanism_events, stated_relation
from hubbub.accounting.runs import Events, RunCharge, events_of, require_together, run_assumptions, run_participations
from hubbub.accounting.statement import PrivacyGuarantee
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import Participation, RandomParticipation
from hubbub.mechanism.sensitivity import Sensitivity


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
        >>> from hubbub.accounting import rounded_up
        >>> from hubbub.mechanism.participation import PoissonSampling
        >>> from hubbub.mechanism.strategies import Identity
        >>> answer = guarantee(Mechanism(Identity(100), PoissonSampling(0.1), noise_multiplier=1.5), delta=1e-5)
        >>> rounded_up(answer.epsilon), rounded_up(answer.unamplified_epsilon), answer.neighboring_relation
        ('3.536', '49.89', 'add-or-remove-one')

    Source: Denisov et al. 2022, Theorem 2.1 (adaptivity of correlated noise), https://arxiv.org/abs/2202.08312; for random
    cohorts see :mod:`hubbub.accounting.events`.
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism = {shown(mechanism)}: must be a Mechanism(strategy, participation, noise_multiplier)")
    if evaluation is not None and not (isinstance(evaluation, tuple) and len(evaluation) == 2):
        raise TypeError(f"evaluation = {shown(evaluation)}: must be a pair, a mechanism and how many evaluations are counted")
    delta = open_unit("delta", delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    one_of("privacy_unit", privacy_unit, wording.UNITS)
    stated = stated_relation(mechanism.participation, neighboring_relation)
    done = mechanism.rounds if rounds is None else integer("rounds", rounds, at_least=0, at_most=mechanism.rounds)
    measured, times = (None, 0) if evaluation is None else evaluation
    require_together(earlier, privacy_unit, stated)
    who, moved = mechanism.participation, 2.0 if stated == "replace-one" else 1.0
    if isinstance(who, RandomParticipation):
        # What one round costs at noise of one column norm: what the accountant counts for it, if participation is known.
        sensitivity = mechanism.column_sensitivity
        moved = unamplified_mu(mechanism_events(replace(mechanism, noise_multiplier=1.0), 1), stated)
    else:
        sensitivity = mechanism.least_sensitivity(done) if done else Sensitivity(0.0, True, "nothing is released")
    least = None if mechanism.shares is None else mechanism.shares.clients
    kept_by = one_of("pattern_kept_by", pattern_kept_by, ("ledger", "devices"))
    own = wording.assumptions(who, stated, shares_of=least, privacy_unit=privacy_unit, pattern_kept_by=kept_by)
    others = [assumption for run in earlier for assumption in run_assumptions(run, stated)]
    ended = (wording.stopped(done),) if done < mechanism.rounds else ()
    several = (wording.FIXED_RUNS, wording.same_units(privacy_unit)) if earlier else ()
    words, cohorts, events = wording.describe(mechanism, privacy_unit), [who], mechanism_events(mechanism, done)
    relations = covered_relations(who)
    if measured is not None:
        relations = tuple(one for one in relations if one in covered_relations(measured.participation))
        stated_relation(measured.participation, stated)
        own = (*own, *wording.assumptions(measured.participation, stated, privacy_unit=privacy_unit))
        words += f"; and {wording.count(times, 'private evaluation')} by {wording.describe(measured, privacy_unit)}"
        cohorts.append(measured.participation)
        events = (*events, *mechanism_events(measured, times))
    return replace(
        together(
            earlier,
            delta,
            stated,
            own=events,
            cohorts=cohorts,
            relations=relations,
            accountant=accountant,
            privacy_unit=privacy_unit,
        ),
        l2_sensitivity=sensitivity.stated(moved),
        sensitivity_exact=sensitivity.exact,
        noise_multiplier=mechanism.noise_multiplier,
        clip_noise_multiplier=mechanism.stddev,
        mechanism=words,
        rounds=done,
        assumptions=tuple(dict.fromkeys((*own, *ended, *others, *several))),
        earlier=tuple(earlier),
        cohorts=wording.cohorts_of(mechanism, privacy_unit),
        sensitivity_of="one round" if isinstance(who, RandomParticipation) else "the whole run",
    )


def together(
    runs: Sequence[RunCharge],
    delta: float,
    neighboring_relation: NeighboringRelation,
    *,
    own: Events = (),
    cohorts: Sequence[Participation | None] = (),
    relations: Sequence[NeighboringRelation] = RELATIONS,
    accountant: str,
    privacy_unit: str,
) -> PrivacyGuarantee:
    """The guarantee of runs over the same people, each counted once, without a mechanism in words.

    ``own`` are events in addition to theirs, with their ``cohorts`` and the ``relations`` under which they are covered.
    """
    require_together(runs, privacy_unit, neighboring_relation)
    before = events_of(runs)
    events = None if before is None else (*before, *own)
    all_cohorts = [*cohorts, *(kind for run in runs for kind in run_participations(run.events, run.rounds))]
    unhidden = wording.not_covered(privacy_unit, all_cohorts, neighboring_relation, shares=by_divergences(events or ()))
    return PrivacyGuarantee(
        epsilon=math.inf if events is None else epsilon_once(events, delta, neighboring_relation, accountant),
        delta=float(delta),
        zcdp_rho=certain_zcdp_rho(events, neighboring_relation),
        neighboring_relation=neighboring_relation,
        privacy_unit=privacy_unit,
        mechanism=f"{wording.count(len(runs), 'run')} over the same people",
        accountant=accountant,
        rounds=sum(run.rounds for run in runs),
        simulation=any(run.simulation for run in runs),
        events=events,
        relations=tuple(r for r in relations if all(r in run.relations for run in runs)),
        not_covered=tuple(dict.fromkeys((*unhidden, *(what for run in runs for what in run.not_covered)))),
        counted=tuple(runs),
    )


def unprotected(rounds: int, delta: float, privacy_unit: str = "client") -> PrivacyGuarantee:
    """The statement of a run without privacy: epsilon is infinite.

    Args:
        rounds: The rounds that were done.
        delta: Stated with the infinite epsilon; it changes nothing.
        privacy_unit: ``"client"`` or ``"example"``.

    Raises:
        ValueError: A number out of range, or another unit.

    Example:
        >>> unprotected(rounds=8, delta=1e-5).private
        False
    """
    one_of("privacy_unit", privacy_unit, wording.UNITS)
    return PrivacyGuarantee(
        epsilon=math.inf,
        delta=open_unit("delta", delta),
        neighboring_relation="zero-out",
        privacy_unit=privacy_unit,
        mechanism=f"no mechanism: {'gradients' if privacy_unit == 'example' else 'updates'} are neither clipped nor noised",
        accountant="none",
        rounds=integer("rounds", rounds, at_least=0),
        not_covered=wording.not_covered(privacy_unit, (), "zero-out"),
    )
