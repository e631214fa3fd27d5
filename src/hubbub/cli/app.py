"""The program: its commands by the panels of its help, and how one of them is run.

The commands and their flags are in the files named for them, common flags in flags.py; what they do is in the other siblings.
"""

import os
import resource
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from hubbub._version import __version__
from hubbub.cli import flower, machine_commands, mechanism_commands, paillier, plan_commands, run_commands, train_commands

__all__ = ["main"]

app = typer.Typer(
    name="hubbub",
    help="Train models on people's data with a privacy guarantee that can be proved, published and checked.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_MORE = "Flower, keys, this machine"
# The panels of the help, in their order.
_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train": train_commands.COMMANDS,
    "Look at a run, and give it away": run_commands.COMMANDS,
    "Plan, account and audit": (*plan_commands.COMMANDS, *mechanism_commands.COMMANDS),
    _MORE: machine_commands.COMMANDS,
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(flower.app, name="flower", rich_help_panel=_MORE)
app.add_typer(paillier.app, name="paillier", rich_help_panel=_MORE)

_LONGEST_MESSAGE = 1000
# Mistakes on the command line; the class that they share has no public name of its own.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hubbub {__version__}")
        raise typer.Exit


@app.callback()
def _hubbub(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Train models on people's data with a privacy guarantee that can be proved, published and checked."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command.

    Exits 0, 1 where a check fails, 2 after one line about what is wrong, 3 where its budget ended a run, or 130 after Ctrl-C.
    """
    # A core dump would hold the keys of a run.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that knows no ∞ shows a question mark rather than ending a run.
            stream.reconfigure(errors="replace")
    try:
        sys.exit(_run(arguments))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _stop("nobody reads the output any more; a run that was under way goes on with 'hubbub resume RUN'")
    except MemoryError:
        _stop("this needs more memory than there is; plan fewer rounds, parameters or bands")
    except Exception as error:
        from hubbub.errors import HubbubError

        # Anything else is a defect of ours, and its traceback is what a report of it needs.
        if os.environ.get("HUBBUB_DEBUG") or not isinstance(error, HubbubError | ValueError | TypeError | OSError):
            raise
        _stop(str(error) or type(error).__name__)


def _run(arguments: list[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    try:
        # The answer is 130 where Ctrl-C ended the command.
        return app(given or ["--help"], prog_name="hubbub", standalone_mode=False) or 0
    except _UsageError as error:
        where = error.ctx.command_path if error.ctx else "hubbub"
        # Of a flag that no variable sets.
        message = error.format_message().replace(" (env var: 'None')", "")
        _stop(f"{message} (see '{where} --help')")


def _stop(message: str) -> NoReturn:
    from hubbub.cli.output import console, printable, say

    say(console(stderr=True), f"hubbub: {printable(' '.join(message.split()), _LONGEST_MESSAGE)}")
    sys.exit(2)
