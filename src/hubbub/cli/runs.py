"""``hubbub ledger`` and ``close``, and ``hubbub account`` of runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from hubbub.accounting import PrivacyGuarantee, rounded_up
from hubbub.accounting.statement import RunFacts, no_less
from hubbub.accounting.wording import count
from hubbub.cli.accounts import say_guarantee
from hubbub.cli.output import console, print_json, printable, say
from hubbub.errors import ConfigError
from hubbub.ledger.actual_cost import Recorded, Spent, spent
from hubbub.ledger.chain import read_chain
from hubbub.ledger.ledger import end_run
from hubbub.ledger.multi_run import compose_runs, run_charges
from hubbub.ledger.promise import Promise
from hubbub.training import RunStore
from hubbub.training.run_folder.record import ledger_of, read_run


def ledger(folder: Path, *, as_json: bool) -> None:
    """Print the record of a run."""
    run = read_run(folder)
    promise, history = run.promise, run.history
    cost = spent(promise, history)
    if as_json:
        keys = ("state", "epoch", "clients", "release")
        rows = [{"round_index": t, **{key: getattr(entry, key) for key in keys}} for t, entry in enumerate(history.rounds)]
        print_json(
            {
                "rounds": rows,
                "planned_rounds": promise.rounds,
                "epsilon": cost.guarantee.epsilon,
                "promised_epsilon": cost.promised.epsilon,
                "worse_than_promised": cost.worse,
                "breaches": list(cost.breaches),
                "earlier_runs": [earlier.record() for earlier in promise.earlier],
                "delta": promise.delta,
                "head": run.chain.head,
                "noise": run.chain.records[0]["noise"],
                "closed": history.closed,
            }
        )
        return
    names = ("round", "state", "incarnation", f"{promise.privacy_unit}s on record", "release (SHA-256)")
    cells = [
        (
            str(t),
            entry.state,
            str(entry.epoch),
            "secret" if entry.clients is None else str(entry.clients),
            (entry.release or "")[:16],
        )
        for t, entry in enumerate(history.rounds)
    ]
    screen = console()
    # A table of rich takes half a minute for 100,000 rounds.
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    typer.echo("\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (names, *cells)))
    together = f", together with {count(len(promise.earlier), 'earlier run')}" if promise.earlier else ""
    spent_so_far = f"epsilon {rounded_up(cost.guarantee.epsilon)} at delta {no_less(promise.delta)}"
    say(
        screen,
        f"{len(history.rounds)} of {promise.rounds} rounds spent {spent_so_far}{together}.",
        *(f"{warning[0].upper()}{warning[1:]}." for warning in cost.warnings()),
        *(["Simulation, not for release."] if promise.simulation else []),
        f"Head: {run.chain.head}",
    )


def close(folder: Path, *, early: bool) -> None:
    """End a run permanently and destroy its keys."""
    path, store = ledger_of(folder), RunStore(folder)
    with store.locked():
        chain = read_chain(path)
        last = store.release_content(chain.begun - 1) if chain.begun - 1 in store.released() else None
        end_run(path, early=early, release=last)
        gone = len(store.secret_files())
        store.destroy_secrets()
    if not gone:
        say(console(), f"{folder} {'was closed already' if chain.closed else 'is closed'}; no secret is left in it.")
        return
    say(
        console(),
        f"{folder} is closed: {gone} secret files were written over and removed. Unless their keys were copied, its noise "
        "can never be drawn again, and nobody can tell from the ledger who took part.",
    )


def account_runs(folders: Sequence[Path], flags: Mapping[str, Any], *, as_json: bool, in_full: bool) -> None:
    """Print what the runs spent, one by one and together, on the terms of the flags that were given and else of the runs."""
    runs = [read_run(folder) for folder in folders]
    stated = sorted({run.promise.delta for run in runs})
    if "delta" not in flags and len(stated) > 1:
        raise ConfigError(f"--delta: the runs state {' and '.join(f'{delta!r}' for delta in stated)}; name that of the whole")
    delta = flags.get("delta", stated[0])
    terms: dict[str, Any] = {name: flags[name] for name in ("neighboring_relation", "accountant") if name in flags}
    # First, since it says which runs do not add up.
    found = run_charges(runs)
    composed = compose_runs(found, delta, **terms) if runs[1:] else None
    promises = [run.promise.restated(**terms) for run in runs]
    for promise in promises:
        promise.require_delta(delta, promise.terms.parameters)
    costs = [spent(promise, run.history, delta) for promise, run in zip(promises, runs, strict=True)]
    if composed is None:
        answer, facts = costs[0].guarantee, runs[0].promise.facts(runs[0].chain.head, costs[0].public_warnings())
    else:
        answer = composed
        facts = RunFacts(
            heads=tuple(run.chain.head for run in runs),
            worse=tuple(
                f"{run.name}: {line}" for run, cost in zip(runs, costs, strict=True) for line in cost.public_warnings()
            ),
            runs=tuple(cost.guarantee for cost in costs),
            # Those that were named come first.
            others=found[len(runs) :],
            adaptive=any("adaptive_clipping" in run.promise.settings for run in runs),
        )
    rows = [_row(run, cost, promise) for run, cost, promise in zip(runs, costs, promises, strict=True)]
    if as_json:
        print_json({**answer.as_json(), "runs": rows})
    elif in_full:
        for line in (*answer.statement(facts).splitlines(), *_unchecked(rows)):
            console().print(printable(line))
    else:
        _print(answer, rows, costs)


def _row(run: Recorded, cost: Spent, promise: Promise) -> dict[str, Any]:
    begun, planned = len(run.history.rounds), run.promise.rounds
    whole = cost.promised if begun >= planned else promise.after(planned, cost.promised.delta)
    return {
        "run": run.name,
        "head": run.chain.head,
        "rounds": begun,
        "planned_rounds": planned,
        "rounds_left": run.rounds_left,
        "state": run.state,
        "ledger_alone": run.alone,
        "simulation": run.promise.simulation,
        "epsilon": cost.guarantee.epsilon,
        "promised_epsilon": cost.promised.epsilon,
        "whole_promise_epsilon": whole.epsilon,
        "worse_than_promised": cost.worse,
        "breaches": list(cost.breaches),
        "earlier_runs": len(run.promise.earlier),
    }


def _print(answer: PrivacyGuarantee, rows: Sequence[dict[str, Any]], costs: Sequence[Spent]) -> None:
    screen = console()
    for row, cost in zip(rows, costs, strict=True):
        earlier = f", with {row['earlier_runs']} earlier" if row["earlier_runs"] else ""
        label = "; simulation, not for release" if row["simulation"] else ""
        rounds = "1 round, which adds" if row["rounds_left"] == 1 else f"{row['rounds_left']} rounds, which add"
        whole = f"; it may still do {rounds}: its whole promise is epsilon {rounded_up(row['whole_promise_epsilon'])}"
        say(
            screen,
            f"{row['run']}: {row['rounds']} of {row['planned_rounds']} rounds, {row['state']}{earlier}: epsilon "
            f"{rounded_up(row['epsilon'])}{whole if row['rounds_left'] else ''}{label}",
        )
        say(screen, *(f"  {warning}" for warning in cost.warnings()))
    say_guarantee(answer)
    say(screen, *_unchecked(rows))


def _unchecked(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each ledger that could not be checked against a run's folder."""
    for row in rows:
        if row["ledger_alone"]:
            yield (
                f"{row['run']}: holds a ledger alone, so that nothing could be checked against it: if its end is missing, more "
                f"was spent; compare head {row['head']} with the one that was kept"
            )
