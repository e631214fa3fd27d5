"""Which plan is fastest for a model on this machine: each is tried on a few steps of stand-ins, and must first be right.

A plan of many clients at once is taken only if on those steps it agrees with clients one by one, batches of uneven sizes among
them, and if what each client contributes is the same to the last bit wherever it stands and whoever stands beside it.

Stand-ins have the form of the clients' examples and nothing else of them. A plan decides over the last bits of everybody's
update: one that hung on data would tell of them, beside all noise.

What was found is remembered, in this process and in ``~/.cache/hubbub/plans.json``: the same work has the same plan on one
machine, so that the same seed gives the same numbers.
"""

import contextlib
import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from hubbub import files, strict_json
from hubbub.errors import ConfigError
from hubbub.training.execution import Execution, ExecutionPlan, Trainer, candidates, trainer
from hubbub.training.faults import require_own
from hubbub.training.local import Job, LocalTraining, Loss, trainable
from hubbub.training.precision import Precision
from hubbub.training.stacking import NotStackableError
from hubbub.training.stand_ins import agree, does_not_run, remembers, shaken, stand_ins

__all__ = ["Choice", "choose", "independent", "require_steady"]

# Steps of a short and of a longer trial: what a step costs is told from what each client costs once.
_SHORT, _LONG = 1, 5
# Of the way in which plans are tried: what another way found is not believed.
_VERSION = 10
# The plainer plan stands unless another is clearly faster: clocks waver.
_CLEARLY = 0.95
# Beyond this a plan that loses is not tried with more clients.
_LOST = 1.3
_SECONDS = 1.5
# Trials of one length, and the seconds after which they are enough.
_TRIALS, _ENOUGH = 5, 0.05
_FAILS = NotStackableError, torch.OutOfMemoryError, MemoryError
# Less than this many examples times parameters in a round is not worth a second of trials.
_WORTH = 2e7
# What a client is taken to have: how much it really has is its own.
_BATCHES = 10
# Of the file of what was found, in bytes.
_LARGEST = 2**22
_remembered: dict[str, ExecutionPlan] = {}


@dataclass(frozen=True)
class Choice:
    """A plan and why.

    Args:
        plan: The fastest.
        reason: One line for people.
        tried: Whether it was found to be right just now, and not at an earlier time.
    """

    plan: ExecutionPlan
    reason: str
    tried: bool = False


def choose(
    model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution, jobs: Sequence[Job], cohort: int
) -> Choice:
    """The plan of an execution that says ``"auto"``.

    Args:
        model: The global model.
        loss: Of a batch.
        local: What a client does.
        execution: Where and how it is computed.
        jobs: Some clients, of which only the form of the first one's examples is looked at.
        cohort: How many there are in a cohort, about.
    """
    if not jobs or _work(model, local, cohort) < _WORTH:
        return Choice(ExecutionPlan(), "since a round is too little work for trials to pay")
    key = _key(model, local, execution, jobs[0], cohort)
    known = _remembered.get(key) or _read().get(key)
    found = None
    if known is None:
        trial = _Trial(model, loss, local, execution, jobs[0], cohort)
        found = trial.fastest()
        known = _remember(key, found)
        reason = trial.reason(known)
    else:
        reason = "as was found before for this model on this machine"
    _remembered[key] = known
    return Choice(known, reason, tried=known == found)


def independent(
    plan: ExecutionPlan, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution, job: Job
) -> bool:
    """Whether no bit of what a client contributes by a plan hangs on where it stands in a stack, or on whom beside.

    Tried on stand-ins of the form of ``job``'s examples.

    Raises:
        NotStackableError: The module does not run for many clients at once.
    """
    return _Trial(model, loss, local, execution, job, plan.clients).independent(plan)


def require_steady(
    plan: ExecutionPlan, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution, job: Job
) -> None:
    """Refuse, on stand-ins of the form of ``job``'s examples, what would fail for every client, or hang on earlier ones.

    Raises:
        ConfigError: Model and loss fail, by this plan at least, or carry something from one client to the next.
    """
    made = trainer(plan, model, loss, replace(local, epochs=1, steps=2), execution, execution.precision)
    inputs, targets = stand_ins(job.inputs, job.targets, model, 4)
    jobs = [replace(job, client=0, inputs=inputs[rows], targets=targets[rows]) for rows in (slice(2), slice(2, 4))]
    try:
        first, _, again = (_updates(made, model, [jobs[i]])[0] for i in (0, 1, 0))
    except NotStackableError as error:
        raise ConfigError(
            f"plan = {plan.name!r}: the model does not run for many clients at once ({error}); say 'one-by-one' or 'auto'"
        ) from error
    except Exception as error:
        require_own(error)
        raise does_not_run(job.inputs, job.targets, error) from error
    if not agree(again, first):
        raise remembers()


