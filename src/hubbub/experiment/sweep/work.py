"""Cells at work: each an ordinary run, begun or resumed in its folder by a process of one thread, and at its end its scores.

Each process is a pool by itself, so that a cell that fails, or ends its process, stops no other.
"""

import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hubbub._util import files, strict_json
from hubbub._util.checks import finite, integer
from hubbub.errors import HubbubError, RunFolderError
from hubbub.experiment import engine
from hubbub.experiment.config import Config

if TYPE_CHECKING:
    from hubbub.experiment.engine.folder import RunInFolder

__all__ = ["Ended", "Event", "Rounds", "Scores", "Task", "finish", "finish_all", "read_scores"]

_SCORES = "private-scores.json"
# The accuracy on training examples is that on so many of them.
_SEEN = 10_000
_LARGEST = 2**16
# Libraries read these as they are loaded.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Seconds between two looks at the rounds that are done, and those that a process has to end.
_LOOK, _PATIENCE = 0.5, 20.0


@dataclass(frozen=True)
class Task:
    """A run that is to be finished: its folder, its settings, and whether code that they name may be imported."""

    folder: Path
    config: Config
    allow_import: bool = False

    @property
    def rounds(self) -> int:
        """How many rounds its metrics hold."""
        try:
            return (self.folder / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0


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


@dataclass(frozen=True)
class Rounds:
    """How many rounds of a cell are done."""

    done: int


@dataclass(frozen=True)
class Ended:
    """A cell is finished, or has failed: then ``error`` says how."""

    error: str | None = None


Event = Rounds | Ended


def finish_all(tasks: Sequence[Task], jobs: int, show: Callable[[Task, Event], None]) -> None:
    """Finish cells, in order, so many at a time.

    Args:
        tasks: The cells.
        jobs: How many processes there are.
        show: Is given what happens. What it raises ends all processes: their cells can be resumed.
    """
    waiting = list(tasks)[::-1]
    idle: list[ProcessPoolExecutor] = []
    busy: dict[Future[str | None], tuple[ProcessPoolExecutor, Task]] = {}
    before = set(multiprocessing.active_children())
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                pool, task = idle.pop() if idle else _pool(), waiting.pop()
                with _one_thread():
                    busy[pool.submit(_outcome, task)] = pool, task
            ended = wait(busy, _LOOK, FIRST_COMPLETED).done
            for future, (pool, task) in list(busy.items()):
                if future not in ended:
                    show(task, Rounds(task.rounds))
                    continue
                del busy[future]
                try:
                    outcome = Ended(future.result())
                    idle.append(pool)
                except BrokenProcessPool:
                    outcome = Ended("its process was ended, as where memory is short")
                show(task, outcome)
    finally:
        _end([*idle, *(pool for pool, _ in busy.values())], set(multiprocessing.active_children()) - before)


def _end(pools: Sequence[ProcessPoolExecutor], processes: Iterable[multiprocessing.process.BaseProcess]) -> None:
    """End processes in the middle of a round, if need be: what they did is on disk, or will be drawn again."""
    for process in processes:
        process.terminate()
    for pool in pools:
        pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare)


def _prepare() -> None:
    """Ctrl-C reaches all processes of a terminal; the one that asked for the cells says when it is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@contextmanager
def _one_thread() -> Iterator[None]:
    """For processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _outcome(task: Task) -> str | None:
    """Finish a cell; what went wrong, in words."""
    try:
        finish(task)
    except (HubbubError, ValueError, TypeError, OSError, MemoryError) as error:
        return str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 # code of the user's own may raise anything, and the other cells are to run
        return f"{type(error).__name__}: {error}"
    return None


def finish(task: Task) -> None:
    """Begin the run or resume it, to its end.

    Raises:
        HubbubError: As ``hubbub train`` and ``hubbub resume`` do.
    """
    from hubbub.experiment.build import build
    from hubbub.experiment.engine.folder import RunInFolder

    if (task.folder / "config.toml").exists():
        begun = RunInFolder.gone_on_with(task.folder, allow_import=task.allow_import)
    else:
        begun = RunInFolder.begun(build(task.config, allow_import=task.allow_import), task.folder)
    engine.train(begun, begun.run.config.training.engine, lambda _: None, allow_import=task.allow_import)
    loss, accuracy = begun.finish()
    _keep(begun, loss, accuracy)


def _keep(begun: "RunInFolder", loss: float, accuracy: float) -> None:
    """Write the scores: the last thing that a finished cell does."""
    from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

    from hubbub.training import evaluate

    dataset = begun.run.dataset
    seen = dataset.train_inputs[:_SEEN], dataset.train_targets[:_SEEN]
    scores = {
        "head": begun.ledger_head,
        "accuracy": accuracy,
        "loss": loss if math.isfinite(loss) else None,
        "examples": len(dataset.test_targets),
        "train_accuracy": evaluate(begun.run.model, seen, F.cross_entropy)[1],
    }
    files.write_atomic(begun.folder / _SCORES, strict_json.canonical(scores))


def read_scores(folder: Path) -> Scores | None:
    """What a finished run scored; ``None`` where it has not been measured.

    Raises:
        RunFolderError: The file is damaged.
    """
    path = folder / _SCORES
    try:
        scores = Scores(**strict_json.loads(files.read(path, at_most=_LARGEST)))
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
