"""Training of the cells of a sweep: each an ordinary run, begun or resumed by a process of one thread, then scored.

Each process is a pool of its own, so that a cell that fails or ends its process stops no other.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub._util import files, strict_json
from hubbub._util.checks import finite
from hubbub._util.processes import end_with
from hubbub.errors import HubbubError
from hubbub.experiment.build import build
from hubbub.experiment.config import Config
from hubbub.experiment.engine import population_of
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.ledger.actual_cost import Recorded
from hubbub.training import evaluate

_SCORES = "private-scores.json"
# Training accuracy is measured on at most this many examples.
_SEEN = 10_000
_LARGEST = 2**16
# Libraries read these when a process loads them.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Seconds that a process has to end.
_PATIENCE = 20.0


@dataclass(frozen=True)
class Scores:
    """The quality of a finished run on ``examples`` test examples, or held-out ones with ``training.validation``.

    ``head`` is that of its ledger then. A loss that is not finite is ``None``. The accuracy on training examples is private.
    """

    head: str
    accuracy: float
    loss: float | None
    examples: int
    train_accuracy: float


def finish_all(cells: Mapping[Path, Config], jobs: int, *, allow_import: bool = False) -> Generator[tuple[Path, float | str]]:
    """Finish the runs of these folders, in order, at most ``jobs`` at a time; yields each with its accuracy, or with its error.

    Closing the iterator ends all processes; their runs can be resumed.
    """
    waiting = list(cells)[::-1]
    idle: list[ProcessPoolExecutor] = []
    busy: dict[Future[float | str], tuple[ProcessPoolExecutor, Path]] = {}
    before, spawned = set(multiprocessing.active_children()), multiprocessing.get_context("spawn")
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                pool = idle.pop() if idle else ProcessPoolExecutor(1, spawned, end_with, (os.getpid(),))
                folder = waiting.pop()
                busy[pool.submit(_outcome, folder, cells[folder], allow_import)] = pool, folder
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                pool, folder = busy.pop(future)
                try:
                    outcome = future.result()
                    idle.append(pool)
                except BrokenProcessPool:
                    outcome = "its process was killed, perhaps for lack of memory"
                yield folder, outcome
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


def _outcome(folder: Path, config: Config, allow_import: bool) -> float | str:
    """Finish a cell in a process of its own; its accuracy, or the error in words."""
    # Ctrl-C reaches all processes of a terminal, and the parent decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return finish(folder, config, allow_import=allow_import)
    except (HubbubError, ValueError, TypeError, OSError, MemoryError) as error:
        return str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 # the user's own code may raise anything, and the other cells are to run
        return f"{type(error).__name__}: {error}"


def finish(folder: Path, config: Config, *, allow_import: bool = False) -> float:
    """Begin or resume the run, train it to its end, and write its scores last; returns the accuracy."""
    if (folder / "config.toml").exists():
        begun = RunInFolder.resumed(folder, allow_import=allow_import)
    else:
        begun = RunInFolder.begun(build(config, allow_import=allow_import), folder, allow_import=allow_import)
    for _ in begun.rounds(population_of(begun, begun.run.config.training.engine, allow_import=allow_import)):
        pass
    loss, accuracy = begun.finish()
    if begun.run.config.training.fairness:
        begun.fairness()
    dataset = begun.run.dataset
    seen = dataset.train_inputs[:_SEEN], dataset.train_targets[:_SEEN]
    train_accuracy = evaluate(begun.run.model, seen, F.cross_entropy)[1]
    scores = Scores(begun.ledger_head, accuracy, strict_json.finite_or_none(loss), len(dataset.test_targets), train_accuracy)
    files.write_atomic(begun.folder / _SCORES, strict_json.canonical(vars(scores)))
    return accuracy


def current_scores(folder: Path, recorded: Recorded) -> Scores | None:
    """The scores of a run that is over, if they were measured after its last round."""
    path, chain = folder / _SCORES, recorded.chain
    if not os.path.lexists(path):
        return None
    with files.refusing(path, "cannot be read", "remove it, and the sweep measures the run again"):
        scores = Scores(**strict_json.loads(files.read(path, at_most=_LARGEST)))
        for name in ("accuracy", "train_accuracy", *(["loss"] if scores.loss is not None else [])):
            finite(name, getattr(scores, name))
    over = not recorded.rounds_left and chain.rounds_at(scores.head) == chain.rounds_at(chain.head)
    return scores if over else None
