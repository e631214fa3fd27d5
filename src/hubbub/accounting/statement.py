"""A privacy guarantee as a value, and as a text that can be published: each point of the checklist of "How to DP-fy ML".

Source: Ponomareva et al. 2023, Section 5.3, https://arxiv.org/abs/2303.00654.
"""

import math
import sys
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import numpy.typing as npt

from hubbub._util import to_digits
from hubbub._util.checks import Array, open_unit
from hubbub._util.strict_json import finite_only
from hubbub.accounting import composition
from hubbub.accounting.events import RELATIONS, DiscreteGaussianShares, NeighboringRelation
from hubbub.accounting.renyi import distance, rdp_of_all
from hubbub.accounting.runs import Events, RunCharge, event_record, events_of, run_assumptions, run_participations, run_words
from hubbub.accounting.trade_offs import trade_off
from hubbub.accounting.wording import EACH_RUN, OF_GROUPS, Assumption, compared, count
from hubbub.errors import BudgetError
from hubbub.mechanism import NoiseBy

_CURVE = (1e-3, 1e-5, 1e-6, 1e-8, 1e-10, 1e-12)
_RELATIONS = {
    "zero-out": "the data of one {unit} count as nothing, while all cohorts stay the same",
    "add-or-remove-one": "one {unit} is there or is not",
    "replace-one": "one {unit} is replaced by another with any data",
}
_ACCOUNTANTS = {
    "tight": "hubbub's own, rounded up: the exact curve of one Gaussian; otherwise privacy loss distributions on a grid, or, "
    "where that is less or noise is too small for a grid, what holds without amplification or by Rényi moments",
    "rdp": "hubbub's Rényi accountant: moments converted to epsilon, an upper bound",
    "none": "none: nothing is promised",
}


@dataclass(frozen=True)
class Restated:
    """The same releases under another neighboring relation: its epsilon, or ``None`` and why no theorem gives one.

    Args:
        neighboring_relation: The other relation.
        epsilon: At the delta of the guarantee; ``None`` if no theorem gives one.
        why: The reason, in words.

    Example:
        >>> from hubbub.accounting import guarantee
        >>> from hubbub.mechanism import Mechanism
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> stated = guarantee(Mechanism(Identity(4), MinSeparation(2, 2), noise_multiplier=4.0), delta=1e-5)
        >>> [(other.neighboring_relation, other.epsilon and round(other.epsilon, 3)) for other in stated.other_relations]
        [('add-or-remove-one', None), ('replace-one', 2.943)]
    """

    neighboring_relation: NeighboringRelation
    epsilon: float | None
    why: str


