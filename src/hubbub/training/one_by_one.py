"""Clients one after another, in a lean loop: one copy of the model, its parameters and their gradients as two flat vectors."""

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch
from torch import nn

from hubbub.training.execution import Precision
from hubbub.training.flat import FlatModel, difference
from hubbub.training.functional import Constants, computing, in_range, own_generators
from hubbub.training.local import Job, LocalTraining, Loss, Trained, flat_parameters

__all__ = ["OneByOne"]


class OneByOne:
    """Trains one client at a time.

    Args:
        model: Is copied; the copy stands on ``device``.
        loss: Mean loss of a batch from the module's output and the targets.
        local: What a client does.
        device: Where to compute.
        precision: In which numbers layers compute.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        local: LocalTraining,
        device: torch.device,
        precision: Precision = "float32",
    ) -> None:
        self._worker = FlatModel(deepcopy(model).to(device))
        self._constants = Constants(self._worker.module)
        self._loss, self._local, self._device, self._precision = loss, local, device, precision

    def train(self, model: nn.Module, jobs: Sequence[Job]) -> Iterator[Trained]:
        """What each client makes of a model, which stays as it is."""
        start = flat_parameters(model).to(self._device)
        for job in jobs:
            vector, loss = self.trained(start, job)
            yield Trained(job.client, difference(vector, start), loss)

    def trained(self, start: torch.Tensor, job: Job) -> tuple[torch.Tensor, float]:
        """The trained parameters as one vector, ``(dim,)``, which the next call overwrites, and the mean loss over batches."""
        with own_generators(self._device):
            # What torch.manual_seed does, without its costly bookkeeping for devices that are not there.
            torch.default_generator.manual_seed(job.seed)
            if self._device.type == "cuda":
                torch.cuda.manual_seed(job.seed)
            return self._worker.vector, self._steps(start, job)

    def _steps(self, start: torch.Tensor, job: Job) -> float:
        local, worker = self._local, self._worker
        vector, gradient = worker.vector, worker.gradient
        velocity = torch.zeros_like(vector) if local.momentum else None
        worker.module.train()
        with torch.no_grad():
            vector.copy_(start)
        self._constants.restore()
        batches = local.batches(len(job.inputs), job.seed)
        total = torch.zeros((), device=self._device)
        for number, batch in enumerate(batches):
            rows = batch.to(job.inputs.device)
            inputs = job.inputs[rows].to(self._device, non_blocking=True)
            gradient.zero_()
            with computing(self._precision, self._device), in_range(self._device):
                loss = self._loss(worker.module(inputs), job.targets[rows].to(self._device, non_blocking=True))
            loss.backward()
            with torch.no_grad():
                if local.weight_decay:
                    gradient.add_(vector, alpha=local.weight_decay)
                if local.proximal:
                    gradient.add_(vector - start, alpha=local.proximal)
                step = gradient if velocity is None else velocity.mul_(local.momentum).add_(gradient)
                vector.add_(step, alpha=-local.rate(job.round_index, number, len(batches)))
                total += loss.detach()
        return float(total) / len(batches) if batches else math.nan
