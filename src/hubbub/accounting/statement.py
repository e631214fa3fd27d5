"""A guarantee as a text that can be published: each point of the checklist of "How to DP-fy ML", in one place.

Source: Ponomareva et al. 2023, Section 5.3, https://arxiv.org/abs/2303.00654.
"""

import math
import sys
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from hubbub.accounting.events import DiscreteGaussianShares
from hubbub.accounting.runs import RunCharge, charge_assumptions, charge_words
from hubbub.accounting.shares import distance
from hubbub.accounting.wording import EACH_RUN, Assumption
from hubbub.accounting.worst_case import by_divergences

if TYPE_CHECKING:
    from hubbub.accounting.guarantee import PrivacyGuarantee

__all__ = ["RunFacts", "counted_rounds", "library_versions", "no_less", "rounded_up", "written", "zcdp_standing"]

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
class RunFacts:
    """What is known of a run beside its guarantee; ``None`` where it is not a run.

    Args:
        clip_norm: The largest L2 norm of one update.
        expected_cohort_size: The fixed number that sums are divided by.
        secure_noise: Whether noise and cohorts came from secret random keys, added on a lattice.
        planned_rounds: How many rounds were promised.
        heads: Hash of the last record of each ledger.
        worse: Where what happened is not what was promised.
        audited_epsilon: A lower bound that an audit found, with confidence 95 %.
        runs: Of several runs together, the guarantee of each; in the order of ``heads``.
        others: What is charged beside these runs, because they were told of it.
        adaptive: Whether the clip norm followed the updates.
    """

    clip_norm: float | None = None
    expected_cohort_size: float | None = None
    secure_noise: bool | None = None
    planned_rounds: int | None = None
    heads: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    audited_epsilon: float | None = None
    adaptive: bool = False
    runs: "tuple[PrivacyGuarantee, ...]" = ()
    others: tuple[RunCharge, ...] = ()


