"""A population in this process: trains any unmodified module, client by client, in a lean loop."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn

from hubbub._checks import finite, integer, non_negative, positive
from hubbub.errors import DataError
from hubbub.lattice import Lattice
from hubbub.randomness import derive, seed_for, seed_key
from hubbub.training.clipping import clip
from hubbub.training.flat import FlatModel, difference
from hubbub.training.sums import LatticeSum, PlainSum

__all__ = ["LocalTraining", "SimulatedPopulation", "bounded", "evaluate", "statistics"]

Examples = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LocalTraining:
    """What a client does with its examples: SGD over shuffled batches, a fresh optimizer each round.

    Args:
        epochs: Passes over the client's examples.
        batch_size: Examples a step.
        learning_rate: Above 0.
        momentum: In [0, 1).
        weight_decay: At least 0.
    """

    epochs: int = 1
    batch_size: int = 10
    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        integer("local_epochs", self.epochs, at_least=1)
        integer("batch_size", self.batch_size, at_least=1)
        positive("learning_rate", self.learning_rate)
        non_negative("weight_decay", self.weight_decay)
        if not 0 <= finite("momentum", self.momentum) < 1:
            raise ValueError(f"momentum = {self.momentum!r}: must be at least 0 and below 1")


class SimulatedPopulation:
    """Clients as pairs of tensors.

    Args:
        clients: For each client its inputs and targets, first axes of equal length; a client may have none.
        loss: Mean loss of a batch from the module's output and the targets.
        local: What a client does in a round.
        seed: Of shuffles and dropout; what a client contributes depends on the model, its own data and this seed only. So a
            module must not keep plain attributes from one call to the next; frozen parameters and buffers are put back.
        lattice: Whether clipped updates are summed as integers, as a release needs; ``False`` sums in floating point, for
            simulations only.

    Raises:
        DataError: Inputs and targets of different lengths, or no client.
    """

    def __init__(
        self, clients: Sequence[Examples], loss: Loss, local: LocalTraining, seed: int = 0, *, lattice: bool = True
    ) -> None:
        if not clients:
            raise DataError("clients: there is none")
        for i, (inputs, targets) in enumerate(clients):
            if len(inputs) != len(targets):
                raise DataError(f"client {i}: has {len(inputs)} inputs and {len(targets)} targets")
        self._examples = clients
        self._loss = loss
        self._local = local
        self._lattice = lattice
        self._key = derive(seed_key(seed), "local training")
        self._model: nn.Module | None = None
        self._worker: FlatModel
        self._fixed: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def clients(self) -> Sequence[int]:
        """Every client's number."""
        return range(len(self._examples))

    def collect(
        self, cohort: Sequence[Hashable], model: nn.Module, clip_norm: float | None, round_index: int
    ) -> LatticeSum | PlainSum:
        """The sum of the cohort's updates, clipped unless ``clip_norm`` is ``None``, ``(dim,)``."""
        lattice = Lattice(clip_norm) if self._lattice and clip_norm is not None else None
        _, start = self._begin(model)
        total = torch.zeros(start.shape, dtype=torch.int64 if lattice else torch.float64, device=start.device)
        clipped, losses = 0, []
        for _, update, loss in self.updates(cohort, model, round_index):
            part, was_clipped = bounded(update, clip_norm, lattice)
            total += part
            clipped += was_clipped
            losses.append(loss)
        private = statistics(len(cohort), clipped, losses)
        return LatticeSum(total, lattice, private) if lattice else PlainSum(total, private)

    def updates(
        self, cohort: Sequence[Hashable], model: nn.Module, round_index: int
    ) -> Iterator[tuple[int, torch.Tensor, float]]:
        """What each client of a cohort makes of a model: its number, its update ``(dim,)``, and its mean loss.

        Args:
            cohort: Clients' numbers.
            model: The global model; it stays as it is.
            round_index: From 0.
        """
        worker, start = self._begin(model)
        for client in cohort:
            with _own_generators(start.device):
                loss = self._train(worker, start, int(str(client)), round_index)
            yield int(str(client)), difference(worker.vector, start), loss

    def train_client(self, client: int, model: nn.Module, round_index: int) -> tuple[torch.Tensor, float]:
        """What one client makes of a model in a round, as :meth:`collect` has it done.

        Args:
            client: Its number.
            model: The global model; it stays as it is.
            round_index: From 0.

        Returns:
            The trained parameters as one vector, ``(dim,)``, which the next call overwrites, and the mean loss over batches.
        """
        worker, start = self._begin(model)
        with _own_generators(start.device):
            loss = self._train(worker, start, client, round_index)
        return worker.vector, loss

    def _begin(self, model: nn.Module) -> tuple[FlatModel, torch.Tensor]:
        """A copy of the model to train clients in, and the parameters that each starts from, ``(dim,)``."""
        if model is not self._model:
            self._model, self._worker = model, FlatModel(deepcopy(model))
            self._fixed = [(tensor, tensor.detach().clone()) for tensor in self._worker.fixed()]
        return self._worker, torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])

    def _train(self, worker: FlatModel, start: torch.Tensor, client: int, round_index: int) -> float:
        """Train the worker on one client's examples from ``start``; returns the mean loss over its batches."""
        inputs, targets = self._examples[client]
        local = self._local
        seed = seed_for(self._key, client, round_index)
        # What torch.manual_seed does, without its costly bookkeeping for devices that are not there.
        torch.default_generator.manual_seed(seed)
        if start.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        shuffles = torch.Generator().manual_seed(seed)
        vector, gradient = worker.vector, worker.gradient
        velocity = torch.zeros_like(vector) if local.momentum else None
        worker.module.train()
        total, batches = torch.zeros((), device=start.device), 0
        with torch.no_grad():
            vector.copy_(start)
            # Nothing that one client's training left in the module may reach the next client.
            for tensor, original in self._fixed:
                tensor.copy_(original)
        for _ in range(local.epochs):
            order = torch.randperm(len(inputs), generator=shuffles).to(inputs.device)
            for batch in order.split(local.batch_size):
                gradient.zero_()
                loss = self._loss(worker.module(inputs[batch]), targets[batch])
                loss.backward()
                with torch.no_grad():
                    if local.weight_decay:
                        gradient.add_(vector, alpha=local.weight_decay)
                    step = gradient if velocity is None else velocity.mul_(local.momentum).add_(gradient)
                    vector.add_(step, alpha=-local.learning_rate)
                    total += loss.detach()
                batches += 1
        return float(total) / batches if batches else math.nan


