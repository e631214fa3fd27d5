"""Many clients at once: their models are stacked, and every step is taken for all of them.

A stack always has the same shape: missing clients and examples are padding that changes nothing. So a client's update depends
on the model, its own data and its seed, and on no other client.
"""

import ctypes
import math
import platform
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cache
from itertools import zip_longest

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.training.simulation import Execution
from hubbub.training.simulation.faults import require_own
from hubbub.training.simulation.functional import Constants, computing, difference, in_range, repeatable
from hubbub.training.simulation.local import Job, LocalTraining, Loss, Stepper, Trained, own_loss, trainable
from hubbub.training.simulation.stacked_module import NotStackableError, StackedModel

# The target that torch's cross entropy ignores.
_IGNORED = -100
# Bytes of examples that are fetched at a time.
_FETCHED = 1 << 22
# Of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT = 256 * 2**20


class Stacks:
    """Trains K clients at a time, on a copy of the model."""

    def __init__(self, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution, *, clients: int) -> None:
        module = deepcopy(model).to(execution.device).train()
        loss = own_loss(loss)
        self._constants = Constants(module, loss)
        for parameter in module.parameters():
            # The clients' own stand in for them.
            parameter.requires_grad_(False)
        self._model = StackedModel(module, clients)
        self.clients = clients
        self._loss, self._local, self._precision = loss, local, execution.precision
        self._device = torch.device(execution.device)
        # Torch's plain cross entropy needs no loop over clients.
        self._entropy = loss is F.cross_entropy
        if type(loss) is nn.CrossEntropyLoss:
            plain = loss.weight is None and loss.label_smoothing == 0 and loss.reduction == "mean"
            self._entropy = plain and loss.ignore_index == _IGNORED

    def train(self, model: nn.Module, jobs: Sequence[Job]) -> Iterator[Trained]:
        """The training of each client; the model stays as it is, and is refused if it does not run for many clients at once."""
        start = {name: p.detach().to(self._device) for name, p in trainable(model).items()}
        for first in range(0, len(jobs), self.clients):
            yield from self._chunk(start, jobs[first : first + self.clients])

    def _chunk(self, start: dict[str, torch.Tensor], jobs: Sequence[Job]) -> Iterator[Trained]:
        # One of each client, (K, *shape).
        own = {name: p.unsqueeze(0).repeat(self.clients, *[1] * p.ndim).requires_grad_() for name, p in start.items()}
        stepper = Stepper(self._local, list(own.values()), list(start.values()))
        self._constants.restore()
        feed = _Feed(self._local, jobs, self.clients, self._device)
        # What it keeps of one client must not reach the others.
        own_losses = [own_loss(self._loss) for _ in jobs]
        generators = [torch.Generator(self._device).manual_seed(job.seed) for job in jobs]
        total = torch.zeros(self.clients, dtype=torch.float64, device=self._device)
        for step in range(feed.steps):
            inputs, targets, counts = feed.batch(step)
            # Clients without a batch left, and padding, take no step.
            active = torch.tensor([count > 0 for count in counts], device=self._device)
            with torch.enable_grad(), torch.autocast(self._device.type, enabled=False), repeatable(self._device):
                with computing(self._precision, self._device):
                    output = self._model(own, inputs, counts, generators)
                    with in_range(self._device):
                        losses = torch.where(active, self._losses(own_losses, output, targets, counts), 0.0)
                try:
                    gradients = torch.autograd.grad(losses.sum(), list(own.values()), allow_unused=True)
                except RuntimeError as error:
                    require_own(error)
                    # Such as a checkpointed forward that is repeated in the backward pass, outside of vmap.
                    raise NotStackableError(f"{type(error).__name__}: {error}") from error
            losses = losses.detach()
            # A step and the next forward pass need its memory.
            del output
            stepper.step(gradients, feed.rates(step), [i for i, count in enumerate(counts[: len(jobs)]) if not count])
            total += losses
        with torch.no_grad():
            updates = torch.cat([difference(p, start[name]).reshape(self.clients, -1) for name, p in own.items()], dim=1)
        for job, update, loss, steps in zip(jobs, updates, total.tolist(), feed.own_steps, strict=False):
            yield Trained(job.client, update, loss / steps if steps else math.nan)

    def _losses(
        self, losses: Sequence[Loss], output: torch.Tensor, targets: torch.Tensor, counts: Sequence[int]
    ) -> torch.Tensor:
        """Each client's mean loss over its own examples, ``(K,)``; any number if it has none."""
        if self._entropy and not targets.is_floating_point():
            each = F.cross_entropy(output.flatten(0, 1), targets.flatten(0, 1), reduction="none", ignore_index=_IGNORED)
            return each.reshape(self.clients, -1).sum(dim=1) / (targets != _IGNORED).flatten(1).sum(dim=1)
        none = output.new_zeros(())
        # Of padding there is none.
        own = zip_longest(losses, output, targets, counts)
        return torch.stack([loss(out[:count], target[:count]) if count else none for loss, out, target, count in own])