@dataclass(frozen=True, kw_only=True)
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
        assumptions: What it assumes, and who enforces each assumption.
        simulation: Whether cohorts and noise of it, or of an earlier run, came from a known seed: then it is what real runs
            would have, not a guarantee.
        events: What it cost, with the events of ``earlier``; ``None`` if nothing bounds the cost.
        relations: The neighboring relations under which a theorem covers the events.
        not_covered: What costs extra, or is not hidden at all.
        earlier: The earlier runs over the same people whose cost it counts.
        cohorts: In words, where there is one mechanism.
        sensitivity_of: How far one unit moves all releases of a pattern; of random cohorts one round that it takes part in.
        noise_by: Who adds the noise, where clients bring none along.
        setting: One line of who is trusted with what; empty for a server that sees each update.
        counted: The runs whose events come first in ``events``: ``earlier``, or all runs where several are stated together.

    Example:
        >>> from hubbub.accounting import guarantee
        >>> from hubbub.mechanism import Mechanism
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> answer = guarantee(Mechanism(Identity(4), MinSeparation(2, 2), noise_multiplier=4.0), delta=1e-5)
        >>> print(answer.sentence().partition(", by")[0])
        (1.357, 1e-05)-differential privacy for each client (zero-out relation) over 4 rounds
    """

    epsilon: float
    delta: float
    zcdp_rho: float | None = None
    l2_sensitivity: float | None = None
    sensitivity_exact: bool = False
    noise_multiplier: float | None = None
    clip_noise_multiplier: float | None = None
    neighboring_relation: NeighboringRelation
    privacy_unit: str
    mechanism: str
    accountant: str
    rounds: int
    assumptions: tuple[Assumption, ...] = ()
    simulation: bool = False
    events: Events | None = None
    relations: tuple[NeighboringRelation, ...] = ()
    not_covered: tuple[str, ...] = ()
    earlier: tuple[RunCharge, ...] = ()
    cohorts: str = ""
    sensitivity_of: Literal["the whole run", "one round"] = "the whole run"
    noise_by: NoiseBy = "server"
    setting: str = ""
    counted: tuple[RunCharge, ...] = field(default=(), repr=False, compare=False)

    @property
    def private(self) -> bool:
        """Whether anything is promised at all."""
        return math.isfinite(self.epsilon)

    @property
    def bare(self) -> bool:
        """Whether no mechanism is in it at all."""
        return self.accountant == "none"

    @property
    def amplified(self) -> bool:
        """Whether epsilon counts on random cohorts."""
        return self.events is not None and not composition.certain(self.events)

    @property
    def in_shares(self) -> bool:
        """Whether clients brought noise along in what is covered."""
        return self.events is not None and composition.by_divergences(self.events)

    @property
    def gdp_mu(self) -> float | None:
        """μ of Gaussian DP, where all that is covered is one Gaussian release; else ``None``."""
        return None if self.amplified else self.unamplified_mu

    @property
    def unamplified_mu(self) -> float | None:
        """μ of Gaussian DP without amplification; ``None`` where nothing is promised, or noise comes in shares."""
        if self.events is None or self.in_shares:
            return None
        return composition.unamplified_mu(self.events, self.neighboring_relation)

    @property
    def unamplified_zcdp_rho(self) -> float | None:
        """ρ of zero-concentrated DP, without amplification; ``None`` where nothing is promised."""
        if self.events is None:
            return None
        return composition.unamplified_zcdp_rho(self.events, self.neighboring_relation)

    @property
    def unamplified_epsilon(self) -> float:
        """Epsilon in the worst case over the cohorts that the draw can give, at the stated delta: an upper bound."""
        if self.events is None:
            return math.inf
        return composition.unamplified_epsilon(self.events, self.delta, self.neighboring_relation)

    def at(self, delta: float) -> float:
        """Epsilon at another delta; infinite where nothing is promised.

        Args:
            delta: Strictly between 0 and 1.

        Raises:
            ValueError: Not strictly between 0 and 1.
        """
        open_unit("delta", delta)
        if self.events is None:
            return math.inf
        return composition.epsilon_once(self.events, delta, self.neighboring_relation, self.accountant)

    def rdp(self, orders: npt.ArrayLike) -> Array:
        """An upper bound on the Rényi divergence of all that is covered at each order above 1, ``(orders,)``.

        Args:
            orders: ``(orders,)``.

        Raises:
            ValueError: An order that is not above 1, or nothing is promised.
        """
        return rdp_of_all(self._promised(), orders, self.neighboring_relation)

    def trade_off(self, false_positive_rates: npt.ArrayLike) -> Array:
        """From below, the least false negative rate of any test between two neighboring data sets, at each false positive rate.

        Args:
            false_positive_rates: ``(rates,)``.

        Returns:
            ``(rates,)``, from 0 to 1.

        Raises:
            ValueError: A rate that is not from 0 to 1, or nothing is promised.
        """
        return trade_off(self._promised(), false_positive_rates, self.neighboring_relation)

    def _promised(self) -> Events:
        if self.events is None:
            raise ValueError("this run has no privacy guarantee: nothing bounds what its releases reveal")
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
            restated = composition.epsilon_once(self.events, self.delta, relation, self.accountant)
        except BudgetError as error:
            return Restated(relation, None, str(error))
        how = "computed anew from the recorded rounds" if self.amplified else "of the sensitivity under it"
        own = self.events[len(events_of(self.counted) or ()) :]
        parts = [(own, self.rounds), *((run.events, run.rounds) for run in self.counted)]
        kinds = [kind for part in parts for kind in run_participations(*part) if kind is not None]
        texts = dict.fromkeys(a.text for kind in kinds for a in compared(kind, relation, self.privacy_unit))
        also = [text for text in texts if not any(other != text and other.startswith(text) for other in texts)]
        return Restated(relation, restated, "".join((how, *(f", if {text}" for text in also))))

    def sentence(self) -> str:
        """The guarantee in one sentence."""
        if not self.private:
            return f"This run has no privacy guarantee: epsilon is infinite for every {self.privacy_unit} ({self.mechanism})."
        runs = f", together with {count(len(self.earlier), 'earlier run')}" if self.earlier else ""
        simulated = ""
        if self.simulation:
            several = self.earlier or self.noise_multiplier is None
            what = "Not for release: a simulation is among the runs, whose" if several else "Simulation, not for release:"
            simulated = f" {what} cohorts and noise come from a known seed."
        return (
            f"({rounded_up(self.epsilon)}, {no_less(self.delta)})-differential privacy for each {self.privacy_unit} "
            f"({self.neighboring_relation} relation) over {count(self.rounds, 'round')}, by {self.mechanism}{runs}.{simulated}"
        )

    def statement(self, facts: "RunFacts | None" = None) -> str:
        """The guarantee in full, fit for publication.

        Args:
            facts: What is known of the run in addition to its guarantee, such as its clip norm and the head of its ledger.

        Example:
            >>> from hubbub.accounting import guarantee
            >>> from hubbub.mechanism import Mechanism
            >>> from hubbub.mechanism.participation import MinSeparation
            >>> from hubbub.mechanism.strategies import Identity
            >>> stated = guarantee(Mechanism(Identity(8), MinSeparation(4, 2), noise_multiplier=2.0), delta=1e-6)
            >>> next(line for line in stated.statement().splitlines() if "Guarantee" in line)[:38]
            '(8) Guarantee: (epsilon, delta) = (2.0'
        """
        return _written(self, RunFacts() if facts is None else facts)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """In a notebook: the sentence as a card, with the numbers behind it and its assumptions."""
        from hubbub._util.card import bundle

        sensitivity = f"sensitivity of {self.sensitivity_of}, in clip norms, at most"
        bounds = {"zCDP ρ, at most": self.zcdp_rho, sensitivity: self.l2_sensitivity}
        rows = [(name, rounded_up(value)) for name, value in bounds.items() if value is not None]
        if self.clip_noise_multiplier is not None:
            rows.append(("standard deviation of the noise, in clip norms", f"{self.clip_noise_multiplier:.12g}"))
        return bundle(self.sentence(), rows, [str(assumption) for assumption in self.assumptions], good=self.private)

    def as_json(self) -> dict[str, object]:
        """All fields as strict JSON values: an infinite epsilon is ``None``, together with ``"private": False``."""
        stated: dict[str, object] = {
            **{name: getattr(self, name) for name in self.__dataclass_fields__ if name != "counted"},
            "private": self.private,
            "assumptions": [asdict(assumption) for assumption in self.assumptions],
            "events": None if self.events is None else [event_record(event, count) for event, count in self.events],
            "earlier": [run.record() for run in self.earlier],
            "gdp_mu": self.gdp_mu,
            "without_amplification": {"epsilon": self.unamplified_epsilon, "zcdp_rho": self.unamplified_zcdp_rho},
            "curve": [{"delta": delta, "epsilon": epsilon} for delta, epsilon in self.curve],
            "other_relations": [vars(other) for other in self.other_relations],
            "versions": library_versions(),
        }
        return {name: finite_only(value) for name, value in stated.items()}


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run in addition to its guarantee; ``None`` if there is no run.

    Args:
        clip_norm: The largest L2 norm of one update.
        expected_cohort_size: The fixed number that sums are divided by.
        secure_noise: Whether noise and cohorts came from secret random keys, added on a lattice.
        planned_rounds: How many rounds were promised.
        heads: Hash of the last record of each ledger.
        worse: Where what happened is not what was promised.
        audited_epsilon: A lower bound that an audit found, with confidence 95 %.
        adaptive: Whether the clip norm followed the updates.
        statistics: What was released of the inputs in place of a model, in words.
        normalized: Whether the model takes inputs normalized by means and variances that an earlier run released.
        runs: Of several runs together, the guarantee of each; in the order of ``heads``.
        others: Earlier runs that these runs name, whose cost is counted together with theirs.

    Example:
        >>> from hubbub.accounting import guarantee
        >>> from hubbub.mechanism import Mechanism
        >>> from hubbub.mechanism.participation import SingleParticipation
        >>> from hubbub.mechanism.strategies import Identity
        >>> answer = guarantee(Mechanism(Identity(5), SingleParticipation(), noise_multiplier=2.0), 1e-5)
        >>> text = answer.statement(RunFacts(clip_norm=0.5, expected_cohort_size=40))
        >>> "updates clipped to norm 0.5" in text, "sums divided by the fixed number 40" in text
        (True, True)
    """

    clip_norm: float | None = None
    expected_cohort_size: float | None = None
    secure_noise: bool | None = None
    planned_rounds: int | None = None
    heads: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    audited_epsilon: float | None = None
    adaptive: bool = False
    statistics: str = ""
    normalized: bool = False
    runs: tuple[PrivacyGuarantee, ...] = ()
    others: tuple[RunCharge, ...] = ()


