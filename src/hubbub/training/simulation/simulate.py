"""A population in this process: trains any unmodified module, many clients at once or one by one, on one core or several."""

import math
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import chain

import torch
from torch import nn

from hubbub._util.prf import derive, seed_for, seed_key
from hubbub.errors import ConfigError, DataError
from hubbub.noise.lattice import Lattice
from hubbub.training.aggregate import (
    Adversary,
    LatticeSum,
    PlainSum,
    Population,
    Values,
    adversarial_update,
    lattice_of,
    statistics,
)
from hubbub.training.clipping import CountSplit, bounded
from hubbub.training.evaluation import measured
from hubbub.training.simulation.choice import Choice, Probe, Trainer, trainer
from hubbub.training.simulation.execution import AUTO, Execution, clients_at_once
from hubbub.training.simulation.faults import isolated, note, reason, require_own
from hubbub.training.simulation.functional import require_trainable
from hubbub.training.simulation.local import Examples, Job, LocalTraining, Loss, OneByOne, Trained, flat_parameters, trainable
from hubbub.training.simulation.stacked_module import NotStackableError
from hubbub.training.simulation.stacks import keep_freed_memory
from hubbub.training.simulation.workers import Part, SharedExamples, Task, Workers

__all__ = ["SimulatedPopulation"]

# Clients of a chunk where each trains alone: what a worker is given at a time.
_FEW = 8