def _work(model: nn.Module, local: LocalTraining, cohort: int) -> float:
    """Of a round: examples that pass through the model, times its parameters."""
    examples = local.steps_of(_BATCHES * local.batch_size) * local.batch_size
    return cohort * examples * sum(p.numel() for p in trainable(model).values())


class _Trial:
    """Plans against one another on a few steps of stand-ins."""

    def __init__(self, model: nn.Module, loss: Loss, local: LocalTraining, execution: Execution, job: Job, cohort: int) -> None:
        self._model, self._loss, self._execution, self._cohort = model, loss, execution, cohort
        self._steps = local.steps_of(_BATCHES * local.batch_size)
        self._local = replace(local, epochs=1, steps=2)
        inputs, targets = stand_ins(job.inputs, job.targets, model, 3 * local.batch_size)
        self._form = replace(job, inputs=inputs, targets=targets)
        # Seconds of the whole cohort.
        self._seconds: dict[ExecutionPlan, float] = {}

    def fastest(self) -> ExecutionPlan:
        """The plan with the least time a client among those that are right; the plainest, unless one is clearly faster."""
        plainest, clock = ExecutionPlan(), self._clock()
        began = clock()
        self._seconds[plainest] = self._time(plainest)
        for plan in candidates(self._cohort, self._execution, convolves=_convolves(self._model)):
            if plan.channels_last and self._form.inputs.ndim != 4:
                continue
            try:
                self._seconds[plan] = self._time(plan)
            except _FAILS:
                break
            # More clients at once will not do what fewer did not.
            lost = plan.clients > 1 and self._seconds[plan] > _LOST * self._seconds[plainest]
            if lost or clock() - began > _SECONDS:
                break
        for plan in sorted(self._seconds, key=lambda plan: self._seconds[plan]):
            if self._seconds[plan] >= _CLEARLY * self._seconds[plainest]:
                break
            with contextlib.suppress(*_FAILS):
                if self._right(plan):
                    return plan
        return plainest

    def reason(self, plan: ExecutionPlan) -> str:
        """What was found, for people."""
        base = self._seconds.get(ExecutionPlan())
        if base is None or plan not in self._seconds or plan == ExecutionPlan():
            return "the fastest of those tried"
        return f"{base / self._seconds[plan]:.1f} times as fast as one by one"

    def _time(self, plan: ExecutionPlan) -> float:
        """Seconds of a round of the whole cohort, padding included, from trials of a few steps."""
        chunk = self._jobs(plan.clients)
        short, long = (self._of_steps(plan, steps, chunk) for steps in (_SHORT, _LONG))
        each = max(0.0, long - short) / (_LONG - _SHORT)
        return (short + (self._steps - _SHORT) * each) * math.ceil(self._cohort / plan.clients)

    def _clock(self) -> Callable[[], float]:
        """What does not count what others do on this machine, where there is such a clock."""
        alone = torch.get_num_threads() == 1 and self._execution.device == "cpu"
        return time.process_time if alone else time.perf_counter

    def _of_steps(self, plan: ExecutionPlan, steps: int, chunk: Sequence[Job]) -> float:
        """Seconds of so many steps of a chunk: the least of a few trials, if they are short."""
        local = replace(self._local, steps=steps)
        made = trainer(plan, self._model, self._loss, local, self._execution, self._execution.precision)
        clock = self._clock()
        spent: list[float] = []
        # The first two also make what later ones find.
        while len(spent) < 3 or (len(spent) < _TRIALS and sum(spent) < _ENOUGH):
            begin = clock()
            list(made.train(self._model, chunk))
            spent.append(clock() - begin)
        return min(spent)

    def _right(self, plan: ExecutionPlan) -> bool:
        """Whether a stack agrees with clients one by one, and nothing of a client hangs on the others."""
        jobs = self._uneven(plan.clients)
        updates = _updates(self._made(plan, "float32"), self._model, jobs)
        expected = _updates(self._made(ExecutionPlan(), "float32"), self._model, jobs)
        return all(agree(updates[job.client], expected[job.client]) for job in jobs) and self.independent(plan)

    def independent(self, plan: ExecutionPlan) -> bool:
        """Whether no client's bits depend on where it stands or on whom beside."""
        model = deepcopy(self._model)
        with torch.no_grad():
            for p, noisy in zip(trainable(model).values(), shaken(trainable(model)).values(), strict=True):
                p.copy_(noisy)
        jobs, stack = self._uneven(plan.clients), self._made(plan, self._execution.precision)
        updates = _updates(stack, model, jobs)
        # One neighbour of every other client sends what would spread, if anything did.
        poisoned = [_poisoned(job) if i % 2 else job for i, job in enumerate(jobs)]
        beside = _updates(stack, model, poisoned)
        # The same client at each place of a stack.
        copies = [_updates(stack, model, [replace(job, client=i) for i in range(plan.clients)]).values() for job in jobs[:3]]
        return all(_same(updates[job.client], beside[job.client]) for job in jobs[::2]) and all(
            _same(updates[job.client], copy) for job, of_job in zip(jobs, copies, strict=False) for copy in of_job
        )

    def _jobs(self, number: int) -> list[Job]:
        """So many clients of two batches each."""
        batch = self._local.batch_size
        rows = [slice(i % batch, i % batch + 2 * batch) for i in range(number)]
        form = self._form
        return [
            replace(form, client=i, seed=i, inputs=form.inputs[own], targets=form.targets[own]) for i, own in enumerate(rows)
        ]

    def _uneven(self, number: int) -> list[Job]:
        """So many clients, whose last batches have different sizes."""
        found = []
        for i, job in enumerate(self._jobs(number)):
            size = max(1, len(job.inputs) - i % 3)
            found.append(replace(job, inputs=job.inputs[:size], targets=job.targets[:size]))
        return found

    def _made(self, plan: ExecutionPlan, precision: Precision) -> Trainer:
        return trainer(plan, self._model, self._loss, self._local, self._execution, precision)