def bounded(update: torch.Tensor, clip_norm: float | None, lattice: Lattice | None) -> tuple[torch.Tensor, bool]:
    """A client's contribution to the sum, ``(dim,)``, and whether it was clipped."""
    if lattice:
        return lattice.encode(update)
    return (update, False) if clip_norm is None else clip(update, clip_norm)


def statistics(cohort: int, clipped: int, losses: Sequence[float]) -> dict[str, float]:
    """What the operator is told of a round: private. Losses that are not finite are left out."""
    finite_losses = [loss for loss in losses if math.isfinite(loss)]
    return {
        "clipped_fraction": clipped / cohort if cohort else 0.0,
        "train_loss": sum(finite_losses) / len(finite_losses) if finite_losses else math.nan,
    }


def _own_generators(device: torch.device) -> AbstractContextManager[None]:
    """Inside, torch's global generators may be seeded; outside, they are as before."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def evaluate(model: nn.Module, examples: Examples, loss: Loss, batch_size: int = 2000) -> tuple[float, float]:
    """Mean loss and accuracy of a classifier on public examples."""
    inputs, targets = examples
    was_training = model.training
    model.eval()
    total, right = 0.0, 0
    with torch.no_grad():
        for x, y in zip(inputs.split(batch_size), targets.split(batch_size), strict=True):
            output = model(x)
            total += float(loss(output, y)) * len(x)
            right += int((output.argmax(dim=1) == y).sum())
    model.train(was_training)
    return total / len(inputs), right / len(inputs)
