"""From a mechanism to a guarantee: what is promised, to whom, and under which assumptions."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, integer, one_of, open_unit
from hubbub._util.strict_json import finite_or_none
from hubbub.accounting.composition import ACCOUNTANTS, epsilon
from hubbub.accounting.conversions import require_orders
from hubbub.accounting.events import RELATIONS, NeighboringRelation
from hubbub.accounting.events_of_mechanism import charges, stated_relation
from hubbub.accounting.rdp import rdp
from hubbub.accounting.runs import (
    Events,
    RunCharge,
    charge_assumptions,
    charge_participations,
    event_record,
    events_of,
    require_together,
)
from hubbub.accounting.statement import RunFacts, counted_rounds, library_versions, no_less, rounded_up, written
from hubbub.accounting.trade_off import trade_off
from hubbub.accounting.wording import (
    FIXED_RUNS,
    Assumption,
    assumptions,
    cohorts_of,
    compared,
    describe,
    not_covered,
    stopped,
    unit_word,
)
from hubbub.accounting.worst_case import (
    by_divergences,
    certain,
    certain_zcdp_rho,
    unamplified_epsilon,
    unamplified_mu,
    unamplified_zcdp_rho,
)
from hubbub.errors import BudgetError
from hubbub.mechanism import Mechanism, NoiseBy
from hubbub.mechanism.participation import Participation, RandomParticipation
from hubbub.mechanism.sensitivity import Sensitivity

__all__ = ["PrivacyGuarantee", "Restated", "covered_relations", "guarantee", "rounded_up", "unprotected"]

_CURVE = (1e-3, 1e-5, 1e-6, 1e-8, 1e-10, 1e-12)


@lru_cache(maxsize=4096)
def _epsilon(events: Events, delta: float, relation: str, accountant: str) -> float:
    """Epsilon, computed once: a run, its report and its folder ask for the same frozen events again and again."""
    return epsilon(events, delta, relation, accountant)


@dataclass(frozen=True)
class Restated:
    """The same releases under another neighboring relation: its epsilon, or ``None`` and why no theorem gives one."""

    neighboring_relation: NeighboringRelation
    epsilon: float | None
    why: str


@dataclass(frozen=True)
class PrivacyGuarantee:
    """An (epsilon, delta) guarantee that names its unit, its neighboring relation and its assumptions.

    Args:
        epsilon: Rounded up; infinite where nothing is promised.
        delta: As asked for.
        zcdp_rho: Of zero-concentrated DP, where no random cohorts are counted on; else ``None``. Of noise in shares that of
            exact ones, from which those that are drawn have a statistical distance that delta counts.
        l2_sensitivity: In clip norms and under the stated relation, of what ``sensitivity_of`` says, never amplified: of a
            pattern ρ is its square over twice that of ``clip_noise_multiplier``. ``None`` where nothing is promised, or for
            several runs.
        sensitivity_exact: Whether that is exact, or a bound from above.
        noise_multiplier: Standard deviation of z over clip norm × largest column norm.
        clip_noise_multiplier: Standard deviation of z over the clip norm alone.
        neighboring_relation: What "one unit" may change.
        privacy_unit: Whose contribution is hidden.
        mechanism: In words, its cohorts among them.
        accountant: Who computed epsilon.
        rounds: How many rounds it covers.
        assumptions: What must hold for it, and who sees to each.
        simulation: Whether cohorts and noise of it, or of an earlier run, came from a known seed: then it is what real runs
            would have, not a guarantee.
        events: What was charged, those of ``earlier`` counted; ``None`` where nothing bounds it.
        relations: The neighboring relations under which a theorem covers the events.
        not_covered: What costs extra, or is not hidden at all.
        earlier: The runs over the same people that are charged beside this one.
        cohorts: In words, where there is one mechanism.
        sensitivity_of: How far one unit moves all releases of a pattern; of random cohorts one round that it takes part in.
        noise_by: Who adds the noise, where clients bring none along.
        setting: One line of who is trusted with what; empty for a server that sees each update.

    Example:
        >>> from hubbub.mechanism import Mechanism
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> answer = guarantee(Mechanism(Identity(4), MinSeparation(2, 2), noise_multiplier=4.0), delta=1e-5)
        >>> print(answer.sentence().partition(", by")[0])
        (1.357, 1e-05)-differential privacy for each client (zero-out relation) over 4 rounds
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
    assumptions: tuple[Assumption, ...]
    simulation: bool = False
    events: Events | None = None
    relations: tuple[NeighboringRelation, ...] = ()
    not_covered: tuple[str, ...] = ()
    earlier: tuple[RunCharge, ...] = ()
    cohorts: str = ""
    sensitivity_of: Literal["the whole run", "one round"] = "the whole run"
    noise_by: NoiseBy = "server"
    setting: str = ""

    @property
    def private(self) -> bool:
        """Whether anything is promised at all."""
        return math.isfinite(self.epsilon)

    @property
    def amplified(self) -> bool:
        """Whether epsilon counts on random cohorts."""
        return self.events is not None and not certain(self.events)

    @property
    def gdp_mu(self) -> float | None:
        """μ of Gaussian DP, where all that is covered is one Gaussian release; else ``None``."""
        return None if self.amplified else self.unamplified_mu

    @property
    def unamplified_mu(self) -> float | None:
        """μ of Gaussian DP without amplification; ``None`` where nothing is promised, or noise comes in shares."""
        if self.events is None or by_divergences(self.events):
            return None
        return unamplified_mu(self.events, self.neighboring_relation)

    @property
    def unamplified_zcdp_rho(self) -> float | None:
        """ρ of zero-concentrated DP, without amplification; ``None`` where nothing is promised."""
        return None if self.events is None else unamplified_zcdp_rho(self.events, self.neighboring_relation)

    @property
    def unamplified_epsilon(self) -> float:
        """Epsilon in the worst case over the cohorts that the draw can give, at the stated delta: an upper bound."""
        return math.inf if self.events is None else unamplified_epsilon(self.events, self.delta, self.neighboring_relation)

    def at(self, delta: float) -> float:
        """Epsilon at another delta; infinite where nothing is promised.

        Raises:
            ValueError: Not strictly between 0 and 1.
        """
        open_unit("delta", delta)
        if self.events is None:
            return math.inf
        return _epsilon(self.events, delta, self.neighboring_relation, self.accountant)

    def rdp(self, orders: npt.ArrayLike) -> Array:
        """An upper bound on the Rényi divergence of all that is covered at each order above 1, ``(orders,)``.

        Raises:
            ValueError: An order that is not above 1, or nothing is promised.
        """
        total = np.zeros(len(require_orders(orders)))
        for event, count in self._promised():
            total += count * rdp(event, orders, self.neighboring_relation)
        return total

    def trade_off(self, false_positive_rates: npt.ArrayLike) -> Array:
        """From below, the least false negative rate of any test between two neighboring data sets, at each false positive rate.

        Raises:
            ValueError: A rate that is not from 0 to 1, or nothing is promised.
        """
        return trade_off(self._promised(), false_positive_rates, self.neighboring_relation)

    def _promised(self) -> Events:
        if self.events is None:
            raise ValueError("this run has no privacy guarantee: nothing bounds what its releases tell")
        return self.events

    @cached_property
    def curve(self) -> tuple[tuple[float, float], ...]:
        """Pairs (delta, epsilon), delta falling, the stated one among them."""
        others = _CURVE if self.private else ()
        known = {self.delta: self.epsilon} | {delta: self.at(delta) for delta in others if delta != self.delta}
        return tuple(sorted(known.items(), reverse=True))

    @cached_property
    def other_relations(self) -> tuple[Restated, ...]:
        """The same releases under the other neighboring relations, each computed anew where a theorem covers it."""
        return tuple(self._under(relation) for relation in RELATIONS if relation != self.neighboring_relation)

    def _under(self, relation: NeighboringRelation) -> Restated:
        if self.events is None:
            return Restated(relation, None, "nothing is promised under any relation")
        if relation not in self.relations:
            return Restated(
                relation, None, "no theorem covers it, since with another unit the cohorts of the others would change, too"
            )
        try:
            restated = _epsilon(self.events, self.delta, relation, self.accountant)
        except BudgetError as error:
            return Restated(relation, None, str(error))
        how = "computed anew from the charged rounds" if self.amplified else "of the sensitivity under it"
        kinds = [kind for kind in charge_participations(self.events, self.rounds) if kind is not None]
        also = dict.fromkeys(a.text for kind in kinds for a in compared(kind, relation, unit_word(self.privacy_unit)))
        return Restated(relation, restated, "".join((how, *(f", if {text}" for text in also))))

    def sentence(self) -> str:
        """The guarantee in one sentence."""
        if not self.private:
            return f"This run has no privacy guarantee: epsilon is infinite for every {self.privacy_unit} ({self.mechanism})."
        runs = f", together with {len(self.earlier)} earlier run{'s' if len(self.earlier) > 1 else ''}" if self.earlier else ""
        return (
            f"({rounded_up(self.epsilon)}, {no_less(self.delta)})-differential privacy for each {self.privacy_unit} "
            f"({self.neighboring_relation} relation) over {counted_rounds(self.rounds)}, by {self.mechanism}{runs}."
            + self._simulated()
        )

    def _simulated(self) -> str:
        if not self.simulation:
            return ""
        if self.earlier or self.noise_multiplier is None:
            return " Not for release: a simulation is among the runs, whose cohorts and noise come from a known seed."
        return " Simulation, not for release: cohorts and noise come from a known seed."

    def statement(self, facts: RunFacts | None = None) -> str:
        """The guarantee in full, fit for publication.

        Args:
            facts: What is known of the run beside its guarantee, such as its clip norm and the head of its ledger.

        Source: the checklist of Ponomareva et al. 2023, "How to DP-fy ML", Section 5.3, https://arxiv.org/abs/2303.00654.
        """
        return written(self, RunFacts() if facts is None else facts)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """In a notebook: the sentence as a card, with the numbers behind it and what must hold."""
        from hubbub._util.card import bundle

        rows = [
            (name, rounded_up(value))
            for name, value in (
                ("zCDP ρ, at most", self.zcdp_rho),
                (f"sensitivity of {self.sensitivity_of}, in clip norms, at most", self.l2_sensitivity),
            )
            if value is not None
        ]
        if self.clip_noise_multiplier is not None:
            rows.append(("standard deviation of the noise, in clip norms", f"{self.clip_noise_multiplier:.12g}"))
        return bundle(self.sentence(), rows, [str(assumption) for assumption in self.assumptions], good=self.private)

    def as_json(self) -> dict[str, object]:
        """All fields as strict JSON values: an infinite epsilon is ``None`` beside ``"private": False``."""
        fields = {name: value for name, value in vars(self).items() if name in self.__dataclass_fields__}
        return {
            **{name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in fields.items()},
            "private": self.private,
            "assumptions": [asdict(assumption) for assumption in self.assumptions],
            "not_covered": list(self.not_covered),
            "relations": list(self.relations),
            "events": None if self.events is None else [event_record(event, count) for event, count in self.events],
            "earlier": [run.record() for run in self.earlier],
            "gdp_mu": self.gdp_mu,
            "without_amplification": {
                "epsilon": finite_or_none(self.unamplified_epsilon),
                "zcdp_rho": self.unamplified_zcdp_rho,
            },
            "curve": [{"delta": delta, "epsilon": finite_or_none(eps)} for delta, eps in self.curve],
            "other_relations": [{**vars(other), "epsilon": finite_or_none(other.epsilon)} for other in self.other_relations],
            "versions": library_versions(),
        }


