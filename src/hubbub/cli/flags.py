"""Flags that several commands share, and how their numbers are read."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from hubbub.cli import completing

__all__ = [
    "FAMILIES",
    "Accountant",
    "AllowImport",
    "AsJson",
    "Assignments",
    "Bands",
    "Bins",
    "Buffers",
    "CohortSize",
    "ColumnNorm",
    "Config",
    "CycleLength",
    "Delta",
    "Engine",
    "Epochs",
    "Family",
    "Head",
    "LearningRates",
    "Matrix",
    "MaxCohortSize",
    "MaxParticipations",
    "MinSeparation",
    "Mlflow",
    "Momentum",
    "MostBands",
    "Plan",
    "Population",
    "Relation",
    "Rounds",
    "RoundsPerEpoch",
    "Run",
    "SamplingProbability",
    "Strategy",
    "TensorBoard",
    "TrackPrivate",
    "WandB",
    "Workers",
    "number",
    "whole",
]

FAMILIES = (
    "identity, tree, tree-online, tree-full, banded-toeplitz, optimal-toeplitz, normalized-toeplitz, banded, banded-inverse, "
    "blt, time-varying, dense, fourier"
)


def _families(incomplete: str) -> list[str]:
    return [name for name in FAMILIES.split(", ") if name.startswith(incomplete)]


def whole(text: str) -> int:
    """A whole number, in digits or as 1e6 or 6.5e3, as long as that is exact."""
    try:
        if re.fullmatch(r"\d{1,18}(\.\d{1,18})?[eE]\+?\d{1,2}", text, re.ASCII):
            exact = Decimal(text)
            if exact == exact.to_integral_value():
                return int(exact)
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not a whole number") from error


def number(text: str) -> float:
    """A number that float64 can tell from 0."""
    try:
        value = float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not a number") from error
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise typer.BadParameter(f"{text[:40]!r} underflows: it is nearer to 0 than any float64, the least of which is 5e-324")
    return value


AsJson = Annotated[bool, typer.Option("--json", help="Print one strict JSON object, in which what is infinite is null.")]
AllowImport = Annotated[bool, typer.Option("--allow-import", help='Run code that the config names as "pkg.mod:Name".')]
Engine = Annotated[
    str | None,
    typer.Option(metavar="process|flower", help="What runs the clients: this process alone, or a Flower app in it."),
]
Plan = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="How clients are trained: auto, one-by-one, or batched-16 for 16 at a time."),
]
Workers = Annotated[
    int | None, typer.Option(parser=whole, metavar="N", help="Processes that share a cohort; they change no bit of a result.")
]
Config = Annotated[
    Path, typer.Argument(help="A TOML file; 'hubbub new run.toml' writes one to start from.", autocompletion=completing.configs)
]
Run = Annotated[Path, typer.Argument(help="The folder of a run.", autocompletion=completing.runs)]
TensorBoard = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write all numbers of each round as event files for TensorBoard.")
]
Mlflow = Annotated[
    str | None,
    typer.Option(metavar="URI", help="Send the public numbers of each round to MLflow: a server, or sqlite:///FILE."),
]
WandB = Annotated[
    str | None, typer.Option("--wandb", metavar="PROJECT", help="Send the public numbers of each round to Weights & Biases.")
]
TrackPrivate = Annotated[
    bool, typer.Option("--track-private", help="Send MLflow and W&B also what no epsilon covers, such as training losses.")
]
Head = Annotated[
    str | None, typer.Option(metavar="H", help="A head of the ledger that you kept: a run rolled back behind it is refused.")
]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="Set section.key=value over the file; may be repeated.")]
Strategy = Annotated[
    str,
    typer.Option(
        help="A family, as 'hubbub compare --help' lists them; banded with --column-norm-squared is described.",
        autocompletion=_families,
    ),
]
Rounds = Annotated[int, typer.Option(parser=whole, metavar="N", help="Number of rounds.")]
Bands = Annotated[int | None, typer.Option(parser=whole, metavar="N", help="Diagonals of a banded C, the main one counted.")]
Buffers = Annotated[int | None, typer.Option(parser=whole, metavar="N", help="Buffers of blt and time-varying.")]
ColumnNorm = Annotated[
    float | None, typer.Option(parser=number, metavar="X", help="Squared norm of the columns of a banded C.")
]
Matrix = Annotated[str | None, typer.Option(help="File of C: .npy, a TensorFlow TensorProto, or what factorize wrote.")]
MinSeparation = Annotated[
    int | None,
    typer.Option(
        parser=whole,
        metavar="N",
        help="A client that joins round r may join again in round r + this. Google's notebook counts one less.",
    ),
]
MaxParticipations = Annotated[int | None, typer.Option(parser=whole, metavar="N", help="Rounds that one client may join.")]
Epochs = Annotated[
    int | None, typer.Option(parser=whole, metavar="N", help="Rounds that one client joins, exactly --rounds-per-epoch apart.")
]
RoundsPerEpoch = Annotated[
    int | None, typer.Option(parser=whole, metavar="N", help="Rounds from one participation of a client to the next.")
]
SamplingProbability = Annotated[
    float | None,
    typer.Option(parser=number, metavar="X", help="Chance of a client to be in a round, by a coin of its own (Poisson)."),
]
CohortSize = Annotated[
    int | None, typer.Option(parser=whole, metavar="N", help="Clients of a random cohort of fixed size, with --population.")
]
Population = Annotated[
    int | None, typer.Option(parser=whole, metavar="N", help="Clients that cohorts of fixed or largest size are drawn from.")
]
MaxCohortSize = Annotated[
    int | None,
    typer.Option(
        parser=whole,
        metavar="N",
        help="Poisson cohorts are cut to so many, with --sampling-probability and --population.",
    ),
]
CycleLength = Annotated[
    int | None,
    typer.Option(
        parser=whole,
        metavar="N",
        help="Groups that take turns, with --sampling-probability within a group; C may have so many bands.",
    ),
]
Bins = Annotated[
    int | None,
    typer.Option(parser=whole, metavar="N", help="Each client draws one of so many slots for good (balls in bins)."),
]
Delta = Annotated[float, typer.Option(parser=number, metavar="X", help="Delta of the guarantee.")]
Accountant = Annotated[
    str,
    typer.Option(help="tight (the least epsilon) or rdp (by Rényi moments, looser)."),
]
Family = Annotated[str, typer.Argument(help=f"{FAMILIES}, or file.", autocompletion=_families)]
MostBands = Annotated[
    int | None,
    typer.Option(
        parser=whole, metavar="N", help="Diagonals, the main one counted; by default the separation, 16 for banded-inverse."
    ),
]
Momentum = Annotated[
    float | None, typer.Option(parser=number, metavar="X", help="Momentum of SGD, from 0 to below 1; by default 0.")
]
LearningRates = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|cooldown", help="One a round: .npy, TensorProto, or 1 falling to 0.05 in the last quarter (cooldown)."
    ),
]
Relation = Annotated[str | None, typer.Option(help="zero-out, add-or-remove-one (default for coins) or replace-one.")]