class SimulatedPopulation(Population):
    """Clients as pairs of tensors.

    Args:
        clients: For each client its inputs and targets, first axes of equal length; a client may have none.
        loss: Mean loss of a batch from the module's output and the targets.
        local: What a client does in a round; by default one pass of SGD over its examples.
        seed: Of shuffles and dropout; for one plan of execution, what a client contributes depends on the model, its own data
            and this seed only. So a module must not keep plain attributes from one call to the next; frozen parameters and
            buffers are put back.
        lattice: Whether clipped updates are summed as integers, as a release needs; ``False`` sums in floating point, for
            simulations only.
        execution: How it is computed. Whatever it says, the sums are those of the same clients: to the last bit for one plan,
            and to 1e-5 of an update between plans.

    A client whose training raises, since a target is no class, say, or since its examples cannot be read, adds an update of
    zero; the logger ``hubbub`` and the private ``failed`` of a round's statistics report it to the operator.

    Raises:
        DataError: What are no pairs, or no tensors, inputs and targets of different lengths, or no client; or examples of
            several shapes or dtypes, where clients share a stack or a memory: one's own would shape what is made of the
            others'.

    Example:
        >>> clients = [(torch.randn(5, 3), torch.randint(2, (5,))) for _ in range(4)]
        >>> population = SimulatedPopulation(clients, nn.functional.cross_entropy)
        >>> total = population.collect([0, 3], nn.Linear(3, 2), clip_norm=0.5, round_index=0)
        >>> total.total.shape, bool(total.open(None).norm() <= 1.0), population.plan
        (torch.Size([8]), True, 'one-by-one')
    """

    def __init__(
        self,
        clients: Sequence[Examples],
        loss: Loss,
        local: LocalTraining | None = None,
        seed: int = 0,
        *,
        lattice: bool = True,
        execution: Execution | None = None,
    ) -> None:
        if not len(clients):
            raise DataError("clients: the list is empty")
        _require_pairs(clients)
        for i, (inputs, targets) in enumerate(clients):
            for what, part in (("inputs", inputs), ("targets", targets)):
                if not isinstance(part, torch.Tensor):
                    raise DataError(f"client {i}: its {what} are a {type(part).__name__}; make a torch.Tensor of them")
            if len(inputs) != len(targets):
                raise DataError(f"client {i}: has {len(inputs)} inputs and {len(targets)} targets")
        self._execution = execution or Execution()
        if not (self._execution.plan == "one-by-one" and self._execution.workers == 1):
            _require_one_form(clients, self._execution)
        self._examples, self._loss, self._local, self._seed = clients, loss, local or LocalTraining(), seed
        self._lattice = lattice
        self._device = torch.device(self._execution.device)
        self._key = derive(seed_key(seed), "local training")
        named = clients_at_once(self._execution.plan)
        self._choice = None if named is None else Choice(named, "as plan says")
        self._found_sound = False
        self._model: nn.Module | None = None
        self._trainer: Trainer | None = None
        self._single: OneByOne | None = None
        self._workers: Workers | None = None
        self._adversaries: dict[int, Adversary] = {}
        self._faults: list[tuple[int, str]] = []

    @property
    def clients(self) -> Sequence[int]:
        """Every client's number."""
        return range(len(self._examples))

    @property
    def plan(self) -> str:
        """The plan in use, by its name; ``"auto"`` until one was chosen."""
        return AUTO if self._choice is None else self._choice.plan

    takes_split = True

    def inject(self, client: int, adversary: Adversary | None) -> None:
        """Let an adversary choose what a client sends, in place of its training.

        Raises:
            ConfigError: There is no such client, or a cohort is shared among processes, which cannot be reached from here.
        """
        if client not in self.clients:
            raise ConfigError(f"client = {client!r}: there are clients 0 to {len(self._examples) - 1}")
        if self._execution.workers > 1:
            raise ConfigError(
                f"workers = {self._execution.workers}: an injected update is made in this process; say workers = 1"
            )
        self._adversaries.pop(client, None)
        if adversary is not None:
            self._adversaries[client] = adversary

    def prepare(self, model: nn.Module, cohort: int) -> None:
        """Choose how clients are computed, as :meth:`choose` does."""
        self.choose(model, cohort)

    def choose(self, model: nn.Module, cohort: int) -> Choice:
        """Choose a plan for cohorts of about this size, unless one was named or chosen before.

        Raises:
            ConfigError: Model and loss fail on a probe batch of every form that clients have, or carry something from one
                client to the next; or by the plan that was named, a client's bits would depend on who is next to it, and the
                sums are secure.
        """
        self._take(model)
        if self._choice is not None and self._found_sound:
            return self._choice
        probe = self._runnable(model, self._choice.clients if self._choice else 1)
        if probe is None:
            self._choice = self._choice or Choice(1, "since no client has an example")
        elif self._choice is None:
            self._choice = probe.choice(max(1, cohort))
        elif self._lattice:
            self._choice = self._sound(self._choice, probe)
        self._found_sound = True
        return self._choice

    def _runnable(self, model: nn.Module, at_once: int) -> Probe | None:
        """Synthetic clients with examples of a form on which the model runs; ``None`` where no client has an example.

        That of one client alone may be its own fault: what stops the run is that none does.
        """
        tried, why = set(), None
        for client in self.clients:
            try:
                job = self._job(client, 0)
                form = tuple((tuple(part.shape[1:]), part.dtype) for part in (job.inputs, job.targets))
                if not len(job.inputs) or form in tried:
                    continue
            except Exception as error:  # noqa: BLE001 # whatever it is that this client's examples raise
                require_own(error)
                why = why or error
                continue
            tried.add(form)
            try:
                probe = Probe(model, self._loss, self._local, self._execution, job)
                probe.require_steady(at_once)
                return probe
            except ConfigError as error:
                why = error
        if why is not None:
            raise why
        return None

    def _sound(self, choice: Choice, probe: Probe) -> Choice:
        """The choice, if by it no bit of a client's update depends on others; a secure sum must have no other."""
        if choice.clients == 1:
            return choice
        try:
            if probe.independent(choice.clients):
                return choice
        except NotStackableError:
            # Said where clients are trained.
            return choice
        if self._execution.plan == AUTO:
            return Choice(1, "since many at a time a client's last bits depend on its place")
        raise ConfigError(
            f"plan = {choice.plan!r}: on this machine a client's last bits depend on where it stands in the stack, and so "
            "on who else takes part, which no noise hides; say 'auto' or 'one-by-one', or another number of clients"
        )

    def collect(
        self,
        cohort: Sequence[Hashable],
        model: nn.Module,
        clip_norm: float | None,
        round_index: int,
        split: CountSplit | None = None,
    ) -> LatticeSum | PlainSum:
        """The sum of the cohort's updates, clipped unless ``clip_norm`` is ``None``, ``(dim,)``.

        With a ``split`` each client's indicator is one more coordinate, ``(dim + 1,)``.

        Raises:
            ConfigError: The module does not run by the plan that was named.
            WorkerError: A worker process ended.
        """
        task = Task(round_index, clip_norm, split)
        whole, lattice = self._nobody(task, model)
        for part in self._parts(task, model, self._chunks(cohort, model)):
            whole.total += part.total
            whole.losses += part.losses
            whole.clipped += part.clipped
            self._faults += part.faults
        private = statistics(len(cohort), whole.clipped, whole.losses) | self.failed()
        return LatticeSum(whole.total, lattice, private) if lattice else PlainSum(whole.total, private)

    def chunk(self, task: Task, model: nn.Module, clients: Sequence[int]) -> Part:
        """What a chunk of clients adds to a sum."""
        part, lattice = self._nobody(task, model)
        for _, update, loss in self.updates(clients, model, task.round_index):
            added, was_clipped = bounded(update, task.clip_norm, lattice, task.split)
            part.total += added
            part.clipped += was_clipped
            part.losses.append(loss)
        part.faults, self._faults = self._faults, []
        return part

    def _nobody(self, task: Task, model: nn.Module) -> tuple[Part, Lattice | None]:
        """The part of no client, and the lattice that it lies on."""
        lattice = lattice_of(task.clip_norm, task.split) if self._lattice and task.clip_norm is not None else None
        dim = sum(p.numel() for p in trainable(model).values()) + (task.split is not None)
        return Part(torch.zeros(dim, dtype=torch.int64 if lattice else torch.float64, device=self._device)), lattice

    def updates(
        self, cohort: Sequence[Hashable], model: nn.Module, round_index: int
    ) -> Iterator[tuple[int, torch.Tensor, float]]:
        """What each client of a cohort makes of a model: its number, its update ``(dim,)``, and its mean loss.

        Computed in this process, by the plan, in the order that suits it. The update of a client whose training raises is zero,
        and its loss not a number; see :meth:`failed`.

        Args:
            cohort: Clients' numbers.
            model: The global model; it stays as it is.
            round_index: From 0.

        Raises:
            ConfigError: The module does not run by the plan that was named, or an injected update is no vector of its length.
        """
        chunks = self._chunks(cohort, model)
        if not chunks:
            return
        made, at_once = self._made(model), self._choice.clients if self._choice else 1

        def together(some: Sequence[int]) -> list[Trained]:
            return list(made.train(model, [self._job(client, round_index) for client in some]))

        def nothing(client: int, error: Exception) -> list[Trained]:
            return [Trained(client, torch.zeros_like(flat_parameters(model), device=self._device), math.nan, reason(error))]

        for chunk in chunks:
            own = [client for client in chunk if client not in self._adversaries]
            for first in range(0, len(own), at_once):
                # Nobody's bits are others for one that fails.
                for trained in chain.from_iterable(isolated(together, own[first : first + at_once], nothing)):
                    self._faults += [(trained.client, trained.fault)] if trained.fault else []
                    yield trained.client, trained.update, trained.loss
            for client in [client for client in chunk if client in self._adversaries]:
                update = adversarial_update(self._adversaries[client], model, round_index)
                if update is not None:
                    yield client, update.to(self._device), math.nan

    def measure(self, cohort: Sequence[Hashable], model: nn.Module) -> list[Values]:
        """``accuracy``, mean ``loss`` and number of ``examples`` of each client; ``None`` of one that has none, or fails."""
        numbers = [int(str(client)) for client in cohort]
        return [measured(model, partial(self._examples.__getitem__, n), self._loss, f"client {n}") for n in numbers]

    def failed(self) -> dict[str, float]:
        """The private report of the clients that failed since this was asked last; empty if no client did."""
        faults, self._faults = self._faults, []
        for client, why in faults:
            note(f"client {client}", why)
        return {"failed": float(len(faults))} if faults else {}

    def train_client(self, client: int, model: nn.Module, round_index: int) -> tuple[torch.Tensor, float]:
        """What one client makes of a model in a round when it trains alone, as on a machine of its own.

        Args:
            client: Its number.
            model: The global model; it stays as it is.
            round_index: From 0.

        Returns:
            The trained parameters as one vector, ``(dim,)``, which the next call overwrites, and the mean loss over batches.

        Raises:
            ConfigError: As :meth:`choose`; and whatever the client's own data or code raise.
        """
        self._take(model)
        if client in self._adversaries:
            update = adversarial_update(self._adversaries[client], model, round_index)
            if update is None:
                raise ConfigError(f"client {client}: the adversary does not answer in round {round_index}")
            start = flat_parameters(model).to(self._device)
            return (start.to(torch.float64) + update.to(self._device)).to(start.dtype), math.nan
        if self._single is None:
            self._runnable(model, 1)
            self._single = OneByOne(model, self._loss, self._local, self._device, self._execution.precision)
        return self._single.trained(flat_parameters(model).to(self._device), self._job(client, round_index))

    def close(self) -> None:
        """End the worker processes, if there are any; the next round would start new ones."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _parts(self, task: Task, model: nn.Module, chunks: Sequence[Sequence[int]]) -> Iterator[Part]:
        """What each chunk adds, in the order of the chunks."""
        if self._execution.workers == 1 or not chunks:
            for clients in chunks:
                yield self.chunk(task, model, clients)
            return
        if self._workers is None:
            self._workers = Workers(self._execution.workers, self._for_workers(), model)
        try:
            yield from self._workers.parts(task, model, chunks)
        except BaseException:
            # Lines that were left in the middle of a round would answer the next one.
            self.close()
            raise

    def _for_workers(self) -> "SimulatedPopulation":
        """The same clients in shared memory, with the plan that is in use."""
        execution = Execution(self.plan, 1, self._execution.device, self._execution.precision)
        # Of whom nothing can be read there is nothing to share.
        read = [self._examples[client] if self._count(client) else None for client in self.clients]
        empty = next(((pair[0][:0], pair[1][:0]) for pair in read if pair is not None), (torch.zeros(0), torch.zeros(0)))
        shared = SharedExamples([empty if pair is None else pair for pair in read])
        return SimulatedPopulation(shared, self._loss, self._local, self._seed, lattice=self._lattice, execution=execution)

    def _chunks(self, cohort: Sequence[Hashable], model: nn.Module) -> list[list[int]]:
        """The cohort in parts that are trained together: clients with about as many examples as one another."""
        if not len(cohort):
            return []
        # For all of them, where nobody has said for how many: who takes part must not decide over a plan.
        at_once = self.choose(model, len(self._examples)).clients
        size = at_once if at_once > 1 else _FEW
        ordered = sorted((int(str(client)) for client in cohort), key=lambda client: (-self._count(client), client))
        return [ordered[i : i + size] for i in range(0, len(ordered), size)]

    def _count(self, client: int) -> int:
        """How many examples a client has; none where they cannot be read, which is noted where it trains."""
        try:
            return len(self._examples[client][0])
        except Exception as error:  # noqa: BLE001 # whatever it is that this client's examples raise
            require_own(error)
            return 0

    def _take(self, model: nn.Module) -> None:
        """Forget what was made of another model."""
        if model is not self._model:
            require_trainable(model)
            self._model, self._trainer, self._single, self._found_sound = model, None, None, False
            self.close()

    def _made(self, model: nn.Module) -> Trainer:
        """Whoever trains the clients of this model by the plan in use."""
        self._take(model)
        if self._trainer is None:
            keep_freed_memory()
            at_once = self._choice.clients if self._choice else 1
            self._trainer = trainer(at_once, model, self._loss, self._local, self._execution)
        return self._trainer

    def _job(self, client: int, round_index: int) -> Job:
        """What a client is given to do in a round, from data and seed of its own."""
        inputs, targets = self._examples[client]
        return Job(client, inputs, targets, seed_for(self._key, client, round_index), round_index)


def _require_pairs(clients: Sequence[object]) -> None:
    """Refuse what is no list of pairs, such as the tensors of one client, whose rows would pass for clients."""
    for i, pair in enumerate(clients):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            what = type(pair).__name__ + (f" of {len(pair)}" if isinstance(pair, Sequence) else "")
            raise DataError(
                f"clients[{i}]: is a {what}, must be the pair (inputs, targets) of one client; of one client alone give "
                "clients=[(inputs, targets)]"
            )


def _require_one_form(clients: Sequence[Examples], execution: Execution) -> None:
    """Refuse examples of several shapes or dtypes; those of clients without any do not count."""
    known = None
    for i, pair in enumerate(clients):
        form = [(tuple(part.shape[1:]), part.dtype) for part in pair]
        known = known or (form if len(pair[0]) else None)
        if len(pair[0]) and form != known:
            raise DataError(
                f"client {i}: has examples of the form {form}, those before it {known}; with plan = {execution.plan!r} and "
                f"workers = {execution.workers} all must have one: make them alike, or say plan = 'one-by-one' and workers = 1"
            )