def _written(answer: PrivacyGuarantee, facts: RunFacts) -> str:
    """The statement as text, its points numbered as in the checklist."""
    versions = ", ".join(f"{name} {number}" for name, number in library_versions().items())
    points = {
        "Setting": _setting(answer, facts),
        "What is covered": _covered(answer, facts),
        "What is released": _released(answer, facts),
        "Unit of privacy": _unit(answer),
        "Neighboring relation": _relation(answer),
        "Sampling": _sampling(answer),
        "Accountant": f"{_ACCOUNTANTS['rdp' if answer.in_shares else answer.accountant]}. {versions}.",
        "Guarantee": _numbers(answer),
        "Noise": _noise(answer, facts),
        "Tuning": "its cost is in epsilon only as far as its runs are named here: every other run that was made on these "
        "people to choose settings adds its own.",
        "Audit": "no lower bound is stated."
        if facts.audited_epsilon is None
        else f"attacks on runs of these settings show, with confidence 95 %, that epsilon is at least "
        f"{facts.audited_epsilon:.4g}.",
        "Record": _record(facts),
    }
    lines = ["Privacy statement", "", answer.sentence(), ""]
    lines += [f"({number}) {name}: {text}" for number, (name, text) in enumerate(points.items(), start=1)]
    # What none of the runs covers, each once; of groups what is true of all runs together, where it is said.
    own = [what for run in facts.runs for what in run.not_covered]
    if any(what.startswith(OF_GROUPS) for what in answer.not_covered):
        own = [what for what in own if not what.startswith(OF_GROUPS)]
    uncovered = dict.fromkeys((*answer.not_covered, *own))
    assumed = "It assumes (and who enforces it)" if facts.heads else "It holds for a run of which this is true"
    for title, items in (
        ("The runs", _runs(answer, facts)),
        ("Not as promised", facts.worse),
        (assumed, _assumptions(answer, facts)),
        ("It does not cover", uncovered),
    ):
        lines += ["", f"{title}:", *(f"- {item}" for item in items)] if items else []
    return "\n".join(lines) + "\n"


