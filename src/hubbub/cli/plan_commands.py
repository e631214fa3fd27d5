"""Commands that say of settings, before anybody trains by them, what they cost and whether they keep their promise."""

from pathlib import Path
from typing import Annotated

import typer

from hubbub.cli.flags import AllowImport, AsJson, Assignments, Config, Engine, whole

__all__ = ["COMMANDS"]


def plan(
    config: Config,
    assignments: Assignments = None,
    neighbours: Annotated[bool, typer.Option(help="Show what other strategies and cohorts would give.")] = True,
    thorough: Annotated[bool, typer.Option("--thorough", help="Try neighbours that take some seconds, too.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the neighbours and epsilon over rounds into this PNG.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Load data and model, and measure the run's time.")] = False,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """What a run would cost before it starts, what its neighbours would give, and which of them to take."""
    from hubbub.cli import planning

    wanted = planning.wanted(neighbours=neighbours, thorough=thorough, plot=plot)
    planning.plan(config, assignments or [], wanted=wanted, allow_import=allow_import, measure=measure, as_json=as_json)


def audit(
    config: Config,
    assignments: Assignments = None,
    canaries: Annotated[
        int | None, typer.Option(parser=whole, metavar="N", help="Clients that become canaries; by default half, 100 at most.")
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="R", help="How often the rounds are run; by default for 1,000 canaries in all."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(parser=whole, metavar="T", help="Rounds of each run; by default all that the config has.")
    ] = None,
    engine: Engine = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the findings; by default a new one in audits/.")
    ] = None,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Look for proof that a run breaks its guarantee, by canaries among its clients; status 1 where there is."""
    from hubbub.audit import Effort
    from hubbub.cli import auditing

    asked = auditing.Asked(engine, Effort(canaries, runs, rounds), out, allow_import, as_json)
    raise typer.Exit(auditing.audit(config, assignments or [], asked))


# In the order of the help.
COMMANDS = (plan, audit)