def guarantee(
    mechanism: Mechanism,
    delta: float,
    neighboring_relation: str | None = None,
    *,
    rounds: int | None = None,
    accountant: str = "tight",
    privacy_unit: str = "client",
    earlier: Sequence[RunCharge] = (),
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
        privacy_unit: Whose contribution is clipped as one.
        earlier: Runs over the same people whose charges are counted, too.

    Raises:
        ConfigError: Random cohorts together with correlated noise for which no theorem holds (see :func:`.charge.charges`), or
            an earlier run of another unit, or one that the relation does not cover.
        ValueError: A number out of range, an unknown word, or a relation that no theorem covers.

    Source: Denisov et al. 2022, Theorem 2.1 (adaptivity of correlated noise), https://arxiv.org/abs/2202.08312; for random
    cohorts see :mod:`hubbub.accounting.events`.
    """
    open_unit("delta", delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    stated = stated_relation(mechanism.participation, neighboring_relation)
    done = mechanism.rounds if rounds is None else integer("rounds", rounds, at_least=0, at_most=mechanism.rounds)
    require_together(earlier, privacy_unit, stated)
    before = events_of(earlier)
    events = None if before is None else (*before, *charges(mechanism, done))
    random = isinstance(mechanism.participation, RandomParticipation)
    sensitivity = _stated_sensitivity(mechanism, done, stated)
    least = None if mechanism.shares is None else mechanism.shares.clients
    own = assumptions(mechanism.participation, stated, shares_of=least, privacy_unit=privacy_unit)
    others = [assumption for run in earlier for assumption in charge_assumptions(run, stated)]
    ended = (stopped(done),) if done < mechanism.rounds else ()
    covered = covered_relations(mechanism.participation)
    cohorts = (mechanism.participation, *(kind for run in earlier for kind in charge_participations(run.events, run.rounds)))
    unhidden = not_covered(privacy_unit, cohorts, stated)
    return PrivacyGuarantee(
        epsilon=math.inf if events is None else _epsilon(events, delta, stated, accountant),
        delta=float(delta),
        zcdp_rho=certain_zcdp_rho(events, stated),
        l2_sensitivity=sensitivity.value,
        sensitivity_exact=sensitivity.exact,
        noise_multiplier=mechanism.noise_multiplier,
        clip_noise_multiplier=mechanism.stddev,
        neighboring_relation=stated,
        privacy_unit=privacy_unit,
        mechanism=describe(mechanism, privacy_unit),
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


def _stated_sensitivity(mechanism: Mechanism, rounds: int, relation: NeighboringRelation) -> Sensitivity:
    """Of the first rounds of a pattern, or of one round of random cohorts, under a relation."""
    if isinstance(mechanism.participation, RandomParticipation):
        # What one round costs at noise of one column norm: what the accountant charges for it, the coins seen.
        moved = unamplified_mu(charges(replace(mechanism, noise_multiplier=1.0), 1), relation)
        return replace(mechanism.column_sensitivity, value=moved * mechanism.column_norm)
    if rounds == 0:
        return Sensitivity(0.0, True, "nothing is released")
    least = min(mechanism.sensitivity_after(rounds), mechanism.sensitivity, key=lambda s: s.value)
    return replace(least, value=2 * least.value) if relation == "replace-one" else least


def covered_relations(participation: Participation) -> tuple[NeighboringRelation, ...]:
    """The neighboring relations under which a theorem covers these cohorts."""
    found = []
    for relation in RELATIONS:
        try:
            found.append(stated_relation(participation, relation))
        except ValueError:
            continue
    return tuple(found)


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
        mechanism=f"no mechanism: {'gradients' if privacy_unit == 'example' else 'updates'} are neither clipped nor noised",
        accountant="none",
        rounds=rounds,
        assumptions=(),
        not_covered=not_covered(privacy_unit, (), "zero-out"),
    )
