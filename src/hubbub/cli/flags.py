"""Flags that several commands share, the parsers of their numbers, and shell completion."""

import glob
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from hubbub import factorization

FAMILIES = ", ".join(name for name in factorization.FAMILIES if name != "file")
_WITH_BUFFERS = " and ".join(name for name, record in factorization.FAMILIES.items() if "buffers" in record.options)


def _families(incomplete: str) -> list[str]:
    return [name for name in FAMILIES.split(", ") if name.startswith(incomplete)]


def configs(incomplete: str) -> list[str]:
    """TOML files that complete a word, in its folder and one level below."""
    return [path for path in _completed(incomplete) if path.endswith(".toml") and Path(path).is_file()]


def runs(incomplete: str) -> list[str]:
    """Folders of runs that complete a word, in its folder and one level below, such as runs/."""
    return [path for path in _completed(incomplete) if Path(path, "ledger.jsonl").is_file()]


def _completed(incomplete: str) -> list[str]:
    """All paths; hidden ones only after a typed dot. Without any, the shell offers files."""
    begun = glob.escape(incomplete)
    # Path.glob would drop the "./" that was typed.
    return sorted(glob.glob(f"{begun}*") + glob.glob(f"{begun}*/*"))  # noqa: PTH207 # as above


def whole(text: str) -> int:
    """A whole number, in digits or as 1e6 or 6.5e3, as long as that is exact.

    Example:
        >>> whole("6.5e3")
        6500
    """
    try:
        if re.fullmatch(r"\d{1,18}(\.\d{1,18})?[eE]\+?\d{1,2}", text, re.ASCII):
            exact = Decimal(text)
            if exact == exact.to_integral_value():
                return int(exact)
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not a whole number") from error


def number(text: str) -> float:
    """A float64, unless a number other than 0 underflows to 0.

    Example:
        >>> number("1e-5")
        1e-05
    """
    try:
        value = float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text[:40]!r} is not a number") from error
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise typer.BadParameter(f"{text[:40]!r} underflows: it is nearer to 0 than any float64, the least of which is 5e-324")
    return value


def ledger_head(text: str) -> str:
    """The hash of a ledger's record, whole."""
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise typer.BadParameter(f"{text[:80]!r} is no head, which has 64 hexadecimal digits; give all of it")
    return text


def whole_option(words: str, metavar: str = "N", panel: str | None = None) -> Any:
    """A flag for a :func:`whole` number."""
    return typer.Option(parser=whole, metavar=metavar, help=words, rich_help_panel=panel)


def real_option(words: str, panel: str | None = None) -> Any:
    """A flag for a :func:`number`."""
    return typer.Option(parser=number, metavar="X", help=words, rich_help_panel=panel)


_CONFIG = "A TOML file; 'hubbub new run.toml' writes one to start from."
_HEAD = "A ledger head that you kept: a run that was rolled back behind it is refused."
_MECHANISM = (
    "A strategy, as 'hubbub compare --help' lists them, with its options, such as banded-toeplitz:bands=10, blt:buffers=4 or "
    "banded:bands=10,column-norm-squared=2; a matrix file or what factorize wrote; or a run's folder, for its mechanism. "
    "By default identity."
)
_RATES = "One a round: .npy, TensorProto, or 1 falling to 0.05 in the last quarter (cooldown)."
_SEPARATION = "b: a client that joins round r may join again in round r + b; Google's notebook states b - 1."
_RELATIONS = (
    "zero-out (default for patterns and cohorts of fixed size), add-or-remove-one (default for other random cohorts) or "
    "replace-one."
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one strict JSON object; infinite numbers are null.")]
AllowImport = Annotated[
    bool, typer.Option("--allow-import", help='Run code that the config names, as "pkg.mod:Name" or heads.command.')
]
Engine = Annotated[
    str | None, typer.Option(metavar="process|flower", help="Train clients in this process, or in a Flower app.")
]
Plan = Annotated[str | None, typer.Option(metavar="NAME", help="How clients are trained: auto, one-by-one, or batched-16.")]
Nproc = Annotated[int | None, whole_option("Processes of this machine that share the run; no release depends on their number.")]
Config = Annotated[Path, typer.Argument(help=_CONFIG, autocompletion=configs)]
Run = Annotated[Path, typer.Argument(help="The folder of a run.", autocompletion=runs)]
FinishedRun = Annotated[Path, typer.Argument(help="The folder of a finished run.", autocompletion=runs)]
TensorBoard = Annotated[Path | None, typer.Option(metavar="DIR", help="Write all numbers of each round for TensorBoard.")]
Mlflow = Annotated[
    str | None, typer.Option(metavar="URI", help="Send the public numbers to MLflow: a server, or sqlite:///FILE.")
]
WandB = Annotated[str | None, typer.Option("--wandb", metavar="PROJECT", help="Send the public numbers to Weights & Biases.")]
TrackPrivate = Annotated[
    bool,
    typer.Option("--track-private", help="Also send MLflow and W&B numbers that no epsilon covers, such as training losses."),
]
Head = Annotated[str | None, typer.Option(parser=ledger_head, metavar="H", help=_HEAD)]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="Set section.key=value over the file; may be repeated.")]
Mechanism = Annotated[
    str | None, typer.Option(metavar="NAME[:KEY=VALUE,…]|FILE|RUN", help=_MECHANISM, autocompletion=_families)
]
Rounds = Annotated[int, whole_option("Number of rounds.")]
Epsilon = Annotated[float, real_option("The budget.")]
Delta = Annotated[float, real_option("Delta of the guarantee.")]
MinSeparation = Annotated[int | None, whole_option(_SEPARATION)]
MaxParticipations = Annotated[int | None, whole_option("Rounds that one client may join.")]
Epochs = Annotated[int | None, whole_option("Rounds that one client joins, --rounds-per-epoch apart, none after these epochs.")]
RoundsPerEpoch = Annotated[int | None, whole_option("Rounds from one participation of a client to the next.")]
SamplingProbability = Annotated[float | None, real_option("Poisson sampling: the probability that a client is in a round.")]
CohortSize = Annotated[int | None, whole_option("Clients of a random cohort of fixed size, with --population.")]
Population = Annotated[int | None, whole_option("Clients in all, for cohorts of fixed or largest size.")]
MaxCohortSize = Annotated[
    int | None, whole_option("Truncated Poisson sampling: the largest cohort, with --sampling-probability and --population.")
]
CycleLength = Annotated[
    int | None, whole_option("Cyclic Poisson sampling: number of groups, with --sampling-probability within a group.")
]
Bins = Annotated[int | None, whole_option("Balls in bins: number of bins; each client draws one, permanently.")]
Accountant = Annotated[
    str | None,
    typer.Option(help="tight (least epsilon; the default, except that a run keeps its own) or rdp (Rényi moments, looser)."),
]
Relation = Annotated[str | None, typer.Option(help=_RELATIONS)]
Family = Annotated[str, typer.Argument(help=f"{FAMILIES}, or file.", autocompletion=_families)]
MostBands = Annotated[
    int | None, whole_option("Diagonals, the main one counted; by default the separation, 16 for banded-inverse.")
]
Buffers = Annotated[int | None, whole_option(f"Buffers of {_WITH_BUFFERS}.")]
Momentum = Annotated[float | None, real_option("Momentum of SGD, from 0 to below 1; by default 0.")]
LearningRates = Annotated[str | None, typer.Option(metavar="FILE|cooldown", help=_RATES)]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a picture, as .png.")]
