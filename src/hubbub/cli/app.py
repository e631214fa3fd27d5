"""The commands; their common flags are in flags.py, and what they do is in the other sibling files."""

import os
import resource
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from hubbub._version import __version__
from hubbub.cli import completing, flower, paillier
from hubbub.cli.flags import (
    FAMILIES,
    Accountant,
    AllowImport,
    AsJson,
    Assignments,
    Bands,
    Bins,
    Buffers,
    CohortSize,
    ColumnNorm,
    Config,
    CycleLength,
    Delta,
    Engine,
    Epochs,
    Family,
    Head,
    LearningRates,
    Matrix,
    MaxCohortSize,
    MaxParticipations,
    MinSeparation,
    Mlflow,
    Momentum,
    MostBands,
    Plan,
    Population,
    Relation,
    Rounds,
    RoundsPerEpoch,
    Run,
    SamplingProbability,
    Strategy,
    TensorBoard,
    TrackPrivate,
    WandB,
    Workers,
    number,
    whole,
)

__all__ = ["main"]

app = typer.Typer(
    name="hubbub",
    help="Train models on people's data with a privacy guarantee that can be proved, published and checked.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

# The panels of the help, in their order.
_TRAIN, _LOOK, _PLAN, _MORE = (
    "Train",
    "Look at a run, and give it away",
    "Plan, account and audit",
    "Flower, keys, this machine",
)

app.add_typer(flower.app, name="flower", rich_help_panel=_MORE)
app.add_typer(paillier.app, name="paillier", rich_help_panel=_MORE)

_LONGEST_MESSAGE = 1000
# Mistakes on the command line; the class that they share has no public name of its own.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]


def _given(context: typer.Context) -> set[str]:
    """The parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _require_only(given: set[str], allowed: set[str]) -> None:
    """Refuse flags of a mechanism beside the folders of runs, which say it themselves."""
    others = sorted(given - allowed)
    if others:
        flag = others[0].replace("_", "-")
        raise typer.BadParameter(f"--{flag}: describes a mechanism; runs say it by their ledgers, leave it out")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hubbub {__version__}")
        raise typer.Exit


@app.callback()
def _hubbub(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Train models on people's data with a privacy guarantee that can be proved, published and checked."""


@app.command(rich_help_panel=_TRAIN)
def new(
    file: Annotated[Path, typer.Argument(help="A new file: .toml for settings, .py for a model and data of your own.")],
) -> None:
    """Write a file to start from, which runs as it is."""
    from hubbub.cli import new as command

    command.new(file)


@app.command(rich_help_panel=_TRAIN)
def train(
    config: Config,
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run; by default a new one in runs/.")] = None,
    engine: Engine = None,
    plan: Plan = None,
    workers: Workers = None,
    tensorboard: TensorBoard = None,
    mlflow: Mlflow = None,
    wandb: WandB = None,
    track_private: TrackPrivate = False,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Train as a config file says."""
    from hubbub.cli import training

    tracked = training.Tracked(tensorboard, mlflow, wandb, track_private)
    how = training.How(engine, plan, workers, tracked)
    training.train(config, assignments or [], out, how, allow_import=allow_import, as_json=as_json)


@app.command(rich_help_panel=_TRAIN)
def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.", autocompletion=completing.runs)],
    head: Head = None,
    engine: Engine = None,
    workers: Workers = None,
    tensorboard: TensorBoard = None,
    mlflow: Mlflow = None,
    wandb: WandB = None,
    track_private: TrackPrivate = False,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Go on with an interrupted run."""
    from hubbub.cli import training

    tracked = training.Tracked(tensorboard, mlflow, wandb, track_private)
    how = training.How(engine, workers=workers, tracked=tracked)
    training.resume(run, head, how, allow_import=allow_import, as_json=as_json)


@app.command(rich_help_panel=_TRAIN)
def extend(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a finished run, which stays as it is but for a note.", autocompletion=completing.runs
        ),
    ],
    rounds: Rounds,
    assignments: Assignments = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the rounds that follow; by default a new one in runs/.")
    ] = None,
    head: Head = None,
    engine: Engine = None,
    workers: Workers = None,
    tensorboard: TensorBoard = None,
    mlflow: Mlflow = None,
    wandb: WandB = None,
    track_private: TrackPrivate = False,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Train more rounds from where a finished run ended, charged together with it."""
    from hubbub.cli import extending, training

    how = training.How(engine, workers=workers, tracked=training.Tracked(tensorboard, mlflow, wandb, track_private))
    asked = extending.Asked(rounds, assignments or [], out, head)
    extending.extend(run, asked, how, allow_import=allow_import, as_json=as_json)


@app.command(rich_help_panel=_TRAIN)
def sweep(
    config: Annotated[
        Path, typer.Argument(help="A TOML file, or the folder of a sweep that is to go on.", autocompletion=completing.configs)
    ],
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=V,V", help="A setting and its values; one for each setting.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N,N", help="Values of training.seed; results are averaged over them.")
    ] = None,
    assignments: Assignments = None,
    jobs: Annotated[
        int | None,
        typer.Option(parser=whole, metavar="N", help="Runs at a time, each in a process of one thread; by default 1."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "--out", "-o", help="Folder of the sweep; by default runs/CONFIG-sweep.")
    ] = None,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Train over a grid of settings, and say what choosing among the runs costs; the same command again goes on."""
    from hubbub.cli import sweeping

    asked = sweeping.Asked(grid or [], seeds, assignments or [], output, 1 if jobs is None else jobs, allow_import, as_json)
    sweeping.sweep(config, asked)


