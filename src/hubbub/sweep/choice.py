"""What it costs to choose among runs over the same people, by what is on record of them.

All results together are a composition: its epsilon covers whatever is published of them, the one best model included, and holds
for a grid that was fixed beforehand. Less is known to be enough only where the number of trials is random
(:mod:`hubbub.accounting.selection`), which a grid is not: that is said as what it would have been, never as a guarantee.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hubbub.accounting import PrivacyGuarantee
from hubbub.accounting.multi_run import Recorded, compose_runs, run_charges
from hubbub.accounting.runs import RunCharge, events_of
from hubbub.accounting.selection import selection_epsilon
from hubbub.config import Config
from hubbub.errors import ConfigError, LedgerError
from hubbub.report.sweep_told import ChoiceTold

__all__ = ["Known", "choice"]

_LAWS = {
    "logarithmic": "logarithmic number of trials, {mean} on average",
    "geometric": "geometric number of trials, {mean} on average",
    "poisson": "Poisson number of trials, {mean} on average (with none, nothing is published)",
}
_FIXED = "the grid was fixed before the first run, and no cell was added or left out because of what another released"
_ALL = "no run of it was deleted, and no other run over the same people had a part in the choice: what they cost is not in it"


@dataclass(frozen=True)
class Known:
    """A run that has begun: its settings, and its record, or ``None`` where that cannot be read."""

    name: str
    config: Config
    recorded: Recorded | None


def choice(runs: Sequence[Known]) -> ChoiceTold:
    """What publishing anything of these runs costs, chosen by looking at all of them."""
    if not runs:
        return ChoiceTold(0, None, None, "Nothing has been released yet.")
    assumptions, warnings = _standing(runs)
    lost = [run.name for run in runs if run.recorded is None]
    if lost:
        why = f"Not stated: the ledger of {', '.join(lost[:3])} cannot be read, and what that run has cost is not known."
        return ChoiceTold(len(runs), None, None, why, (), why, assumptions, warnings)
    recorded = [run.recorded for run in runs if run.recorded is not None]
    delta = min(run.promise.delta for run in recorded)
    try:
        charges = run_charges(recorded)
        together = compose_runs(charges, delta)
    except (ConfigError, LedgerError) as error:
        why = f"Not stated: {error}."
        return ChoiceTold(len(runs), None, None, why, (), why, assumptions, warnings)
    if not together.private:
        why = f"No bound: {together.mechanism}, and a model that was trained without noise is hidden by nothing."
        return ChoiceTold(len(runs), together.epsilon, delta, why, (), why, assumptions, warnings)
    trials, why = _trials(charges[: len(recorded)], charges[len(recorded) :], together, held_out=_held_out(runs))
    return ChoiceTold(len(runs), together.epsilon, delta, together.sentence(), trials, why, assumptions, warnings)


def _trials(
    candidates: Sequence[RunCharge], before: Sequence[RunCharge], together: PrivacyGuarantee, *, held_out: bool
) -> tuple[tuple[tuple[str, float], ...], str]:
    """What publishing the best of a random number of trials would cost; or why that is not known."""
    if held_out:
        return (), "The runs are judged by held-out clients' data without noise, for which no such bound holds."
    if before:
        return (), f"These runs state {len(before)} earlier ones with their own, for which the theorems have no room."
    mean = len(candidates)
    events = [events_of([run]) or () for run in candidates]
    found = []
    for law, words in _LAWS.items():
        try:
            epsilon = selection_epsilon(events, mean, together.delta, together.neighboring_relation, law=law)
        except ValueError as error:
            return (), f"Not known for these runs: {error}."
        found.append((words.format(mean=mean), epsilon))
    return tuple(found), ""


def _held_out(runs: Sequence[Known]) -> bool:
    return any(run.config.training.validation for run in runs)


def _standing(runs: Sequence[Known]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What must hold for what is stated, and what it does not cover."""
    assumptions = [_FIXED, _ALL, "each run's own assumptions hold, as its report names them"]
    warnings = []
    if _held_out(runs):
        warnings.append(
            "Accuracy and loss are of held-out training examples, without noise: they are private, and no epsilon here covers "
            "them, nor a choice that was made by them."
        )
    else:
        assumptions.append("the test examples are public, and nobody's whom the guarantee is to protect")
    if len({_dealing(run.config) for run in runs}) > 1:
        warnings.append(
            "The data are dealt to clients anew by the seed or other settings of the grid, so that a client of one run is not "
            "the same in another. What is stated of all runs is of people who are one and the same client in each; for the "
            "examples of a simulation, which wander between clients, no bound is known."
        )
    if any(run.recorded is not None and run.recorded.rounds_left for run in runs):
        warnings.append("Runs that were interrupted count as far as they went; what they still do adds to it.")
    return tuple(assumptions), tuple(warnings)


def _dealing(config: Config) -> tuple[object, ...]:
    """What decides which examples are whose."""
    data, seed = config.data, config.training.seed
    if config.privacy.unit == "example" or data.partition == "user":
        return (data.name, data.path)
    alpha = data.alpha if data.partition == "dirichlet" else None
    return (data.name, data.path, data.partition, data.clients, alpha, seed, config.training.validation)
