"""What a peer's process needs beside the peer: the work as it was written, and the rounds that it is asked for.

It runs in the peers' environment, where hubbub is not. A line on standard input asks for a round; a line of JSON on standard
output says what it cost, and how good the model is after it. The end of the input ends the process.
"""

import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import nn


@dataclass(frozen=True)
class Work:
    """What every side does: federated averaging over all clients, one pass of SGD over each one's examples.

    Args:
        model: Where the first round starts.
        clients: Inputs ``(clients, samples, *shape)`` and targets ``(clients, samples)``.
        test: Inputs and targets, by which the sides are seen to do the same.
        batch_size: Examples a step.
        learning_rate: Of the clients' SGD.
        epochs: Passes; with 0 a client's update is a copy of the parameters.
    """

    model: nn.Module
    clients: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    batch_size: int = 10
    learning_rate: float = 0.05
    epochs: int = 1

    def save(self, path: Path) -> None:
        """Write all of it, the module of torch's own layers included."""
        torch.save(vars(self), path)

    @classmethod
    def load(cls, path: str) -> Self:
        """What :meth:`save` wrote: a file of our own, which may hold a pickled module."""
        return cls(**torch.load(path, weights_only=False))

    def client(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One client's inputs and targets."""
        inputs, targets = self.clients
        return inputs[number], targets[number]

    def accuracy(self, model: nn.Module) -> float:
        """The share of the test examples that a model gets right."""
        inputs, targets = self.test
        with torch.no_grad():
            outputs = torch.cat([model(batch) for batch in inputs.split(1000)])
        return float((outputs.argmax(1) == targets).double().mean())


class Turns:
    """The rounds that are asked for, one at a time."""

    def __init__(self, work: Work) -> None:
        self._work = work
        # Whatever a library prints goes elsewhere.
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._begun: tuple[float, float] | None = None

    def another(self, model: nn.Module) -> bool:
        """Say what the round that ended cost and led to, and wait; whether another is asked for."""
        if self._begun:
            cpu, wall = cpu_seconds() - self._begun[0], time.perf_counter() - self._begun[1]
            answer = {"cpu_seconds": cpu, "wall_seconds": wall, "accuracy": self._work.accuracy(model)}
            print(json.dumps(answer), file=self._answers, flush=True)
        if not sys.stdin.readline():
            return False
        self._begun = cpu_seconds(), time.perf_counter()
        return True


def cpu_seconds() -> float:
    """User and system seconds of this process, of all that descend from it, and of those of them that ended."""
    spent, children = {}, defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may hold anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        spent[int(folder.name)] = sum(map(int, fields[11:15]))
        children[int(fields[1])].append(int(folder.name))
    family = [os.getpid()]
    for process in family:
        family += children[process]
    return sum(spent[process] for process in family) / os.sysconf("SC_CLK_TCK")
