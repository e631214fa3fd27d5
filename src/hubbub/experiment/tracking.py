"""Metrics of a round for TensorBoard, MLflow and Weights & Biases, public numbers apart from private ones.

Call :func:`log` in the loop::

    with tensorboard("logs", "mine") as write:
        for result in train(plan, population, model):
            log(result, write)

A writer is any function of a name, a value and a round (from 1). Names begin with ``public/`` if the number is a function of
releases, of the promise or of public test data, and with ``private/`` if it was computed from clients' updates or shows how
many took part, which no epsilon covers. Trackers get the public numbers, and private ones only on request.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hubbub._util.files import make_folder
from hubbub.errors import ConfigError
from hubbub.training.rounds import RoundResult

__all__ = ["Write", "log", "mlflow", "require", "scalars", "tensorboard", "wandb"]

Write = Callable[[str, float, int], None]

# All other numbers are private.
_PUBLIC = ("epsilon", "clip_norm", "released", "loss", "accuracy")
_NO_NUMBERS = ("round_index", "delta", "private", "fault")
_EXPERIMENT = "hubbub"


def scalars(result: RoundResult | Mapping[str, Any], *, private: bool = False) -> dict[str, float]:
    """The finite numbers of one round, by name.

    Args:
        result: A result of :func:`hubbub.training.train`, or a row of ``metrics.jsonl``, which also has loss and accuracy;
            those of held-out clients' data are private.
        private: Whether to include numbers that no epsilon covers.

    Example:
        >>> row = {"round_index": 0, "epsilon": 0.5, "accuracy": 0.9, "clients": 3, "phases": {"noise": 0.25}, "private": []}
        >>> scalars(row)
        {'public/epsilon': 0.5, 'public/accuracy': 0.9}
        >>> scalars(row, private=True)["private/phases/noise"]
        0.25
    """
    row, found = _row(result), dict[str, Any]()
    for name, value in row.items():
        if name in _PUBLIC and name not in row.get("private", ()):
            found[f"public/{name}"] = value
        elif private and name not in _NO_NUMBERS:
            parts = value if isinstance(value, Mapping) else {"": value}
            found |= {f"private/{name}/{part}".rstrip("/"): of_part for part, of_part in parts.items()}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float) and math.isfinite(value)}


def log(result: RoundResult | Mapping[str, Any], write: Write, *, private: bool = False) -> None:
    """Write the numbers of a round; see :func:`scalars`.

    Example:
        >>> log({"round_index": 0, "epsilon": 0.5, "clients": 3}, lambda name, value, number: print(number, name, value))
        1 public/epsilon 0.5
    """
    row = _row(result)
    for name, value in scalars(row, private=private).items():
        write(name, value, row["round_index"] + 1)


@contextmanager
def _opening(extra: str, place: str, then: str) -> Iterator[None]:
    """Check that a tracker is installed; whatever goes wrong while it is opened becomes a ``ConfigError``."""
    require(extra)
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{extra} = {place!r}: cannot be opened ({error}); {then}") from error


@contextmanager
def tensorboard(folder: str | Path, run_name: str) -> Iterator[Write]:
    """A writer of TensorBoard event files, in a subfolder of the run's name that only the user can read.

    Raises:
        ConfigError: TensorBoard is not installed, or the subfolder cannot be written or is open to others.

    Example:
        >>> import tempfile
        >>> with tensorboard(tempfile.mkdtemp(), "run") as write:
        ...     log({"round_index": 0, "epsilon": 0.5}, write)
    """
    with _opening("tensorboard", str(folder), "name a folder"):
        from torch.utils.tensorboard import SummaryWriter

        own = Path(folder, run_name)
        make_folder(own)
        if own.stat().st_mode & 0o077:
            raise PermissionError(f"others may enter {own}, and some numbers are private: chmod 700 {own}")
        writer = SummaryWriter(str(own))
    try:
        yield lambda name, value, number: writer.add_scalar(name, value, number)
    finally:
        writer.close()


@contextmanager
def mlflow(uri: str, run_name: str) -> Iterator[Write]:
    """A writer of metrics to an MLflow server or store, as a new run of the experiment ``hubbub``.

    Nothing but the numbers, their time and the name is sent: no user, no source, no command line.

    Raises:
        ConfigError: MLflow is not installed, or does not open the store.
    """
    with _opening("mlflow", uri, "name a server, or sqlite:///FILE"):
        client = importlib.import_module("mlflow").MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(_EXPERIMENT)
        number = client.create_experiment(_EXPERIMENT) if experiment is None else experiment.experiment_id
        run = client.create_run(number, run_name=run_name).info.run_id
    status = "KILLED"
    try:
        yield lambda name, value, number: client.log_metric(run, name, value, step=number)
        status = "FINISHED"
    finally:
        client.set_terminated(run, status)


@contextmanager
def wandb(project: str, run_name: str) -> Iterator[Write]:
    """A writer of metrics to Weights & Biases, as a new run of a project; ``WANDB_MODE=offline`` keeps it on this machine.

    Of the run nothing but the numbers, their time and the name is sent: neither what the terminal shows, nor code, nor what
    the machine is and does.

    Raises:
        ConfigError: Its package is not installed, or does not open the project.
    """
    with _opening("wandb", project, "log in with 'wandb login', or set WANDB_MODE=offline"):
        module = importlib.import_module("wandb")
        quiet = module.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        run = module.init(project=project, name=run_name, save_code=False, settings=quiet)
    status = 1
    try:
        yield lambda name, value, number: run.log({name: value}, step=number)
        status = 0
    finally:
        run.finish(exit_code=status)


def require(extra: str) -> None:
    """Check that a tracker's package is installed.

    Raises:
        ConfigError: It is not; the message names the extra that installs it.

    Example:
        >>> require("no_such_tracker")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        hubbub.errors.ConfigError: no_such_tracker: its package is not installed (...); pip install 'hubbub[no_such_tracker]'
    """
    try:
        importlib.import_module(extra)
    except ImportError as error:
        raise ConfigError(f"{extra}: its package is not installed ({error}); pip install 'hubbub[{extra}]'") from error


def _row(result: RoundResult | Mapping[str, Any]) -> Mapping[str, Any]:
    """A result as a row of metrics; statistics of clients are private, whatever their names are."""
    if not isinstance(result, RoundResult):
        return result
    names = "round_index", "epsilon", "clip_norm", "released", "clients", "clients_per_second", "seconds", "phases"
    own = {name: getattr(result, name) for name in names}
    return {**result.statistics, **own, "private": result.statistics.keys() - own.keys()}
