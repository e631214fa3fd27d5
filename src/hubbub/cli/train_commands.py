"""Commands that train; what they do is in training.py, extending.py, sweeping.py and records.py."""

from pathlib import Path
from typing import Annotated

import typer

from hubbub.cli import completing
from hubbub.cli.flags import (
    AllowImport,
    AsJson,
    Assignments,
    Config,
    Engine,
    Head,
    Mlflow,
    Plan,
    Rounds,
    Run,
    TensorBoard,
    TrackPrivate,
    WandB,
    Workers,
    whole,
)

__all__ = ["COMMANDS"]


def new(
    file: Annotated[Path, typer.Argument(help="A new file: .toml for settings, .py for a model and data of your own.")],
) -> None:
    """Write a file to start from, which runs as it is."""
    from hubbub.cli import new as command

    command.new(file)


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


def close(
    run: Run,
    early: Annotated[bool, typer.Option("--early", help="End the run here, though rounds are left.")] = False,
) -> None:
    """End a run for good and destroy its keys."""
    from hubbub.cli import records

    records.close(run, early=early)


# In the order of the help.
COMMANDS = (new, train, resume, extend, sweep, close)
