"""A client's training in a round: SGD over shuffled batches, with a fresh optimizer."""

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from hubbub._util.checks import integer, non_negative, number, one_of, plain_numbers, positive, positive_integer, shown
from hubbub.training.simulation import Execution
from hubbub.training.simulation.functional import (
    Constants,
    FlatModel,
    computing,
    difference,
    in_range,
    own_generators,
    repeatable,
    seed_generators,
    wholes,
)

Examples = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class LocalTraining:
    """The training of a client: SGD over shuffled batches, a fresh optimizer each round.

    Args:
        epochs: Passes over the client's examples.
        batch_size: Examples a step.
        learning_rate: Above 0; the first of the schedule.
        momentum: In [0, 1).
        weight_decay: At least 0.
        steps: Number of batches, instead of ``epochs``; a client with fewer repeats its examples, one without any takes none.
        proximal: μ of FedProx, at least 0: μ/2·‖w − w₀‖² is added to the loss, with w₀ the global model.
        schedule: Of the learning rate: constant, linear decay, or cosine decay.
        schedule_rounds: Rounds of the decay, after which the rate stays; by default the decay is over a client's steps in a
            round.
        final_learning_rate: The last learning rate as a fraction of the first, from 0 to 1.

    Raises:
        ValueError: A number out of range, or a schedule's number without a schedule.

    Example:
        >>> local = LocalTraining(learning_rate=0.1, schedule="linear", schedule_rounds=5)
        >>> [round(local.rate(round_index, 0, 1), 3) for round_index in (0, 2, 4, 9)]
        [0.1, 0.05, 0.0, 0.0]

    Source: McMahan et al. 2017, https://arxiv.org/abs/1602.05629 (FedAvg); Li et al. 2020, "Federated Optimization in
    Heterogeneous Networks", https://arxiv.org/abs/1812.06127 (FedProx).
    """

    epochs: int = 1
    batch_size: int = 10
    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    steps: int | None = None
    proximal: float = 0.0
    schedule: Schedule = "constant"
    schedule_rounds: int | None = None
    final_learning_rate: float = 0.0

    def __post_init__(self) -> None:
        plain_numbers(self, learning_rate=positive, weight_decay=non_negative, proximal=non_negative)
        plain_numbers(self, batch_size=positive_integer, schedule_rounds=positive_integer)
        integer("local_epochs", self.epochs, at_least=1)
        number("momentum", self.momentum, lambda x: 0 <= x < 1, "be at least 0 and below 1")
        if self.steps is not None:
            integer("local_steps", self.steps, at_least=1)
            if self.epochs != 1:
                raise ValueError(f"local_epochs = {self.epochs} and local_steps = {self.steps}: give one of them")
        one_of("schedule", self.schedule, get_args(Schedule))
        number("final_learning_rate", self.final_learning_rate, lambda x: 0 <= x <= 1, "be from 0 to 1")
        if self.schedule == "constant" and (self.schedule_rounds is not None or self.final_learning_rate):
            raise ValueError("schedule = 'constant': has no schedule_rounds and no final_learning_rate; name a schedule")

    def rate(self, round_index: int, step: int, steps: int) -> float:
        """The learning rate of one of a client's steps in a round."""
        done, all_of_them = (round_index, self.schedule_rounds) if self.schedule_rounds else (step, steps)
        progress = min(1.0, done / (all_of_them - 1)) if all_of_them > 1 else 0.0
        match self.schedule:
            case "constant":
                return self.learning_rate
            case "linear":
                left = 1 - progress
            case "cosine":
                left = (1 + math.cos(math.pi * progress)) / 2
        return self.learning_rate * (self.final_learning_rate + (1 - self.final_learning_rate) * left)

    def batches(self, examples: int, seed: int) -> list[torch.Tensor]:
        """The batches of a round, as indices of examples, shuffled in each pass."""
        shuffles = torch.Generator().manual_seed(seed)
        found: list[torch.Tensor] = []
        passes = 0
        while examples and (passes < self.epochs if self.steps is None else len(found) < self.steps):
            found += torch.randperm(examples, generator=shuffles, device="cpu").split(self.batch_size)
            passes += 1
        return found[: self.steps]

    def steps_of(self, examples: int) -> int:
        """The number of steps of a client with that many examples in a round."""
        if not examples:
            return 0
        return self.epochs * math.ceil(examples / self.batch_size) if self.steps is None else self.steps


@dataclass(frozen=True, eq=False)
class Job:
    """One client's training in a round: inputs and targets, ``(examples, *)`` each, and a seed of shuffles and dropout."""

    client: int
    inputs: torch.Tensor
    targets: torch.Tensor
    seed: int
    round_index: int