def _unit(answer: PrivacyGuarantee) -> str:
    whole = "not clipped" if answer.bare else "clipped as one vector"
    if not answer.private and not answer.bare:
        # Of several runs, or of one that did not do what it promised, it is not so of each round.
        whole += " wherever anything is promised"
    if answer.privacy_unit == "example":
        return f"one example, by itself; its gradient is {whole}."
    return f"one {answer.privacy_unit}, with all of its data; its update is {whole}."


def _runs(answer: PrivacyGuarantee, facts: RunFacts) -> list[str]:
    """Where there are several, each in one line."""
    own = [
        f"the run of head {head[:16]}: {run.mechanism}; {run.rounds} rounds, {run.neighboring_relation} relation"
        f"{'; a simulation, not for release' if run.simulation else ''}{_named_setting(run)}"
        for head, run in zip(facts.heads, facts.runs, strict=bool(facts.runs))
    ]
    if answer.earlier:
        said = f"{answer.rounds} rounds, {answer.neighboring_relation} relation{_named_setting(answer)}"
        own = [f"this run: {answer.mechanism}; {said}"]
    return [*own, *(run_words(run) for run in (*answer.earlier, *facts.others))]


def _named_setting(run: PrivacyGuarantee) -> str:
    return f"; setting: {run.setting}" if run.setting else ""


def _assumptions(answer: PrivacyGuarantee, facts: RunFacts) -> list[str]:
    """Those of all that is covered, each once; nobody has enforced them yet if there is no run."""
    found = [assumption for run in facts.runs for assumption in run.assumptions]
    found += [assumption for run in facts.others for assumption in run_assumptions(run, answer.neighboring_relation)]
    found += [assumption for assumption in answer.assumptions if not facts.runs or assumption != EACH_RUN]
    return [
        str(one) if facts.heads else f"{one.text} (to be enforced by the {one.enforced_by})" for one in dict.fromkeys(found)
    ]


def _setting(answer: PrivacyGuarantee, facts: RunFacts) -> str:
    stated = [run.setting for run in facts.runs or (answer,)] + [run.setting for run in (*facts.others, *answer.earlier)]
    if len(stated) == 1 and stated[0]:
        return f"{stated[0].rstrip('.')}."
    if all(stated):
        return "that of each run, named below."
    if any(stated):
        return f"that of each run where it is named below; of the others {_usual_setting(answer)}"
    return _usual_setting(answer)


