"""Commands about mechanisms and strategies: account (also of runs), calibrate, factorize, compare, gaussian."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hubbub.cli import commands, flags
from hubbub.errors import ConfigError

_RUNS = "Folders of runs over the same people, instead of a mechanism."
_RELATIVE = "Noise over clip norm × largest column norm of the matrix C; for independent noise, over the clip norm alone."
_ABSOLUTE = "Noise over the clip norm alone, as the Gboard publications state it."
_PANEL = "Parts of --mechanism, one by one"
StrategyName = Annotated[
    str | None, typer.Option("--strategy", help="A strategy's name.", rich_help_panel=_PANEL, show_default=False)
]
BandsPart = Annotated[int | None, flags.whole_option("Its bands.", panel=_PANEL)]
BuffersPart = Annotated[int | None, flags.whole_option("Its buffers.", panel=_PANEL)]
NormPart = Annotated[float | None, flags.real_option("Squared norm of the columns of a banded C.", panel=_PANEL)]
MatrixPart = Annotated[
    str | None, typer.Option("--matrix", help="A file that holds the matrix C.", rich_help_panel=_PANEL, show_default=False)
]
_OBJECTIVE = "The error to minimize: mean or max over rounds."


def account(
    context: typer.Context,
    runs: Annotated[list[Path] | None, typer.Argument(help=_RUNS, autocompletion=flags.runs, show_default=False)] = None,
    mechanism: flags.Mechanism = None,
    rounds: Annotated[int | None, flags.whole_option("Number of rounds; a run's folder has its own.")] = None,
    delta: Annotated[float | None, flags.real_option("Delta of the guarantee; by default that of the runs.")] = None,
    noise_multiplier: Annotated[float | None, flags.real_option(_RELATIVE)] = None,
    clip_noise_multiplier: Annotated[float | None, flags.real_option(_ABSOLUTE)] = None,
    min_separation: flags.MinSeparation = None,
    max_participations: flags.MaxParticipations = None,
    epochs: flags.Epochs = None,
    rounds_per_epoch: flags.RoundsPerEpoch = None,
    sampling_probability: flags.SamplingProbability = None,
    cohort_size: flags.CohortSize = None,
    population: flags.Population = None,
    max_cohort_size: flags.MaxCohortSize = None,
    cycle_length: flags.CycleLength = None,
    bins: flags.Bins = None,
    strategy: StrategyName = None,
    bands: BandsPart = None,
    buffers: BuffersPart = None,
    column_norm_squared: NormPart = None,
    matrix: MatrixPart = None,
    accountant: flags.Accountant = None,
    neighboring_relation: flags.Relation = None,
    as_json: flags.AsJson = False,
    in_full: Annotated[bool, typer.Option("--statement", help="Print the guarantee in full, fit for publication.")] = False,
) -> None:
    """The epsilon of a mechanism, or of runs by their ledgers, alone and together.

    A mechanism takes exactly one of the two noise multipliers and prints both.

    Without flags on participation, each client may join every round; compare and factorize take one round of each client.
    """
    given = _given(context)
    if as_json and in_full:
        raise ConfigError("--json with --statement: give one of them; a statement is text")
    if not runs:
        commands.accounts.account(given, as_json=as_json, in_full=in_full)
        return
    if others := sorted(given.keys() - {"runs", "delta", "accountant", "neighboring_relation", "as_json", "in_full"}):
        flag = others[0].replace("_", "-")
        raise ConfigError(f"--{flag}: describes a mechanism; the ledgers of runs state theirs, leave it out")
    commands.runs.account_runs(runs, given, as_json=as_json, in_full=in_full)


def calibrate(
    context: typer.Context,
    epsilon: flags.Epsilon,
    delta: flags.Delta,
    mechanism: flags.Mechanism = None,
    rounds: Annotated[int | None, flags.whole_option("Number of rounds; a run's folder has its own.")] = None,
    min_separation: flags.MinSeparation = None,
    max_participations: flags.MaxParticipations = None,
    epochs: flags.Epochs = None,
    rounds_per_epoch: flags.RoundsPerEpoch = None,
    sampling_probability: flags.SamplingProbability = None,
    cohort_size: flags.CohortSize = None,
    population: flags.Population = None,
    max_cohort_size: flags.MaxCohortSize = None,
    cycle_length: flags.CycleLength = None,
    bins: flags.Bins = None,
    strategy: StrategyName = None,
    bands: BandsPart = None,
    buffers: BuffersPart = None,
    column_norm_squared: NormPart = None,
    matrix: MatrixPart = None,
    accountant: flags.Accountant = None,
    neighboring_relation: flags.Relation = None,
    as_json: flags.AsJson = False,
) -> None:
    """The least noise that meets a budget, for a mechanism described by the flags of 'hubbub account'.

    Without flags on participation, each client may join every round; compare and factorize take one round of each client.

    To choose a mechanism, see 'hubbub plan'.
    """
    commands.accounts.account(_given(context), as_json=as_json)


def _given(context: typer.Context) -> dict[str, Any]:
    return {name: value for name, value in context.params.items() if value is not None}


def factorize(
    context: typer.Context,
    family: flags.Family,
    rounds: Annotated[int | None, flags.whole_option("Number of rounds; of a file by default all.")] = None,
    bands: flags.MostBands = None,
    buffers: flags.Buffers = None,
    objective: Annotated[str | None, typer.Option(help=f"{_OBJECTIVE} By default the mean.")] = None,
    momentum: flags.Momentum = None,
    learning_rates: flags.LearningRates = None,
    min_separation: flags.MinSeparation = None,
    max_participations: flags.MaxParticipations = None,
    epochs: flags.Epochs = None,
    rounds_per_epoch: flags.RoundsPerEpoch = None,
    matrix: Annotated[
        str | None, typer.Option(metavar="FILE", help="C, for file: .npy, a TensorFlow TensorProto, or an earlier --output.")
    ] = None,
    b_matrix: Annotated[
        str | None, typer.Option(metavar="FILE", help="B, published with --matrix: checks that B·C is the workload.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "--out", "-o", metavar="FILE", help="Write it as .safetensors.")
    ] = None,
    plot: flags.Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Compute a strategy, its error and a lower bound on the error of any other.

    Without flags on participation, each client joins one round; account and calibrate take every round.

    A matrix from a file is verified before use; --bands is then the most diagonals that it may have.
    """
    command = " ".join(["hubbub", *sys.argv[1:]])
    commands.factorize.factorize(family, _given(context), output=output, plot=plot, as_json=as_json, command=command)