def written(answer: "PrivacyGuarantee", facts: RunFacts) -> str:
    """The statement as text, its points numbered as in the checklist."""
    points = {
        "Setting": _setting(answer, facts),
        "What is covered": _covered(answer, facts),
        "What is released": _released(answer, facts),
        "Unit of privacy": _unit(answer),
        "Neighboring relation": _relation(answer),
        "Sampling": _sampling(answer),
        "Accountant": f"{_ACCOUNTANTS['rdp' if _in_shares(answer) else answer.accountant]}. {_versions()}.",
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
    assumed = "It assumes (and who sees to it)" if facts.heads else "It holds for a run of which this is true"
    for title, items in (
        ("The runs", _runs(answer, facts)),
        ("Not as promised", facts.worse),
        (assumed, _assumptions(answer, facts)),
        ("It does not cover", _not_covered(answer, facts)),
    ):
        lines += ["", f"{title}:", *(f"- {item}" for item in items)] if items else []
    return "\n".join(lines) + "\n"


def _unit(answer: "PrivacyGuarantee") -> str:
    whole = "not clipped" if _bare(answer) else "clipped as one vector"
    if not answer.private and not _bare(answer):
        # Of several runs, or of one that did not do what it promised, it is not so of each round.
        whole += " wherever anything is promised"
    if answer.privacy_unit == "example":
        return f"one example, by itself; its gradient is {whole}."
    return f"one {answer.privacy_unit}, with all of its data; its update is {whole}."


def _bare(answer: "PrivacyGuarantee") -> bool:
    """Whether no mechanism is in it at all."""
    return answer.accountant == "none"


def _runs(answer: "PrivacyGuarantee", facts: RunFacts) -> list[str]:
    """Where there are several, each in one line."""
    own = [
        f"the run of head {head[:16]}: {run.mechanism}; {run.rounds} rounds, {run.neighboring_relation} relation"
        + ("; a simulation, not for release" if run.simulation else "")
        + _named_setting(run)
        for head, run in zip(facts.heads, facts.runs, strict=bool(facts.runs))
    ]
    if answer.earlier:
        said = f"{answer.rounds} rounds, {answer.neighboring_relation} relation{_named_setting(answer)}"
        own = [f"this run: {answer.mechanism}; {said}"]
    return [*own, *(charge_words(run) for run in (*answer.earlier, *facts.others))]


def _named_setting(run: "PrivacyGuarantee") -> str:
    return f"; setting: {run.setting}" if run.setting else ""


def _assumptions(answer: "PrivacyGuarantee", facts: RunFacts) -> list[str]:
    """Those of all that is covered, each once; nobody has seen to them yet where there is no run."""
    found = [assumption for run in facts.runs for assumption in run.assumptions]
    found += [assumption for run in facts.others for assumption in charge_assumptions(run, answer.neighboring_relation)]
    found += [assumption for assumption in answer.assumptions if not facts.runs or assumption != EACH_RUN]
    return [str(assumption) if facts.heads else _yet_to_be(assumption) for assumption in dict.fromkeys(found)]


def _not_covered(answer: "PrivacyGuarantee", facts: RunFacts) -> list[str]:
    """What none of the runs covers, each once."""
    return list(dict.fromkeys((*answer.not_covered, *(what for run in facts.runs for what in run.not_covered))))


def _in_shares(answer: "PrivacyGuarantee") -> bool:
    """Whether clients brought noise along in what is covered."""
    return answer.events is not None and by_divergences(answer.events)


def _yet_to_be(assumption: Assumption) -> str:
    if assumption.enforced_by == "operator":
        return f"{assumption.text} (the operator is to see to it)"
    return f"{assumption.text} (to be enforced by the {assumption.enforced_by})"


def _setting(answer: "PrivacyGuarantee", facts: RunFacts) -> str:
    stated = [run.setting for run in facts.runs or (answer,)]
    stated += [run.setting for run in (*facts.others, *answer.earlier)]
    if len(stated) == 1 and stated[0]:
        return f"{stated[0].rstrip('.')}."
    if all(stated):
        return "that of each run, named below."
    if any(stated):
        return f"that of each run where it is named below; of the others {_usual_setting(answer)}"
    return _usual_setting(answer)


def _usual_setting(answer: "PrivacyGuarantee") -> str:
    if _bare(answer):
        return f"central: the operator receives the update of each {answer.privacy_unit}, and nothing is hidden from anybody."
    if _in_shares(answer) and not all(isinstance(event, DiscreteGaussianShares) for event, _ in answer.events or ()):
        return "of some runs central, of others with noise in shares of the clients; see the statement of each."
    if _in_shares(answer):
        unit = answer.privacy_unit
        return (
            f"distributed noise: each {unit} clips its update and adds its share of the noise before it answers; the operator "
            f"receives the answer of each {unit}, which its share alone hides less well than is stated here, and is trusted to "
            "sum them, to release no sum of too few shares, and to keep answers and cohorts secret."
        )
    if answer.privacy_unit == "example":
        return (
            "central: the operator holds all examples, and is trusted to clip the gradient of each, to add the noise before "
            "anybody else looks, and to keep gradients, batches and keys secret."
        )
    return (
        f"central: the operator receives the update of each {answer.privacy_unit}, and is trusted to sum them, to add the "
        "noise before anybody else looks, and to keep updates, cohorts and keys secret."
    )


def _released(answer: "PrivacyGuarantee", facts: RunFacts) -> str:
    if _bare(answer):
        return "the model after every round, as seen through its bare sum."
    model = "the model after every round, as seen through its noisy sum; so every round is charged, not the last model alone."
    if answer.earlier or facts.runs:
        model += " Of each run also what its own statement names."
    if not facts.adaptive:
        return model
    return (
        f"{model} Also the clip norm of every round, made of a noised count of the updates that were not clipped, which is one "
        "more coordinate of the same sum."
    )


def counted_rounds(rounds: int) -> str:
    """So many rounds, in words."""
    return f"{rounds} round{'' if rounds == 1 else 's'}"


def _covered(answer: "PrivacyGuarantee", facts: RunFacts) -> str:
    planned = "" if facts.planned_rounds in (None, answer.rounds) else f" of {facts.planned_rounds} that were planned"
    earlier = "".join(
        f"; the run of ledger {run.first[:16]} as of head {run.head[:16]}, {run.rounds} of {run.planned} rounds"
        for run in answer.earlier
    )
    alone = "" if earlier else "; other runs over the same people add to it"
    which = "A simulation is among the runs" if earlier or answer.noise_multiplier is None else "It was a simulation"
    simulated = f" {which}, whose noise anybody can remove: not for release." if answer.simulation else ""
    return f"training, {counted_rounds(answer.rounds)}{planned}{earlier}{alone}.{simulated}"


def _relation(answer: "PrivacyGuarantee") -> str:
    unit = answer.privacy_unit
    meant = f"{answer.neighboring_relation}: {_RELATIONS[answer.neighboring_relation].format(unit=unit)}."
    others = [
        f"Under {other.neighboring_relation} epsilon is {rounded_up(other.epsilon)} at the same delta ({other.why})."
        if other.epsilon is not None
        else f"Under {other.neighboring_relation} no epsilon can be stated: {other.why}."
        for other in answer.other_relations
    ]
    return " ".join((meant, *others))


def _sampling(answer: "PrivacyGuarantee") -> str:
    cohorts = answer.cohorts or answer.mechanism
    if not answer.amplified:
        return f"{cohorts}. Epsilon counts on no random cohorts: it is the worst case over who took part when."
    believed, worst = rounded_up(answer.epsilon), rounded_up(answer.unamplified_epsilon)
    return (
        f"{cohorts}. Assuming that cohorts were drawn as stated and stay secret, epsilon is {believed}; in the worst "
        f"case over the cohorts that such a draw can give, without amplification, it is {worst}, at the same delta."
    )


def _numbers(answer: "PrivacyGuarantee") -> str:
    if not answer.private:
        return "none: epsilon is infinite."
    curve = ", ".join(f"({rounded_up(epsilon)}, {no_less(delta)})" for delta, epsilon in answer.curve)
    # Sums of shares are no Gaussian, and have no μ.
    mu = "" if _in_shares(answer) else f"{rounded_up(answer.unamplified_mu or 0.0)}-Gaussian DP"
    rho = f"{rounded_up(answer.unamplified_zcdp_rho or 0.0)}-zCDP"
    if _in_shares(answer):
        # A twentieth more, so that two digits round it up.
        beta = 1.05 * distance(answer.events or ())
        rho = f"{rho} up to a statistical distance of {beta:.1e} in the noise, which delta counts"
    if answer.amplified:
        alone = " and ".join(filter(None, (rho, mu)))
        return f"(epsilon, delta) = {curve}. Without amplification it is {alone}. Numbers are rounded up."
    return f"(epsilon, delta) = {'; '.join(filter(None, (curve, rho, mu)))}. Numbers are rounded up."


def _noise(answer: "PrivacyGuarantee", facts: RunFacts) -> str:
    if answer.noise_multiplier is None or answer.clip_noise_multiplier is None:
        named = "named below" if facts.runs else "as its ledger says"
        return "none." if _bare(answer) else f"that of each run, {named}."
    standing = "exact" if answer.sensitivity_exact else "a bound"
    scale = "norm of an update beside its indicator" if facts.adaptive else "clip norm"
    parts = [
        f"noise multiplier {answer.noise_multiplier!r} over clip norm × largest column norm, {answer.clip_noise_multiplier!r} "
        f"over the {scale}; L2 sensitivity of {answer.sensitivity_of} {answer.l2_sensitivity!r} clip norms under "
        f"{answer.neighboring_relation}, {standing}"
    ]
    if facts.clip_norm is not None:
        stddev = answer.clip_noise_multiplier * facts.clip_norm
        least = "at least " if _in_shares(answer) or answer.noise_by == "holders" else ""
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
    charged = "epsilon is computed from every round that"
    if len(facts.heads) == 1:
        return f"{charged} the ledger says was begun; head {facts.heads[0]}. 'hubbub verify' computes it again."
    return f"{charged} the ledgers say was begun; heads {', '.join(facts.heads)}. 'hubbub account' of all computes it again."


def _versions() -> str:
    return ", ".join(f"{name} {number}" for name, number in library_versions().items())


def library_versions() -> dict[str, str]:
    """The versions of what computed: hubbub, NumPy, SciPy; torch where it is loaded."""
    names = ["hubbub", "numpy", "scipy"]
    names += ["torch"] if "torch" in sys.modules else []
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a package"


def no_less(delta: float) -> str:
    """Delta in six digits, rounded up if it has more: epsilon holds at the number that is shown.

    Example:
        >>> no_less(1e-5), no_less(1 / 3e5)
        ('1e-05', '3.33334e-06')
    """
    shown = f"{delta:g}"
    if float(shown) >= delta:
        return shown
    up = Decimal(delta).quantize(Decimal(1).scaleb(Decimal(delta).adjusted() - 5), rounding=ROUND_CEILING)
    return f"{float(up):g}"


def zcdp_standing(answer: "PrivacyGuarantee") -> str:
    """What goes with the ρ that is shown beside an epsilon."""
    aside = ", but for the statistical distance of shares" if _in_shares(answer) else ""
    return aside + (", without amplification" if answer.amplified else "")


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