@dataclass(frozen=True, eq=False)
class Trained:
    """A client's update, ``(dim,)``, trained minus sent parameters, and its mean loss over batches; NaN if it had none."""

    client: int
    update: torch.Tensor
    loss: float


def require_loss(loss: object) -> None:
    """Refuse a loss that is no function, such as its name."""
    if not callable(loss):
        raise TypeError(
            f"loss = {shown(loss)}: must be a function of outputs and targets, as torch.nn.functional.cross_entropy"
        )


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, in the order of the flat vector; one that two layers share comes once."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def flat_parameters(module: nn.Module) -> torch.Tensor:
    """The trainable parameters as one vector, ``(dim,)``, a copy."""
    return torch.cat([p.detach().reshape(-1) for p in trainable(module).values()])


class Stepper:
    """SGD on stacked parameters, with a learning rate for each client; its arithmetic does not depend on other clients."""

    def __init__(self, local: LocalTraining, own: list[torch.Tensor], start: list[torch.Tensor]) -> None:
        self._local, self._own, self._start = local, own, start
        self._velocity = [torch.zeros_like(p) for p in own] if local.momentum else None
        # Whether all who take a step have one rate.
        self._one_rate = local.schedule == "constant" or local.schedule_rounds is not None

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor | None], rates: Sequence[float], resting: Sequence[int]) -> None:
        """Update the parameters of every client but the resting ones.

        The gradient of padding may be NaN, and 0 times NaN is NaN: a rate of 0 would not keep a resting client's parameters.
        """
        local = self._local
        for i, (p, gradient) in enumerate(zip(self._own, gradients, strict=True)):
            direction = torch.zeros_like(p) if gradient is None else gradient
            # Never in place: autograd may give two parameters one gradient.
            if local.weight_decay:
                direction = direction.add(p, alpha=local.weight_decay)
            if local.proximal:
                direction = direction.add(p - self._start[i], alpha=local.proximal)
            if self._velocity is not None:
                direction = self._velocity[i].mul_(local.momentum).add_(direction)
            kept = p[resting] if resting else None
            if self._one_rate or len(rates) == 1:
                p.add_(direction, alpha=-max(rates))
            else:
                p.addcmul_(direction, -torch.tensor(rates, dtype=p.dtype, device=p.device).view(-1, *[1] * (p.ndim - 1)))
            if kept is not None:
                p[resting] = kept


def own_loss(loss: Loss) -> Loss:
    """A copy of a loss that is a module, or a method of one: what it keeps is seen by whoever has the copy alone."""
    return deepcopy(loss) if wholes(loss) else loss


class OneByOne:
    """Trains one client at a time, on a copy of the model."""

    def __init__(self, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution) -> None:
        self._worker = FlatModel(deepcopy(model).to(execution.device))
        self._loss, self._local, self._precision = own_loss(loss), local, execution.precision
        self._constants = Constants(self._worker.module, self._loss)
        self._device = torch.device(execution.device)

    def train(self, model: nn.Module, jobs: Sequence[Job]) -> Iterator[Trained]:
        """The training of each client; the model stays as it is."""
        start = flat_parameters(model).to(self._device)
        for job in jobs:
            vector, loss = self.trained(start, job)
            yield Trained(job.client, difference(vector, start), loss)

    def trained(self, start: torch.Tensor, job: Job) -> tuple[torch.Tensor, float]:
        """The trained parameters as one vector, ``(dim,)``, which the next call overwrites, and the mean loss over batches."""
        local, worker, vector, gradient = self._local, self._worker, self._worker.vector, self._worker.gradient
        device = self._device
        with torch.enable_grad(), torch.autocast(device.type, enabled=False), own_generators(device), repeatable(device):
            seed_generators(job.seed, device)
            stepper = Stepper(local, [vector], [start])
            worker.module.train()
            with torch.no_grad():
                vector.copy_(start)
            self._constants.restore()
            batches = local.batches(len(job.inputs), job.seed)
            total = torch.zeros((), device=device)
            for number, batch in enumerate(batches):
                rows = batch.to(job.inputs.device)
                inputs, targets = (part[rows].to(device, non_blocking=True) for part in (job.inputs, job.targets))
                gradient.zero_()
                with computing(self._precision, device), in_range(device):
                    loss = self._loss(worker.module(inputs), targets)
                loss.backward()
                stepper.step([gradient], [local.rate(job.round_index, number, len(batches))], [])
                total += loss.detach()
            worker.require_views()
            return vector, float(total) / len(batches) if batches else math.nan
