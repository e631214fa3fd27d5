"""Processes that share a cohort: each has the clients' data in shared memory and one thread, and trains whole chunks.

The parts of a sum are added in the order of the chunks, whichever process computed them.
"""

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.multiprocessing
from torch import nn

from hubbub._util.processes import follow_parent
from hubbub.errors import HubbubError
from hubbub.training.simulation.local import Examples, flat_parameters, trainable

__all__ = ["Part", "SharedExamples", "Task", "WorkerError", "Workers"]


class WorkerError(HubbubError):
    """A worker process ended, or could not train; its round cost no privacy."""


@dataclass
class Part:
    """The partial sum of a chunk of clients.

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
    """The terms of a round, the same for all chunks."""

    round_index: int
    clip_norm: float | None
    split: Any = None


class _Chunks(Protocol):
    def chunk(self, task: Task, model: nn.Module, clients: Sequence[int]) -> Part: ...


class SharedExamples(Sequence[Examples]):
    """Clients' examples in shared memory: all inputs one after another, and all targets.

    Args:
        clients: Inputs and targets of each, of equal shapes but for the first axis.
    """

    def __init__(self, clients: Sequence[Examples]) -> None:
        # Shared as well: nothing that is large goes through the line on which a process starts (see Workers).
        self._ends = torch.from_numpy(np.cumsum([0, *(len(inputs) for inputs, _ in clients)])).share_memory_()
        self._inputs, self._targets = (_joined([pair[side] for pair in clients]).share_memory_() for side in (0, 1))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, client: Any) -> Any:
        rows = slice(int(self._ends[client]), int(self._ends[client + 1]))
        return self._inputs[rows], self._targets[rows]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All rows one after another, in the form of the clients that have any."""
    filled = [part for part in parts if len(part)] or list(parts[:1])
    joined = torch.empty(sum(map(len, filled)), *filled[0].shape[1:], dtype=filled[0].dtype)
    return torch.cat(filled, out=joined)


class Workers:
    """A pool of processes, started with the first round.

    Args:
        number: How many.
        chunks: Copied to each process; trains a chunk.
        model: The structure of the model, and its frozen parameters.
    """

    def __init__(self, number: int, chunks: _Chunks, model: nn.Module) -> None:
        self._number = number
        self._vector = flat_parameters(model).cpu().share_memory_()
        # A copy of the model by value: multiprocessing would move its own storage into shared memory. In shared memory, since a
        # process that ends before it has read what it starts with (a script without its guard) is waited for without end.
        copied = torch.frombuffer(bytearray(pickle.dumps(model)), dtype=torch.uint8).share_memory_()
        context = torch.multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(number, context, _begin, (chunks, copied, self._vector))

    def parts(self, task: Task, model: nn.Module, chunks: Sequence[Sequence[int]]) -> Iterator[Part]:
        """The part of each chunk, in the order of the chunks.

        Raises:
            WorkerError: A process ended, cannot be started, or failed.
        """
        # Read by nobody between two rounds: a round in which a chunk failed is this pool's last.
        self._vector.copy_(flat_parameters(model))
        try:
            for total, clipped, losses, faults in self._pool.map(partial(_part, task), [list(clients) for clients in chunks]):
                yield Part(torch.from_numpy(total), clipped, losses, faults)
        except BrokenProcessPool as error:
            raise WorkerError(
                "a worker process ended: out of memory, or killed, or the script that started it has no "
                'if __name__ == "__main__" around its main part; the round cost no privacy; take fewer workers'
            ) from error
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise WorkerError(
                f"workers = {self._number}: cannot be started ({type(error).__name__}: {error}); the model, the loss and the "
                "data must be importable from a module, not from a notebook; say workers = 1 to train in this process"
            ) from error

    def close(self) -> None:
        """End the processes, each after the chunk that it trains."""
        self._pool.shutdown(cancel_futures=True)


# Of a worker process, set by the initializer of its pool: the trainer of chunks, its model, the vector of the round's model.
_own: tuple[_Chunks, nn.Module, torch.Tensor]


def _begin(chunks: _Chunks, copied: torch.Tensor, vector: torch.Tensor) -> None:
    """Prepare a worker process."""
    global _own
    follow_parent()
    torch.set_num_threads(1)
    # From the process that started this one.
    _own = chunks, pickle.loads(copied.numpy().tobytes()), vector  # noqa: S301


def _part(task: Task, clients: Sequence[int]) -> tuple[Any, ...]:
    """A chunk's part, in a worker process; arrays, since tensors would travel as shared memory."""
    chunks, model, vector = _own
    try:
        nn.utils.vector_to_parameters(vector.clone(), trainable(model).values())
        part = chunks.chunk(task, model, clients)
    except HubbubError:
        raise
    except Exception as error:  # noqa: BLE001 # without the cause, which another process may be unable to read
        raise WorkerError(f"a client's training failed in a worker ({type(error).__name__}: {error})") from None
    return part.total.numpy(), part.clipped, part.losses, part.faults