def _usual_setting(answer: PrivacyGuarantee) -> str:
    unit = answer.privacy_unit
    if answer.bare:
        return f"central: the operator receives the update of each {unit}, and nothing is hidden from anybody."
    if answer.in_shares and not all(isinstance(event, DiscreteGaussianShares) for event, _ in answer.events or ()):
        return "of some runs central, of others with noise in shares of the clients; see the statement of each."
    if answer.in_shares:
        return (
            f"distributed noise: each {unit} clips its update and adds its share of the noise before it answers; the operator "
            f"receives the answer of each {unit}, which its share alone hides less well than is stated here, and is trusted to "
            "sum them, to release no sum of too few shares, and to keep answers and cohorts secret."
        )
    has, does, keeps = f"receives the update of each {unit}", "sum them", "updates, cohorts"
    if unit == "example":
        has, does, keeps = "holds all examples", "clip the gradient of each", "gradients, batches"
    return (
        f"central: the operator {has}, and is trusted to {does}, to add the noise before anybody else looks, and to keep "
        f"{keeps} and keys secret."
    )


def _released(answer: PrivacyGuarantee, facts: RunFacts) -> str:
    if facts.statistics:
        return f"{facts.statistics} of the inputs, as seen through {'a bare' if answer.bare else 'a noisy'} sum."
    if answer.bare:
        return "the model after every round, as seen through its bare sum."
    model = (
        "the model after every round, as seen through its noisy sum; so epsilon counts every round, not the last model alone."
    )
    if answer.earlier or facts.runs:
        model += " Of each run also what its own statement names."
    if facts.normalized:
        model += " Also means and variances of the inputs, released with noise by an earlier run that is counted."
    if facts.adaptive:
        model += (
            " Also the clip norm of every round, made of a noised count of the updates that were not clipped, which is one "
            "more coordinate of the same sum."
        )
    if "private evaluation" in answer.mechanism:
        model += " Also each private evaluation: sums of what clients measured on their own data, seen through noise."
    return model


def _covered(answer: PrivacyGuarantee, facts: RunFacts) -> str:
    planned = "" if facts.planned_rounds in (None, answer.rounds) else f" of {facts.planned_rounds} that were planned"
    earlier = "".join(
        f"; the run of ledger {run.first[:16]} as of head {run.head[:16]}, {run.rounds} of {run.planned} rounds"
        for run in answer.earlier
    )
    alone = "" if earlier else "; other runs over the same people add to it"
    which = "A simulation is among the runs" if earlier or answer.noise_multiplier is None else "It was a simulation"
    simulated = f" {which}, whose noise anybody can remove: not for release." if answer.simulation else ""
    what = f"the release of {facts.statistics}" if facts.statistics else "training"
    return f"{what}, {count(answer.rounds, 'round')}{planned}{earlier}{alone}.{simulated}"


def _relation(answer: PrivacyGuarantee) -> str:
    meant = f"{answer.neighboring_relation}: {_RELATIONS[answer.neighboring_relation].format(unit=answer.privacy_unit)}."
    others = [
        f"Under {other.neighboring_relation} epsilon is {rounded_up(other.epsilon)} at the same delta ({other.why})."
        if other.epsilon is not None
        else f"Under {other.neighboring_relation} no epsilon can be stated: {other.why}."
        for other in answer.other_relations
    ]
    return " ".join((meant, *others))


def _sampling(answer: PrivacyGuarantee) -> str:
    cohorts = answer.cohorts or answer.mechanism
    if not answer.private:
        return f"{cohorts}."
    if not answer.amplified:
        return f"{cohorts}. Epsilon counts on no random cohorts: it is the worst case over who took part when."
    believed, worst = rounded_up(answer.epsilon), rounded_up(answer.unamplified_epsilon)
    return (
        f"{cohorts}. Assuming that cohorts were drawn as stated and stay secret, epsilon is {believed}; in the worst "
        f"case over the cohorts that such a draw can give, without amplification, it is {worst}, at the same delta."
    )


