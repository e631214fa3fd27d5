"""Processes of one thread that finish cells, each one at a time; a cell that fails, or ends its process, stops no other."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from hubbub.errors import HubbubError
from hubbub.sweep.work import Task, finish

__all__ = ["Ended", "Event", "Rounds", "finish_all"]

# Libraries read these as they are loaded.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PATIENCE = 20.0


@dataclass(frozen=True)
class Rounds:
    """How far a cell is."""

    done: int
    planned: int


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
        show: Is given what happens. What it raises ends all processes: their cells can be gone on with.
    """
    waiting = list(tasks)[::-1]
    busy: dict[Connection, tuple[Any, Task]] = {}
    idle: list[tuple[Connection, Any]] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                connection, process = idle.pop() if idle else _started()
                task = waiting.pop()
                busy[connection] = process, task
                # Where the process has ended already, its silence says so.
                _send(connection, task)
            for ready in wait(list(busy)):
                connection = next(one for one in busy if one is ready)
                process, task = busy[connection]
                event = _received(connection, process)
                if isinstance(event, Ended):
                    del busy[connection]
                    if process.is_alive():
                        idle.append((connection, process))
                show(task, event)
    finally:
        _end([*idle, *((connection, process) for connection, (process, _) in busy.items())])


def _received(connection: Connection, process: Any) -> Event:
    try:
        event: Event = connection.recv()
    except (EOFError, OSError):
        process.join()
        connection.close()
        code = process.exitcode
        how = f"was ended by signal {-code}, as where memory is short" if code is not None and code < 0 else "ended"
        return Ended(f"its process {how}")
    return event


def _send(connection: Connection, what: object) -> None:
    try:
        connection.send(what)
    except OSError:
        return


def _started() -> tuple[Connection, Any]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    # Not a daemon: a run may have processes of its own.
    process = context.Process(target=_work, args=(there,), name="hubbub sweep")
    with _one_thread():
        process.start()
    there.close()
    return here, process


@contextmanager
def _one_thread() -> Iterator[None]:
    """For processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end(workers: Sequence[tuple[Connection, Any]]) -> None:
    """End processes in the middle of a round, if need be: what they did is on disk, or will be drawn again."""
    for connection, process in workers:
        process.terminate()
        connection.close()
    for _, process in workers:
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def _work(connection: Connection) -> None:
    """What a process does: cells, until nobody asks for more."""
    # Ctrl-C reaches all processes of a terminal; the one that asked for the cells says when it is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        while True:
            task = connection.recv()
            connection.send(_outcome(task, connection))
    except (KeyboardInterrupt, EOFError, OSError):
        return


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def _outcome(task: Task, connection: Connection) -> Ended:
    try:
        finish(task, lambda done, planned: connection.send(Rounds(done, planned)))
    except (HubbubError, ValueError, TypeError, OSError, MemoryError) as error:
        return Ended(str(error) or type(error).__name__)
    except Exception as error:
        if os.environ.get("HUBBUB_DEBUG"):
            raise
        # Code of the user's own may raise anything, and the other cells are to go on.
        return Ended(f"{type(error).__name__}: {error}")
    return Ended()
