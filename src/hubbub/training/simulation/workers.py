"""Processes that share a cohort: each has the clients' data in shared memory and one thread, and trains whole chunks.

A worker's answer is a chunk's partial sum; the parts are added in the order of the chunks, whoever made them.
"""

import atexit
import contextlib
import pickle
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import numpy as np
import torch
import torch.multiprocessing
from torch import nn

from hubbub.errors import HubbubError
from hubbub.training.simulation.local import Examples, flat_parameters, trainable

__all__ = ["Part", "SharedExamples", "Task", "WorkerError", "Workers"]


class WorkerError(HubbubError):
    """A worker process ended, or could not train; its round cost no privacy."""


@dataclass
class Part:
    """What one chunk adds to the sum.

    Args:
        total: ``(dim,)`` int64 steps, or float64.
        clipped: How many updates were clipped.
        losses: Of each client.
        faults: Which clients failed, and why.
    """

    total: torch.Tensor
    clipped: int = 0
    losses: list[float] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """What is the same for all chunks of a round; given to ``chunk(task, clients)`` together with the chunk's clients."""

    round_index: int
    clip_norm: float | None
    split: Any = None


class _Chunks(Protocol):
    def chunk(self, task: Task, model: nn.Module, clients: Sequence[int]) -> Part: ...


class SharedExamples(Sequence[Examples]):
    """Clients' examples in shared memory: all inputs one after another, and all targets.

    Args:
        clients: Of each inputs and targets, of equal shapes but for the first axis.
    """

    def __init__(self, clients: Sequence[Examples]) -> None:
        self._ends = np.cumsum([0, *(len(inputs) for inputs, _ in clients)])
        self._inputs, self._targets = (_joined([pair[side] for pair in clients]).share_memory_() for side in (0, 1))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, client: Any) -> Any:
        rows = slice(int(self._ends[client]), int(self._ends[client + 1]))
        return self._inputs[rows], self._targets[rows]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All rows one after another, where the form is that of those who have any."""
    # Who has no example has none of a form either.
    filled = [part for part in parts if len(part)] or list(parts[:1])
    joined = torch.empty(sum(map(len, filled)), *filled[0].shape[1:], dtype=filled[0].dtype)
    return torch.cat(filled, out=joined)


class Workers:
    """A pool of processes, started with the first round.

    Args:
        number: How many.
        chunks: Is copied to each; trains a chunk.
        model: The structure of the model, and what in it is never trained.
    """

    def __init__(self, number: int, chunks: _Chunks, model: nn.Module) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        self.close = weakref.finalize(self, _stop, self._connections, self._processes)
        # Before multiprocessing's own end, which would wait for them.
        atexit.register(self.close)
        try:
            # By value: multiprocessing would put the model's own storage into shared memory, and a worker that is late would
            # write the model of the last round over that of this one.
            copied = pickle.dumps(model)
            for _ in range(number):
                here, there = context.Pipe()
                process = context.Process(target=_begin, args=(there,), daemon=True, name="hubbub worker")
                process.start()
                there.close()
                self._connections.append(here)
                self._processes.append(process)
            for connection in self._connections:
                # Not with the process: what start() writes it writes to the end, and waits for ever if the process has died.
                self._send(connection, (chunks, copied))
        except WorkerError:
            raise
        except Exception as error:
            self.close()
            raise WorkerError(
                f"workers = {number}: cannot be started ({type(error).__name__}: {error}); the model, the loss and the data "
                "must be importable from a module, not from a notebook; say workers = 1 to train in this process"
            ) from error

    def parts(self, task: Task, model: nn.Module, chunks: Sequence[Sequence[int]]) -> Iterator[Part]:
        """What each chunk adds, in the order of the chunks, however fast each worker is."""
        vector = flat_parameters(model).cpu().numpy()
        waiting = list(enumerate(chunks))[::-1]
        done: dict[int, Part] = {}
        following = 0
        busy: dict[Connection, int] = {}
        for connection in self._connections:
            self._send(connection, (task, vector))
        idle = list(self._connections)
        while following < len(chunks):
            while idle and waiting:
                connection = idle.pop()
                busy[connection], clients = waiting.pop()
                self._send(connection, list(clients))
            for ready in wait(list(busy)):
                connection = next(one for one in busy if one is ready)
                done[busy.pop(connection)] = self._received(connection)
                idle.append(connection)
            while following in done:
                yield done.pop(following)
                following += 1

    def _send(self, connection: Connection, what: object) -> None:
        """Send to a worker, or say that it has ended."""
        try:
            connection.send(what)
        except OSError as error:
            raise self._ended(connection) from error

    def _received(self, connection: Connection) -> Part:
        """What a worker answers: a part, or the error that it met."""
        try:
            answer = connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended(connection) from error
        if isinstance(answer, Exception):
            self.close()
            raise answer
        total, clipped, losses, faults = answer
        return Part(torch.from_numpy(total), clipped, losses, faults)

    def _ended(self, connection: Connection) -> WorkerError:
        """What to raise of a worker that has ended."""
        process = self._processes[self._connections.index(connection)]
        process.join(timeout=5)
        code = process.exitcode
        self.close()
        return WorkerError(
            f"a worker process ended (exit code {code}): out of memory, or killed, or the script that started it has no "
            'if __name__ == "__main__" around its main part; the round cost no privacy; take fewer workers'
        )


def _stop(connections: Sequence[Connection], processes: Sequence[Any]) -> None:
    """Close the lines, and end whoever does not end by itself."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.close()
    for process in processes:
        process.join(timeout=2)
        if process.is_alive():
            process.kill()


def _begin(connection: Connection) -> None:
    """A worker's first words: what it works on."""
    with contextlib.suppress(KeyboardInterrupt):
        try:
            chunks, copied = connection.recv()
        except (EOFError, OSError):
            return
        _serve(connection, chunks, copied)


def _serve(connection: Connection, chunks: _Chunks, copied: bytes) -> None:
    """A worker's life: it ends when the process that started it closes the line, or ends."""
    torch.set_num_threads(1)
    model: nn.Module = pickle.loads(copied)  # noqa: S301 # from the process that started this one
    task: Task | None = None
    while True:
        try:
            told = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            if isinstance(told, tuple):
                task, vector = told
                nn.utils.vector_to_parameters(torch.from_numpy(vector), trainable(model).values())
                continue
            if task is None:
                return
            part = chunks.chunk(task, model, told)
            answer: object = (part.total.numpy(), part.clipped, part.losses, part.faults)
        except KeyboardInterrupt:
            return
        except HubbubError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 # the round's own process reports it
            answer = WorkerError(f"a client's training failed in a worker ({type(error).__name__}: {error})")
        try:
            connection.send(answer)
        except (OSError, KeyboardInterrupt):
            # The process that asked was interrupted and waits for no answer.
            return
