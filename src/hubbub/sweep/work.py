"""One cell at work: an ordinary run, begun or gone on with in its folder, and at its end what it scored."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubbub import files, strict_json
from hubbub._checks import finite, integer
from hubbub.config import Config
from hubbub.errors import RunFolderError

if TYPE_CHECKING:
    from hubbub.engine.folder import RunInFolder
    from hubbub.training import Population

__all__ = ["Scores", "Task", "finish", "read_scores"]

_SCORES = "private-scores.json"
# Of training examples, by how many the accuracy on them is told.
_SEEN = 10_000
_LARGEST = 2**16


@dataclass(frozen=True)
class Task:
    """A run that is to be finished: its folder, its settings, and whether code that they name may be imported."""

    folder: Path
    config: Config
    allow_import: bool = False


@dataclass(frozen=True)
class Scores:
    """How good a finished run is.

    Args:
        head: Of its ledger, when this was measured.
        accuracy: On test examples; with ``training.validation`` on held-out training examples.
        loss: On the same; ``None`` where it is not finite.
        examples: How many these are.
        train_accuracy: On training examples, without noise: private.
    """

    head: str
    accuracy: float
    loss: float | None
    examples: int
    train_accuracy: float


def finish(task: Task, show: Callable[[int, int], None]) -> None:
    """Begin the run or go on with it, to its end.

    Args:
        task: The run.
        show: Is given the number of rounds done, and of all.

    Raises:
        HubbubError: As ``hubbub train`` and ``hubbub resume`` do.
    """
    from hubbub.build import build
    from hubbub.engine.folder import RunInFolder

    if (task.folder / "config.toml").exists():
        begun = RunInFolder.gone_on_with(task.folder, allow_import=task.allow_import)
    else:
        begun = RunInFolder.begun(build(task.config, allow_import=task.allow_import), task.folder)
    rounds = begun.run.plan.rounds
    show(begun.rounds_measured, rounds)

    def row(told: dict[str, Any]) -> None:
        show(told["round_index"] + 1, rounds)

    if begun.run.config.training.engine == "flower":
        from hubbub.engine.flower_app import run_locally

        run_locally(begun, row, allow_import=task.allow_import)
    else:
        for told in begun.rounds(_clients(begun)):
            row(told)
    loss, accuracy = begun.finish()
    _keep(begun, loss, accuracy)


def _clients(begun: "RunInFolder") -> "Population":
    """The clients of a run in this process, encrypting where it says so."""
    if begun.run.encryption is None:
        return begun.run.population
    from hubbub.engine.parties import parties

    return parties(begun, begun.run.encryption)


def _keep(begun: "RunInFolder", loss: float, accuracy: float) -> None:
    """Write the scores: the last thing that a finished cell does."""
    from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

    from hubbub.training import evaluate

    dataset = begun.run.dataset
    seen = dataset.train_inputs[:_SEEN], dataset.train_targets[:_SEEN]
    told = {
        "head": begun.ledger_head,
        "accuracy": accuracy,
        "loss": loss if math.isfinite(loss) else None,
        "examples": len(dataset.test_targets),
        "train_accuracy": evaluate(begun.run.model, seen, F.cross_entropy)[1],
    }
    files.write_atomic(begun.folder / _SCORES, strict_json.canonical(told))


def read_scores(folder: Path) -> Scores | None:
    """What a finished run scored; ``None`` where it has not been measured.

    Raises:
        RunFolderError: The file is damaged.
    """
    path = folder / _SCORES
    try:
        told = strict_json.loads(files.read(path, at_most=_LARGEST))
        scores = Scores(**told)
        finite("accuracy", scores.accuracy)
        finite("train_accuracy", scores.train_accuracy)
        integer("examples", scores.examples, at_least=0)
        if scores.loss is not None:
            finite("loss", scores.loss)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); remove it, and the sweep measures the run again") from error
    return scores
