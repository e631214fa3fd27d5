"""Commands about mechanisms and strategies that flags describe, without settings; account takes finished runs, too."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hubbub.cli import completing
from hubbub.cli.flags import (
    FAMILIES,
    Accountant,
    AsJson,
    Bands,
    Bins,
    Buffers,
    CohortSize,
    ColumnNorm,
    CycleLength,
    Delta,
    Epochs,
    Family,
    LearningRates,
    Matrix,
    MaxCohortSize,
    MaxParticipations,
    MinSeparation,
    Momentum,
    MostBands,
    Population,
    Relation,
    Rounds,
    RoundsPerEpoch,
    SamplingProbability,
    Strategy,
    number,
    whole,
)

__all__ = ["COMMANDS"]


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
    """The least noise that meets a budget, for a mechanism that the flags name as those of account do.

    Which mechanism to take is what 'hubbub plan' answers.
    """
    from hubbub import accounting
    from hubbub.cli import accounts

    participation = accounts.participation_from(
        rounds,
        separation=(min_separation, max_participations),
        rotation=(epochs, rounds_per_epoch),
        random=accounts.CohortFlags(sampling_probability, cohort_size, population, max_cohort_size, cycle_length, bins),
    )
    wanted = accounts.Wanted("identity" if strategy is None else strategy, rounds, bands, buffers, column_norm_squared, matrix)
    mechanism = accounting.calibrate(
        wanted.strategy(participation),
        participation,
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=neighboring_relation,
        accountant=accountant,
    )
    accounts.print_guarantee(mechanism, accounts.Statement(delta, neighboring_relation, accountant, as_json))


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


# In the order of the help.
COMMANDS = (account, calibrate, factorize, compare, gaussian)
