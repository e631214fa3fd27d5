"""A population in this process: any unmodified module, clients in stacks or one by one, on one core or several."""

import math
from collections.abc import Iterator, Sequence, Sized
from functools import partial
from itertools import chain

import torch
from torch import nn

from hubbub._util.prf import seed_for
from hubbub.errors import ConfigError, DataError
from hubbub.training.aggregate import Cohort, LatticeSum, LocalPopulation, PlainSum, Values, lattice_of, statistics
from hubbub.training.clipping import CountSplit, bounded
from hubbub.training.evaluation import measured
from hubbub.training.ranks import Ranks, fingerprint, word
from hubbub.training.simulation import AUTO, Execution, clients_at_once
from hubbub.training.simulation.choice import Choice, Probe, Trainer, trainer
from hubbub.training.simulation.faults import UnsteadyError, isolated, note, reason, require_own
from hubbub.training.simulation.functional import own_generators, require_trainable, seed_generators
from hubbub.training.simulation.local import (
    Examples,
    Job,
    LocalTraining,
    Loss,
    OneByOne,
    Trained,
    flat_parameters,
    require_loss,
    trainable,
)
from hubbub.training.simulation.stacks import keep_freed_memory

# Clients of a chunk where each trains alone.
_FEW = 8


class SimulatedPopulation(LocalPopulation):
    """Clients as pairs of tensors.

    Args:
        clients: For each client its inputs and targets, first axes of equal length; a client may have none. A sequence that
            reads them when it is asked may draw random numbers, as for crops of images, from torch alone.
        loss: Mean loss of a batch from the module's output and the targets.
        local: What a client does in a round; by default one pass of SGD over its examples.
        seed: Of shuffles and dropout; a run with secure noise draws them under a secret key instead. By one plan of execution,
            a client's contribution depends on the model, its own data and its own seed alone. So a module must not keep plain
            attributes from one call to the next; frozen parameters and buffers are restored.
        lattice: Whether clipped updates are summed as integers, as a release needs; ``False`` sums in floating point, for
            simulations only.
        execution: How sums are computed. One plan gives the same bits with any number of ranks; two plans agree to 1e-5 of an
            update.
        ranks: The processes that divide a cohort, each of which makes the population; by default this one alone.

    A client whose training raises, or whose examples cannot be read, adds an update of zero; the logger ``hubbub`` and the
    private ``failed`` of a round's statistics report it to the operator.

    Raises:
        DataError: No client, or clients that are not pairs of tensors of one length; or examples of several shapes or dtypes,
            if clients share a stack or a memory: one client's form would decide over the computation of the others.

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
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(clients, "client", ranks, seed)
        self._execution = execution or Execution()
        require_loss(loss)
        _require_examples(clients, self._execution)
        self._examples, self._loss, self._local, self._seed = clients, loss, local or LocalTraining(), seed
        self._lattice = lattice
        self._device = torch.device(self._execution.device)
        named = clients_at_once(self._execution.plan)
        self._choice = None if named is None else Choice(named, "as training.plan says")
        # The model of the choice, that on which all ranks agree with what trains its clients, and what trains a client alone.
        self._chosen: nn.Module | None = None
        self._agreed: nn.Module | None = None
        self._trainer: Trainer
        self._single: tuple[nn.Module, OneByOne] | None = None
        # Clients that failed since the last call of failed().
        self._failed = 0

    @property
    def plan(self) -> str:
        """The plan in use, by its name; ``"auto"`` until one was chosen."""
        return AUTO if self._choice is None else self._choice.plan

    def prepare(self, model: nn.Module, cohort: int) -> None:
        """Choose how clients are computed, as :meth:`choose` does; on several ranks by the clock of rank 0.

        Raises:
            RankError: A rank has other clients, or there a client's bits would depend on the others.
        """
        # Copies of the model: frozen parameters may have changed since another run.
        self._chosen = self._single = None
        self._ranks.require_same("data, loss, local training or seed", self._fixed)
        self._choice = choice = self._ranks.lead(lambda: self.choose(model, cohort))
        self._ranks.require_same("number of clients that can train at once", lambda: self.choose(model, cohort).clients)
        keep_freed_memory()
        self._trainer = trainer(choice.clients, model, self._loss, self._local, self._execution)
        self._agreed = model

    def _fixed(self) -> str:
        """A digest of everything but the model that a client's update depends on."""
        given = list[object]([self._local, self._seed, self._lattice, self._execution, word(self._loss)])
        for client in self.clients:
            try:
                job = self._job(client, 0)
                given += [job.inputs, job.targets]
            except Exception as error:  # noqa: BLE001 # whatever this client's examples raise
                given.append(type(error).__name__)
        return fingerprint(*given)

    def choose(self, model: nn.Module, cohort: int) -> Choice:
        """A plan for cohorts of about this size, unless one was named or chosen before.

        Raises:
            ConfigError: Model and loss fail on a probe batch of every form that clients have, or carry state from one client to
                the next; or the sums are secure and, by the named plan, a client's bits depend on its place in the stack.
        """
        if model is not self._chosen or self._choice is None:
            require_trainable(model, self._loss)
            self._choice = self._sound(self._choice, self._runnable(model, self._choice.clients if self._choice else 1), cohort)
            self._chosen = model
        return self._choice

    def _runnable(self, model: nn.Module, at_once: int) -> Probe | None:
        """A probe batch on which the model runs; ``None`` if no client has an example.

        A form on which it fails may be one client's own fault: the run stops only if it fails on every form, or if on one what
        it makes of a client depends on others.
        """
        tried: set[object] = set()
        found: Probe | None = None
        why: Exception | None = None
        for client in self.clients:
            try:
                job = self._job(client, 0)
                form = tuple((tuple(part.shape[1:]), part.dtype) for part in (job.inputs, job.targets))
                if len(job.inputs) and form not in tried:
                    tried.add(form)
                    again = self._job(client, 0)
                    if fingerprint(job.inputs, job.targets) != fingerprint(again.inputs, again.targets):
                        raise DataError(
                            f"client {client}: gives other examples at each reading; let torch alone draw at random"
                        )
                    probe = Probe(model, self._loss, self._local, self._execution, job)
                    probe.require_steady(at_once)
                    found = found or probe
                    if self._execution.plan != "one-by-one":
                        # All clients have one form.
                        break
            except UnsteadyError:
                raise
            except ConfigError as error:
                why = error
            except Exception as error:  # noqa: BLE001 # whatever this client's examples raise
                require_own(error)
                why = why or error
        if found is None and why is not None:
            raise why
        return found

    def _sound(self, named: Choice | None, probe: Probe | None, cohort: int) -> Choice:
        """The named choice, if by it each client gets its own update, in a secure sum to the last bit; a new one without it."""
        if probe is None:
            return named or Choice(1, "since no client has an example")
        if named is None:
            return probe.choice(max(1, cohort))
        # More than rounding, of parameters of 32 bits.
        unlike = named.clients > 1 and not probe.agrees(named.clients, 1e-3)
        if unlike or (named.clients > 1 and self._lattice and not probe.independent(named.clients)):
            if self._execution.plan == AUTO:
                return Choice(1, "since many at a time a client would get another update")
            raise ConfigError(
                f"plan = {named.plan!r}: on this machine a client's last bits depend on where it stands in the stack, and so "
                "on who else takes part, or its update is another than alone, as with statistics of a batch; say 'auto' or "
                "'one-by-one', or, with parameters of 32 bits or more, another number of clients"
            )
        return named

    def collect(
        self, cohort: Cohort, model: nn.Module, clip_norm: float | None, round_index: int, split: CountSplit | None = None
    ) -> LatticeSum | PlainSum:
        """The sum of the cohort's updates, clipped unless ``clip_norm`` is ``None``, ``(dim,)``.

        With a ``split`` each client's indicator is one more coordinate, ``(dim + 1,)``.

        Args:
            cohort: Clients, by their numbers.
            model: The global model.
            clip_norm: The largest L2 norm of an update; ``None`` clips nothing.
            round_index: t, from 0.
            split: How the noise is split between updates and the count of those that were not clipped.

        Raises:
            ConfigError: The module does not run by the plan that was named.
            RankError: Another rank failed or ended.
        """
        lattice = lattice_of(clip_norm, split) if self._lattice and clip_norm is not None else None
        dim = sum(p.numel() for p in trainable(model).values()) + (split is not None)
        zero = torch.zeros(dim, dtype=torch.int64 if lattice else torch.float64, device=self._device)
        chunks = self._chunks(cohort, model)

        def chunk(clients: Sequence[int], total: torch.Tensor) -> tuple[int, list[float], int]:
            clipped, losses = 0, list[float]()
            for _, update, loss in self.updates(clients, model, round_index):
                added, was_clipped = bounded(update, clip_norm, lattice, split)
                total += added
                clipped += was_clipped
                losses.append(loss)
            failed, self._failed = self._failed, 0
            return clipped, losses, failed

        def terms() -> str:
            return fingerprint(chunks, clip_norm, round_index, sorted(self._adversaries), flat_parameters(model))

        whole, found = self._ranks.summed([partial(chunk, clients) for clients in chunks], zero, terms)
        self._failed = sum(failed for _, _, failed in found)
        losses = [loss for _, some, _ in found for loss in some]
        private = statistics(len(cohort), sum(clipped for clipped, _, _ in found), losses) | self.failed()
        return LatticeSum(whole, lattice, private) if lattice else PlainSum(whole, private)

    def updates(self, cohort: Cohort, model: nn.Module, round_index: int) -> Iterator[tuple[int, torch.Tensor, float]]:
        """Each client's number, its update ``(dim,)``, and its mean loss; in this process, in the order that suits the plan.

        The update of a client whose training raises is zero, and its loss NaN; see :meth:`failed`.

        Args:
            cohort: Clients' numbers.
            model: The global model, which stays as it is.
            round_index: From 0.

        Raises:
            ConfigError: The module does not run by the plan that was named, or an injected update is no vector of its length.
        """
        chunks, at_once = self._chunks(cohort, model), self.choose(model, len(self._examples)).clients

        def together(some: Sequence[int]) -> list[Trained]:
            return list(self._trainer.train(model, [self._job(client, round_index) for client in some]))

        def nothing(client: int, error: Exception) -> list[Trained]:
            self._failed += 1
            note(f"client {client}", reason(error))
            return [Trained(client, torch.zeros_like(flat_parameters(model), device=self._device), math.nan)]

        for chunk in chunks:
            own = [client for client in chunk if client not in self._adversaries]
            for first in range(0, len(own), at_once):
                # One that fails changes nobody else's bits.
                for trained in chain.from_iterable(isolated(together, own[first : first + at_once], nothing)):
                    yield trained.client, trained.update, trained.loss
            for client, update in self._injected(chunk, model, round_index):
                yield client, update.to(self._device), math.nan

    def measure(self, cohort: Cohort, model: nn.Module) -> list[Values]:
        """``accuracy``, mean ``loss`` and number of ``examples`` of each client; ``None`` if it has none, or fails."""
        numbers = [int(str(client)) for client in cohort]
        return [measured(model, partial(self._examples.__getitem__, n), self._loss, f"client {n}") for n in numbers]

    def failed(self) -> dict[str, float]:
        """How many clients failed since the last call, for the operator alone; empty if none did."""
        failed, self._failed = self._failed, 0
        return {"failed": float(failed)} if failed else {}

    def train_client(self, client: int, model: nn.Module, round_index: int) -> tuple[torch.Tensor, float]:
        """One client's training in a round, as on a machine of its own.

        Args:
            client: Its number.
            model: The global model, which stays as it is.
            round_index: From 0.

        Returns:
            The trained parameters as one vector, ``(dim,)``, which the next call overwrites, and the mean loss over batches.

        Raises:
            ConfigError: As for :meth:`choose`; also raised is whatever the client's own data or code raise.
        """
        for _, update in self._injected([client], model, round_index):
            start = flat_parameters(model).to(self._device)
            return (start.to(torch.float64) + update.to(self._device)).to(start.dtype), math.nan
        if client in self._adversaries:
            raise ConfigError(f"client {client}: the adversary does not answer in round {round_index}")
        if self._single is None or self._single[0] is not model:
            self._runnable(model, 1)
            self._single = model, OneByOne(model, self._loss, self._local, self._execution)
        return self._single[1].trained(flat_parameters(model).to(self._device), self._job(client, round_index))

    def _chunks(self, cohort: Cohort, model: nn.Module) -> list[list[int]]:
        """The cohort in parts that are trained together: clients with similar numbers of examples."""
        # By the number of all clients, unless the plan is known: who takes part must not decide over a plan.
        if model is not self._agreed:
            self.prepare(model, len(self._examples))
        at_once = self.choose(model, len(self._examples)).clients
        size = at_once if at_once > 1 else _FEW
        ordered = sorted((int(str(client)) for client in cohort), key=lambda client: (-self._count(client), client))
        return [ordered[i : i + size] for i in range(0, len(ordered), size)]

    def _count(self, client: int) -> int:
        """How many examples a client has; 0 if they cannot be read, which is reported when it trains."""
        try:
            return len(self._examples[client][0])
        except Exception as error:  # noqa: BLE001 # whatever this client's examples raise
            require_own(error)
            return 0

    def _job(self, client: int, round_index: int) -> Job:
        seed = seed_for(self._key, client, round_index)
        # Examples may be drawn when they are read, as those of images that are cropped.
        with own_generators(self._device):
            seed_generators(seed, self._device)
            inputs, targets = self._examples[client]
        # Detached: a graph behind the inputs, as of features, would be freed by whoever trains first.
        return Job(client, inputs.detach(), targets.detach(), seed, round_index)


