"""Several runs over the same people: their privacy cost together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from hubbub._util.checks import one_of, open_unit
from hubbub.accounting.composition import ACCOUNTANTS
from hubbub.accounting.events import RELATIONS, NeighboringRelation, require_relation
from hubbub.accounting.guarantee import together
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.statement import PrivacyGuarantee
from hubbub.accounting.wording import EACH_RUN, FIXED_RUNS, same_units
from hubbub.errors import ConfigError, LedgerError
from hubbub.ledger.actual_cost import Recorded, cost_of_run


def costs_of_ended_runs(runs: Sequence[Recorded]) -> tuple[RunCharge, ...]:
    """The costs of ended runs, for the promise of a later run."""
    for run in runs:
        if run.rounds_left:
            raise LedgerError(
                f"{run.name}: {len(run.history.rounds)} of the {run.promise.rounds} rounds that it promised are done, and "
                f"the cost of its further rounds would not be counted; finish it with 'hubbub resume {run.name}', or end "
                f"it with 'hubbub close {run.name} --early'"
            )
    return run_charges(runs)


def run_charges(runs: Sequence[Recorded], *, any_clients: bool = False) -> tuple[RunCharge, ...]:
    """The costs of runs and of the earlier runs that they name, each counted once, for :func:`compose_runs`, as there.

    Args:
        runs: As their folders record them.
        any_clients: Take runs that deal the same data to different clients, too. The cost of all together is then that of
            people who are the same client in each.

    Raises:
        ConfigError: Runs that deal the same data to different clients.
        LedgerError: The same run twice, a copy, or a run that was rolled back behind the head that another one names.
    """
    for one, other in combinations(runs, 2):
        _require_distinct(one, other)
    if not any_clients:
        require_same_clients((run.name, run.promise.settings) for run in runs)
    found = {run.chain.hashes[0]: cost_of_run(run.chain, run.promise, run.history) for run in runs}
    given = {run.chain.hashes[0]: run for run in runs}
    for run in runs:
        for earlier in run.promise.earlier:
            if earlier.first in given:
                if earlier.head not in given[earlier.first].chain.hashes:
                    raise LedgerError(
                        f"{given[earlier.first].name}: does not hold head {earlier.head}, which {run.name} names: it was "
                        "rolled back; restore its ledger"
                    )
            elif found.setdefault(earlier.first, earlier) != earlier:
                raise LedgerError(
                    f"{run.name}: names the run of ledger {earlier.first[:16]} at another head than the runs before; "
                    "name that run, too"
                )
    return tuple(found.values())


def compose_runs(
    runs: Sequence[RunCharge], delta: float, neighboring_relation: str | None = None, *, accountant: str = "tight"
) -> PrivacyGuarantee:
    """The guarantee of several runs over the same people together.

    Gaussians add their μ²; with random cohorts, or noise in shares, all events are composed.

    Args:
        runs: As :func:`run_charges` answers, each run once.
        delta: Strictly between 0 and 1, for all runs together.
        neighboring_relation: By default that of all runs; required if they differ.
        accountant: ``"tight"`` or ``"rdp"``.

    Raises:
        ConfigError: Different units, different relations and none given, or a relation that does not cover a run.
        ValueError: No run, or a number out of range.

    Example:
        >>> from hubbub.ledger import Ledger, Promise
        >>> from hubbub.mechanism import Mechanism
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import Identity
        >>> mechanism = Mechanism(Identity(4), MinSeparation(2, 2), noise_multiplier=3.0)
        >>> ledgers = [Ledger(Promise(4, mechanism, simulation=True), secret=bytes([n]) * 32) for n in (1, 2)]
        >>> _ = [ledger.commit(ledger.begin(0, ["anna"], digest="sum", clip_norm=1.0), b"") for ledger in ledgers]
        >>> charges = run_charges([Recorded("a run", one.chain, one.promise, one.history) for one in ledgers])
        >>> [round(compose_runs(some, delta=1e-5).epsilon, 3) for some in (charges[:1], charges)]
        [1.271, 1.866]

    Source: Dong, Roth and Su 2022, Corollary 2 (Gaussians), https://arxiv.org/abs/1905.02383; Zhu, Dong and Wang 2022, Theorem
    10, https://arxiv.org/abs/2106.08567.
    """
    open_unit("delta", delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    if not runs:
        raise ValueError("runs = (): name at least one run")
    relation = _relation(runs, neighboring_relation)
    found = together(runs, delta, relation, accountant=accountant, privacy_unit=runs[0].privacy_unit)
    bare, settings = sum(run.events is None for run in runs), {run.setting for run in runs}
    return replace(
        found,
        mechanism=found.mechanism + (f", of which {bare} {'have' if bare > 1 else 'has'} no bound" if bare else ""),
        assumptions=(EACH_RUN, FIXED_RUNS, same_units(runs[0].privacy_unit)),
        setting=settings.pop() if len(settings) == 1 else "that of each run, as its own statement names it",
    )


def require_same_clients(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse runs, by their names and recorded settings, that deal the same data to different clients.

    One client of such a run has examples of many clients of another, so that no bound is known for one client of both. Settings
    that say nothing of how data are dealt are accepted.
    """
    first: dict[object, tuple[str, dict[str, object]]] = {}
    for name, settings in runs:
        own = deal(settings)
        other, before = first.setdefault(own.get("data.name"), (name, own))
        for key in before:
            if own.get(key) != before[key]:
                raise ConfigError(
                    f"{other} and {name}: have {key} = {before[key]!r} and {own.get(key)!r}, so that the same data are dealt "
                    "to different clients, and no epsilon is known for one client of both; give all runs the same data.seed "
                    '(by default training.seed) and partition, or data.partition = "user", or account each run alone'
                )


