"""How a population computes: it changes nothing of what is promised, and of a client's training the last bits."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import nn

from hubbub._checks import integer, one_of
from hubbub.errors import ConfigError
from hubbub.training.batched import Batched
from hubbub.training.local import Job, LocalTraining, Loss, Trained
from hubbub.training.one_by_one import OneByOne
from hubbub.training.plan_names import AUTO, MOST_AT_ONCE, ExecutionPlan
from hubbub.training.precision import Precision

__all__ = ["AUTO", "Execution", "ExecutionPlan", "Trainer", "candidates", "trainer"]

Device = Literal["cpu", "cuda"]


class Trainer(Protocol):
    """Whoever trains clients by a plan."""

    def train(self, model: nn.Module, jobs: Sequence[Job]) -> Iterator[Trained]:
        """What each client makes of a model, which stays as it is."""


@dataclass(frozen=True)
class Execution:
    """How a population computes.

    Args:
        plan: ``"one-by-one"``, ``"one-by-one-channels-last"``, ``"batched-16"`` for 16 clients at a time,
            or ``"auto"``: the one that is fastest for this model on this machine, found on made-up examples in a second or
            two and remembered.
        workers: Processes of one thread that share a cohort; 1 is this process. They change no bit of a sum. A script that
            starts more guards its main part with ``if __name__ == "__main__"``.
        device: Where clients train.
        precision: In which numbers layers compute; parameters, updates, clip and noise stay as they are.

    Raises:
        ConfigError: No such plan, or a device that is not there.
        ValueError: A number out of range.
    """

    plan: str = AUTO
    workers: int = 1
    device: Device = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.plan != AUTO:
            ExecutionPlan.named(self.plan)
        integer("workers", self.workers, at_least=1, at_most=max(64, os.cpu_count() or 1))
        one_of("device", self.device, get_args(Device))
        one_of("precision", self.precision, get_args(Precision))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device = 'cuda': torch finds no GPU here; install a CUDA build of torch, or say device = 'cpu'")
        if self.device == "cuda" and self.workers > 1:
            raise ConfigError(f"workers = {self.workers} with device = 'cuda': one process feeds the GPU; leave workers out")


def trainer(
    plan: ExecutionPlan, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution, precision: Precision
) -> Trainer:
    """Who trains clients by a plan."""
    device = torch.device(execution.device)
    if plan.clients > 1:
        return Batched(model, loss, local, device, precision, clients=plan.clients)
    return OneByOne(model, loss, local, device, precision, channels_last=plan.channels_last)


def candidates(cohort: int, execution: Execution, *, convolves: bool) -> list[ExecutionPlan]:
    """The plans to try against clients one by one, for cohorts of about this size, those of fewer clients first.

    The last chunk of a cohort is padded to the size of all: of the sizes from three quarters of a wanted one to one and a half,
    the one that leaves least to pad is tried.
    """
    # Of fewer clients dense layers' weights stay in the cache; convolutions gain by more of them.
    few = () if convolves else (4,)
    sizes = (*few, 8, 16, 32) if execution.device == "cpu" else (16, 64, 256)
    found = [ExecutionPlan(channels_last=True)]
    for size in sizes:
        near = range(max(2, min(3 * size // 4, cohort)), min(MOST_AT_ONCE, 3 * size // 2, cohort) + 1)
        # Two in a hundred more or less are nothing.
        even = min(near, key=lambda k: (round(50 * (-cohort % k) / cohort), abs(k - size)), default=1)
        if even > 1 and ExecutionPlan(even) not in found:
            found.append(ExecutionPlan(even))
    return found