def _require_examples(clients: Sequence[object], execution: Execution) -> None:
    """Refuse what is no list of pairs of tensors of one length; and several forms, if clients share a stack or a memory."""
    if not isinstance(clients, Sized) or not hasattr(clients, "__getitem__") or not len(clients):
        what = "the list is empty" if isinstance(clients, Sized) and not len(clients) else f"is a {type(clients).__name__}"
        raise DataError(
            f"clients: {what}; give a list of the pairs (inputs, targets), two tensors for each client, such as "
            "torch.stack([x for x, _ in dataset]) of a data set"
        )
    alone, known, unread = execution.plan == "one-by-one", None, 0
    for i in range(len(clients)):
        try:
            pair = clients[i]
        except Exception as error:
            # It counts as zero when it trains, unless that is true of all.
            require_own(error)
            if unread == i == len(clients) - 1:
                raise DataError(f"clients: none can be read ({type(error).__name__}: {error})") from error
            unread += 1
            continue
        # Such as the tensors of one client, whose rows would pass for clients.
        if not isinstance(pair, Sequence) or len(pair) != 2:
            what = type(pair).__name__ + (f" of {len(pair)}" if isinstance(pair, Sequence) else "")
            raise DataError(
                f"clients[{i}]: is a {what}, must be the pair (inputs, targets) of one client; of one client alone give "
                "clients=[(inputs, targets)]"
            )
        for what, part in zip(("inputs", "targets"), pair, strict=True):
            if not isinstance(part, torch.Tensor):
                raise DataError(f"client {i}: its {what} are a {type(part).__name__}; make a torch.Tensor of them")
        if len(pair[0]) != len(pair[1]):
            raise DataError(f"client {i}: has {len(pair[0])} inputs and {len(pair[1])} targets")
        form = [(tuple(part.shape[1:]), part.dtype) for part in pair]
        known = known or (form if len(pair[0]) else None)
        if not alone and len(pair[0]) and form != known:
            raise DataError(
                f"client {i}: has examples of the form {form}, those before it {known}; with plan = {execution.plan!r} all "
                "must have one: make them alike, or say plan = 'one-by-one'"
            )
