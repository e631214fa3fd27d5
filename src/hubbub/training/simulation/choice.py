"""Whether clients are trained one by one or many at a time: one chunk of each is timed, and a stack must first be right.

A stack is taken only if it agrees with clients one by one, batches of uneven sizes among them, and if what each client
contributes is the same to the last bit wherever it stands and whoever stands next to it.

All is tried on synthetic examples. How clients are trained decides over the last bits of everybody's update: a choice that
depended on data would reveal them past all noise.
"""

import math
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import nn

from hubbub.errors import ConfigError
from hubbub.training.simulation.execution import Execution, plan_for
from hubbub.training.simulation.faults import agree, probe_batch, require_steady, shaken
from hubbub.training.simulation.local import Job, LocalTraining, Loss, OneByOne, trainable
from hubbub.training.simulation.stacked_module import NotStackableError
from hubbub.training.simulation.stacks import Stacks

__all__ = ["Choice", "Probe", "Trainer", "stack_size", "trainer"]

# A stack must be clearly faster: clocks waver.
_CLEARLY = 0.95
# Steps of a chunk that is timed, and how often it is: the first time also loads what later ones find.
_STEPS, _TIMES = 3, 3
# Fewer examples times parameters in a round than this are not worth a trial.
_WORTH = 2e7
# Batches that a client is taken to have: how many it really has is its own.
_BATCHES = 10
# Clients one by one that are timed.
_FEW = 4
# The most clients at a time, and numbers that their parameters may be together.
_LIMITS = {"cpu": (40, 2**23), "cuda": (256, 2**27)}


# Whoever trains clients.
Trainer = OneByOne | Stacks


def trainer(clients: int, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution) -> Trainer:
    """Who trains that many clients at a time."""
    device = torch.device(execution.device)
    if clients == 1:
        return OneByOne(model, loss, local, device, execution.precision)
    return Stacks(model, loss, local, device, execution.precision, clients=clients)


@dataclass(frozen=True)
class Choice:
    """How clients are trained, and why.

    Args:
        clients: At a time.
        reason: One line for people.
    """

    clients: int
    reason: str

    @property
    def plan(self) -> str:
        """As settings have it."""
        return plan_for(self.clients)

    def __str__(self) -> str:
        return f"{f'{self.clients} at a time' if self.clients > 1 else 'one by one'}, {self.reason}"


