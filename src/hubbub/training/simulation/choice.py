"""The choice between clients one by one and clients in stacks: one chunk of each is timed.

A stack is taken only if its updates agree with those of clients one by one, uneven batches included, and if each client's
update has the same bits at any place of the stack and next to any other client.

All of this is tried on a synthetic probe batch. The choice decides over the last bits of every update: one that depended on
data would reveal data past all noise.
"""

import math
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import nn

from hubbub.errors import ConfigError
from hubbub.training.simulation import Execution, plan_for
from hubbub.training.simulation.faults import agree, lacks_memory, opposite, probe_batch, require_own, require_steady, shaken
from hubbub.training.simulation.functional import attributes_left
from hubbub.training.simulation.local import Job, LocalTraining, Loss, OneByOne, own_loss, trainable
from hubbub.training.simulation.stacked_module import NotStackableError
from hubbub.training.simulation.stacks import Stacks

# A stack must be clearly faster: clocks waver.
_CLEARLY = 0.95
# Steps of a timed chunk, and its repetitions, of which the first one also warms up.
_STEPS, _TIMES = 3, 3
# The least product of examples and parameters of a round that is worth a trial.
_WORTH = 2e7
# Assumed batches of a client: the real number is private.
_BATCHES = 10
# Steps of a client that is tried: the last one's rate may be 0, and the one before has a batch that is padded.
_TRIED = 3
# Clients in a timed chunk one by one.
_FEW = 4
# The most clients at a time, and the most parameters, or inputs of a step, of all of them together.
_LIMITS = {"cpu": (40, 2**23), "cuda": (256, 2**27)}
# Bytes of a parameter in stacks, and the least number of clients that are tried at another place of a stack.
_FULL, _PLACED = 4, 128

Trainer = OneByOne | Stacks


def trainer(clients: int, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution) -> Trainer:
    """The trainer of that many clients at a time."""
    if clients == 1:
        return OneByOne(model, loss, local, execution)
    return Stacks(model, loss, local, execution, clients=clients)


@dataclass(frozen=True)
class Choice:
    """A number of clients at a time, and the reason in one line for people."""

    clients: int
    reason: str

    @property
    def plan(self) -> str:
        """The name of the plan in the settings."""
        return plan_for(self.clients)

    def __str__(self) -> str:
        return f"{f'{self.clients} at a time' if self.clients > 1 else 'one by one'}, {self.reason}"