def compare(
    context: typer.Context,
    rounds: flags.Rounds,
    bands: flags.MostBands = None,
    buffers: flags.Buffers = None,
    objective: Annotated[str, typer.Option(help=_OBJECTIVE)] = "mean",
    momentum: flags.Momentum = None,
    learning_rates: flags.LearningRates = None,
    min_separation: flags.MinSeparation = None,
    max_participations: flags.MaxParticipations = None,
    epochs: flags.Epochs = None,
    rounds_per_epoch: flags.RoundsPerEpoch = None,
    only: Annotated[
        str | None, typer.Option("--families", metavar="A,B,C", help=f"Some of {flags.FAMILIES}; by default all.")
    ] = None,
    plot: flags.Plot = None,
    as_json: flags.AsJson = False,
) -> None:
    """Compare the errors of strategies for one workload and participation.

    Without flags on participation, each client joins one round; account and calibrate take every round.
    """
    options = {"bands": bands, "buffers": buffers, "objective": objective}
    commands.factorize.compare(commands.factorize.setting_of(_given(context)), options, only, plot=plot, as_json=as_json)


def gaussian(
    epsilon: flags.Epsilon,
    delta: flags.Delta,
    sensitivity: Annotated[float, flags.real_option("L2: how far one person can move the released vector.")] = 1.0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", "-o", metavar="FILE", help="Draw the noise of each calibration over epsilon, as .png."),
    ] = None,
    as_json: flags.AsJson = False,
) -> None:
    """The noise of one Gaussian release by every calibration, and the delta that each attains."""
    commands.accounts.gaussian(epsilon, delta, sensitivity, plot=plot, as_json=as_json)


# In the order of the help.
COMMANDS = (account, calibrate, factorize, compare, gaussian)