@app.command(rich_help_panel=_LOOK)
def verify(
    run: Annotated[Path, typer.Argument(help="The folder of a run, your own or a stranger's.", autocompletion=completing.runs)],
    head: Head = None,
    as_json: AsJson = False,
) -> None:
    """Check a run from its folder alone; status 1 where something does not hold."""
    from hubbub.cli import records

    raise typer.Exit(records.verify(run, head, as_json=as_json))


@app.command(rich_help_panel=_LOOK)
def ledger(run: Run, as_json: AsJson = False) -> None:
    """What was charged, released and burned, round by round."""
    from hubbub.cli import records

    records.ledger(run, as_json=as_json)


@app.command(rich_help_panel=_TRAIN)
def close(
    run: Run,
    early: Annotated[bool, typer.Option("--early", help="End the run here, though rounds are left.")] = False,
) -> None:
    """End a run for good and destroy its keys."""
    from hubbub.cli import records

    records.close(run, early=early)


@app.command(rich_help_panel=_LOOK)
def watch(
    run: Run,
    interval: Annotated[float, typer.Option(parser=number, metavar="S", help="Seconds from one look to the next.")] = 2.0,
) -> None:
    """Follow a running run from another terminal: rounds, accuracy, epsilon, speed, time left; it is only read."""
    from hubbub.cli import watching

    watching.watch(run, interval)


@app.command(rich_help_panel=_LOOK)
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


@app.command(rich_help_panel=_LOOK)
def cite(run: Run) -> None:
    """The publications that a run relies on, as BibTeX."""
    from hubbub.cli import reporting

    reporting.cite(run)


@app.command(rich_help_panel=_LOOK)
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=completing.runs)],
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """How good the model of a run is on its test examples."""
    from hubbub.cli import reporting

    reporting.evaluate(run, allow_import=allow_import, as_json=as_json)


@app.command(rich_help_panel=_LOOK)
def publish(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=completing.runs)],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.")],
    head: Head = None,
) -> None:
    """Write what others may have: model, guarantee, card and report; refuses a simulation."""
    from hubbub.cli import reporting

    reporting.publish(run, output, head)


@app.command(rich_help_panel=_PLAN)
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


@app.command(rich_help_panel=_PLAN)
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


@app.command(rich_help_panel=_PLAN)
def account(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of runs over the same people, instead of a mechanism.",
            autocompletion=completing.runs,
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(parser=whole, metavar="N", help="Number of rounds.")] = None,
    delta: Annotated[
        float | None, typer.Option(parser=number, metavar="X", help="Delta of the guarantee; of runs by default theirs.")
    ] = None,
    strategy: Strategy = "identity",
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="X", help="Noise over clip norm × largest column norm of C; σ/C for independent noise."
        ),
    ] = None,
    clip_noise_multiplier: Annotated[
        float | None,
        typer.Option(parser=number, metavar="X", help="Noise over the clip norm alone, as the Gboard publications state it."),
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
    max_cohort_size: MaxCohortSize = None,
    cycle_length: CycleLength = None,
    bins: Bins = None,
    accountant: Accountant = "tight",
    neighboring_relation: Relation = None,
    as_json: AsJson = False,
    in_full: Annotated[bool, typer.Option("--statement", help="Print the guarantee in full, fit for publication.")] = False,
) -> None:
    """The epsilon of a mechanism, or of runs from their ledgers, alone and together.

    A mechanism takes exactly one of the two noise multipliers and prints both.
    """
    from hubbub.cli import accounts

    if runs:
        from hubbub.cli.runs import Asked, account_runs

        given = _given(context)
        _require_only(given, {"runs", "delta", "accountant", "neighboring_relation", "as_json", "in_full"})
        chosen = accountant if "accountant" in given else None
        account_runs(runs, Asked(delta, neighboring_relation, chosen, as_json, in_full))
        return
    if rounds is None or delta is None:
        missing = "--rounds" if rounds is None else "--delta"
        raise typer.BadParameter(f"{missing} is missing; name --rounds and --delta of a mechanism, or the folders of runs")
    accounts.account(
        accounts.Wanted(strategy, rounds, bands, buffers, column_norm_squared, matrix),
        accounts.participation_from(
            rounds,
            separation=(min_separation, max_participations),
            rotation=(epochs, rounds_per_epoch),
            random=accounts.CohortFlags(sampling_probability, cohort_size, population, max_cohort_size, cycle_length, bins),
        ),
        multipliers=(noise_multiplier, clip_noise_multiplier),
        statement=accounts.Statement(delta, neighboring_relation, accountant, as_json, in_full),
    )


