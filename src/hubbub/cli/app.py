"""The program: its commands, and its exit statuses and error messages.

Commands and their flags are declared here and in mechanism_commands.py and run_commands.py, short ones with all they do; common
flags are in flags.py. The other modules are imported when a command needs them, so that ``hubbub --help`` answers at once.
"""

import contextlib
import itertools
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from hubbub._util import __version__
from hubbub.cli import commands, mechanism_commands, run_commands
from hubbub.cli.flags import AsJson
from hubbub.cli.output import console, printable, say
from hubbub.errors import HubbubError, RankError

app = typer.Typer(name="hubbub", rich_markup_mode="rich", pretty_exceptions_enable=False)

_flower = typer.Typer(help="Private federations on Flower.", rich_markup_mode="rich")


@_flower.command("new")
def _new(
    name: Annotated[str, typer.Argument(help="A new folder and name of the app: small letters, digits, underscores.")],
) -> None:
    """Write an example app to start from: PyTorch on digits, made private by one line."""
    from hubbub.experiment.engine.apps import write_example

    folder = Path(name)
    wrote = [f"Wrote {path}" for path in write_example(folder)]
    say(console(), *wrote, f"Try it: cd {folder} && python run_local.py; README.md describes the next steps.")


_paillier = typer.Typer(help="Keys for encrypted sums.", rich_markup_mode="rich")

_KeyBits = Annotated[int, typer.Option("--bits", metavar="N", help="Length of n: 3072, or 2048 for 112 bits of security.")]
_Folder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="A folder; key files in it are never overwritten.")
]


@_paillier.command("keygen")
def _keygen(output: _Folder, bits: _KeyBits = 3072, as_json: AsJson = False) -> None:
    """Write a private key, for one owner who is not the server, and its public key."""
    commands.paillier.keygen(output, bits, as_json=as_json)


