"""The commands and their flags; what they do is in the sibling files."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from hubbub import __version__

__all__ = ["main"]

app = typer.Typer(
    name="hubbub",
    help="Train models on people's data with a privacy guarantee that can be proved, published and checked.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_LONGEST_MESSAGE = 1000
_FAMILIES = (
    "identity, tree, tree-online, tree-full, banded-toeplitz, optimal-toeplitz, normalized-toeplitz, banded, banded-inverse, "
    "blt, time-varying, dense, fourier"
)
# Mistakes on the command line; the class that they share has no public name of its own.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not a whole number") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not a number") from error


AsJson = Annotated[bool, typer.Option("--json", help="Print one strict JSON object; an infinite epsilon is null.")]
AllowImport = Annotated[bool, typer.Option("--allow-import", help='Run code that the config names as "pkg.mod:Name".')]
Head = Annotated[
    str | None, typer.Option(metavar="H", help="A head of the ledger that you kept: a run rolled back behind it is refused.")
]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="Set section.key=value over the file; may be repeated.")]
Strategy = Annotated[
    str, typer.Option(help="A family, as 'hubbub compare --help' lists them; banded with --column-norm-squared is described.")
]
Rounds = Annotated[int, typer.Option(parser=_whole, metavar="N", help="Number of rounds.")]
Bands = Annotated[int | None, typer.Option(parser=_whole, metavar="N", help="Diagonals of a banded C, the main one counted.")]
Buffers = Annotated[int | None, typer.Option(parser=_whole, metavar="N", help="Buffers of blt and time-varying.")]
ColumnNorm = Annotated[
    float | None, typer.Option(parser=_number, metavar="X", help="Squared norm of the columns of a banded C.")
]
Matrix = Annotated[str | None, typer.Option(help="File of C: .npy, a TensorFlow TensorProto, or what factorize wrote.")]
MinSeparation = Annotated[
    int | None,
    typer.Option(
        parser=_whole,
        metavar="N",
        help="A client that joins round r may join again in round r + this. Google's notebook counts one less.",
    ),
]
MaxParticipations = Annotated[int | None, typer.Option(parser=_whole, metavar="N", help="Rounds that one client may join.")]
Epochs = Annotated[
    int | None, typer.Option(parser=_whole, metavar="N", help="Rounds that one client joins, exactly --rounds-per-epoch apart.")
]
RoundsPerEpoch = Annotated[
    int | None, typer.Option(parser=_whole, metavar="N", help="Rounds from one participation of a client to the next.")
]
SamplingProbability = Annotated[
    float | None,
    typer.Option(parser=_number, metavar="X", help="Chance of a client to be in a round, by a coin of its own (Poisson)."),
]
CohortSize = Annotated[
    int | None, typer.Option(parser=_whole, metavar="N", help="Clients of a random cohort of fixed size, with --population.")
]
Population = Annotated[
    int | None, typer.Option(parser=_whole, metavar="N", help="Clients that cohorts of fixed size are drawn from.")
]
Delta = Annotated[float, typer.Option(parser=_number, metavar="X", help="Delta of the guarantee.")]
Accountant = Annotated[str, typer.Option(help="tight (exact, ours) or pld (dp_accounting, for published numbers).")]
Family = Annotated[str, typer.Argument(help=f"{_FAMILIES}, or file.")]
MostBands = Annotated[
    int | None,
    typer.Option(
        parser=_whole, metavar="N", help="Diagonals, the main one counted; by default the separation, 16 for banded-inverse."
    ),
]
Momentum = Annotated[
    float | None, typer.Option(parser=_number, metavar="X", help="Momentum of SGD, from 0 to below 1; by default 0.")
]
LearningRates = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|cooldown", help="One a round: .npy, TensorProto, or 1 falling to 0.05 in the last quarter (cooldown)."
    ),
]
Relation = Annotated[str | None, typer.Option(help="zero-out, add-or-remove-one (default for Poisson) or replace-one.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hubbub {__version__}")
        raise typer.Exit


@app.callback()
def _hubbub(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Train models on people's data with a privacy guarantee that can be proved, published and checked."""


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as examples/digits.toml.")],
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default a new one in runs/.")] = None,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Train as a config file says."""
    from hubbub.cli import training

    training.train(config, assignments or [], out, allow_import=allow_import, as_json=as_json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.")],
    head: Head = None,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Go on with an interrupted run."""
    from hubbub.cli import training

    training.resume(run, head, allow_import=allow_import, as_json=as_json)


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(help="The folder of a run, your own or a stranger's.")],
    head: Head = None,
    as_json: AsJson = False,
) -> None:
    """Check a run from its folder alone; status 1 where something does not hold."""
    from hubbub.cli import records

    raise typer.Exit(records.verify(run, head, as_json=as_json))


@app.command()
def ledger(run: Annotated[Path, typer.Argument(help="The folder of a run.")], as_json: AsJson = False) -> None:
    """What was charged, released and burned, round by round."""
    from hubbub.cli import records

    records.ledger(run, as_json=as_json)


@app.command()
def close(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    early: Annotated[bool, typer.Option("--early", help="End the run here, though rounds are left.")] = False,
) -> None:
    """End a run for good and destroy its keys."""
    from hubbub.cli import records

    records.close(run, early=early)


@app.command()
def plan(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as examples/digits.toml.")],
    assignments: Assignments = None,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """What a run would cost, before it starts."""
    from hubbub.cli import planning

    planning.plan(config, assignments or [], allow_import=allow_import, as_json=as_json)


@app.command()
def account(
    rounds: Rounds,
    delta: Delta,
    strategy: Strategy = "identity",
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            parser=_number, metavar="X", help="Noise over clip norm × largest column norm of C; σ/C for independent noise."
        ),
    ] = None,
    clip_noise_multiplier: Annotated[
        float | None,
        typer.Option(parser=_number, metavar="X", help="Noise over the clip norm alone, as the Gboard publications state it."),
    ] = None,
    bands: Bands = None,
    buffers: Buffers = None,
    column_norm_squared: ColumnNorm = None,
    matrix: Matrix = None,
    min_separation: MinSeparation = None,
    max_participations: MaxParticipations = None,
    epochs: Epochs = None,
    rounds_per_epoch: RoundsPerEpoch = None,
    sampling_probability: SamplingProbability = None,
    cohort_size: CohortSize = None,
    population: Population = None,
    accountant: Accountant = "tight",
    neighboring_relation: Relation = None,
    as_json: AsJson = False,
) -> None:
    """The epsilon of a mechanism.

    Takes exactly one of the two noise multipliers and prints both.
    """
    from hubbub.cli import accounts

    accounts.account(
        accounts.Wanted(strategy, rounds, bands, buffers, column_norm_squared, matrix),
        accounts.participation_from(
            rounds,
            separation=(min_separation, max_participations),
            rotation=(epochs, rounds_per_epoch),
            sampling_probability=sampling_probability,
            fixed_size=(cohort_size, population),
        ),
        multipliers=(noise_multiplier, clip_noise_multiplier),
        statement=accounts.Statement(delta, neighboring_relation, accountant, as_json),
    )


@app.command()
def calibrate(
    rounds: Rounds,
    epsilon: Annotated[float, typer.Option(parser=_number, metavar="X", help="The budget.")],
    delta: Delta,
    strategy: Strategy = "identity",
    bands: Bands = None,
    buffers: Buffers = None,
    column_norm_squared: ColumnNorm = None,
    matrix: Matrix = None,
    min_separation: MinSeparation = None,
    max_participations: MaxParticipations = None,
    epochs: Epochs = None,
    rounds_per_epoch: RoundsPerEpoch = None,
    sampling_probability: SamplingProbability = None,
    cohort_size: CohortSize = None,
    population: Population = None,
    accountant: Accountant = "tight",
    neighboring_relation: Relation = None,
    as_json: AsJson = False,
) -> None:
    """The least noise that meets a budget."""
    from hubbub.cli import accounts

    accounts.calibrated(
        accounts.Wanted(strategy, rounds, bands, buffers, column_norm_squared, matrix),
        accounts.participation_from(
            rounds,
            separation=(min_separation, max_participations),
            rotation=(epochs, rounds_per_epoch),
            sampling_probability=sampling_probability,
            fixed_size=(cohort_size, population),
        ),
        epsilon=epsilon,
        statement=accounts.Statement(delta, neighboring_relation, accountant, as_json),
    )


@app.command()
def factorize(
    family: Family,
    rounds: Annotated[
        int | None, typer.Option(parser=_whole, metavar="N", help="Number of rounds; of a file by default all.")
    ] = None,
    bands: MostBands = None,
    buffers: Buffers = None,
    objective: Annotated[
        str | None, typer.Option(help="What is least: the mean error over rounds (default), or the max.")
    ] = None,
    momentum: Momentum = None,
    learning_rates: LearningRates = None,
    min_separation: MinSeparation = None,
    max_participations: MaxParticipations = None,
    epochs: Epochs = None,
    rounds_per_epoch: RoundsPerEpoch = None,
    matrix: Annotated[
        str | None, typer.Option(metavar="FILE", help="C, for file: .npy, a TensorFlow TensorProto, or an --output of before.")
    ] = None,
    b_matrix: Annotated[
        str | None, typer.Option(metavar="FILE", help="B, published with --matrix: B·C is checked to be the workload.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it as .safetensors.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw A, B, C, C⁻¹ and the error over rounds, as .png.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute a strategy, with its error and a bound on any other's.

    Without flags on participation, each client joins one round. A matrix from a file is verified before use.

    Of such a matrix, --bands is the most diagonals that it may have.
    """
    from hubbub import families
    from hubbub.cli import factorize as command
    from hubbub.cli.setting import SettingFlags

    read = matrix is not None
    command.factorize(
        families.Family(family, None if read else bands, buffers, objective, matrix),  # type: ignore[arg-type] # it checks
        SettingFlags(rounds, momentum, learning_rates, (min_separation, max_participations), (epochs, rounds_per_epoch)),
        command.Claims(b_matrix, bands if read else None),
        command.Outputs(output, plot, as_json, " ".join(["hubbub", *sys.argv[1:]])),
    )


@app.command()
def compare(
    rounds: Rounds,
    bands: MostBands = None,
    buffers: Buffers = None,
    objective: Annotated[str, typer.Option(help="What is least: the mean error over rounds, or the max.")] = "mean",
    momentum: Momentum = None,
    learning_rates: LearningRates = None,
    min_separation: MinSeparation = None,
    max_participations: MaxParticipations = None,
    epochs: Epochs = None,
    rounds_per_epoch: RoundsPerEpoch = None,
    only: Annotated[
        str | None, typer.Option("--families", metavar="A,B,C", help=f"Some of {_FAMILIES}; by default all.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the error of each over rounds, as .png.")] = None,
    as_json: AsJson = False,
) -> None:
    """The errors of strategies for one setting, side by side.

    Without flags on participation, each client joins one round.
    """
    from hubbub.cli import compare as command
    from hubbub.cli.setting import SettingFlags

    flags = SettingFlags(rounds, momentum, learning_rates, (min_separation, max_participations), (epochs, rounds_per_epoch))
    knobs = command.Knobs(bands, buffers, objective)  # type: ignore[arg-type] # it checks
    command.compare(flags.setting(), knobs, only, plot=plot, as_json=as_json)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command; exits 0, 1 where a check fails, 2 after one line about what is wrong, or 130 after Ctrl-C."""
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
    from hubbub.cli.output import printable

    line = printable(" ".join(message.split()), _LONGEST_MESSAGE)
    print(f"hubbub: {line}", file=sys.stderr)  # noqa: T201 # the command line speaks here
    sys.exit(2)