def _convolves(model: nn.Module) -> bool:
    return any(p.ndim == 4 for p in trainable(model).values())


def _same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two updates are the same to the last bit; of what is not a number each counts as nothing."""
    return torch.equal(found, expected) or not bool(torch.isfinite(found).all() | torch.isfinite(expected).all())


def _updates(made: Trainer, model: nn.Module, jobs: Sequence[Job]) -> dict[int, torch.Tensor]:
    return {trained.client: trained.update for trained in made.train(model, jobs)}


def _poisoned(job: Job) -> Job:
    if job.inputs.is_floating_point():
        return replace(job, inputs=torch.full_like(job.inputs, math.nan))
    return replace(job, inputs=torch.zeros_like(job.inputs))


def _key(model: nn.Module, local: LocalTraining, execution: Execution, job: Job, cohort: int) -> str:
    """What a plan's speed hangs on; of the cohort only the two leading bits, since cohorts at random waver."""
    magnitude = max(0, cohort.bit_length() - 2)
    parts = [
        str(model),
        [(name, tuple(p.shape), str(p.dtype)) for name, p in trainable(model).items()],
        (_VERSION, local.batch_size, bool(local.momentum), bool(local.proximal)),
        math.ceil(math.log2(1 + local.steps_of(_BATCHES * local.batch_size))),
        (execution.device, execution.precision, torch.get_num_threads()),
        (tuple(job.inputs.shape[1:]), str(job.inputs.dtype), tuple(job.targets.shape[1:])),
        (magnitude, cohort >> magnitude),
        (torch.__version__, platform.machine(), platform.node(), torch.backends.cpu.get_cpu_capability()),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _file() -> Path:
    return files.cache_folder() / "plans.json"


def _read() -> dict[str, ExecutionPlan]:
    """What was found before; a file that cannot be read is as good as none."""
    try:
        stored = strict_json.loads(files.read(_file(), at_most=_LARGEST))
        return {str(key): ExecutionPlan.named(str(name)) for key, name in stored.items()}
    except (OSError, ValueError, AttributeError, ConfigError):
        return {}


def _remember(key: str, plan: ExecutionPlan) -> ExecutionPlan:
    """Keep a plan, unless another process was first: then its plan is everybody's."""
    known = _read()
    plan = known.setdefault(key, plan)
    try:
        files.make_folder(_file().parent)
        files.write_atomic(_file(), json.dumps({k: p.name for k, p in known.items()}, indent=1).encode())
    except OSError:
        # Then it is remembered in this process alone.
        return plan
    return plan