def stack_size(cohort: int, parameters: int, execution: Execution) -> int:
    """How many clients at a time to try for cohorts of about this size: stacks as even as can be, since the last is padded.

    Example:
        >>> stack_size(100, 21_840, Execution()), stack_size(100, 1_200_000, Execution()), stack_size(1, 10, Execution())
        (34, 6, 1)
    """
    most, room = _LIMITS[execution.device]
    most = min(most, room // parameters)
    return math.ceil(cohort / math.ceil(cohort / most)) if most > 1 else 1


class Probe:
    """Clients with synthetic examples of a form, trained as real ones are.

    Args:
        model: The global model.
        loss: Of a batch.
        local: What a client does.
        execution: Where and how it is computed.
        job: A client's, of which only the form of its examples is looked at.
    """

    def __init__(self, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution, job: Job) -> None:
        self._model, self._loss, self._local, self._execution = model, loss, local, execution
        self._given = job
        inputs, targets = probe_batch(job.inputs, job.targets, model, max(4, 3 * local.batch_size))
        self._form = replace(job, inputs=inputs, targets=targets)

    def choice(self, cohort: int) -> Choice:
        """One by one, unless a stack of clients is clearly faster for cohorts of about this size, and right."""
        parameters = sum(p.numel() for p in trainable(self._model).values())
        clients = stack_size(cohort, parameters, self._execution)
        examples = cohort * self._local.steps_of(_BATCHES * self._local.batch_size) * self._local.batch_size
        if clients == 1 or examples * parameters < _WORTH:
            return Choice(1, "since a round is too little work for more at a time")
        try:
            single, stacked = (self._seconds(number) * math.ceil(cohort / number) for number in (1, clients))
            if stacked >= _CLEARLY * single:
                return Choice(1, "since that is faster here than many at a time")
            if not self._right(clients):
                return Choice(1, "since they would not get the same many at a time")
        except (NotStackableError, torch.OutOfMemoryError, MemoryError):
            return Choice(1, "since the model does not run for many clients at once")
        return Choice(clients, f"{single / stacked:.1f} times as fast as one by one")

    def require_steady(self, clients: int) -> None:
        """Refuse what would fail for every client, or would depend on earlier ones."""
        made, form = self._made(clients, steps=2), self._form

        def compute(number: int) -> torch.Tensor:
            """What a client adds whose examples are one of two halves."""
            rows = slice(2 * number, 2 * number + 2)
            job = replace(form, inputs=form.inputs[rows], targets=form.targets[rows])
            try:
                return _updates(made, self._model, [job])[job.client]
            except NotStackableError as error:
                raise ConfigError(
                    f"plan = {plan_for(clients)!r}: the model does not run for many clients at once ({error}); say "
                    "'one-by-one' or 'auto'"
                ) from error

        require_steady(compute, self._given.inputs, self._given.targets)

    def independent(self, clients: int) -> bool:
        """Whether no bit of what a client contributes depends on where it stands in a stack, or next to whom."""
        model = deepcopy(self._model)
        with torch.no_grad():
            for p, noisy in zip(trainable(model).values(), shaken(trainable(model)).values(), strict=True):
                p.copy_(noisy)
        jobs, stack = self._jobs(clients, uneven=True), self._made(clients, steps=2)
        updates = _updates(stack, model, jobs)
        # One neighbour of every other client sends what would spread, if anything did.
        poisoned = [_poisoned(job) if i % 2 else job for i, job in enumerate(jobs)]
        beside = _updates(stack, model, poisoned)
        # The same client at each place of a stack.
        copies = [_updates(stack, model, [replace(job, client=i) for i in range(clients)]).values() for job in jobs[:3]]
        return all(_same(updates[job.client], beside[job.client]) for job in jobs[::2]) and all(
            _same(updates[job.client], copy) for job, of_job in zip(jobs, copies, strict=False) for copy in of_job
        )

    def _seconds(self, clients: int) -> float:
        """Of one chunk; of one client, where each trains alone."""
        made = self._made(clients, steps=min(_STEPS, self._local.steps_of(_BATCHES * self._local.batch_size)))
        alone = torch.get_num_threads() == 1 and self._execution.device == "cpu"
        # What others do on this machine does not count, where there is such a clock.
        clock, chunk = time.process_time if alone else time.perf_counter, self._jobs(clients if clients > 1 else _FEW)
        spent = []
        for _ in range(_TIMES):
            begin = clock()
            list(made.train(self._model, chunk))
            spent.append(clock() - begin)
        return min(spent) * clients / len(chunk)

    def _right(self, clients: int) -> bool:
        """Whether a stack agrees with clients one by one, and nothing of a client depends on the others."""
        jobs = self._jobs(clients, uneven=True)
        found, expected = (_updates(self._made(n, steps=2, precise=True), self._model, jobs) for n in (clients, 1))
        return all(agree(found[job.client], expected[job.client]) for job in jobs) and self.independent(clients)

    def _jobs(self, number: int, *, uneven: bool = False) -> list[Job]:
        """A number of clients of two batches each, the last of which has up to two examples fewer where they are uneven."""
        batch, form, found = self._local.batch_size, self._form, []
        for i in range(number):
            own = slice(i % batch, i % batch + max(1, 2 * batch - (i % 3 if uneven else 0)))
            found.append(replace(form, client=i, seed=i, inputs=form.inputs[own], targets=form.targets[own]))
        return found

    def _made(self, clients: int, *, steps: int, precise: bool = False) -> Trainer:
        execution = replace(self._execution, precision="float32") if precise else self._execution
        return trainer(clients, self._model, self._loss, replace(self._local, epochs=1, steps=steps), execution)


def _same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two updates are the same to the last bit; of those that are not finite each counts as nothing."""
    return torch.equal(found, expected) or not bool(torch.isfinite(found).all() | torch.isfinite(expected).all())


def _updates(made: Trainer, model: nn.Module, jobs: Sequence[Job]) -> dict[int, torch.Tensor]:
    return {trained.client: trained.update for trained in made.train(model, jobs)}


def _poisoned(job: Job) -> Job:
    if job.inputs.is_floating_point():
        return replace(job, inputs=torch.full_like(job.inputs, math.nan))
    return replace(job, inputs=torch.zeros_like(job.inputs))