def deal(settings: Mapping[str, Any]) -> dict[str, object]:
    """The recorded settings that decide whose an example is; empty if they do not say it."""
    partition = settings.get("data.partition")
    if partition is None:
        return {}
    found = {"data.name": settings.get("data.name"), "data.partition": partition}
    if partition != "user":
        found |= {key: settings.get(key) for key in ("data.clients", "data.seed", "training.validation")}
    if partition == "dirichlet":
        found["data.alpha"] = settings.get("data.alpha")
    return found


def common_relations(runs: Sequence[RunCharge]) -> list[NeighboringRelation]:
    """The relations under which all runs that have a bound are covered."""
    return [r for r in RELATIONS if all(r in run.relations for run in runs if run.events is not None)]


def _relation(runs: Sequence[RunCharge], wanted: str | None) -> NeighboringRelation:
    """The relation under which all runs are composed."""
    if wanted is not None:
        return require_relation(wanted)
    stated = sorted({run.neighboring_relation for run in runs if run.events is not None}) or ["zero-out"]
    if len(stated) > 1:
        common = common_relations(runs)
        raise ConfigError(
            f"neighboring_relation: the runs state {' and '.join(map(repr, stated))}, which do not add up as they are; name "
            f"one, under which all are computed anew: {' or '.join(map(repr, common)) or 'no relation covers all'}"
        )
    return stated[0]


def _require_distinct(one: Recorded, other: Recorded) -> None:
    """Refuse two ledgers of one run."""
    a, b = one.chain.hashes, other.chain.hashes
    if a == b:
        raise LedgerError(f"{one.name} and {other.name}: are the same ledger, or one is a copy; name one of them")
    if a[0] == b[0]:
        shorter, longer = sorted((one, other), key=lambda run: len(run.chain.hashes))
        if longer.chain.hashes[: len(shorter.chain.hashes)] == shorter.chain.hashes:
            raise LedgerError(f"{shorter.name}: is an older copy of {longer.name}; name that alone, which holds all of it")
        raise LedgerError(
            f"{one.name} and {other.name}: are copies of one run that went on separately, so that they may share noise; no "
            "theorem bounds their cost together"
        )
    keys = {run.chain.records[0].get("key") for run in (one, other)}
    if len(keys) == 1 and not (one.promise.simulation and other.promise.simulation):
        raise LedgerError(
            f"{one.name} and {other.name}: were written under one key, so that they may share noise; no theorem "
            "bounds their cost together"
        )