@_paillier.command("shares")
def _shares(
    output: _Folder,
    holders: Annotated[int, typer.Option(metavar="N", help="Number of shares, from 2 to 100.")],
    threshold: Annotated[int, typer.Option(metavar="N", help="Holders who decrypt together, more than half.")],
    bits: _KeyBits = 3072,
    min_contributions: Annotated[int, typer.Option(metavar="N", help="Sums of fewer contributions are not decrypted.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Write a threshold key: any t of the n holders decrypt together, fewer alone decrypt nothing."""
    commands.paillier.shares(output, holders, threshold, min_contributions, bits, as_json=as_json)


@_paillier.command("bench")
def _bench(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="For bench.png and bench.json.")],
    bits: Annotated[int, typer.Option(metavar="N", help="Length of n, of temporary keys.")] = 1024,
    sizes: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Bits of the operand; by default from 10 to the most that fit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time encryption, arithmetic and decryption, ours and phe's, in nine plots."""
    commands.paillier.bench(output, bits, sizes, as_json=as_json)


# Panels of the help, in order.
_MORE = "Flower, keys, this machine"
_PANELS: dict[str, tuple[Callable[..., int | None], ...]] = {
    "Train": run_commands.TRAIN,
    "Look at a run, and publish it": run_commands.LOOK,
    "Plan, account and audit": (*run_commands.PLAN, *mechanism_commands.COMMANDS),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)


@app.command(rich_help_panel=_MORE)
def doctor(as_json: AsJson = False) -> int:
    """Check this machine: versions, device, randomness, disk, encryption."""
    return commands.doctor.check(as_json=as_json)


app.add_typer(_flower, name="flower", rich_help_panel=_MORE)
app.add_typer(_paillier, name="paillier", rich_help_panel=_MORE)

_LONGEST_MESSAGE = 1000
# Commands that have a flag and are named where it is not known.
_FEW = 3
# Seconds that a rank leaves to rank 0 to end first.
_PATIENCE = 3.0
# The base class of usage errors, which has no public name.
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

    Exits 0, 1 if a check fails, 2 after one line about what is wrong, 3 if the budget ended a run, or 130 after Ctrl-C.
    """
    # A core dump would hold the keys of a run.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal without ∞ shows a question mark.
            stream.reconfigure(errors="replace")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        # 130 after Ctrl-C.
        sys.exit(app(given or ["--help"], prog_name="hubbub", standalone_mode=False) or 0)
    except _UsageError as error:
        _stop(_of_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _stop("the reader of the output is gone; a run resumes with 'hubbub resume RUN'")
    except MemoryError:
        _stop("not enough memory; plan fewer rounds, parameters or bands")
    except Exception as error:
        rank = os.environ.get("RANK", "0")
        if rank != "0" and isinstance(error, RankError) and (error.rank, error.gone, rank) != (0, True, "1"):
            # Rank 0 says what is wrong; if it is gone, rank 1 does. The exit status is that of who ends first.
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(_PATIENCE)
            sys.exit(1)
        # An extra is not installed, or a ~ is nobody's. Anything else is a bug, whose report needs the traceback.
        meant = isinstance(error, ImportError) or (isinstance(error, RuntimeError) and "home directory" in str(error))
        if os.environ.get("HUBBUB_DEBUG") or not (meant or isinstance(error, HubbubError | ValueError | TypeError | OSError)):
            raise
        _stop(_as_typed(_said(error), given))


def _said(error: Exception) -> str:
    """What an error says; of a file, its name first."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: cannot be read or written ({error.strerror}); mend that first"
    return f"a path with ~: {error} Write all of it." if isinstance(error, RuntimeError) else str(error) or type(error).__name__


def _of_usage(error: Any) -> str:
    """What is wrong with a command line; of a flag that is a setting, the ``--set`` that says it, of one elsewhere, where."""
    # Typer names a variable that does not exist.
    message = error.format_message().replace(" (env var: 'None')", "")
    option = getattr(error, "option_name", None) or ""
    if message.startswith("No such option:") and error.ctx:
        message = message.replace(f"{option} Did you", f"{option}. Did you")
        commands = error.ctx.find_root().command.commands.values()
        having = [f"'hubbub {command.name}'" for command in commands if any(option in known.opts for known in command.params)]
        if 0 < len(having) <= _FEW:
            message = f"No such option: {option}; {' and '.join(having)} {'have' if len(having) > 1 else 'has'} it"
    if error.ctx and any("--set" in known.opts for known in error.ctx.command.params):
        from hubbub.experiment.config import settings_of_key

        if settings := settings_of_key(option.lstrip("-").replace("-", "_")):
            message = f"No such option: {option}; as a setting: {' or '.join(f'--set {name}=VALUE' for name in settings)}"
    return f"{message} (see '{error.ctx.command_path if error.ctx else 'hubbub'} --help')"


# Flags whose value may be a file; messages about it begin with its name.
_OF_FILES = ("--mechanism", "--matrix", "--b-matrix", "--learning-rates")


def _as_typed(message: str, given: Sequence[str]) -> str:
    """A message with the flag in place of the Python argument, or in front of its file.

    Example:
        >>> _as_typed("noise_multiplier = 0.0: must be above 0", ["account", "--noise-multiplier", "0"])
        '--noise-multiplier = 0.0: must be above 0'
        >>> _as_typed("nosuch: is no run", ["verify", "nosuch"])
        'RUN nosuch: is no run'
    """
    name, equals, rest = message.partition(" = ")
    # A flag such as --engine is a setting of [training].
    flag = f"--{name.removeprefix('training.').replace('_', '-')}"
    if equals and any(word.partition("=")[0] == flag for word in given):
        return f"{flag} = {rest}"
    typed = [*itertools.pairwise(given), *(word.partition("=")[::2] for word in given)]
    flags = [flag for flag, value in typed if flag in _OF_FILES and value and message.startswith(f"{value}: ")]
    if flags:
        return f"{flags[0]} {message}"
    return f"RUN {message}" if any(message.startswith(f"{word.rstrip('/')}: is no run") for word in given) else message


def _stop(message: str) -> NoReturn:
    say(console(stderr=True), f"hubbub: {printable(' '.join(message.split()), _LONGEST_MESSAGE)}")
    sys.exit(2)
