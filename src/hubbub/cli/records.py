"""``hubbub ledger``, ``hubbub verify`` and ``hubbub close``: what stands on record, whether it holds, and the end of it."""

from pathlib import Path
from typing import Any

from rich.table import Table

from hubbub.accounting import rounded_up
from hubbub.accounting.actual_cost import spent
from hubbub.accounting.chain import read_chain
from hubbub.accounting.ledger import end_run
from hubbub.accounting.statement import no_less
from hubbub.accounting.wording import unit_word
from hubbub.cli.output import console, print_json, say
from hubbub.training import RunStore
from hubbub.training.run_folder.record import ledger_of, read_run
from hubbub.verification import Verdict
from hubbub.verification import verify as verified

__all__ = ["close", "ledger", "verify"]


def ledger(folder: Path, *, as_json: bool) -> None:
    """Print the record of a run."""
    run = read_run(folder)
    promise, history = run.promise, run.history
    cost = spent(promise, history)
    rows: list[dict[str, Any]] = [
        {
            "round_index": t,
            "state": entry.state,
            "epoch": entry.epoch,
            "clients": len(entry.clients) or None,
            "release": entry.release,
        }
        for t, entry in enumerate(history.rounds)
    ]
    if as_json:
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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("round", "state", "epoch", f"{unit_word(promise.privacy_unit)}s on record", "release (SHA-256)"):
        table.add_column(name)
    for row in rows:
        shown = [row["round_index"], row["state"], row["epoch"], row["clients"], (row["release"] or "")[:16]]
        table.add_row(*("" if value is None else str(value) for value in shown))
    screen = console()
    screen.print(table)
    say(
        screen,
        f"{len(rows)} of {promise.rounds} rounds charged: epsilon {rounded_up(cost.guarantee.epsilon)} at delta "
        f"{no_less(promise.delta)}{_beside(len(promise.earlier))}.",
    )
    for warning in cost.warnings():
        say(screen, f"{warning[0].upper()}{warning[1:]}.")
    if promise.simulation:
        say(screen, "Simulation, not for release.")
    say(screen, f"Head: {run.chain.head}")


def _beside(earlier: int) -> str:
    return f", together with {earlier} earlier run{'s' if earlier > 1 else ''}" if earlier else ""


def verify(folder: Path, head: str | None, *, as_json: bool) -> int:
    """Print what holds; returns the status, 1 where something does not."""
    verdict = verified(folder, head)
    if as_json:
        checks = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in verdict.checks]
        print_json(
            {"ok": verdict.ok, "checks": checks, "head": verdict.head, "epsilon": verdict.epsilon, "delta": verdict.delta}
        )
    else:
        _print(folder, verdict)
    return 0 if verdict.ok else 1


def _print(folder: Path, verdict: Verdict) -> None:
    screen = console()
    for check in verdict.checks:
        beside = f"{'holds ' if check.ok else 'FAILS '} {check.name:<14} "
        say(screen, beside + check.detail, indent=len(beside))
    failed = sum(not check.ok for check in verdict.checks)
    say(screen, f"{folder}: " + (f"{failed} of {len(verdict.checks)} checks fail." if failed else "everything holds."))


def close(folder: Path, *, early: bool) -> None:
    """End a run and destroy its keys."""
    path, store = ledger_of(folder), RunStore(folder)
    with store.locked():
        kept = store.released()
        begun = sum(record.get("kind") == "begin" for record in read_chain(path).records)
        last = store.release_content(begun - 1) if begun - 1 in kept else None
        end_run(path, early=early, release=last)
        gone = len(store.secret_files())
        store.destroy_secrets()
    if not gone:
        say(console(), f"{folder} was closed already; no secret is left in it.")
        return
    say(
        console(),
        f"{folder} is closed: {gone} secret files were written over and removed. Unless their keys were copied, its noise "
        "can never be drawn again, and nobody can tell from the ledger who took part.",
    )