@app.command(rich_help_panel=_PLAN)
def calibrate(
    rounds: Rounds,
    epsilon: Annotated[float, typer.Option(parser=number, metavar="X", help="The budget.")],
    delta: Delta,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="A family, as 'hubbub compare --help' lists them, by default identity; banded with --column-norm-squared is "
            "described."
        ),
    ] = None,
    cohort: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Clients that are to take part in a round, with --population: recommends a mechanism, shows the runners-up.",
        ),
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
    max_cohort_size: MaxCohortSize = None,
    cycle_length: CycleLength = None,
    bins: Bins = None,
    accountant: Accountant = "tight",
    neighboring_relation: Relation = None,
    as_json: AsJson = False,
) -> None:
    """The least noise that meets a budget; with --cohort and --population, the mechanism of least error that does.

    Without --cohort the flags name a mechanism, as those of account do.
    """
    from hubbub.cli import accounts, calibrating

    statement = accounts.Statement(delta, neighboring_relation, accountant, as_json)
    random = accounts.CohortFlags(sampling_probability, cohort_size, population, max_cohort_size, cycle_length, bins)
    if cohort is not None:
        named: dict[str, object] = {"strategy": strategy, "bands": bands, "buffers": buffers, "matrix": matrix}
        named |= {"column-norm-squared": column_norm_squared, "max-participations": max_participations}
        named |= {"epochs": epochs, "rounds-per-epoch": rounds_per_epoch, "sampling-probability": sampling_probability}
        named |= {"cohort-size": cohort_size, "max-cohort-size": max_cohort_size, "cycle-length": cycle_length, "bins": bins}
        calibrating.recommended(
            (rounds, population, cohort, min_separation),
            {f"--{name}": value for name, value in named.items()},
            epsilon=epsilon,
            statement=statement,
        )
        return
    calibrating.calibrated(
        accounts.Wanted("identity" if strategy is None else strategy, rounds, bands, buffers, column_norm_squared, matrix),
        accounts.participation_from(
            rounds,
            separation=(min_separation, max_participations),
            rotation=(epochs, rounds_per_epoch),
            random=random,
        ),
        epsilon=epsilon,
        statement=statement,
    )


@app.command(rich_help_panel=_PLAN)
def factorize(
    family: Family,
    rounds: Annotated[
        int | None, typer.Option(parser=whole, metavar="N", help="Number of rounds; of a file by default all.")
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


@app.command(rich_help_panel=_PLAN)
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
        str | None, typer.Option("--families", metavar="A,B,C", help=f"Some of {FAMILIES}; by default all.")
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


@app.command(rich_help_panel=_PLAN)
def gaussian(
    epsilon: Annotated[float, typer.Option(parser=number, metavar="X", help="The budget.")],
    delta: Annotated[float, typer.Option(parser=number, metavar="X", help="Delta of the guarantee.")],
    sensitivity: Annotated[
        float, typer.Option(parser=number, metavar="X", help="L2: how far one person can move what is released.")
    ] = 1.0,
    plot: Annotated[
        Path | None, typer.Option("--plot", "-o", metavar="FILE", help="Draw the noise of each over epsilon, as .png.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The noise of one Gaussian release by every calibration, and the delta that each attains."""
    from hubbub.cli import gaussian as command

    command.show(epsilon, delta, sensitivity, plot=plot, as_json=as_json)


@app.command(rich_help_panel=_MORE)
def doctor(as_json: AsJson = False) -> None:
    """Whether this machine can train and keep secrets, and how fast: versions, device, randomness, disk, speed."""
    from hubbub.cli import doctor as command

    raise typer.Exit(command.doctor(as_json=as_json))


@app.command(rich_help_panel=_MORE)
def kernel(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="encryption, training or noise; by default all.", autocompletion=completing.kernels
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Delete them; everything goes on without.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build kernels that make hubbub faster on this machine, with its C compiler; status 1 where none can be built."""
    from hubbub.cli import kernels

    if remove:
        kernels.remove(names or [], as_json=as_json)
    else:
        raise typer.Exit(kernels.build(names or [], as_json=as_json))


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
    from hubbub.cli.output import printable

    line = printable(" ".join(message.split()), _LONGEST_MESSAGE)
    print(f"hubbub: {line}", file=sys.stderr)  # noqa: T201 # the command line speaks here
    sys.exit(2)