def _numbers(answer: PrivacyGuarantee) -> str:
    if not answer.private:
        return "none: epsilon is infinite."
    curve = ", ".join(f"({rounded_up(epsilon)}, {no_less(delta)})" for delta, epsilon in answer.curve)
    known = [f"{rounded_up(answer.unamplified_zcdp_rho or 0.0)}-zCDP"]
    if answer.in_shares:
        # Sums of shares are no Gaussian, and have no μ. A twentieth more, so that two digits round it up.
        beta = 1.05 * distance(answer.events or ())
        known[0] += f" up to a statistical distance of {beta:.1e} in the noise, which delta counts"
    else:
        known.append(f"{rounded_up(answer.unamplified_mu or 0.0)}-Gaussian DP")
    if answer.amplified:
        return f"(epsilon, delta) = {curve}. Without amplification it is {' and '.join(known)}. Numbers are rounded up."
    return f"(epsilon, delta) = {'; '.join((curve, *known))}. Numbers are rounded up."


def _noise(answer: PrivacyGuarantee, facts: RunFacts) -> str:
    if answer.noise_multiplier is None or answer.clip_noise_multiplier is None:
        named = "named below" if facts.runs else "as its ledger says"
        return "none." if answer.bare else f"that of each run, {named}."
    standing = "exact" if answer.sensitivity_exact else "a bound"
    scale = "norm of an update together with its indicator" if facts.adaptive else "clip norm"
    parts = [
        f"noise multiplier {answer.noise_multiplier!r} over clip norm × largest column norm, {answer.clip_noise_multiplier!r} "
        f"over the {scale}; L2 sensitivity of {answer.sensitivity_of} {answer.l2_sensitivity!r} clip norms under "
        f"{answer.neighboring_relation}, {standing}"
    ]
    if facts.clip_norm is not None:
        stddev = answer.clip_noise_multiplier * facts.clip_norm
        least = "at least " if answer.in_shares or answer.noise_by == "holders" else ""
        stddev = float(to_digits(stddev, 6, "ROUND_FLOOR")) if least else stddev
        what = "gradients" if answer.privacy_unit == "example" else "updates"
        parts.append(
            f"{what} clipped to norm {facts.clip_norm:g}; z, in the units of a sum, has standard deviation {least}{stddev:.6g}"
        )
    if answer.noise_by == "holders":
        parts.append(
            "each share holder adds all of it from a key of its own; who could read sums without it stands in the setting"
        )
    if facts.expected_cohort_size is not None:
        parts.append(f"sums divided by the fixed number {facts.expected_cohort_size:g}, however many took part")
    if facts.secure_noise is not None:
        parts.append(
            "secret keys from the operating system, sums and noise whole steps of a lattice, added exactly"
            if facts.secure_noise
            else "noise from a known seed: it hides nothing from who knows the seed"
        )
    return "; ".join(parts) + "."


def _record(facts: RunFacts) -> str:
    if not facts.heads:
        return "no run: this is what a mechanism promises."
    says, command = "ledger says was begun; head", "'hubbub verify'"
    if len(facts.heads) > 1:
        says, command = "ledgers say was begun; heads", "'hubbub account' of all"
    return f"epsilon is computed from every round that the {says} {', '.join(facts.heads)}. {command} computes it again."


def library_versions() -> dict[str, str]:
    """The versions of what computed: hubbub, NumPy, SciPy; torch where it is loaded."""
    return {name: _version(name) for name in ("hubbub", "numpy", "scipy", *(["torch"] if "torch" in sys.modules else []))}


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a package"


def zcdp_standing(answer: PrivacyGuarantee) -> str:
    """What qualifies the ρ that is shown together with an epsilon."""
    aside = ", but for the statistical distance of shares" if answer.in_shares else ""
    return aside + (", without amplification" if answer.amplified else "")


def no_less(delta: float) -> str:
    """Delta in six digits, rounded up if it has more: epsilon holds at the number that is shown."""
    shown = f"{delta:g}"
    return shown if float(shown) >= delta else f"{float(to_digits(delta, 6, 'ROUND_CEILING')):g}"


def rounded_up(epsilon: float) -> str:
    """Epsilon with four digits, rounded up: a statement may be too high, never too low.

    Args:
        epsilon: From 0; may be infinite.

    Example:
        >>> rounded_up(3.42400727), rounded_up(8.0), rounded_up(1407.97), rounded_up(1e-300), rounded_up(math.inf)
        ('3.425', '8', '1408', '1.001e-300', '∞')
    """
    if not math.isfinite(epsilon):
        return "∞"
    digits = to_digits(epsilon, 4, "ROUND_CEILING")
    if 0 < digits < 1e-6:
        return f"{digits:e}"
    text = f"{digits:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
