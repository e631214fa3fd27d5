"""Commands that look at a run, and give it away; what they do is in records.py and reporting.py."""

from pathlib import Path
from typing import Annotated

import typer

from hubbub.cli import completing
from hubbub.cli.flags import AllowImport, AsJson, Head, Run

__all__ = ["COMMANDS"]


def verify(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run, your own or a stranger's, or of what was published.", autocompletion=completing.runs
        ),
    ],
    head: Head = None,
    as_json: AsJson = False,
) -> None:
    """Check a run from its folder alone; status 1 where something does not hold."""
    from hubbub.cli import records

    raise typer.Exit(records.verify(run, head, as_json=as_json))


def ledger(run: Run, as_json: AsJson = False) -> None:
    """What was charged, released and aborted, round by round."""
    from hubbub.cli import records

    records.ledger(run, as_json=as_json)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="The folder of a run, or several to lay over one another.", autocompletion=completing.runs),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The HTML file; by default report.html in the run's folder.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What 'hubbub audit' found for these settings; by default audit/ in the run's folder."
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Leave out what was computed from clients' data.")] = False,
) -> None:
    """The report of one or several runs as one page that opens offline."""
    from hubbub.cli import reporting

    reporting.report(runs, output, audit, public=public)


def cite(run: Run) -> None:
    """The publications that a run relies on, as BibTeX."""
    from hubbub.cli import reporting

    reporting.cite(run)


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=completing.runs)],
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """How good the model of a run is on its test examples."""
    from hubbub.cli import reporting

    reporting.evaluate(run, allow_import=allow_import, as_json=as_json)


def publish(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=completing.runs)],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.")],
    head: Head = None,
) -> None:
    """Write what others may have: model, guarantee, card and report; refuses a simulation."""
    from hubbub.cli import reporting

    reporting.publish(run, output, head)


# In the order of the help.
COMMANDS = (verify, ledger, report, cite, evaluate, publish)
