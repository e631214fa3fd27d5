"""``hubbub account RUN …``: what runs cost, from their ledgers, alone and together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hubbub.accounting import PrivacyGuarantee, rounded_up
from hubbub.accounting.actual_cost import Spent, spent
from hubbub.accounting.multi_run import Recorded, compose_runs, run_charges
from hubbub.accounting.promise import Promise
from hubbub.accounting.statement import RunFacts
from hubbub.cli.output import console, print_json, printable, say
from hubbub.errors import ConfigError
from hubbub.training.run_folder.record import read_run

__all__ = ["Asked", "account_runs"]


@dataclass(frozen=True)
class Asked:
    """How the answer is wanted; ``None`` takes what the runs say."""

    delta: float | None
    neighboring_relation: str | None
    accountant: str | None
    as_json: bool
    in_full: bool


def account_runs(folders: Sequence[Path], asked: Asked) -> None:
    """Print what the runs cost, one by one and together."""
    runs = [read_run(folder) for folder in folders]
    delta = _delta(runs) if asked.delta is None else asked.delta
    accountant = asked.accountant or "tight"
    # First, since it says which runs do not add up.
    found = run_charges(runs)
    composed = compose_runs(found, delta, asked.neighboring_relation, accountant=accountant) if runs[1:] else None
    costs = [_cost(run, delta, asked) for run in runs]
    if composed is None:
        answer, facts = costs[0].guarantee, costs[0].facts(runs[0].promise, runs[0].chain.head)
    else:
        answer = composed
        worse = tuple(f"{run.name}: {warning}" for run, cost in zip(runs, costs, strict=True) for warning in cost.told_to_all())
        # Those that were named come first.
        each, others = tuple(cost.guarantee for cost in costs), found[len(runs) :]
        adaptive = any("adaptive_clipping" in run.promise.settings for run in runs)
        heads = tuple(run.chain.head for run in runs)
        facts = RunFacts(heads=heads, worse=worse, runs=each, others=others, adaptive=adaptive)
    rows = [_row(run, cost, _asked(run, asked)) for run, cost in zip(runs, costs, strict=True)]
    if asked.as_json:
        print_json({**answer.as_json(), "runs": rows})
    elif asked.in_full:
        for line in (*answer.statement(facts).splitlines(), *_unchecked(rows)):
            console().print(printable(line))
    else:
        _print(answer, rows)


def _cost(run: Recorded, delta: float, asked: Asked) -> Spent:
    return spent(_asked(run, asked), run.history, delta)


def _asked(run: Recorded, asked: Asked) -> Promise:
    """The run's promise, as it is to be stated."""
    return replace(
        run.promise,
        neighboring_relation=asked.neighboring_relation or run.promise.neighboring_relation,
        accountant=asked.accountant or run.promise.accountant,
    )


def _delta(runs: Sequence[Recorded]) -> float:
    stated = sorted({run.promise.delta for run in runs})
    if len(stated) > 1:
        raise ConfigError(f"--delta: the runs state {' and '.join(f'{delta!r}' for delta in stated)}; name that of the whole")
    return stated[0]


def _row(run: Recorded, cost: Spent, promise: Promise) -> dict[str, Any]:
    charged, planned = len(run.history.rounds), run.promise.rounds
    whole = cost.promised if charged >= planned else promise.after(planned, cost.promised.delta)
    return {
        "run": run.name,
        "head": run.chain.head,
        "rounds": charged,
        "planned_rounds": planned,
        "rounds_left": run.rounds_left,
        "state": "closed" if run.history.closed else "interrupted" if run.rounds_left else "finished",
        "ledger_alone": run.alone,
        "simulation": run.promise.simulation,
        "epsilon": cost.guarantee.epsilon,
        "promised_epsilon": cost.promised.epsilon,
        "whole_promise_epsilon": whole.epsilon,
        "worse_than_promised": cost.worse,
        "breaches": list(cost.breaches),
        "earlier_runs": len(run.promise.earlier),
    }


def _print(answer: PrivacyGuarantee, rows: Sequence[dict[str, Any]]) -> None:
    screen = console()
    for row in rows:
        beside = f", with {row['earlier_runs']} earlier" if row["earlier_runs"] else ""
        label = "; simulation, not for release" if row["simulation"] else ""
        say(
            screen,
            f"{row['run']}: {row['rounds']} of {row['planned_rounds']} rounds, {row['state']}{beside}: epsilon "
            f"{rounded_up(row['epsilon'])}{_ahead(row)}{label}",
        )
        if row["worse_than_promised"]:
            promised, happened = rounded_up(row["promised_epsilon"]), rounded_up(row["epsilon"])
            say(screen, f"  worse than promised: promised {promised}, happened {happened}")
        for breach in row["breaches"]:
            say(screen, f"  {breach}")
    say(screen)
    say(screen, answer.sentence())
    if answer.amplified:
        worst = rounded_up(answer.unamplified_epsilon)
        say(
            screen,
            f"Assuming the random cohorts as stated; in the worst case over them, without amplification, epsilon is {worst}.",
        )
    for line in _unchecked(rows):
        say(screen, line)


def _ahead(row: dict[str, Any]) -> str:
    """What an unfinished run may still add."""
    left = row["rounds_left"]
    if not left:
        return ""
    rounds = "1 round, which adds" if left == 1 else f"{left} rounds, which add"
    return f"; it may still do {rounds}: its whole promise is epsilon {rounded_up(row['whole_promise_epsilon'])}"


def _unchecked(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Which ledgers were believed as they are."""
    for row in rows:
        if row["ledger_alone"]:
            yield (
                f"{row['run']}: holds a ledger alone, so that nothing beside it could be checked: if its end was cut off, more "
                f"was spent; compare head {row['head']} with the one that was kept"
            )
