"""Training of the cells of a sweep: each an ordinary run, begun or resumed by a process of one thread, then scored.

Each process is a pool of its own, so that a cell that fails or ends its process stops no other.
"""

import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hubbub._util import files, strict_json
from hubbub._util.checks import finite, integer
from hubbub.errors import HubbubError, RunFolderError
from hubbub.experiment import engine
from hubbub.experiment.config import Config
from hubbub.ledger.multi_run import Recorded

__all__ = ["Scores", "Task", "current_scores", "finish", "finish_all", "read_scores"]

_SCORES = "private-scores.json"
# Training accuracy is measured on at most this many examples.
_SEEN = 10_000
_LARGEST = 2**16
# Libraries read these when they are loaded.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Seconds between two looks at the progress, and those that a process has to end.
_LOOK, _PATIENCE = 0.5, 20.0


@dataclass(frozen=True)
class Task:
    """A run to finish: its folder, its settings, and whether code that they name may be imported."""

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
    """The quality of a finished run.

    Args:
        head: Of its ledger when this was measured.
        accuracy: On test examples; with ``training.validation`` on held-out training examples.
        loss: On the same examples; ``None`` if it is not finite.
        examples: How many these are.
        train_accuracy: On training examples, without noise: private.
    """

    head: str
    accuracy: float
    loss: float | None
    examples: int
    train_accuracy: float


def finish_all(
    tasks: Sequence[Task], jobs: int, running: Callable[[Sequence[Task]], None], ended: Callable[[Task, str | None], None]
) -> None:
    """Finish cells, in order, with at most ``jobs`` processes at a time.

    Args:
        tasks: The cells.
        jobs: The number of processes.
        running: Gets the tasks at work, every half second.
        ended: Gets each task when it ends, with its error or ``None``. An exception of either ends all processes; their cells
            can be resumed.
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
            for future in wait(busy, _LOOK, FIRST_COMPLETED).done:
                pool, task = busy.pop(future)
                try:
                    error = future.result()
                    idle.append(pool)
                except BrokenProcessPool:
                    error = "its process was killed, perhaps for lack of memory"
                ended(task, error)
            running([task for _, task in busy.values()])
    finally:
        # Also in the middle of a round: what was done is on disk, or will be drawn again.
        processes = set(multiprocessing.active_children()) - before
        for process in processes:
            process.terminate()
        for pool in (*idle, *(pool for pool, _ in busy.values())):
            pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare)


def _prepare() -> None:
    """Ignore Ctrl-C, which reaches all processes of a terminal: the parent decides when to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Give processes that start meanwhile one thread each."""
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
    """Finish a cell; the error in words, if any."""
    try:
        finish(task)
    except (HubbubError, ValueError, TypeError, OSError, MemoryError) as error:
        return str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 # the user's own code may raise anything, and the other cells are to run
        return f"{type(error).__name__}: {error}"
    return None


def finish(task: Task) -> None:
    """Begin or resume the run, train it to its end, and write its scores last.

    Raises:
        HubbubError: As ``hubbub train`` and ``hubbub resume`` do.
    """
    from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

    from hubbub.experiment.build import build
    from hubbub.experiment.engine.folder import RunInFolder
    from hubbub.training import evaluate

    if (task.folder / "config.toml").exists():
        begun = RunInFolder.resumed(task.folder, allow_import=task.allow_import)
    else:
        begun = RunInFolder.begun(build(task.config, allow_import=task.allow_import), task.folder)
    engine.train(begun, begun.run.config.training.engine, lambda _: None, allow_import=task.allow_import)
    loss, accuracy = begun.finish()
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
    """The scores of a finished run; ``None`` if it has not been measured.

    Raises:
        RunFolderError: The file is damaged.
    """
    path = folder / _SCORES
    try:
        scores = Scores(**strict_json.loads(files.read(path, at_most=_LARGEST)))
        for name in ("accuracy", "train_accuracy"):
            finite(name, getattr(scores, name))
        integer("examples", scores.examples, at_least=0)
        if scores.loss is not None:
            finite("loss", scores.loss)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{path}: cannot be read ({error}); remove it, and the sweep measures the run again") from error
    return scores


def current_scores(folder: Path, recorded: Recorded) -> Scores | None:
    """The scores of a run that is over, if they were measured after its last round.

    Raises:
        RunFolderError: The file is damaged.
    """
    scores, chain = read_scores(folder), recorded.chain
    if scores is None or recorded.rounds_left or chain.rounds_at(scores.head) != chain.rounds_at(chain.head):
        return None
    return scores