def _stack_size(cohort: int, numbers: int, execution: Execution) -> int:
    """The number of clients at a time to try for cohorts of about this size, of that many parameters or inputs of a batch.

    Stacks are as even as possible, as the last is padded, and two or a multiple of it, so that two ranks have as much to do.

    Example:
        >>> _stack_size(100, 21_840, Execution()), _stack_size(100, 1_200_000, Execution()), _stack_size(1, 10, Execution())
        (25, 6, 1)
    """
    most, room = _LIMITS[execution.device]
    most = min(most, room // max(1, numbers))
    if most <= 1:
        return 1
    stacks = math.ceil(cohort / most)
    return math.ceil(cohort / (stacks + stacks % 2 if stacks > 1 else 1))


class Probe:
    """Clients with a synthetic probe batch of the form of a job's examples, trained as real ones are."""

    def __init__(self, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution, job: Job) -> None:
        self._model, self._loss, self._local, self._execution = model, own_loss(loss), local, execution
        self._form = job

    def choice(self, cohort: int) -> Choice:
        """One by one, unless stacks are clearly faster for cohorts of about this size, and right."""
        parameters = sum(p.numel() for p in trainable(self._model).values())
        # Batches are padded to their full size, whatever a client has.
        batch = self._local.batch_size * math.prod(self._form.inputs.shape[1:])
        clients = _stack_size(cohort, max(parameters, batch), self._execution)
        examples = cohort * self._local.steps_of(_BATCHES * self._local.batch_size) * self._local.batch_size
        if clients == 1 or examples * parameters < _WORTH:
            return Choice(1, "since a round is too little work for more at a time")
        try:
            single, stacked = (self._seconds(number) * math.ceil(cohort / number) for number in (1, clients))
            if stacked >= _CLEARLY * single:
                return Choice(1, "since that is faster here than many at a time")
            if not (self.agrees(clients) and self.independent(clients)):
                return Choice(1, "since they would not get the same many at a time")
        except Exception as error:  # noqa: BLE001 # whatever model and loss raise for many at once
            if not lacks_memory(error):
                require_own(error)
            return Choice(1, "since the model does not run for many clients at once")
        return Choice(clients, f"{single / stacked:.1f} times as fast as one by one")

    def require_steady(self, clients: int) -> None:
        """Refuse a model that fails for every client, or whose updates depend on earlier clients."""
        made, form = self._made(clients, steps=_TRIED), self._form
        probe = probe_batch(form.inputs, form.targets, self._model, 4)
        opposite(probe[0], 2)
        # Of two classes, as a loss may weigh each by how often it came.
        probe[1][1:] = 1
        inputs, targets = (part.split(2) for part in probe)

        def compute(number: int) -> torch.Tensor:
            """The update of a client with one half of the examples."""
            job = replace(form, inputs=inputs[number], targets=targets[number])
            try:
                return _updates(made, self._model, [job])[job.client]
            except NotStackableError as error:
                raise ConfigError(
                    f"plan = {plan_for(clients)!r}: the model does not run for many clients at once ({error}); say "
                    "'one-by-one' or 'auto'"
                ) from error

        require_steady(compute, form.inputs, form.targets)

    @attributes_left()
    def agrees(self, clients: int, tolerance: float = 1e-5) -> bool:
        """Whether clients in a stack, with padding, get the updates that they get one by one; in half precision any will do."""
        jobs = self._jobs(clients, uneven=True)
        try:
            found, expected = (_updates(self._made(n, steps=_TRIED, precise=True), self._model, jobs) for n in (clients, 1))
        except Exception as error:  # noqa: BLE001 # whatever model and loss raise, as for a last batch of one example
            require_own(error)
            return False
        if not _finite(expected):
            return False
        return self._half or all(agree(found[job.client], expected[job.client], tolerance) for job in jobs)

    @property
    def _half(self) -> bool:
        return any(p.element_size() < _FULL for p in trainable(self._model).values())

    @attributes_left()
    def independent(self, clients: int) -> bool:
        """Whether no bit of a client's update depends on its place in a stack, or on the clients next to it."""
        # In half precision bits seldom differ, and then by so much that a probe batch may not show what data does.
        if self._half:
            return False
        model, stack = deepcopy(self._model), self._made(clients, steps=_TRIED)
        with torch.no_grad():
            for p, noisy in zip(trainable(model).values(), shaken(trainable(model)).values(), strict=True):
                p.copy_(noisy)
        turns = sorted({1, clients // 2, clients - 1})
        # Not all numbers reveal the order of a sum.
        for draw in range(1 + math.ceil(_PLACED / (len(turns) * clients))):
            jobs = self._jobs(clients, uneven=True, draw=draw)
            updates = _updates(stack, model, jobs)
            if not _finite(updates):
                return False
            if any(not _same(_updates(stack, model, [*jobs[turn:], *jobs[:turn]]), updates, jobs) for turn in turns):
                return False
            # Every second client gets inputs of NaN, which would spread if anything did.
            spoilt = (torch.full_like(job.inputs, math.nan if job.inputs.is_floating_point() else 0) for job in jobs)
            others = [replace(job, inputs=x) if i % 2 else job for i, (job, x) in enumerate(zip(jobs, spoilt, strict=True))]
            if not _same(_updates(stack, model, others), updates, jobs[::2]):
                return False
        return True

    def _seconds(self, clients: int) -> float:
        """Of one chunk; of one client if each trains alone."""
        made = self._made(clients, steps=min(_STEPS, self._local.steps_of(_BATCHES * self._local.batch_size)))
        alone = torch.get_num_threads() == 1 and self._execution.device == "cpu"
        # Without the time of other processes, if one thread does all the work.
        clock, chunk = time.process_time if alone else time.perf_counter, self._jobs(clients if clients > 1 else _FEW)
        spent = []
        for _ in range(_TIMES):
            begin = clock()
            list(made.train(self._model, chunk))
            spent.append(clock() - begin)
        return min(spent) * clients / len(chunk)

    def _jobs(self, number: int, *, uneven: bool = False, draw: int = 0) -> list[Job]:
        """Clients of two batches each, synthetic; if uneven, the last batch has up to two examples fewer."""
        batch, form, found = self._local.batch_size, self._form, []
        inputs, targets = probe_batch(form.inputs, form.targets, self._model, number + 2 * batch, draw)
        if draw % 2 and inputs.is_floating_point():
            # Of both signs.
            inputs -= 0.5
        for i in range(number):
            own = slice(i, i + max(1, 2 * batch - (i % 3 if uneven else 0)))
            found.append(replace(form, client=i, seed=i, inputs=inputs[own], targets=targets[own]))
        return found

    def _made(self, clients: int, *, steps: int, precise: bool = False) -> Trainer:
        execution = replace(self._execution, precision="float32") if precise else self._execution
        return trainer(clients, self._model, self._loss, replace(self._local, epochs=1, steps=steps), execution)


def _finite(updates: dict[int, torch.Tensor]) -> bool:
    """Whether at least half of the updates are finite: others are alike whatever they depend on."""
    return 2 * sum(bool(torch.isfinite(update).all()) for update in updates.values()) >= len(updates)


def _same(found: dict[int, torch.Tensor], expected: dict[int, torch.Tensor], jobs: Sequence[Job]) -> bool:
    """Whether the updates of these clients have the same bits, or are not finite in both and so count as zero."""
    pairs = ((found[job.client], expected[job.client]) for job in jobs)
    return all(torch.equal(a, b) or not bool(torch.isfinite(a).all() | torch.isfinite(b).all()) for a, b in pairs)


def _updates(made: Trainer, model: nn.Module, jobs: Sequence[Job]) -> dict[int, torch.Tensor]:
    return {trained.client: trained.update for trained in made.train(model, jobs)}