class _Feed:
    """The batches of a chunk's clients, in stacks of one shape."""

    def __init__(self, local: LocalTraining, jobs: Sequence[Job], clients: int, device: torch.device) -> None:
        self._local, self._jobs, self._device = local, jobs, device
        forms = {(job.inputs.shape[1:], job.inputs.dtype, job.targets.shape[1:], job.targets.dtype) for job in jobs}
        if len(forms) > 1:
            # As where examples are drawn when they are read: each then trains by itself.
            raise ValueError(f"clients of one stack have examples of several forms: {sorted(map(str, forms))}")
        batches = [local.batches(len(job.inputs), job.seed) for job in jobs]
        self.own_steps = [len(own) for own in batches]
        self.steps = max(self.own_steps, default=0)
        self._idle = clients - len(jobs)
        # The indices of each batch's examples, -1 for padding: (K, steps, B).
        self._rows = torch.full((clients, self.steps, local.batch_size), -1, device="cpu")
        for table, own in zip(self._rows, batches, strict=False):
            if own:
                table[: len(own)] = nn.utils.rnn.pad_sequence([*own, table[0]], batch_first=True, padding_value=-1)[:-1]
        self._counts = (self._rows >= 0).sum(dim=2).T.tolist()
        # Batches are fetched for several steps at a time, since each call for a client costs as much as a batch.
        own_bytes = sum(math.prod(part.shape[1:]) * part.element_size() for part in (jobs[0].inputs, jobs[0].targets))
        self._at_once = max(1, _FETCHED // max(1, own_bytes * clients * local.batch_size))
        self._fetched: list[tuple[torch.Tensor, torch.Tensor]] = []

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Inputs ``(K, B, *)``, targets ``(K, B, *)``, and how many of the B are each client's own; steps in their order."""
        if step % self._at_once == 0:
            self._fetched = self._fetch(step, min(step + self._at_once, self.steps))
        inputs, targets = self._fetched[step % self._at_once]
        # Always contiguous: torch picks kernels by strides, which would depend on the other clients' steps.
        return inputs.contiguous(), targets.contiguous(), self._counts[step]

    def _fetch(self, first: int, stop: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        rows, like = self._rows[:, first:stop], self._jobs[0]
        clients, steps, size = rows.shape
        # Padded with the client's own example: a module might make NaN of zeros.
        at = torch.where(rows >= 0, rows, rows[:, :, :1]).clamp_(min=0).flatten(1).to(like.inputs.device)
        inputs, targets = (
            torch.zeros(clients, steps * size, *part.shape[1:], dtype=part.dtype, device=part.device)
            for part in (like.inputs, like.targets)
        )
        for job, own, x, y in zip(self._jobs, at, inputs, targets, strict=False):
            if len(job.inputs):
                torch.index_select(job.inputs, 0, own, out=x)
                torch.index_select(job.targets, 0, own, out=y)
        # Cross entropy ignores padding; other losses never see it.
        missing = (rows < 0).flatten(1).to(targets.device)
        targets[missing] = _IGNORED if not targets.is_floating_point() else 0
        moved = (part.to(self._device, non_blocking=True).split(size, dim=1) for part in (inputs, targets))
        return list(zip(*moved, strict=True))

    def rates(self, step: int) -> list[float]:
        """Each client's learning rate, 0 if it takes no step."""
        found = [
            self._local.rate(job.round_index, step, steps) if step < steps else 0.0
            for job, steps in zip(self._jobs, self.own_steps, strict=True)
        ]
        return found + [0.0] * self._idle


@cache
def keep_freed_memory() -> None:
    """Let this process keep up to 256 MiB of freed memory, instead of returning every large block to the system.

    Each training step frees memory that the next one needs; a returned block comes back with a fault for each page, which costs
    stacked steps a fifth of their time. Only the GNU C library has this setting.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    # The largest threshold that the library takes.
    library.mallopt(_MMAP_THRESHOLD, 32 * 2**20)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
    library.mallopt(_TOP_PAD, 16 * 2**20)
